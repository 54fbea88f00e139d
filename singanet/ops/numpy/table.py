"""Rows read from a table, and gradients added up by row."""

from __future__ import annotations

import numpy as np

from singanet.ops.interface import Ops
from singanet.ops.kernel import kernel
from singanet.types import Array, RowSparse


@kernel(half="native")
def gather_rows(ops: Ops, table: Array, indices: Array) -> Array:
    """See `Ops`."""
    return ops.xp.take(table, indices, axis=0)


@kernel(half="native")
def sum_rows(ops: Ops, indices: Array, rows: Array) -> tuple[Array, Array]:
    """See `Ops`."""
    xp = ops.xp
    indices = indices.astype(np.int64, copy=False)
    if not len(indices):
        return indices, rows
    order = xp.argsort(indices, kind="stable")
    # Taking rows of a matrix is quicker than indexing them.
    ordered, rows = xp.take(indices, order), xp.take(rows, order, axis=0)
    first = xp.ones(len(ordered), bool)
    xp.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    starts = xp.flatnonzero(first)
    return ordered[starts], xp.add.reduceat(rows, starts, axis=0)


@kernel(half="native")
def add_rows(ops: Ops, a: RowSparse, b: RowSparse) -> tuple[Array, Array]:
    """See `Ops`."""
    indices = ops.concat([a.indices, b.indices], axis=0)
    return ops.sum_rows(indices, ops.concat([a.rows, b.rows], axis=0))


@kernel(half="native")
def add_to_rows(ops: Ops, array: Array, indices: Array, rows: Array) -> Array:
    """See `Ops`."""
    total: Array = array.copy()
    total[indices] += rows
    return total
