"""What each operator of ONNX becomes: a file for each family, one table."""

from __future__ import annotations

from collections.abc import Mapping

from singanet.onnx.operators.attention import ATTENTION
from singanet.onnx.operators.dense import DENSE
from singanet.onnx.operators.einsum import EINSUM
from singanet.onnx.operators.elementwise import ELEMENTWISE
from singanet.onnx.operators.moving import MOVING
from singanet.onnx.operators.normalising import NORMALISING
from singanet.onnx.operators.picking import PICKING
from singanet.onnx.operators.recurrent import RECURRENT
from singanet.onnx.operators.reducing import REDUCING
from singanet.onnx.operators.spatial import SPATIAL
from singanet.onnx.use import Converter

TABLE: Mapping[str, Converter] = {
    **ELEMENTWISE, **MOVING, **PICKING, **REDUCING, **DENSE, **SPATIAL, **NORMALISING, **RECURRENT,
    **ATTENTION, **EINSUM,
}  # fmt: skip

__all__ = ["TABLE"]
