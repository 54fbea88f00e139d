"""Layouts of batches of sequences: outside (N, T, F), inside the recurrent kernels (T, N, F)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from singanet.ops.interface import Ops
from singanet.ops.kernel import kernel
from singanet.ops.numpy.recurrent.gates import clear
from singanet.types import Array


@kernel(half="native")
def host(ops: Ops, array: Array) -> Array:
    return array.get() if hasattr(array, "get") else np.asarray(array)


@kernel(half="native")
def time_major(ops: Ops, x: Array, skips: Array | None = None) -> Array:
    rows = x.transpose(1, 0, 2)
    if skips is None:
        return ops.xp.ascontiguousarray(rows)
    copy: Array = ops.xp.array(rows, order="C")
    clear(ops, skips, copy)
    return copy


@kernel(half="native")
def batch_major(ops: Ops, y: Array) -> Array:
    return y.transpose(1, 0, 2)


@kernel(half="native")
def side_by_side(ops: Ops, parts: Sequence[Array], skips: Array | None) -> Array:
    if len(parts) == 1 and skips is None:
        return parts[0]
    joined: Array = ops.xp.concatenate(parts, axis=2)
    clear(ops, skips, joined)
    return joined
