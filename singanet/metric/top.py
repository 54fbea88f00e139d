"""Labels among the highest scores."""

from __future__ import annotations

from singanet.ops.interface import Ops
from singanet.types import Array


def hits(ops: Ops, x: Array, labels: Array, top_k: int) -> Array:
    """How many of the ``top_k`` highest of each row of ``x`` (B, C) are labels, as floats (B,)."""
    xp = ops.xp
    # Stable, so that of equal scores the lowest class comes first.
    first = xp.argsort(-x.astype("float64"), axis=1, kind="stable")[:, :top_k]
    return xp.take_along_axis(labels, first, axis=1).sum(axis=1, dtype="float64")
