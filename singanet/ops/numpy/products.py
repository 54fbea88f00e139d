"""Matrix products of many rows, as stacks of small ones.

OpenBLAS multiplies small matrices where they lie, larger ones after copying both ("packing"),
which with few columns takes as long as the work: benchmarks/conv_alternatives.py.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from singanet.ops.numpy.windows import Windows
from singanet.types import Array

_SMALL = 1_000_000
"""Multiplications of a product up to which OpenBLAS does not pack (with AVX-512)."""

_FEWEST_ROWS = 4
"""Rows of a small product below which a large one is faster."""

_MOST_SUMS = 1 << 19
"""Values in the sums of all pieces above which adding them up takes longer than packing."""


class Products(Windows):
    """Products of (G, M, K) with (G, K, N), whose rows M are many."""

    def laid_out(self, kernels: Array, rows: int) -> Array:
        """``kernels`` (G, K, N) as `rows_product` takes them for so many rows: (G, P, K, N/P)."""
        groups, k, n = kernels.shape
        if not self.on_host or 512 * rows < k * n or rows < 64:
            return kernels[:, None]
        width = n if 8 * k * n <= _SMALL else _part(n, 64)
        if _FEWEST_ROWS * k * width > _SMALL:
            return kernels[:, None]
        parts = kernels.reshape(groups, k, n // width, width).transpose(0, 2, 1, 3)
        return self.xp.ascontiguousarray(parts)

    def rows_product(self, rows: Array, kernels: Array, out: Array) -> None:
        """``rows`` (G, M, K) times ``kernels``, as `laid_out` has them, into (G, M, N)."""
        (groups, m, k), (_, parts, _, width) = rows.shape, kernels.shape
        most = _SMALL // (k * width)
        if parts == 1 and (not self.on_host or not _FEWEST_ROWS <= most < m):
            self.xp.matmul(rows, kernels[:, 0], out=out)
            return
        piece = _piece(m, most)
        whole = m // piece * piece
        for rest, size in ((slice(0, whole), piece), (slice(whole, m), m - whole)):
            if size:
                stack = rows[:, rest].reshape(groups, 1, -1, size, k)
                target = out[:, rest].reshape(groups, -1, size, parts, width)
                self.xp.matmul(stack, kernels[:, :, None], out=target.transpose(0, 3, 1, 2, 4))

    def summed_product(self, rows: Array, others: Array) -> Array:
        """The sums over M of ``rows`` (G, M, K) times ``others`` (G, M, N): (G, K, N)."""
        xp, (groups, m, k), n = self.xp, rows.shape, others.shape[2]
        high, width = _part(k, 48), _part(n, 64)
        most = _SMALL // (high * width)
        if not self.on_host or most < 16 or m * k * n <= _SMALL:
            return _plain(xp, rows, others)
        piece = _piece(m, most)
        whole = m // piece * piece
        if whole > piece and groups * (whole // piece) * k * n > _MOST_SUMS:
            return _plain(xp, rows, others)
        left = rows[:, :whole].reshape(groups, -1, piece, k // high, high)
        right = others[:, :whole].reshape(groups, -1, piece, n // width, width)
        sums = xp.empty((groups, whole // piece, k, n), rows.dtype)
        target = sums.reshape(groups, -1, k // high, high, n // width, width)
        xp.matmul(
            left.transpose(0, 1, 3, 4, 2)[:, :, :, None],
            right.transpose(0, 1, 3, 2, 4)[:, :, None],
            out=target.transpose(0, 1, 2, 4, 3, 5),
        )
        total: Array = sums.sum(axis=1)
        if whole < m:
            xp.add(total, _plain(xp, rows[:, whole:], others[:, whole:]), out=total)
        return total


def _plain(xp: Any, rows: Array, others: Array) -> Array:
    product: Array = xp.matmul(rows.transpose(0, 2, 1), others)
    return product


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
    """At most ``most`` of ``size``: a divisor where one is more than half of that."""
    for piece in range(min(size, most), most // 2, -1):
        if size % piece == 0:
            return piece
    return -(-size // -(-size // most))
