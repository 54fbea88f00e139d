"""Convolve many channels by Winograd's transforms, with a quarter of the multiplications.

For 3×3 and 5×5 windows: a tile of 6×6 or 8×8 inputs gives 4×4 outputs. A transform is a product
with a small constant matrix along either axis of the tiles, since NumPy's element-wise steps would
take twice as long, and one product for both axes half as long again. `singanet.ops.window` has the
points and their error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import prod

from singanet.base.heap import steps
from singanet.ops import window as wg
from singanet.ops.interface import Ops
from singanet.ops.numpy.linear import in_lanes, sum_of
from singanet.ops.numpy.windows import blocks, padded, scratch_bytes
from singanet.ops.window import Pair, Window
from singanet.types import Array, Shape

T = wg.TILE

_BLOCK_BYTES, _MOST_BYTES = 1 << 20, 1 << 22
"""Least and most bytes of a block's values: transforms need cache, products many tiles.

Between the two, they equal the kernels' bytes, which each block reads.
"""

_COLUMN, _INPUT, _SUM, _KERNEL = 16, 60, 30, 100
"""Costs of a value in multiplications: of columns, inputs, sums, and kernels.

Ratios of copies to products, measured on processors with AVX-512 and rounded in favour of the
direct route. They are constants, not measured anew, so that equal runs have equal bits.
"""

_GAIN = 1.3
"""The factor by which the estimate has to be faster."""

Product = Callable[..., Array]


def pays(ops: Ops, x_shape: Shape, weight_shape: Shape, window: Window) -> bool:
    """Whether the forward convolution suits tiles, and is faster; its gradients are then too."""
    (n, c, *size), (f, _, taps, across) = x_shape, weight_shape
    plain = window.stride == window.dilation == (1, 1) and window.groups == 1
    pads = [pad for both in window.pads for pad in both]
    if not ops.on_host or not plain or taps != across or taps not in wg.POINTS:
        return False
    if max(pads) > taps - 1 or 0 in x_shape:
        return False
    direct = n * prod(window._out_size(*size)) * taps * taps * c * (f + _COLUMN)
    return direct > _GAIN * multiplications(x_shape, weight_shape, window) > 0


def multiplications(x_shape: Shape, weight_shape: Shape, window: Window) -> int:
    """Return the cost by tiles, as multiplications of a product."""
    (n, c, *size), (f, _, taps, _) = x_shape, weight_shape
    tiles = n * prod(_grid(window._out_size(*size)))
    each = tiles * (c * f + _INPUT * c + _SUM * f) + _KERNEL * c * f
    return each * int(wg.span(taps) ** 2)


def conv2d(ops: Ops, x: Array, weight: Array, bias: Array | None, window: Window) -> Array:
    f, c = weight.shape[:2]
    kernels = _kernels(ops, weight, transposed=False).reshape(-1, f, c).transpose(0, 2, 1)
    y: Array = ops.xp.empty((len(x), *window._out_size(*x.shape[2:]), f), x.dtype)
    (top, _), (left, _) = window.pads
    return _convolved(ops, x, kernels, y, (top, left), bias, weight.shape[2])


def data(ops: Ops, dy: Array, weight: Array, x_shape: Shape, window: Window) -> Array:
    """Compute `Ops.conv2d_backward_data`, a convolution of dy with the flipped kernels."""
    (n, c, h, w), (f, _, taps, _) = x_shape, weight.shape
    kernels = _kernels(ops, weight, transposed=True).reshape(-1, f, c)
    dx: Array = ops.xp.empty((n, h, w, c), dy.dtype)
    (top, _), (left, _) = window.pads
    return _convolved(ops, dy, kernels, dx, (taps - 1 - top, taps - 1 - left), None, taps)


def weights(ops: Ops, x: Array, dy: Array, weight_shape: Shape, window: Window) -> Array:
    xp, (f, c, taps, _) = ops.xp, weight_shape
    grid, multiply, count = _grid(dy.shape[2:]), _product(ops, len(x)), wg.span(taps) ** 2
    (top, _), (left, _) = window.pads
    of_slopes = wg.slopes_line(taps, x.dtype)
    totals: list[Array] = []
    sums_bytes = count * c * f * x.itemsize
    for lane in ops.lanes(len(x), len(x) * grid[0] * grid[1] * count * c * f):
        total: Array | None = None
        for samples in _blocks(ops, x[lane], grid, count * (c + f), sums_bytes, 2):
            values = _values(ops, x[lane][samples], grid, (top, left), multiply, taps)
            tiled = _tiled(ops, dy[lane][samples], grid)
            slopes = _along_both(ops, multiply, of_slopes, tiled).reshape(count, -1, f)
            sums = multiply(slopes.transpose(0, 2, 1), values)
            total = sums if total is None else xp.add(total, sums, out=total)
        totals += [] if total is None else [total]
    sums = sum_of(ops, totals).reshape(count, f * c)
    return multiply(sums.T, wg.to_kernels(x.dtype, taps)).reshape(weight_shape)


def _convolved(
    ops: Ops, x: Array, kernels: Array, y: Array, pads: Pair, bias: Array | None, taps: int
) -> Array:
    """Convolve ``x`` (N, C, H, W) with ``kernels`` (span², C, F) into ``y`` (N, H', W', F)."""
    xp, (count, c, f) = ops.xp, kernels.shape
    grid, multiply, span = _grid(y.shape[1:3]), _product(ops, len(x)), wg.span(taps)
    to_outputs = wg.outputs_line(taps, x.dtype)
    for lane in ops.lanes(len(x), len(x) * grid[0] * grid[1] * count * c * f):
        for samples in _blocks(ops, x[lane], grid, count * (c + f), kernels.nbytes):
            values = _values(ops, x[lane][samples], grid, pads, multiply, taps)
            sums = multiply(values, kernels).reshape(span, span, -1)
            tiles = _along_both(ops, multiply, to_outputs, sums).reshape(T, T, -1, *grid, f)
            target = y[lane][samples]
            _place(ops, tiles, target)
            if bias is not None:
                xp.add(target, bias, out=target)
    return y.transpose(0, 3, 1, 2)


def _product(ops: Ops, samples: int) -> Product:
    """Return the product function; it divides a product of a single sample among lanes."""
    product: Product = partial(in_lanes, ops) if samples == 1 else ops.xp.matmul
    return product


def _along_both(ops: Ops, multiply: Product, line: Array, tiles: Array) -> Array:
    """Apply ``line`` (B, A) along both axes of ``tiles`` (A, A, M): (B, B, M)."""
    (made, side), many = line.shape, tiles.shape[2]
    rows = multiply(line, tiles.reshape(side, side * many)).reshape(made, side, many)
    return multiply(ops.xp.broadcast_to(line, (made, made, side)), rows)


def _grid(size: Shape) -> Pair:
    """Return the numbers of tiles along the height and the width of outputs."""
    return -(-size[0] // T), -(-size[1] // T)


def _blocks(
    ops: Ops, x: Array, grid: Pair, values: int, beside: int, least: int = 0
) -> Iterator[slice]:
    """Yield slices of samples whose ``values`` a tile fit in the scratch.

    ``beside`` are the bytes of kernels or sums in the products; ``least`` times that is the least
    size of values.
    """
    size = grid[0] * grid[1] * values * x.itemsize
    usual = min(max(_BLOCK_BYTES, beside), _MOST_BYTES)
    for samples, _ in blocks(len(x), 1, size, scratch_bytes(ops, usual, least * beside)):
        yield samples


def _kernels(ops: Ops, weight: Array, transposed: bool) -> Array:
    """Return the values of each kernel, flipped if ``transposed``: (span², F·C)."""
    f, c, taps, _ = weight.shape
    rows = weight.reshape(f * c, taps * taps)
    return in_lanes(ops, wg.of_kernels(transposed, weight.dtype, taps), rows.T)


def _values(ops: Ops, x: Array, grid: Pair, pads: Pair, multiply: Product, taps: int) -> Array:
    """Return the values of each tile of ``x`` (N, C, H, W): (span², tiles, C)."""
    (n, c, h, w), (th, tw), (top, left), span = x.shape, grid, pads, wg.span(taps)
    ends = (T * th + taps - 1 - h - top, T * tw + taps - 1 - w - left)
    full = padded(ops, x, ((top, ends[0]), (left, ends[1])))
    by_n, by_h, by_w, by_c = steps(full)
    shape = (span, span, n, th, tw, c)
    strides = (by_h, by_w, by_n, T * by_h, T * by_w, by_c)
    tiles = ops.xp.lib.stride_tricks.as_strided(full, shape, strides)
    lines = ops.xp.ascontiguousarray(tiles).reshape(span, span, n * th * tw * c)
    made = _along_both(ops, multiply, wg.inputs_line(taps, x.dtype), lines)
    return made.reshape(span * span, n * th * tw, c)


def _tiled(ops: Ops, dy: Array, grid: Pair) -> Array:
    """Return the 4×4 gradients of each tile's outputs, (4, 4, tiles·F), zero beyond the image."""
    (n, f, h, w), (th, tw) = dy.shape, grid
    full = padded(ops, dy, ((0, T * th - h), (0, T * tw - w)))
    tiles = full.reshape(n, th, T, tw, T, f).transpose(2, 4, 0, 1, 3, 5)
    return ops.xp.ascontiguousarray(tiles).reshape(T, T, n * th * tw * f)


def _place(ops: Ops, tiles: Array, y: Array) -> None:
    """Copy ``tiles`` (4, 4, N, rows, columns, F) to their places in ``y`` (N, H', W', F)."""
    _, _, n, th, tw, f = tiles.shape
    whole = y.shape[1:3] == (T * th, T * tw)
    full = y if whole else ops.xp.empty((n, T * th, T * tw, f), y.dtype)
    ops.xp.copyto(full.reshape(n, th, T, tw, T, f), tiles.transpose(2, 3, 0, 4, 1, 5))
    if not whole:
        ops.xp.copyto(y, full[:, : y.shape[1], : y.shape[2]])
