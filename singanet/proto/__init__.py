"""The schema of SINGA's records, ``core.proto``, and ``core_pb2.py`` generated from it.

Generate again, from the folder above ``singanet``, with a compiler no newer than the protobuf
that pyproject.toml asks for, since older runtimes refuse what newer compilers write:
``pip install grpcio-tools==1.64.3`` and
``python -m grpc_tools.protoc -I. --python_out=. singanet/proto/core.proto``.
"""

from __future__ import annotations

from singanet.proto import core_pb2

__all__ = ["TensorProto"]

TensorProto = core_pb2.TensorProto
