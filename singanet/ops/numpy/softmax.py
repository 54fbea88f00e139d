"""Softmax and its gradient."""

from __future__ import annotations

from typing import Any

from singanet.types import Array


class Softmax:
    """Kernels that turn scores into probabilities."""

    xp: Any

    def softmax(self, x: Array, axis: int = -1) -> Array:
        """exp(x) / sum(exp(x)) along ``axis``, shifted by the maximum so that nothing overflows."""
        y: Array = self.xp.subtract(x, x.max(axis=axis, keepdims=True))
        self.xp.exp(y, out=y)
        self.xp.divide(y, y.sum(axis=axis, keepdims=True), out=y)
        return y

    def softmax_backward(self, dy: Array, y: Array, axis: int = -1) -> Array:
        """y (dy - sum(dy y)) along ``axis``."""
        dx: Array = self.xp.multiply(dy, y)
        inner = dx.sum(axis=axis, keepdims=True)
        self.xp.subtract(dx, self.xp.multiply(y, inner), out=dx)
        return dx
