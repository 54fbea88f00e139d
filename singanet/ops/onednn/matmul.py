"""Large matrix products by oneDNN, so that they share its threads."""

from __future__ import annotations

import numpy as np

from singanet.ops.onednn.base import OneDnnBase
from singanet.ops.onednn.binding import Arg
from singanet.ops.onednn.builder import Builder
from singanet.types import Array

_LEAST = 1 << 18
"""Multiply-adds from which the products are oneDNN's.

From there on NumPy's BLAS uses threads too. It is as fast by itself, but its threads and OpenMP's
would wait for each other's cores.
"""

_LEAST_OUTER = 1 << 16
"""Multiplications from which products of a column and a row are oneDNN's: NumPy's are slow."""

_FEW = 4
"""Rows below which the time goes into reading the matrix, which BLAS does best."""

_ADDS_A_PASS = 32


class OneDnnProducts(OneDnnBase):
    """Products of two matrices, each in C order or the transposed view of such."""

    def matmul(self, a: Array, b: Array, out: Array | None = None) -> Array:
        """See `NumpyOps`."""
        y = self._multiplied(a, b, None, out)
        return super().matmul(a, b, out) if y is None else y

    def affine(self, x: Array, weight: Array, bias: Array | None) -> Array:
        """See `NumpyOps`; the bias is added by the same kernel."""
        y = self._multiplied(x, weight, bias, None)
        return super().affine(x, weight, bias) if y is None else y

    def _multiplied(
        self, a: Array, b: Array, bias: Array | None, out: Array | None
    ) -> Array | None:
        """The product, or None where it is not oneDNN's."""
        if a.ndim != 2 or b.ndim != 2 or a.shape[1] != len(b):
            return None
        rest = [] if bias is None else [bias]
        least = _LEAST_OUTER if len(b) == 1 else _LEAST
        if len(a) * b.size < least or not self.serves(1, a, b, *rest):
            return None
        if len(a) < _FEW:
            # With the runtime BLAS stands aside: it sums in the same order from the first time on.
            self.runtime()
            return None
        turned = _turned(a), _turned(b)
        (m, k), n = a.shape, b.shape[1]
        y: Array = self.xp.empty((m, n), np.float32) if out is None else out
        fits = y.shape == (m, n) and y.dtype == a.dtype and y.flags.c_contiguous
        if None in turned or not fits:
            return None
        key = (m, k, n, *turned, bias is not None)
        done = self.runs(_product, key, y, a, b, *rest, passes=1 + k // _ADDS_A_PASS)
        return y if done else None


def _turned(matrix: Array) -> bool | None:
    """Whether it is transposed in memory; None where it has gaps."""
    if matrix.flags.c_contiguous:
        return False
    return True if matrix.flags.f_contiguous else None


def _product(
    build: Builder, m: int, k: int, n: int, a_turned: bool, b_turned: bool, bias: bool
) -> None:
    a = build.strided((m, k), (1, m) if a_turned else (k, 1))
    b = build.strided((k, n), (1, k) if b_turned else (n, 1))
    y, line = build.rows((m, n)), build.rows((1, n))
    desc = build.primitive_desc("matmul", a, b, line if bias else None, y)
    memories = {
        Arg.DST: build.operand(0, y),
        Arg.SRC: build.operand(1, a),
        Arg.WEIGHTS: build.operand(2, b),
    }
    if bias:
        memories[Arg.BIAS] = build.operand(3, line)
    build.stage(desc, memories)
