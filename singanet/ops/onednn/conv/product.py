"""Convolve few pixels with large weights, as products with the weight in place.

oneDNN's convolutions first reorder the weight, which here takes longer than the convolution.
"""

from __future__ import annotations

from math import prod

from singanet.base.heap import steps
from singanet.ops.casts import has_compiler
from singanet.ops.costs import Case
from singanet.ops.kernel import NEVER
from singanet.ops.llvm import kernels
from singanet.ops.numpy import conv as by_numpy
from singanet.ops.numpy.windows import padded
from singanet.ops.onednn.base import OneDnnBase
from singanet.ops.window import Window
from singanet.types import Array, Shape

_LARGE = {True: 1 << 14, False: 1 << 17}
"""Elements of a weight from which reordering counts, for single pixels and for windows."""

_MOST_COPIED = 1 << 21
"""Largest number of elements in copied windows: more would leave the cache."""

_FEW_PIXELS = {True: 512, False: 64}
"""Outputs of a channel up to which the product is faster, for single pixels and for windows.

Windows have to be copied out of the images first. Source: `net.tune_kernels` on vgg11, resnet18,
resnet50, googlenet, mobilenet at batch sizes from 1 to 32. The numbers depend on oneDNN's passes
over a weight: processors as different as an EPYC and a Xeon with AMX agree.
"""

_FEW_ROWS = 8
"""Outputs of a channel for which a product by LLVM reads a constant weight from memory once."""

_A_PIXEL = 1 << 13
"""Elements of a weight for each pixel, from which its gradient is faster as a product.

oneDNN sums the gradient in its own layout, and reorders all of it at the end.
"""

_TOUCHED = {True: 3, False: 8}
"""Accesses of oneDNN's sums of an image in the time of one of the product's, for bfloat16.

NumPy copies windows, so windows cannot be stored in bfloat16.
"""

_FASTER = 0.99
"""The estimate if the product is faster; the factor is unknown."""


def forward(ops: OneDnnBase, x: Array, weight: Array, bias: Array | None, window: Window) -> Array:
    out = window._out_size(*x.shape[2:])
    rows, matrix = _windows(ops, x, window), ops.ordered(weight).reshape(len(weight), -1).T
    y = ops.affine(rows, matrix, bias)
    return y.reshape(len(x), *out, len(weight)).transpose(0, 3, 1, 2)


def constant(
    ops: OneDnnBase,
    x: Array,
    weight: Array,
    bias: Array | None,
    window: Window,
    relu: bool = False,
    add: Array | None = None,
) -> Array | None:
    """Convolve a few pixels with a constant weight, which is read once, by LLVM's function."""
    out = window._out_size(*x.shape[2:])
    rows, matrix = _windows(ops, x, window), ops.ordered(weight).reshape(len(weight), -1).T
    y = kernels.multiply(ops, rows, matrix, bias, relu and add is None)
    if y is None:
        return None
    made: Array = y.reshape(len(x), *out, len(weight)).transpose(0, 3, 1, 2)
    return made if add is None else by_numpy.after(ops, made, relu, add)


def constant_fits(ops: OneDnnBase, case: Case) -> bool:
    """Whether oneDNN's kernels would read a large weight for some pixels at a time."""
    few = 0 < _pixels(case) <= _FEW_ROWS and prod(case.weight) >= _LARGE[False]
    return few and case.window.groups == 1 and not ops.narrow and has_compiler()


def constant_estimate(ops: OneDnnBase, case: Case) -> float:
    """Estimate that it is faster."""
    return _FASTER


def data(ops: OneDnnBase, dy: Array, weight: Array, x_shape: Shape, window: Window) -> Array:
    n, f, h, w = dy.shape
    slopes = ops.channels_last(dy).reshape(-1, f)
    dx = ops.matmul(slopes, ops.ordered(weight).reshape(f, -1))
    return dx.reshape(n, h, w, -1).transpose(0, 3, 1, 2)


def weights(ops: OneDnnBase, x: Array, dy: Array, weight_shape: Shape, window: Window) -> Array:
    f, c, *kernel = weight_shape
    slopes, rows = ops.channels_last(dy).reshape(-1, f), _windows(ops, x, window, last=True)
    # Windows are copied by whole rows of pixels; then the channels of the sums move forward.
    sums: Array = ops.matmul(slopes.T, rows).reshape(f, prod(kernel), 1, c)
    return ops.channels_last(sums).reshape(weight_shape)


def fits(ops: OneDnnBase, case: Case) -> bool:
    """Whether one product suits: its windows fit in the cache, or it is faster."""
    pixels, plain = _pixels(case), _is_plain(case.window)
    if case.window.groups > 1 or not pixels or (case.kernel == "data" and not plain):
        return False
    copied = 0 if plain else pixels * prod(case.weight) // case.weight[0]
    return copied <= _MOST_COPIED or _is_faster(ops, case)


def estimate(ops: OneDnnBase, case: Case) -> float:
    """Estimate from the number of pixels and the size of the weight."""
    return _FASTER if _is_faster(ops, case) else NEVER


def _is_faster(ops: OneDnnBase, case: Case) -> bool:
    pixels, size, single = _pixels(case), prod(case.weight), case.window.kernel == (1, 1)
    if ops.narrow:
        return case.kernel == "weights" and _is_summed_by_image(case)
    few = pixels <= _FEW_PIXELS[single] and size >= _LARGE[single]
    return few or (case.kernel == "weights" and pixels <= size // _A_PIXEL)


def _is_summed_by_image(case: Case) -> bool:
    """Whether oneDNN, which adds to all sums for each image, accesses more memory.

    The product accesses its windows, and its sums once.
    """
    size = prod(case.weight)
    copied = _pixels(case) * size // case.weight[0]
    return case.x[0] * size > _TOUCHED[_is_plain(case.window)] * (copied + size)


def _pixels(case: Case) -> int:
    """Return the outputs of a channel."""
    return case.x[0] * prod(case.window._out_size(*case.x[2:]))


def _windows(ops: OneDnnBase, x: Array, window: Window, last: bool = False) -> Array:
    """Return the window of each output, (N·H'·W', C·kh·kw); a view if it is one pixel.

    ``last`` puts the channels last: (N·H'·W', kh·kw·C), in a quarter of the time.
    """
    if _is_plain(window):
        return ops.channels_last(x).reshape(-1, x.shape[1])
    full = padded(ops, x, window.pads)
    n, c = x.shape[:2]
    by_n, by_h, by_w, by_c = steps(full)
    (sh, sw), (dh, dw) = window.stride, window.dilation
    seen_by = {
        "c": (c, by_c),
        "h": (window.kernel[0], by_h * dh),
        "w": (window.kernel[1], by_w * dw),
    }
    sizes, by_tap = zip(*(seen_by[axis] for axis in ("hwc" if last else "chw")), strict=True)
    shape = (n, *window._out_size(*x.shape[2:]), *sizes)
    strides = (by_n, by_h * sh, by_w * sw, *by_tap)
    seen = ops.xp.lib.stride_tricks.as_strided(full, shape, strides)
    rows: Array = ops.xp.ascontiguousarray(seen)
    return rows.reshape(shape[0] * shape[1] * shape[2], -1)


def _is_plain(window: Window) -> bool:
    """Whether every output depends on its own pixel alone."""
    return window == Window((1, 1), (1, 1), ((0, 0), (0, 0)), window.dilation)
