"""Normalisation of each sample by its own statistics."""

from __future__ import annotations

from math import prod
from typing import Any

from singanet.types import Array, Shape

Statistics = tuple[Array, Array]
"""Mean and 1 / sqrt(variance + epsilon) of each row, two arrays (R, 1)."""


class Standardisation:
    """Rows are made to have mean 0 and variance 1, then scaled: Ba et al. 2016, Wu and He 2018."""

    xp: Any

    def layer_norm(
        self, x: Array, gamma: Array | None, beta: Array | None, epsilon: float
    ) -> tuple[Array, Statistics]:
        """x (R, D), gamma and beta (D,) → gamma (x - mean) / sqrt(var + epsilon) + beta."""
        y, statistics = self._standardised(x, epsilon)
        if gamma is not None:
            self.xp.multiply(y, gamma, out=y)
            self.xp.add(y, beta, out=y)
        return y, statistics

    def layer_norm_backward(
        self, dy: Array, x: Array, gamma: Array | None, statistics: Statistics
    ) -> tuple[Array, Array | None, Array | None]:
        """(dx, dgamma, dbeta); the last two None without gamma."""
        x_hat = self._restored(x, statistics)
        if gamma is None:
            return self._row_gradient(dy, x_hat, statistics[1]), None, None
        dgamma = self.xp.multiply(dy, x_hat).sum(axis=0)
        dx = self._row_gradient(self.xp.multiply(dy, gamma), x_hat, statistics[1])
        return dx, dgamma, dy.sum(axis=0)

    def group_norm(
        self, x: Array, groups: int, gamma: Array | None, beta: Array | None, epsilon: float
    ) -> tuple[Array, Statistics]:
        """x (N, C, ...), gamma and beta (C,); a row is C / groups channels of one sample."""
        by_channel, by_group = _views(x.shape, groups)
        y, statistics = self._standardised(x.reshape(by_group), epsilon)
        if gamma is not None and beta is not None:
            spread = y.reshape(by_channel)
            self.xp.multiply(spread, gamma[:, None], out=spread)
            self.xp.add(spread, beta[:, None], out=spread)
        return y.reshape(x.shape), statistics

    def group_norm_backward(
        self, dy: Array, x: Array, groups: int, gamma: Array | None, statistics: Statistics
    ) -> tuple[Array, Array | None, Array | None]:
        """(dx, dgamma, dbeta); the last two None without gamma."""
        by_channel, by_group = _views(x.shape, groups)
        x_hat = self._restored(x.reshape(by_group), statistics)
        if gamma is None:
            dx = self._row_gradient(dy.reshape(by_group), x_hat, statistics[1])
            return dx.reshape(x.shape), None, None
        spread = dy.reshape(by_channel)
        # Sums of sums lose less in float32 than one long sum.
        dgamma = self.xp.multiply(spread, x_hat.reshape(by_channel)).sum(axis=2).sum(axis=0)
        dbeta = spread.sum(axis=2).sum(axis=0)
        scaled = self.xp.multiply(spread, gamma[:, None]).reshape(by_group)
        dx = self._row_gradient(scaled, x_hat, statistics[1])
        return dx.reshape(x.shape), dgamma, dbeta

    def l2_norm(self, x: Array, epsilon: float) -> tuple[Array, Array]:
        """x / sqrt(Σ x² + epsilon) along the last axis, and 1 / sqrt(Σ x² + epsilon)."""
        total = self.xp.square(x).sum(axis=-1, keepdims=True)
        inverse = 1.0 / self.xp.sqrt(total + epsilon)
        return self.xp.multiply(x, inverse), inverse

    def l2_norm_backward(self, dy: Array, y: Array, inverse: Array) -> Array:
        """(dy - y Σ dy y) / sqrt(Σ x² + epsilon)."""
        inner = self.xp.multiply(dy, y).sum(axis=-1, keepdims=True)
        dx: Array = self.xp.subtract(dy, self.xp.multiply(y, inner))
        return self.xp.multiply(dx, inverse, out=dx)

    def _standardised(self, rows: Array, epsilon: float) -> tuple[Array, Statistics]:
        mean = rows.mean(axis=1, keepdims=True)
        y = self.xp.subtract(rows, mean)
        var = self.xp.square(y).mean(axis=1, keepdims=True)
        inverse = 1.0 / self.xp.sqrt(var + epsilon)
        return self.xp.multiply(y, inverse, out=y), (mean, inverse)

    def _restored(self, rows: Array, statistics: Statistics) -> Array:
        """The standardised rows once more, which is cheaper than keeping them."""
        y = self.xp.subtract(rows, statistics[0])
        return self.xp.multiply(y, statistics[1], out=y)

    def _row_gradient(self, d_hat: Array, x_hat: Array, inverse: Array) -> Array:
        """(d - mean(d) - x̂ mean(d x̂)) / sqrt(var + epsilon) of each row; reuses ``x_hat``."""
        inner = self.xp.multiply(d_hat, x_hat).mean(axis=1, keepdims=True)
        self.xp.multiply(x_hat, inner, out=x_hat)
        self.xp.subtract(d_hat, x_hat, out=x_hat)
        x_hat -= d_hat.mean(axis=1, keepdims=True)
        x_hat *= inverse
        return x_hat


def _views(shape: Shape, groups: int) -> tuple[Shape, Shape]:
    """(N, C, positions), and (N · groups, C / groups · positions)."""
    n, c, *sizes = shape
    positions = prod(sizes)
    return (n, c, positions), (n * groups, c // groups * positions)
