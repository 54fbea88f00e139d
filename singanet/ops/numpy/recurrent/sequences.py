"""Layouts of batches of sequences: time-major memory for the kernels, ragged batches by counts.

Outside, a batch of sequences is (N, T, F); inside the recurrent kernels it is (T, N, F).

In a ragged batch the samples stand in order of falling length, so that step t concerns the
first ``counts[t]`` rows and no kernel needs a mask.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from singanet.ops.interface import Ops
from singanet.ops.kernel import kernel
from singanet.ops.numpy.recurrent.gates import clear_past
from singanet.types import Array


@kernel(half="native")
def host(ops: Ops, array: Array) -> Array:
    """See `Ops`."""
    return array.get() if hasattr(array, "get") else np.asarray(array)


@kernel(half="native")
def take_rows(ops: Ops, array: Array, order: Array | None) -> Array:
    """See `Ops`."""
    if order is None:
        return array
    return ops.xp.take(array, order, axis=0)


@kernel(half="native")
def time_major(
    ops: Ops, x: Array, order: Array | None = None, counts: Sequence[int] | None = None
) -> Array:
    """See `Ops`."""
    rows = ops.take_rows(x, order).transpose(1, 0, 2)
    if counts is None:
        return ops.xp.ascontiguousarray(rows)
    copy: Array = ops.xp.array(rows, order="C")
    clear_past(copy, counts)
    return copy


@kernel(half="native")
def batch_major(ops: Ops, y: Array, inverse: Array | None = None) -> Array:
    """See `Ops`."""
    return ops.take_rows(y.transpose(1, 0, 2), inverse)


@kernel(half="native")
def side_by_side(ops: Ops, parts: Sequence[Array], counts: Sequence[int] | None) -> Array:
    """See `Ops`."""
    if len(parts) == 1 and counts is None:
        return parts[0]
    joined: Array = ops.xp.concatenate(parts, axis=2)
    if counts is not None:
        clear_past(joined, counts)
    return joined
