"""Matrix products of many rows, as stacks of small ones.

OpenBLAS multiplies small matrices where they lie, larger ones after copying both ("packing"),
which with few columns takes as long as the work: benchmarks/conv_products.py.

Products of (G, M, K) with (G, K, N), whose rows M are many.
"""

from __future__ import annotations

from functools import lru_cache

from singanet.base.addresses import steps
from singanet.ops.interface import Ops
from singanet.ops.numpy.linear import in_lanes
from singanet.types import Array

_SMALL = 1_000_000
"""Multiplications of a product up to which OpenBLAS does not pack (with AVX-512)."""

_FEWEST_ROWS = 4
"""Rows of a small product below which a large one is faster."""

_FEWEST_SUMMED = 64
_MOST_SUMS = 300_000
"""Rows of a piece, and values in the sums of all, beyond which writing sums takes too long."""


def laid_out(ops: Ops, kernels: Array, rows: int) -> Array:
    """``kernels`` (G, K, N) as `rows_product` takes them for so many rows: (G, P, K, N/P)."""
    groups, k, n = kernels.shape
    if not ops.on_host or 512 * rows < k * n or rows < 64:
        return kernels[:, None]
    width = n if 8 * k * n <= _SMALL else _part(n, 64)
    if _FEWEST_ROWS * k * width > _SMALL:
        return kernels[:, None]
    parts = kernels.reshape(groups, k, n // width, width).transpose(0, 2, 1, 3)
    return ops.xp.ascontiguousarray(parts)


def rows_product(ops: Ops, rows: Array, kernels: Array, out: Array, alone: bool = False) -> None:
    """``rows`` (G, M, K) times ``kernels``, as `laid_out` has them, into (G, M, N).

    Products of a sample that is ``alone`` have lanes of their own, as for `summed_product`.
    """
    (groups, m, k), (_, parts, _, width) = rows.shape, kernels.shape
    most = _SMALL // (k * width)
    if parts == 1 and (not ops.on_host or not _FEWEST_ROWS <= most < m):
        _product(ops, rows, kernels[:, 0], out, alone)
        return
    for lane in ops.lanes(m, groups * m * k * parts * width if alone else 0):
        _stacked(ops, rows[:, lane], kernels, out[:, lane], most)


def _stacked(ops: Ops, rows: Array, kernels: Array, out: Array, most: int) -> None:
    """The same in pieces of at most so many rows."""
    (groups, m, k), (_, parts, _, width) = rows.shape, kernels.shape
    piece = _piece(m, most)
    whole = m // piece * piece
    for rest, size in ((slice(0, whole), piece), (slice(whole, m), m - whole)):
        if size:
            stack = rows[:, rest].reshape(groups, 1, -1, size, k)
            target = out[:, rest].reshape(groups, -1, size, parts, width)
            ops.xp.matmul(stack, kernels[:, :, None], out=target.transpose(0, 3, 1, 2, 4))


def summed_product(ops: Ops, rows: Array, others: Array, alone: bool = False) -> Array:
    """The sums over M of ``others`` (G, M, N) times ``rows`` (G, M, K): (G, N, K).

    Where the rows lie column by column the product is the transposed one, which BLAS
    computes faster then.
    """
    _, down, across = steps(rows)
    if down < across:
        return _summed(ops, rows, others, alone).transpose(0, 2, 1)
    return _summed(ops, others, rows, alone)


def _summed(ops: Ops, left: Array, right: Array, alone: bool) -> Array:
    """The sums over M of ``left`` (G, M, K) times ``right`` (G, M, N): (G, K, N)."""
    xp, (groups, m, k), n = ops.xp, left.shape, right.shape[2]
    high, width = _part(k, 64), _part(n, 48)
    piece = _piece(m, max(_SMALL // (high * width), 1))
    whole = m // piece * piece
    much = groups * (whole // piece) * k * n > _MOST_SUMS
    if not ops.on_host or much or piece < _FEWEST_SUMMED or m * k * n <= _SMALL:
        return _plain(ops, left, right, alone)
    stack = left[:, :whole].reshape(groups, -1, piece, k // high, high)
    others = right[:, :whole].reshape(groups, -1, piece, n // width, width)
    sums = xp.empty((groups, whole // piece, k, n), left.dtype)
    target = sums.reshape(groups, -1, k // high, high, n // width, width)
    xp.matmul(
        stack.transpose(0, 1, 3, 4, 2)[:, :, :, None],
        others.transpose(0, 1, 3, 2, 4)[:, :, None],
        out=target.transpose(0, 1, 2, 4, 3, 5),
    )
    total: Array = sums[:, 0] if whole == piece else sums.sum(axis=1)
    if whole < m:
        xp.add(total, _plain(ops, left[:, whole:], right[:, whole:], alone), out=total)
    return total


def _plain(ops: Ops, left: Array, right: Array, alone: bool) -> Array:
    return _product(ops, left.transpose(0, 2, 1), right, None, alone)


def _product(ops: Ops, a: Array, b: Array, out: Array | None, alone: bool) -> Array:
    if not alone or len(a) > 1:
        made: Array = ops.xp.matmul(a, b, out=out)
        return made
    return in_lanes(ops, a[0], b[0], None if out is None else out[0])[None]


@lru_cache(maxsize=1024)
def _part(size: int, near: int) -> int:
    """The divisor of ``size`` next to ``near``, within a third of it; else ``size`` itself."""
    if size <= near:
        return size
    for away in range(near // 3 + 1):
        for part in (near - away, near + away):
            if size % part == 0:
                return part
    return size


@lru_cache(maxsize=1024)
def _piece(size: int, most: int) -> int:
    """At most ``most`` of ``size``: preferably a divisor, if one is above half of ``most``."""
    for piece in range(min(size, most), most // 2, -1):
        if size % piece == 0:
            return piece
    return -(-size // -(-size // most))
