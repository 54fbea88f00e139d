"""Sums and dense forms of gradients, which may be row-sparse."""

from __future__ import annotations

from singanet.ops.interface import Ops
from singanet.types import Array, Gradient, RowSparse, Shape


def add_gradients(ops: Ops, a: Gradient, b: Gradient) -> Gradient:
    """The sum of two gradients of one parameter, as a new one; row-sparse where both are."""
    if isinstance(a, RowSparse):
        if not isinstance(b, RowSparse):
            return ops.add_to_rows(b, a.indices, a.rows)
        indices = ops.concat([a.indices, b.indices], axis=0)
        return RowSparse(*ops.sum_rows(indices, ops.concat([a.rows, b.rows], axis=0)))
    if isinstance(b, RowSparse):
        return ops.add_to_rows(a, b.indices, b.rows)
    return ops.add(a, b)


def dense_gradient(ops: Ops, grad: Gradient, shape: Shape) -> Array:
    """``grad`` as an array of ``shape``, that of its parameter."""
    if isinstance(grad, RowSparse):
        return ops.add_to_rows(ops.zeros(shape, grad.rows), grad.indices, grad.rows)
    return grad
