"""3×3 convolutions with many channels by Winograd's transforms: a quarter of the multiplications.

A tile of 6×6 inputs gives 4×4 outputs. Both of its transforms are one product with a constant
matrix, since NumPy's element-wise steps along an axis would take twice as long. See
`singanet.ops.winograd` for the points and their error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from singanet.ops import winograd as wg
from singanet.ops.interface import Ops
from singanet.ops.numpy.lanes import sum_of
from singanet.ops.numpy.linear import in_lanes
from singanet.ops.numpy.windows import blocks, padded, scratch_bytes
from singanet.ops.window import Pair, Window
from singanet.types import Array, Shape

T, S = wg.TILE, wg.SPAN
POINTS = S * S

_BLOCK_BYTES = 1 << 22
"""Of the values of a block, which are written once and read once; products want many tiles."""

_COLUMN, _INPUT, _SUM, _KERNEL = 16, 90, 45, 100
"""What a value costs, as multiplications of a product: of columns, inputs, sums, and kernels.

Ratios of copies to products, measured on processors with AVX-512 and rounded towards the direct
way. They are no measurement of the processor at hand, so that equal runs have equal bits.
"""

_GAIN = 1.2
"""How much faster the estimate has to be."""

Product = Callable[..., Array]


def pays(ops: Ops, x_shape: Shape, weight_shape: Shape, window: Window, groups: int) -> bool:
    """Whether the forward convolution is one for tiles, and faster so; its gradients are then."""
    (n, c, *size), (f, _, *kernel) = x_shape, weight_shape
    plain = window.stride == window.dilation == (1, 1) and kernel == [3, 3] and groups == 1
    pads = [pad for both in window.pads for pad in both]
    if not ops.on_host or not plain or max(pads) > 2 or 0 in x_shape:
        return False
    out = window.out_size(*size)
    th, tw = _grid(out)
    tiles = n * th * tw
    direct = n * out[0] * out[1] * 9 * c * (f + _COLUMN)
    taken = POINTS * (tiles * (c * f + _INPUT * c + _SUM * f) + _KERNEL * c * f)
    return direct > _GAIN * taken > 0


def conv2d(
    ops: Ops, x: Array, weight: Array, bias: Array | None, window: Window, groups: int = 1
) -> Array:
    """See `Ops`."""
    f, c = weight.shape[:2]
    kernels = _kernels(ops, weight, turned=False).reshape(POINTS, f, c).transpose(0, 2, 1)
    y: Array = ops.xp.empty((len(x), *window.out_size(*x.shape[2:]), f), x.dtype)
    (top, _), (left, _) = window.pads
    return _convolved(ops, x, kernels, y, (top, left), bias)


def data(
    ops: Ops, dy: Array, weight: Array, x_shape: Shape, window: Window, groups: int = 1
) -> Array:
    """See `Ops.conv2d_backward_data`: a convolution of dy with the kernels turned around."""
    (n, c, h, w), f = x_shape, len(weight)
    kernels = _kernels(ops, weight, turned=True).reshape(POINTS, f, c)
    dx: Array = ops.xp.empty((n, h, w, c), dy.dtype)
    (top, _), (left, _) = window.pads
    return _convolved(ops, dy, kernels, dx, (2 - top, 2 - left), None)


def weights(
    ops: Ops, x: Array, dy: Array, weight_shape: Shape, window: Window, groups: int = 1
) -> Array:
    """See `Ops.conv2d_backward_weights`."""
    xp, (f, c) = ops.xp, weight_shape[:2]
    grid, multiply = _grid(dy.shape[2:]), _product(ops, len(x))
    (top, _), (left, _) = window.pads
    of_slopes = wg.of_slopes_at_once(x.dtype)
    totals: list[Array] = []
    # What is added to and read again should be less than what is summed up at a time.
    least = 2 * POINTS * c * f * x.itemsize
    for lane in ops.lanes(len(x), len(x) * grid[0] * grid[1] * POINTS * c * f):
        total: Array | None = None
        for samples in _blocks(ops, x[lane], grid, c + f, least):
            values = _values(ops, x[lane][samples], grid, (top, left), multiply)
            tiled = _tiled(ops, dy[lane][samples], grid)
            slopes = multiply(of_slopes, tiled).reshape(POINTS, -1, f)
            sums = multiply(slopes.transpose(0, 2, 1), values)
            total = sums if total is None else xp.add(total, sums, out=total)
        totals += [] if total is None else [total]
    sums = sum_of(ops, totals).reshape(POINTS, f * c)
    return multiply(sums.T, wg.to_kernels(x.dtype)).reshape(weight_shape)


def _convolved(
    ops: Ops, x: Array, kernels: Array, y: Array, pads: Pair, bias: Array | None
) -> Array:
    """``x`` (N, C, H, W) convolved with ``kernels`` (36, C, F) into ``y`` (N, H', W', F)."""
    xp, (_, c, f) = ops.xp, kernels.shape
    grid, multiply = _grid(y.shape[1:3]), _product(ops, len(x))
    to_outputs = wg.to_outputs_at_once(x.dtype)
    for lane in ops.lanes(len(x), len(x) * grid[0] * grid[1] * POINTS * c * f):
        for samples in _blocks(ops, x[lane], grid, c + f):
            values = _values(ops, x[lane][samples], grid, pads, multiply)
            sums = multiply(values, kernels).reshape(POINTS, -1)
            tiles = multiply(to_outputs, sums).reshape(T, T, -1, *grid, f)
            target = y[lane][samples]
            _place(ops, tiles, target)
            if bias is not None:
                xp.add(target, bias, out=target)
    return y.transpose(0, 3, 1, 2)


def _product(ops: Ops, samples: int) -> Product:
    """How to multiply: of a single sample, which makes no lanes, in lanes of each product."""
    product: Product = partial(in_lanes, ops) if samples == 1 else ops.xp.matmul
    return product


def _grid(size: Shape) -> Pair:
    """Tiles along the height and the width of outputs."""
    return -(-size[0] // T), -(-size[1] // T)


def _blocks(ops: Ops, x: Array, grid: Pair, channels: int, least: int = 0) -> Iterator[slice]:
    """Slices of samples whose values fit the scratch."""
    size = POINTS * grid[0] * grid[1] * channels * x.itemsize
    for samples, _ in blocks(len(x), 1, size, scratch_bytes(ops, _BLOCK_BYTES, least)):
        yield samples


def _kernels(ops: Ops, weight: Array, turned: bool) -> Array:
    """The 36 values of each kernel, or of the kernels turned around: (36, F·C)."""
    taps = weight.reshape(weight.shape[0] * weight.shape[1], 9)
    return in_lanes(ops, wg.of_kernels(turned, weight.dtype), taps.T)


def _values(ops: Ops, x: Array, grid: Pair, pads: Pair, multiply: Product) -> Array:
    """The 36 values of each tile of ``x`` (N, C, H, W): (36, tiles, C)."""
    (n, c, h, w), (th, tw), (top, left) = x.shape, grid, pads
    ends = (T * th + 2 - h - top, T * tw + 2 - w - left)
    full = padded(ops, x, ((top, ends[0]), (left, ends[1])))
    by_n, by_h, by_w, by_c = full.strides
    shape = (S, S, n, th, tw, c)
    strides = (by_h, by_w, by_n, T * by_h, T * by_w, by_c)
    tiles = ops.xp.lib.stride_tricks.as_strided(full, shape, strides)
    lines = ops.xp.ascontiguousarray(tiles).reshape(POINTS, n * th * tw * c)
    return multiply(wg.of_inputs_at_once(x.dtype), lines).reshape(POINTS, n * th * tw, c)


def _tiled(ops: Ops, dy: Array, grid: Pair) -> Array:
    """The 16 gradients of each tile's outputs, (16, tiles·F), zero beyond the image."""
    (n, f, h, w), (th, tw) = dy.shape, grid
    full = padded(ops, dy, ((0, T * th - h), (0, T * tw - w)))
    tiles = full.reshape(n, th, T, tw, T, f).transpose(2, 4, 0, 1, 3, 5)
    return ops.xp.ascontiguousarray(tiles).reshape(T * T, n * th * tw * f)


def _place(ops: Ops, tiles: Array, y: Array) -> None:
    """Lay ``tiles`` (4, 4, N, rows, columns, F) side by side into ``y`` (N, H', W', F)."""
    _, _, n, th, tw, f = tiles.shape
    whole = y.shape[1:3] == (T * th, T * tw)
    full = y if whole else ops.xp.empty((n, T * th, T * tw, f), y.dtype)
    ops.xp.copyto(full.reshape(n, th, T, tw, T, f), tiles.transpose(2, 3, 0, 4, 1, 5))
    if not whole:
        ops.xp.copyto(y, full[:, : y.shape[1], : y.shape[2]])
