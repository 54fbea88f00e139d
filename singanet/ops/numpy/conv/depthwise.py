"""Convolution of every channel with kernels of its own.

No columns are laid out: windows are views of the padded image, whose products with the kernels are
summed many outputs of a row at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import gcd, log
from typing import Any

from singanet.base.addresses import steps
from singanet.ops.interface import Ops
from singanet.ops.kernel import kernel
from singanet.ops.numpy.lanes import sum_of
from singanet.ops.numpy.windows import band, blocks, meetings, scratch_bytes
from singanet.ops.window import Pair, Window
from singanet.types import Array, Shape

_SLOWER = 8
"""Times as long as a multiplication by BLAS takes one by einsum."""

_RUN = 1500
"""Values of outputs side by side, with which nine of the kernels and the sums fit a first cache."""


@kernel(half="lift")
def depthwise_conv2d(
    ops: Ops, x: Array, weight: Array, bias: Array | None, window: Window
) -> Array:
    xp, (c, m, kh, kw) = ops.xp, weight.shape
    oh, ow = window.out_size(*x.shape[2:])
    together = _together(ow, c * m)
    run = together * c * m
    kernels = _along_rows(xp, weight, together).reshape(kh, kw, run)
    y: Array = xp.empty((len(x), oh, ow // together, run), x.dtype)
    for lane in ops.lanes(len(x), y.size * kh * kw * _SLOWER):
        mine = y[lane]
        for samples, rows, parts in _bands(ops, x[lane], window, m, together):
            part = mine[samples, rows]
            for k, (windows, taps) in enumerate(parts):
                if not k and ops.on_host:  # CuPy's einsum has no `out`
                    xp.einsum("nhrabx,abx->nhrx", windows, kernels[:, taps], out=part)
                    continue
                sums = xp.einsum("nhrabx,abx->nhrx", windows, kernels[:, taps])
                if k:
                    xp.add(part, sums, out=part)
                else:
                    part[...] = sums
    y = y.reshape(len(x), oh, ow, c * m)
    if bias is not None:
        xp.add(y, bias, out=y)
    return y.transpose(0, 3, 1, 2)


@kernel(half="lift")
def depthwise_conv2d_backward_weights(
    ops: Ops, x: Array, dy: Array, weight_shape: Shape, window: Window
) -> Array:
    xp, (c, m, kh, kw) = ops.xp, weight_shape
    width = dy.shape[3]
    totals: list[Array] = []
    for lane in ops.lanes(len(x), dy.size * kh * kw * _SLOWER):
        total: Array = xp.zeros((kh, kw, width * c * m), dy.dtype)
        for samples, rows, parts in _bands(ops, x[lane], window, m, width):
            given = ops.channels_last(dy[lane][samples, :, rows])
            lines = given.reshape(*given.shape[:2], 1, width * c * m)
            for windows, taps in parts:
                total[:, taps] += xp.einsum("nhrabx,nhrx->abx", windows, lines)
        totals.append(total)
    sums = sum_of(ops, totals).reshape(kh * kw, width, c, m).sum(axis=1)
    return xp.ascontiguousarray(sums.transpose(1, 2, 0)).reshape(weight_shape)


@kernel(half="lift")
def scatter_depthwise(ops: Ops, dy: Array, weight: Array, x_shape: Shape, window: Window) -> Array:
    """See `Ops.depthwise_conv2d_backward_data`: products, added to the pixels they belong to."""
    xp, m = ops.xp, weight.shape[1]
    (n, c, h, w), (oh, ow) = x_shape, dy.shape[2:]
    kernels = _along_rows(xp, weight, ow)
    dx: Array = xp.zeros((n, h, w, c), dy.dtype)
    for samples, rows in blocks(n, oh, 2 * ow * c * m * dy.itemsize, scratch_bytes(ops)):
        given = ops.channels_last(dy[samples, :, rows])
        given = given.reshape(*given.shape[:3], c, m)
        for k, pixels, outputs in meetings(window, (h, w), (oh, ow), rows):
            product = xp.multiply(given[outputs], kernels[k][outputs[2]])
            dx[samples][pixels] += product[..., 0] if m == 1 else product.sum(axis=-1)
    return dx.transpose(0, 3, 1, 2)


def _bands(
    ops: Ops, x: Array, window: Window, m: int, together: int
) -> Iterator[tuple[slice, slice, Iterator[tuple[Array, slice]]]]:
    """Samples, output rows, and the windows that these outputs meet, as `_in_runs` has them."""
    n, c = x.shape[:2]
    height, width = window.out_size(*x.shape[2:])
    # The pixels of a block, padded and repeated, and the sums over their windows.
    row_bytes = 3 * width * c * m * x.itemsize
    for samples, rows in blocks(n, height, row_bytes, scratch_bytes(ops)):
        full = band(ops, x[samples], window, rows)
        wide = full if m == 1 else ops.xp.repeat(full, m, axis=3)
        out = (rows.stop - rows.start, width)
        yield samples, rows, _in_runs(ops.xp, wide, window, out, together)


def _in_runs(
    xp: Any, full: Array, window: Window, out: Pair, together: int
) -> Iterator[tuple[Array, slice]]:
    """Views (N, H', runs, kh, taps, run·C) of the padded ``full``, and their columns' taps.

    Outputs ``together`` in a row make a run. The pixels that a tap meets in it lie one after the
    other: with a stride, in a copy of every so-many-th column, which serves the taps whose distance
    the stride divides.
    """
    n, _, _, c = full.shape
    (kh, kw), (sh, sw), (dh, dw) = window.kernel, window.stride, window.dilation
    common = gcd(sw, dw)
    step = sw // common
    for first in range(min(step, kw)):
        taps = slice(first, None, step)
        columns = xp.ascontiguousarray(full[:, :, first * dw % sw :: sw])
        by_n, by_h, by_w, by_c = steps(columns)
        shape = (n, out[0], out[1] // together, kh, len(range(first, kw, step)), together * c)
        strides = (by_n, by_h * sh, by_w * together, by_h * dh, by_w * (dw // common), by_c)
        start = columns[:, :, first * dw // sw :]
        yield xp.lib.stride_tricks.as_strided(start, shape, strides), taps


@lru_cache(maxsize=256)
def _together(width: int, channels: int) -> int:
    """How many outputs of a row make a run: a divisor of the width, for about `_RUN` values."""
    divisors = (part for part in range(1, width + 1) if width % part == 0)
    return min(divisors, key=lambda part: abs(log(part * channels / _RUN)), default=1)


def _along_rows(xp: Any, weight: Array, width: int) -> Array:
    """The weight as (kh·kw, W', C, M), the same for each of the W' outputs of a row.

    Laid out so, a product with a row of pixels is one long run instead of one a pixel.
    """
    c, m, kh, kw = weight.shape
    kernels: Array = xp.empty((kh * kw, width, c, m), weight.dtype)
    kernels[...] = weight.reshape(c, m, kh * kw).transpose(2, 0, 1)[:, None]
    return kernels
