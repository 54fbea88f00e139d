"""Large matrix products by oneDNN, so that they share its threads."""

from __future__ import annotations

from typing import Any

import numpy as np

from singanet.ops.onednn.base import OneDnnBase
from singanet.ops.onednn.binding import check
from singanet.types import Array

_LEAST = 1 << 18
"""Multiply-adds from which the products are oneDNN's.

From there on NumPy's BLAS uses threads too. It is as fast by itself, but its threads and OpenMP's
would wait for each other's cores.
"""


class OneDnnProducts(OneDnnBase):
    """Products of two matrices, each in C order or the transposed view of such."""

    def matmul(self, a: Array, b: Array, out: Array | None = None) -> Array:
        """See `NumpyOps`."""
        if a.ndim == 2 == b.ndim and a.shape[0] * b.size >= _LEAST and self.serves(1, a, b):
            product = np.empty((a.shape[0], b.shape[1]), np.float32) if out is None else out
            if self._multiplied(a, b, product):
                return product
        return super().matmul(a, b, out)

    def affine(self, x: Array, weight: Array, bias: Array | None) -> Array:
        """See `NumpyOps`."""
        y = self.matmul(x, weight)
        if bias is not None:
            self.add(y, bias, out=y)
        return y

    def _multiplied(self, a: Array, b: Array, product: Array) -> bool:
        """Whether ``product`` could be filled by oneDNN."""
        (m, k), n = a.shape, b.shape[1]
        left, right, target = _form(a), _form(b), _form(product)
        fits = b.shape[0] == k and product.shape == (m, n) and product.dtype == a.dtype
        if not fits or left is None or right is None or target != (b"N", n):
            return False
        runtime = self.runtime()
        if runtime is None:
            return False
        runtime.use_threads(runtime.threads)
        pointers = [array.__array_interface__["data"][0] for array in (a, b, product)]
        status = runtime.library.c.dnnl_sgemm(
            left[0], right[0], m, n, k, 1.0, pointers[0], left[1], pointers[1], right[1], 0.0,
            pointers[2], n,
        )  # fmt: skip
        check(status, "a matrix product")
        return True


def _form(matrix: Array) -> tuple[Any, int] | None:
    """Whether it is transposed in memory (b"T") and the length of a row there; None for others."""
    if matrix.flags.c_contiguous:
        return b"N", matrix.shape[1]
    if matrix.flags.f_contiguous:
        return b"T", matrix.shape[0]
    return None
