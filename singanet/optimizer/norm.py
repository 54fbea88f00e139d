"""Norms of gradients, with little memory and exact enough sums."""

from __future__ import annotations

from typing import Any

import numpy as np

from singanet.ops import Ops, ops_for
from singanet.ops.kernel import in_float32
from singanet.types import Array, RowSparse

BLOCK = 1 << 15
"""Elements that are summed in their own type."""


def sum_of_squares(grad: Array | RowSparse) -> Any:
    """Σ g² over a gradient, dense or row-sparse, as a float64, or an array of it without axes.

    Blocks are summed in the array's own type and then as doubles, so that the error does not
    grow with the number of elements.
    """
    if isinstance(grad, RowSparse):
        return ops_for(grad.rows).of_rows(sum_of_squares, *grad)
    ops = ops_for(grad)
    if grad.size <= BLOCK:
        return _of_block(ops.xp, _flat(grad))
    total = ops.xp.empty((), np.float64)
    # Of a large table there are hundreds of blocks, which are one call of a program.
    ops.as_one(_sum_over_blocks, (total,), (grad,), (1, np.float64), grad.size)
    return total


def _sum_over_blocks(ops: Ops, room: Array, total: Array, grad: Array) -> None:
    flat = _flat(grad)
    total[...] = _of_block(ops.xp, flat[:BLOCK])
    for start in range(BLOCK, flat.size, BLOCK):
        part = flat[start : start + BLOCK]
        total += _of_block(ops.xp, part)


def _flat(array: Array) -> Array:
    # In memory order where there is one, so that no copy is made of a transposed gradient.
    return array.T.reshape(-1) if array.flags.f_contiguous else array.reshape(-1)


@in_float32
def _of_block(xp: Any, flat: Array) -> Any:
    return xp.dot(flat, flat).astype(np.float64)
