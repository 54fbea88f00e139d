"""Norms of gradients, with little memory and exact enough sums."""

from __future__ import annotations

from singanet.ops import ops_for
from singanet.types import Array, RowSparse

_BLOCK = 1 << 17


def sum_of_squares(grad: Array | RowSparse) -> float:
    """Σ g² over a gradient, dense or row-sparse.

    Blocks are summed in the array's own type and then as doubles, so that the error does not
    grow with the number of elements.
    """
    array = grad.rows if isinstance(grad, RowSparse) else grad
    xp = ops_for(array).xp
    # In memory order where there is one, so that no copy is made of a transposed gradient.
    flat = array.T.reshape(-1) if array.flags.f_contiguous else array.reshape(-1)
    if flat.size <= _BLOCK:
        return float(xp.dot(flat, flat))
    blocks = range(0, flat.size, _BLOCK)
    return sum(float(xp.dot(part, part)) for part in (flat[i : i + _BLOCK] for i in blocks))
