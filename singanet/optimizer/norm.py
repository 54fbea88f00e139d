"""Norms of gradients, with little memory and exact enough sums."""

from __future__ import annotations

from typing import Any

import numpy as np

from singanet.ops import ops_for
from singanet.types import Array, RowSparse

BLOCK = 1 << 15
"""Elements that are summed in their own type."""


def sum_of_squares(grad: Array | RowSparse) -> Any:
    """Σ g² over a gradient, dense or row-sparse, as a float64, or an array of it without axes.

    Blocks are summed in the array's own type and then as doubles, so that the error does not
    grow with the number of elements.
    """
    array = grad.rows if isinstance(grad, RowSparse) else grad
    xp = ops_for(array).xp
    # In memory order where there is one, so that no copy is made of a transposed gradient.
    flat = array.T.reshape(-1) if array.flags.f_contiguous else array.reshape(-1)
    total = xp.dot(flat[:BLOCK], flat[:BLOCK]).astype(np.float64)
    for start in range(BLOCK, flat.size, BLOCK):
        part = flat[start : start + BLOCK]
        total = total + xp.dot(part, part)
    return total
