"""Products with matrices that are held in fewer bits, and rows of such tables."""

from __future__ import annotations

from typing import Any

from singanet.ops.held import HeldMatrix, WatchedMatrix
from singanet.ops.interface import Ops
from singanet.ops.kernel import in_order, kernel
from singanet.ops.narrow_products import any_rows, few_rows
from singanet.types import Array

FEW = 4
"""Rows up to which the time goes into reading the matrix."""
_IN_CACHE_ROWS = 64
"""Rows up to which it pays to widen no more than the nearest caches take."""


@kernel(half="product")
def multiply_widened(ops: Ops, x: Array, held: HeldMatrix, *, out: Array | None = None) -> Array:
    y = ops.empty((len(x), held.shape[1]), x) if out is None else out
    if isinstance(held, WatchedMatrix) and not held.turned:
        held.seen(x)
    if held.turned:
        for part in held.parts():
            plain = held.columns(part.start, part.stop).T
            if part.start:
                ops.add_matmul(y, x[:, part], plain)
            else:
                ops.matmul(x[:, part], plain, out=y)
    elif not ops.on_host:
        for part in held.parts():
            # CuPy's products fill nothing that lies apart.
            y[:, part] = ops.matmul(x, held.columns(part.start, part.stop))
    elif len(x) <= _IN_CACHE_ROWS:
        y[...] = held.few(x)
    else:
        for part in held.parts():
            ops.matmul(x, held.columns(part.start, part.stop), out=y[:, part])
    return y


multiply_held = in_order(few_rows, any_rows, last=multiply_widened)


def matmul(ops: Any, a: Array, held: HeldMatrix, out: Array | None) -> Array:
    """`Ops.matmul` by such a matrix."""
    made: Array = ops.multiply_held(a, held, out=out)
    return made


def affine(ops: Any, x: Array, held: HeldMatrix, bias: Array | None) -> Array:
    """`Ops.affine` by such a matrix."""
    y: Array = ops.multiply_held(x, held)
    return y if bias is None else ops.add(y, bias, out=y)


def gather_rows(ops: Any, table: HeldMatrix, indices: Array) -> Array:
    """`Ops.gather_rows` of such a matrix."""
    flat = indices.reshape(-1)
    rows = table.picked(flat) if table.turned else table.whole()[flat]
    return ops.xp.ascontiguousarray(rows).reshape(*indices.shape, rows.shape[1])
