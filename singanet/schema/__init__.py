"""Protobuf schemas and the code generated from them.

``core.proto`` is SINGA's record of a tensor, ``net.proto`` the description of a net,
``onnx.proto`` what is used of the exchange format's graphs.

Generate again, from the folder above ``singanet``, with a compiler no newer than the protobuf
that pyproject.toml asks for, since older runtimes refuse what newer compilers write:
``pip install grpcio-tools==1.64.3`` and, for each schema,
``python -m grpc_tools.protoc -I. --python_out=. singanet/schema/core.proto``.
"""

from __future__ import annotations

__all__: list[str] = []
