"""Multiply matrices and access tables by NumPy.

A kernel processes its lanes one after the other; a recorded program runs their calls concurrently.
NumPy's own calls use one thread, except large products.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from singanet.ops.blas import product
from singanet.ops.interface import Ops, Runs
from singanet.ops.kernel import in_float32, in_order, kernel
from singanet.ops.narrow import NarrowMatrix, WatchedMatrix
from singanet.ops.narrow_products import any_rows, few_rows
from singanet.ops.threads import default_threads
from singanet.types import Array, RowSparse

FEW = 4
"""Rows up to which the time goes into reading the matrix."""
_IN_CACHE_ROWS = 64
"""Rows up to which widening by the nearest cache's size pays."""


@kernel(half="product")
def multiply_widened(ops: Ops, x: Array, held: NarrowMatrix, *, out: Array | None = None) -> Array:
    y = ops.empty((len(x), held.shape[1]), x) if out is None else out
    if isinstance(held, WatchedMatrix) and not held.transposed:
        held.seen(x)
    if held.transposed:
        for part in held.parts():
            plain = held.columns(part.start, part.stop).T
            if part.start:
                ops.add_matmul(y, x[:, part], plain)
            else:
                ops.matmul(x[:, part], plain, out=y)
    elif not ops.on_host:
        for part in held.parts():
            # CuPy's products cannot write to strided memory.
            y[:, part] = ops.matmul(x, held.columns(part.start, part.stop))
    elif len(x) <= _IN_CACHE_ROWS:
        y[...] = held.few(x)
    else:
        for part in held.parts():
            ops.matmul(x, held.columns(part.start, part.stop), out=y[:, part])
    return y


multiply_held = in_order(few_rows, any_rows, last=multiply_widened)


def held_matmul(ops: Any, a: Array, held: NarrowMatrix, out: Array | None) -> Array:
    """Compute `Ops.matmul` by a narrow matrix."""
    made: Array = ops.multiply_held(a, held, out=out)
    return made


def held_affine(ops: Any, x: Array, held: NarrowMatrix, bias: Array | None) -> Array:
    """Compute `Ops.affine` by a narrow matrix."""
    y: Array = ops.multiply_held(x, held)
    return y if bias is None else ops.add(y, bias, out=y)


def gather_rows(ops: Any, table: NarrowMatrix, indices: Array) -> Array:
    """Compute `Ops.gather_rows` of a narrow matrix."""
    flat = indices.reshape(-1)
    rows = table.picked(flat) if table.transposed else table.whole()[flat]
    return ops.xp.ascontiguousarray(rows).reshape(*indices.shape, rows.shape[1])


_LONG = 16
"""Rows of a run above which it is summed by a call of its own."""

_AT_A_TIME = 1 << 16
"""Elements of rows that are changed at a time."""

_MANY = 1 << 10
"""Indices from which a counting sort is faster than comparisons; twice as many for 32 bits."""

_WIDE = 32
"""Elements of a row from which whole rows are added."""


@kernel(half="native")
def table_gather_rows(ops: Ops, table: Array, indices: Array) -> Array:
    if isinstance(table, NarrowMatrix):
        return gather_rows(ops, table, indices)
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
    """Return the runs of equal int64 ``indices`` (K,), in a stable order."""
    order = _stable_order(xp, indices)
    # `take` of a matrix's rows is faster than indexing.
    ordered = xp.take(indices, order)
    first = xp.ones(len(ordered), bool)
    xp.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    starts = xp.flatnonzero(first)
    return Runs(ordered[starts], order, starts)


def _stable_order(xp: Any, indices: Array) -> Array:
    """Return the stable order of ``indices``; NumPy counts 16-bit integers, and compares others."""
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
    """Return the sums of the runs of ``rows``, permuted by ``order``, that start at ``starts``.

    The result is ``xp.add.reduceat``'s, which runs down the columns and takes ten times as long for
    wide rows. This needs no permuted copy of all rows.
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
    # The changed rows are copied, added to, and written back, in parts.
    count = max(1, _AT_A_TIME * len(indices) // max(rows.size, 1))
    for start in range(0, len(indices), count):
        part = slice(start, start + count)
        total[indices[part]] += rows[part]
    return total


LEAST = 1 << 24
"""Multiplications below which a kernel ends before a second thread has woken."""

SWEEP = 16
"""Multiplications of a product in the time of one memory access."""


def count(samples: int, multiplications: int) -> int:
    """Return the number of lanes that the work on NumPy's arrays is worth."""
    if multiplications < LEAST:
        return 1
    return max(1, min(default_threads(), samples))


def sum_of(ops: Ops, sums: list[Array]) -> Array:
    """Return the sum of the lanes' sums, in place of the first."""
    for other in sums[1:]:
        ops.xp.add(sums[0], other, out=sums[0])
    return sums[0]


def parts(samples: int, number: int) -> list[slice]:
    """Return ``number`` slices of about equal length."""
    edges = [samples * part // number for part in range(number + 1)]
    return [slice(first, last) for first, last in pairwise(edges)]


_PRODUCT_BYTES = 1 << 22
"""Bytes of a product before it is added: it stays in the cache."""

_ROWS = 1 << 11
"""Rows at a time: for more, OpenBLAS has buffers of its own, up to 19 MB a thread."""


@kernel(half="product")
def matmul(ops: Ops, a: Array, b: Array, *, out: Array | None = None) -> Array:
    if isinstance(b, NarrowMatrix):
        return held_matmul(ops, a, b, out)
    if a.ndim == b.ndim == 2 and a.shape[1] == len(b) == 1:
        # A column times a row, such as a weight's gradient at batch size 1: NumPy's product takes
        # four times as long, element by element.
        return ops.xp.multiply(a, b, out=out)
    return in_lanes(ops, a, b, out)


@kernel(half="native")
def add_matmul(ops: Ops, y: Array, a: Array, b: Array) -> Array:
    wide = y.shape[1] > len(y)
    count, other = (y.shape[1], len(y)) if wide else y.shape
    most = max(1, _PRODUCT_BYTES // max(1, other * y.itemsize))
    for lane in ops.lanes(count, count * other * a.shape[1]):
        for start in range(lane.start, lane.stop, most):
            part = slice(start, min(start + most, lane.stop))
            room, left, right = (y[:, part], a, b[:, part]) if wide else (y[part], a[part], b)
            ops.xp.add(room, product(ops.xp, left, right), out=room)
    return y


@kernel(half="product")
def affine(ops: Ops, x: Array, weight: Array, bias: Array | None) -> Array:
    if isinstance(weight, NarrowMatrix):
        return held_affine(ops, x, weight, bias)
    y = in_lanes(ops, x, weight)
    if bias is not None:
        ops.xp.add(y, bias, out=y)
    return y


@kernel(half="product")
def affine_constant(
    ops: Ops, x: Array, weight: Array, bias: Array | None, relu: bool = False
) -> Array:
    y = ops.affine(x, weight, bias)
    return ops.xp.maximum(y, 0, out=y) if relu else y


def in_lanes(ops: Ops, a: Array, b: Array, out: Array | None = None) -> Array:
    """Return the product; each lane computes some rows, or columns if there are more.

    With equal stacks, each lane computes some of the products.
    """
    xp, ahead = ops.xp, a.shape[:-2]
    flat = a.ndim == b.ndim == 2
    work = prod(ahead) * a.shape[-2] * a.shape[-1] * b.shape[-1] if a.ndim > 1 < b.ndim else 0
    if not flat and ahead != b.shape[:-2]:
        work = 0
    if work < LEAST:
        return product(xp, a, b, out)
    wide = flat and b.shape[1] > len(a)
    tall = flat and not wide and len(a) > _ROWS and ops.on_host
    count = b.shape[1] if wide else len(a)
    for lane in ops.lanes(count, work):
        if lane == slice(0, count) and not tall:
            break
        if out is None:
            out = xp.empty((*ahead, a.shape[-2], b.shape[-1]), a.dtype)
        if wide:
            product(xp, a, b[:, lane], out[:, lane])
        elif flat:
            rows, filled = a[lane], out[lane]
            for start in range(0, len(rows), _ROWS):
                part = slice(start, start + _ROWS)
                product(xp, rows[part], b, filled[part])
        else:
            product(xp, a[lane], b[lane], out[lane])
    else:
        assert out is not None
        return out
    return product(xp, a, b, out)


@kernel(half="lift")
def column_sums(ops: Ops, x: Array) -> Array:
    """Compute `Ops.column_sums` by a product with ones, 3 to 10 times as fast as a sum."""
    xp = ops.xp
    return xp.matmul(xp.ones(len(x), x.dtype), xp.ascontiguousarray(x))
