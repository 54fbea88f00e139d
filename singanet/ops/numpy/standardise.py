"""Normalisation of each sample by its own statistics.

Rows are made to have mean 0 and variance 1, then scaled: Ba et al. 2016, Wu and He 2018.
"""

from __future__ import annotations

from math import prod

from singanet.ops.interface import Ops
from singanet.ops.kernel import kernel
from singanet.types import Array, Shape

Statistics = tuple[Array, Array]
"""Mean and 1 / sqrt(variance + epsilon) of each row, two arrays (R, 1)."""


@kernel(half="lift", exact=(1,))
def layer_norm(
    ops: Ops, x: Array, gamma: Array | None, beta: Array | None, epsilon: float
) -> tuple[Array, Statistics]:
    y, statistics = _standardised(ops, x, epsilon)
    if gamma is not None:
        ops.xp.multiply(y, gamma, out=y)
        ops.xp.add(y, beta, out=y)
    return y, statistics


@kernel(half="lift")
def layer_norm_backward(
    ops: Ops, dy: Array, x: Array, gamma: Array | None, statistics: Statistics
) -> tuple[Array, Array | None, Array | None]:
    x_hat = _restored(ops, x, statistics)
    if gamma is None:
        return _row_gradient(ops, dy, x_hat, statistics[1]), None, None
    dgamma = ops.xp.multiply(dy, x_hat).sum(axis=0)
    dx = _row_gradient(ops, ops.xp.multiply(dy, gamma), x_hat, statistics[1])
    return dx, dgamma, dy.sum(axis=0)


@kernel(half="lift", exact=(1,))
def group_norm(
    ops: Ops, x: Array, groups: int, gamma: Array | None, beta: Array | None, epsilon: float
) -> tuple[Array, Statistics]:
    by_channel, by_group = _views(x.shape, groups)
    y, statistics = _standardised(ops, x.reshape(by_group), epsilon)
    if gamma is not None and beta is not None:
        spread = y.reshape(by_channel)
        ops.xp.multiply(spread, gamma[:, None], out=spread)
        ops.xp.add(spread, beta[:, None], out=spread)
    return y.reshape(x.shape), statistics


@kernel(half="lift")
def group_norm_backward(
    ops: Ops, dy: Array, x: Array, groups: int, gamma: Array | None, statistics: Statistics
) -> tuple[Array, Array | None, Array | None]:
    by_channel, by_group = _views(x.shape, groups)
    x_hat = _restored(ops, x.reshape(by_group), statistics)
    if gamma is None:
        dx = _row_gradient(ops, dy.reshape(by_group), x_hat, statistics[1])
        return dx.reshape(x.shape), None, None
    spread = dy.reshape(by_channel)
    # Sums of sums lose less in float32 than one long sum.
    dgamma = ops.xp.multiply(spread, x_hat.reshape(by_channel)).sum(axis=2).sum(axis=0)
    dbeta = spread.sum(axis=2).sum(axis=0)
    scaled = ops.xp.multiply(spread, gamma[:, None]).reshape(by_group)
    dx = _row_gradient(ops, scaled, x_hat, statistics[1])
    return dx.reshape(x.shape), dgamma, dbeta


@kernel(half="lift", exact=(1,))
def l2_norm(ops: Ops, x: Array, epsilon: float) -> tuple[Array, Array]:
    total = ops.xp.square(x).sum(axis=-1, keepdims=True)
    inverse = 1.0 / ops.xp.sqrt(total + epsilon)
    return ops.xp.multiply(x, inverse), inverse


@kernel(half="lift")
def l2_norm_backward(ops: Ops, dy: Array, y: Array, inverse: Array) -> Array:
    inner = ops.xp.multiply(dy, y).sum(axis=-1, keepdims=True)
    dx: Array = ops.xp.subtract(dy, ops.xp.multiply(y, inner))
    return ops.xp.multiply(dx, inverse, out=dx)


def _standardised(ops: Ops, rows: Array, epsilon: float) -> tuple[Array, Statistics]:
    mean = rows.mean(axis=1, keepdims=True)
    y = ops.xp.subtract(rows, mean)
    var = ops.xp.square(y).mean(axis=1, keepdims=True)
    inverse = 1.0 / ops.xp.sqrt(var + epsilon)
    return ops.xp.multiply(y, inverse, out=y), (mean, inverse)


def _restored(ops: Ops, rows: Array, statistics: Statistics) -> Array:
    """The standardised rows once more, which is cheaper than keeping them."""
    y = ops.xp.subtract(rows, statistics[0])
    return ops.xp.multiply(y, statistics[1], out=y)


def _row_gradient(ops: Ops, d_hat: Array, x_hat: Array, inverse: Array) -> Array:
    """(d - mean(d) - x̂ mean(d x̂)) / sqrt(var + epsilon) of each row; reuses ``x_hat``."""
    inner = ops.xp.multiply(d_hat, x_hat).mean(axis=1, keepdims=True)
    ops.xp.multiply(x_hat, inner, out=x_hat)
    ops.xp.subtract(d_hat, x_hat, out=x_hat)
    x_hat -= d_hat.mean(axis=1, keepdims=True)
    x_hat *= inverse
    return x_hat


def _views(shape: Shape, groups: int) -> tuple[Shape, Shape]:
    """(N, C, positions), and (N · groups, C / groups · positions)."""
    n, c, *sizes = shape
    positions = prod(sizes)
    return (n, c, positions), (n * groups, c // groups * positions)
