"""Protobuf messages: SINGA's record of a tensor, and the description of a net as a message."""

from __future__ import annotations

from singanet.saving.nets import net_from_proto, net_to_proto
from singanet.schema.core_pb2 import TensorProto
from singanet.schema.net_pb2 import NetConfig

__all__ = ["NetConfig", "TensorProto", "net_from_proto", "net_to_proto"]
