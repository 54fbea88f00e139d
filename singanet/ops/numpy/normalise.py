"""Compute normalizations by NumPy.

Batch normalization: x is (N, C) or (N, C, H, W); statistics are over all axes but the channels.

Layer and group normalization: rows get mean 0 and variance 1, then are scaled. Source: Ba et al.
2016, Wu and He 2018.

Local response normalization: x is (N, C, ...); windows along the channels are centred, and
truncated at the ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

from singanet.ops.interface import Ops
from singanet.ops.kernel import kernel
from singanet.ops.numpy.linear import SWEEP, sum_of
from singanet.ops.numpy.windows import blocks, scratch_bytes
from singanet.types import Array, Shape

_BLOCK_BYTES = 1 << 19
"""Bytes of an operand's block; a block and its results are read again from the cache."""


def batch_norm_statistics(ops: Ops, x: Array) -> tuple[Array, Array]:
    """Return the mean and (biased) variance of each channel, two arrays (C,).

    x must not be empty. Each block is summed about its own mean, so that x is read once and nothing
    cancels: Chan, Golub and LeVeque, 1979.
    """
    xp, images, scratch = ops.xp, _channels_last(x), scratch_bytes(ops, _BLOCK_BYTES)
    width = images.shape[2]
    means, spreads, counts = [], [], []
    for lane in _lanes(ops, images):
        for samples in _blocks(images[lane], scratch):
            lines = _lines(xp, images[lane][samples])
            count = lines.size // x.shape[1]
            mean = _sum(xp, lines, width) / count
            centred = xp.subtract(lines, *_wide(xp, images, mean))
            xp.square(centred, out=centred)
            means.append(mean)
            spreads.append(_sum(xp, centred, width))
            counts.append(count)
    if len(means) == 1:
        return means[0], spreads[0] / counts[0]
    weights = xp.asarray(counts, x.dtype)[:, None] / sum(counts)
    apart = xp.stack(means)
    mean = (weights * apart).sum(axis=0)
    within = xp.stack(spreads).sum(axis=0) / sum(counts)
    return mean, within + (weights * xp.square(apart - mean)).sum(axis=0)


@kernel(half="lift")
def moved(ops: Ops, running: Array, batch: Array, weight: float) -> Array:
    value: Array = ops.xp.multiply(running, 1.0 - weight)
    ops.xp.add(value, ops.xp.multiply(batch, weight), out=value)
    return value


@kernel(half="lift", exact=(1,))
def batch_norm(
    ops: Ops, x: Array, gamma: Array, beta: Array, mean: Array, var: Array, epsilon: float,
    relu: bool = False,
) -> tuple[Array, ...]:  # fmt: skip
    xp, images, scratch = ops.xp, _channels_last(x), scratch_bytes(ops, _BLOCK_BYTES)
    inverse = 1.0 / xp.sqrt(var + epsilon)
    by_x = gamma * inverse
    # One pass fewer than with x - mean, and as exact as x itself.
    scale, shift = _wide(xp, images, by_x, beta - mean * by_x)
    y: Array = xp.empty(_line_shape(images), x.dtype)
    for lane in _lanes(ops, images):
        for samples in _blocks(images[lane], scratch):
            part = y[lane][samples]
            xp.multiply(_lines(xp, images[lane][samples]), scale, out=part)
            xp.add(part, shift, out=part)
            if relu:
                xp.maximum(part, 0, out=part)
    made = _like(x, y.reshape(images.shape))
    return (made, inverse, made) if relu else (made, inverse)


@kernel(half="lift", exact=(1, 2, 3))
def batch_norm_train(
    ops: Ops, x: Array, gamma: Array, beta: Array, epsilon: float, relu: bool = False
) -> tuple[Array, ...]:
    mean, var = batch_norm_statistics(ops, x)
    y, inverse, *mask = ops.batch_norm(x, gamma, beta, mean, var, epsilon, relu)
    return y, mean, var, inverse, *mask


@kernel(half="lift")
def batch_norm_backward(
    ops: Ops, dy: Array, x: Array, gamma: Array, mean: Array, inverse: Array, fixed: bool,
    mask: Array | None = None,
) -> tuple[Array, Array, Array]:  # fmt: skip
    if mask is None:
        return _gradients(ops, _channels_last(dy), x, gamma, (mean, inverse), fixed)
    slopes = _lines(ops.xp, _channels_last(ops.activation_backward("relu", dy, mask)))
    # This array has no other user, so dx may overwrite it.
    images = slopes.reshape(_channels_last(x).shape)
    return _gradients(ops, images, x, gamma, (mean, inverse), fixed, slopes)


def _gradients(
    ops: Ops,
    slopes: Array,
    x: Array,
    gamma: Array,
    statistics: tuple[Array, Array],
    fixed: bool,
    over: Array | None = None,
) -> tuple[Array, Array, Array]:
    """Return (dx, dgamma, dbeta) for ``slopes`` (N, H, W, C); dx may be written ``over`` them."""
    xp, images, (mean, inverse) = ops.xp, _channels_last(x), statistics
    scratch = scratch_bytes(ops, _BLOCK_BYTES)
    dgammas, dbetas = [], []
    width, scale = images.shape[2], gamma * inverse
    (centre,) = _wide(xp, images, mean)
    for lane in _lanes(ops, images):
        dgamma, dbeta = xp.zeros_like(gamma), xp.zeros_like(gamma)
        for samples in _blocks(images[lane], scratch):
            given = _lines(xp, slopes[lane][samples])
            product = xp.subtract(_lines(xp, images[lane][samples]), centre)
            xp.multiply(product, given, out=product)
            dgamma += _sum(xp, product, width)
            dbeta += _sum(xp, given, width)
        dgammas.append(dgamma)
        dbetas.append(dbeta)
    dgamma, dbeta = sum_of(ops, dgammas), sum_of(ops, dbetas)
    dgamma *= inverse
    count = max(x.size // x.shape[1], 1)
    by_x = scale * inverse * dgamma / count
    constant = scale * dbeta / count - by_x * mean
    scale, by_x, constant = _wide(xp, images, scale, by_x, constant)
    dx: Array = xp.empty(_line_shape(images), slopes.dtype) if over is None else over
    for lane in _lanes(ops, images):
        for samples in _blocks(images[lane], scratch):
            part = dx[lane][samples]
            xp.multiply(_lines(xp, slopes[lane][samples]), scale, out=part)
            if not fixed:
                part -= constant
                part -= xp.multiply(_lines(xp, images[lane][samples]), by_x)
    return _like(x, dx.reshape(images.shape)), dgamma, dbeta


def _lanes(ops: Ops, images: Array) -> Iterator[slice]:
    """Yield slices of the samples; two or three operands pass twice."""
    return ops.lanes(len(images), 2 * SWEEP * images.size)


def _blocks(images: Array, scratch: int) -> Iterator[slice]:
    """Yield slices of samples whose values fit in ``scratch`` bytes."""
    n, h, w, c = images.shape
    for samples, _ in blocks(n, 1, h * w * c * images.itemsize, scratch):
        yield samples


def _lines(xp: Any, images: Array) -> Array:
    """Return (N, H, W, C) as contiguous (N, H, W·C): long rows, even with few channels."""
    lines: Array = xp.ascontiguousarray(images)
    return lines.reshape(_line_shape(images))


def _wide(xp: Any, images: Array, *values: Array) -> list[Array]:
    """Repeat each (C,) along the width, to match the rows of `_lines`."""
    wide: Array = xp.empty((len(values), *images.shape[2:]), images.dtype)
    for k, value in enumerate(values):
        wide[k] = value
    return list(wide.reshape(len(values), images.shape[2] * images.shape[3]))


def _sum(xp: Any, lines: Array, width: int) -> Array:
    """Return the sum of each channel, (C,), of lines (N, H, W·C)."""
    # A product with ones runs several times as fast as a sum along an axis; one product a sample
    # makes short partial sums, exact enough in float32.
    n, h, wide = lines.shape
    ones = xp.ones((1, h * width), lines.dtype)
    sums: Array = xp.matmul(ones, lines.reshape(n, h * width, wide // width))
    return sums.sum(axis=(0, 1))


def _channels_last(x: Array) -> Array:
    """Return the view (N, H, W, C); (N, C) becomes one image of width 1."""
    return x[None, :, None] if x.ndim == 2 else x.transpose(0, 2, 3, 1)


def _like(x: Array, images: Array) -> Array:
    """Return the (N, H, W, C) ``images`` in the axis order of ``x``."""
    return images[0, :, 0] if x.ndim == 2 else images.transpose(0, 3, 1, 2)


def _line_shape(images: Array) -> tuple[int, int, int]:
    n, h, w, c = images.shape
    return n, h, w * c


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
    """Return the standardized rows again, which is cheaper than to store them."""
    y = ops.xp.subtract(rows, statistics[0])
    return ops.xp.multiply(y, statistics[1], out=y)


def _row_gradient(ops: Ops, d_hat: Array, x_hat: Array, inverse: Array) -> Array:
    """Return (d - mean(d) - x̂ mean(d x̂)) / sqrt(var + epsilon) by row; reuses ``x_hat``."""
    inner = ops.xp.multiply(d_hat, x_hat).mean(axis=1, keepdims=True)
    ops.xp.multiply(x_hat, inner, out=x_hat)
    ops.xp.subtract(d_hat, x_hat, out=x_hat)
    x_hat -= d_hat.mean(axis=1, keepdims=True)
    x_hat *= inverse
    return x_hat


def _views(shape: Shape, groups: int) -> tuple[Shape, Shape]:
    """Return (N, C, positions), and (N · groups, C / groups · positions)."""
    n, c, *sizes = shape
    positions = prod(sizes)
    return (n, c, positions), (n * groups, c // groups * positions)


@kernel(half="lift")
def lrn(ops: Ops, x: Array, size: int, alpha: float, beta: float, k: float) -> Array:
    scale = _scale(ops, x, size, alpha, k)
    return ops.xp.multiply(x, _power(ops, scale, beta), out=scale)


@kernel(half="lift")
def lrn_backward(
    ops: Ops, dy: Array, x: Array, size: int, alpha: float, beta: float, k: float
) -> Array:
    xp = ops.xp
    scale = _scale(ops, x, size, alpha, k)
    dx: Array = xp.multiply(dy, _power(ops, scale, beta))
    inner = xp.multiply(dx, x)
    inner /= scale
    around = _window_sum(ops, inner, size)
    around *= x
    around *= 2.0 * alpha * beta
    return xp.subtract(dx, around, out=dx)


def _scale(ops: Ops, x: Array, size: int, alpha: float, k: float) -> Array:
    scale = _window_sum(ops, ops.xp.square(x), size)
    scale *= alpha
    scale += k
    return scale


def _window_sum(ops: Ops, values: Array, size: int) -> Array:
    """Return sums over windows of channels, by whole shifted arrays."""
    total: Array = values.copy()
    for shift in range(1, min(size // 2, values.shape[1] - 1) + 1):
        total[:, shift:] += values[:, :-shift]
        total[:, :-shift] += values[:, shift:]
    return total


def _power(ops: Ops, scale: Array, beta: float) -> Array:
    """Return ``scale`` ** -beta; by square roots for the usual exponent, which is much faster."""
    xp = ops.xp
    if beta == 0.75:
        root = xp.sqrt(scale)
        return xp.reciprocal(xp.multiply(root, xp.sqrt(root), out=root), out=root)
    return xp.power(scale, -beta)
