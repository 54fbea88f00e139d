"""Normalisation by batch statistics."""

from __future__ import annotations

from typing import Any

from singanet.types import Array


class Normalisation:
    """x is (N, C) or (N, C, H, W); statistics are taken over every axis but the channels."""

    xp: Any

    def batch_norm_statistics(self, x: Array) -> tuple[Array, Array]:
        """Mean and (biased) variance of each channel, two arrays (C,)."""
        rows = _channel_rows(self.xp, x)
        count = rows.shape[0] * rows.shape[1]
        mean = rows.sum(axis=1).sum(axis=0) / count
        spread = self.xp.square(rows - mean)
        return mean, spread.sum(axis=1).sum(axis=0) / count

    def batch_norm(
        self, x: Array, gamma: Array, beta: Array, mean: Array, var: Array, epsilon: float
    ) -> tuple[Array, Array]:
        """gamma (x - mean) / sqrt(var + epsilon) + beta, and 1 / sqrt(var + epsilon)."""
        inverse = 1.0 / self.xp.sqrt(var + epsilon)
        scale = gamma * inverse
        y = self.xp.multiply(x, _over_channels(x, scale))
        self.xp.add(y, _over_channels(x, beta - mean * scale), out=y)
        return y, inverse

    def batch_norm_backward(
        self, dy: Array, x: Array, gamma: Array, mean: Array, inverse: Array, fixed: bool
    ) -> tuple[Array, Array, Array]:
        """(dx, dgamma, dbeta); ``fixed`` statistics did not depend on x.

        dx = gamma inverse (dy - mean(dy) - x̂ mean(dy x̂)), Ioffe and Szegedy 2015.
        """
        x_hat = (x - _over_channels(x, mean)) * _over_channels(x, inverse)
        rows = _channel_rows(self.xp, dy)
        dbeta = rows.sum(axis=1).sum(axis=0)
        dgamma = _channel_rows(self.xp, dy * x_hat).sum(axis=1).sum(axis=0)
        scale = gamma * inverse
        if fixed:
            return dy * _over_channels(dy, scale), dgamma, dbeta
        count = max(rows.shape[0] * rows.shape[1], 1)
        x_hat *= _over_channels(x, dgamma / count)
        x_hat += _over_channels(x, dbeta / count)
        dx = self.xp.subtract(dy, x_hat, out=x_hat)
        dx *= _over_channels(dy, scale)
        return dx, dgamma, dbeta


def _over_channels(x: Array, values: Array) -> Array:
    """(C,) shaped so that it spreads over ``x``."""
    return values if x.ndim == 2 else values[:, None, None]


def _channel_rows(xp: Any, x: Array) -> Array:
    """``x`` as (N, positions, C); two short sums over it lose less than one long one."""
    if x.ndim == 2:
        return x[:, None]
    rows: Array = xp.ascontiguousarray(x.transpose(0, 2, 3, 1))
    return rows.reshape(x.shape[0], x.shape[2] * x.shape[3], x.shape[1])
