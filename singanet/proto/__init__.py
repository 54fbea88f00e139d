"""Protobuf schemas and the code generated from them.

``core.proto`` is SINGA's record of a tensor, ``net.proto`` the description of a net.

Generate again, from the folder above ``singanet``, with a compiler no newer than the protobuf
that pyproject.toml asks for, since older runtimes refuse what newer compilers write:
``pip install grpcio-tools==1.64.3`` and, for each schema,
``python -m grpc_tools.protoc -I. --python_out=. singanet/proto/core.proto``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from singanet.proto import core_pb2

if TYPE_CHECKING:
    from singanet.proto.net_message import net_from_proto, net_to_proto
    from singanet.proto.net_pb2 import NetConfig

__all__ = ["NetConfig", "TensorProto", "net_from_proto", "net_to_proto"]

TensorProto = core_pb2.TensorProto


def __getattr__(name: str) -> Any:
    """The description of nets, which knows layers, when it is first asked for."""
    if name == "NetConfig":
        return import_module("singanet.proto.net_pb2").NetConfig
    if name in ("net_from_proto", "net_to_proto"):
        return getattr(import_module("singanet.proto.net_message"), name)
    raise AttributeError(f"module 'singanet.proto' has no attribute {name!r}")
