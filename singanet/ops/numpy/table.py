"""Rows read from a table, and gradients added up by row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from singanet.ops.held import HeldMatrix
from singanet.ops.interface import Ops, Runs
from singanet.ops.kernel import in_float32, kernel
from singanet.ops.numpy import held
from singanet.types import Array, RowSparse

_LONG = 16
"""Rows of a run above which it is summed by a call of its own."""

_AT_A_TIME = 1 << 16
"""Elements of rows that are changed at a time."""

_MANY = 1 << 10
"""Numbers from which on counting them takes less time than comparing; twice so many in halves."""

_WIDE = 32
"""Elements of a row from which on rows are added as wholes."""


@kernel(half="native")
def gather_rows(ops: Ops, table: Array, indices: Array) -> Array:
    if isinstance(table, HeldMatrix):
        return held.gather_rows(ops, table, indices)
    return ops.xp.take(table, indices, axis=0)


@kernel(half="native")
def sum_rows(
    ops: Ops, indices: Array, rows: Array, runs: Callable[[Array], Runs] | None = None
) -> tuple[Array, Array]:
    indices = indices.astype(np.int64, copy=False)
    if not len(indices):
        return indices, rows
    on_host = ops.xp is np
    found = runs_of(ops.xp, indices) if runs is None or not on_host else runs(indices)
    return found.distinct, _sums_of_runs(ops.xp, rows, found.order, found.starts)


def runs_of(xp: Any, indices: Array) -> Runs:
    """The runs of equal ``indices`` (K,), of int64, in a stable order."""
    order = _stable_order(xp, indices)
    # Taking rows of a matrix is quicker than indexing them.
    ordered = xp.take(indices, order)
    first = xp.ones(len(ordered), bool)
    xp.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    starts = xp.flatnonzero(first)
    return Runs(ordered[starts], order, starts)


def _stable_order(xp: Any, indices: Array) -> Array:
    """The stable order of ``indices``; NumPy counts numbers of 16 bits, and compares others."""
    if xp is np and len(indices) >= _MANY and indices.min() >= 0:
        bits = int(indices.max()).bit_length()
        low = indices.astype(np.uint16)
        if bits <= 16:
            return np.argsort(low, kind="stable")
        if bits <= 32 and len(indices) >= 2 * _MANY:
            order = np.argsort(low, kind="stable")
            high = (np.take(indices, order) >> 16).astype(np.uint16)
            return np.take(order, np.argsort(high, kind="stable"))
    found: Array = xp.argsort(indices, kind="stable")
    return found


@in_float32
def _sums_of_runs(xp: Any, rows: Array, order: Array, starts: Array) -> Array:
    """The sums of the runs of ``rows``, taken in ``order``, that begin at ``starts``.

    As ``xp.add.reduceat``'s, which goes down the columns, and takes ten times as long where the
    rows are wide; and without another array of all of them.
    """
    narrow = rows.size < _WIDE * len(rows)
    if xp is not np or narrow or rows.dtype.itemsize < 4:
        total: Array = xp.add.reduceat(xp.take(rows, order, axis=0), starts, axis=0)
        return total
    lengths = np.diff(starts, append=len(rows))
    total = np.take(rows, order[starts], axis=0)
    ones = np.ones(int(lengths.max()), rows.dtype)
    flat, sums = rows.reshape(len(rows), -1), total.reshape(len(total), -1)
    for run in np.flatnonzero(lengths > _LONG).tolist():
        first, count = int(starts[run]), int(lengths[run])
        np.dot(ones[:count], np.take(flat, order[first : first + count], axis=0), sums[run])
    runs = np.flatnonzero((lengths > 1) & (lengths <= _LONG))
    place = 1
    while len(runs):
        total[runs] += np.take(rows, order[starts[runs] + place], axis=0)
        place += 1
        runs = runs[lengths[runs] > place]
    return total


@kernel(half="native")
def add_rows(ops: Ops, a: RowSparse, b: RowSparse) -> tuple[Array, Array]:
    indices = ops.concat([a.indices, b.indices], axis=0)
    return ops.sum_rows(indices, ops.concat([a.rows, b.rows], axis=0))


@kernel(half="native")
def of_rows(ops: Ops, function: Callable[[Array], Array], indices: Array, rows: Array) -> Array:
    return function(rows)


@kernel(half="native")
def map_rows(
    ops: Ops, function: Callable[..., RowSparse], indices: Array, rows: Array, *numbers: Any
) -> tuple[Array, Array]:
    return function(RowSparse(indices, rows), *numbers)


@kernel(half="native")
def add_to_rows(
    ops: Ops, array: Array, indices: Array, rows: Array, out: Array | None = None
) -> Array:
    total: Array = array.copy() if out is None else out
    # Rows that are changed are taken out for that, and put back.
    count = max(1, _AT_A_TIME * len(indices) // max(rows.size, 1))
    for start in range(0, len(indices), count):
        part = slice(start, start + count)
        total[indices[part]] += rows[part]
    return total
