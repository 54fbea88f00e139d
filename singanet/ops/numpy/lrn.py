"""Local response normalisation."""

from __future__ import annotations

from typing import Any

from singanet.types import Array


class LocalResponse:
    """x is (N, C, ...); windows lie along the channels, centred and cut off at the ends."""

    xp: Any

    def lrn(self, x: Array, size: int, alpha: float, beta: float, k: float) -> Array:
        """x / (k + alpha Σ x²) ** beta, the sum over ``size`` channels around each."""
        scale = self._scale(x, size, alpha, k)
        return self.xp.multiply(x, self._power(scale, beta), out=scale)

    def lrn_backward(
        self, dy: Array, x: Array, size: int, alpha: float, beta: float, k: float
    ) -> Array:
        """dy s ** -beta - 2 alpha beta x Σ dy x s ** (-beta - 1), with s = k + alpha Σ x²."""
        xp = self.xp
        scale = self._scale(x, size, alpha, k)
        dx: Array = xp.multiply(dy, self._power(scale, beta))
        inner = xp.multiply(dx, x)
        inner /= scale
        around = self._window_sum(inner, size)
        around *= x
        around *= 2.0 * alpha * beta
        return xp.subtract(dx, around, out=dx)

    def _scale(self, x: Array, size: int, alpha: float, k: float) -> Array:
        scale = self._window_sum(self.xp.square(x), size)
        scale *= alpha
        scale += k
        return scale

    def _window_sum(self, values: Array, size: int) -> Array:
        """Sums over windows of channels, by whole shifted arrays."""
        total: Array = values.copy()
        for shift in range(1, min(size // 2, values.shape[1] - 1) + 1):
            total[:, shift:] += values[:, :-shift]
            total[:, :-shift] += values[:, shift:]
        return total

    def _power(self, scale: Array, beta: float) -> Array:
        """``scale`` ** -beta; square roots for the usual exponent, which cost far less."""
        xp = self.xp
        if beta == 0.75:
            root = xp.sqrt(scale)
            return xp.reciprocal(xp.multiply(root, xp.sqrt(root), out=root), out=root)
        return xp.power(scale, -beta)
