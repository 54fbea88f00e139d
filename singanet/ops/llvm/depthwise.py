"""Convolve channel by channel, and groups of channels, by functions compiled with LLVM.

They read images where they are, without copies that are padded. Sums of the kernels' gradient are
split by sizes alone: results do not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from singanet.ops.casts import has_compiler
from singanet.ops.compiled.sizes import COPIED, LANES, PIXELS, READ
from singanet.ops.costs import Case
from singanet.ops.kernel import Route, in_order
from singanet.ops.llvm.base import PlannedOps
from singanet.ops.llvm.plans import CompiledPlan, Crew, Stages
from singanet.ops.numpy import conv
from singanet.ops.window import Window
from singanet.ops.workers import shared
from singanet.types import Array, Shape

if TYPE_CHECKING:
    from singanet.ops.compiled.engine import CompiledFunction

_LEAST = 1 << 17
"""Multiply-adds from which compiling pays off within some hundred steps."""

_DIRECT = 9
"""Most elements of a kernel for which oneDNN's function of the gradient is as fast."""

_PARTS = 16
"""Most parts of the samples with sums of their own, of the kernels' gradient."""

_TAPS = 7
"""Most columns of a kernel, for which a function is written out."""

_WRITTEN = (2, 4, 8)
"""Channels of groups for which a function is written; there is one for any from `LANES` on."""


def _forward(
    ops: PlannedOps, x: Array, weight: Array, bias: Array | None, window: Window
) -> Array | None:
    images, lines = ops.channels_last(x), _lines(ops, weight, (3, 2, 0, 1))
    n, *size, c = images.shape
    y: Array = ops.xp.empty((n, *window._out_size(*size), c), np.float32)
    rest = [] if bias is None else [ops.ordered(bias)]
    key = images.shape, window, bool(rest), weight.shape[1]
    passes = ops.passes(weight[0].size)
    done = ops.runs(_forward_plan, key, y, images, lines, *rest, passes=passes)
    return y.transpose(0, 3, 1, 2) if done else None


def _data(
    ops: PlannedOps, dy: Array, weight: Array, x_shape: Shape, window: Window
) -> Array | None:
    """Convolve the outputs' gradients with the flipped kernels."""
    slopes = ops.channels_last(dy)
    lines = _lines(ops, weight[:, :, ::-1, ::-1], (3, 1, 0, 2))
    n, c, *size = x_shape
    dx: Array = ops.xp.empty((n, *size, c), np.float32)
    key = slopes.shape, dx.shape, window, weight.shape[1]
    passes = ops.passes(weight[0].size // prod(window.stride))
    done = ops.runs(_data_plan, key, dx, slopes, lines, passes=passes)
    return dx.transpose(0, 3, 1, 2) if done else None


def _lines(ops: PlannedOps, weight: Array, axes: tuple[int, ...]) -> Array:
    """Return kernels (groups, outputs, inputs, kh·kw) with these ``axes`` as (kh·kw·g, channels).

    A group has g inputs, and as many outputs. Each line has unused elements at its end.
    """
    channels, group, *kernel = weight.shape
    split = weight.reshape(channels // group, group, group, prod(kernel)).transpose(axes)
    lines: Array = ops.xp.empty((prod(kernel) * group, channels + LANES), np.float32)
    lines[:, :channels] = split.reshape(-1, channels)
    return lines


def weights(
    ops: PlannedOps, x: Array, dy: Array, weight_shape: Shape, window: Window
) -> Array | None:
    images, slopes = ops.channels_last(x), ops.channels_last(dy)
    n, *_, c = images.shape
    totals: Array = ops.xp.empty((_parts(n)[0], prod(window.kernel), c), np.float32)
    # The work is the images', not the small result's.
    passes = -(-slopes.size * ops.passes(prod(window.kernel)) // totals.size)
    key = images.shape, slopes.shape, window
    if not ops.runs(_weights_plan, key, totals, images, slopes, passes=passes):
        return None
    return ops.xp.ascontiguousarray(totals.sum(axis=0).T).reshape(weight_shape)


def weights_of_groups(
    ops: PlannedOps, x: Array, dy: Array, weight_shape: Shape, window: Window
) -> Array | None:
    images, slopes = ops.channels_last(x), ops.channels_last(dy)
    c, group, *kernel = weight_shape
    totals: Array = ops.xp.empty((prod(kernel), group, c // group, group), np.float32)
    # The work is the images', not the small result's.
    passes = -(-slopes.size * ops.passes(prod(kernel) * group) // totals.size)
    key = images.shape, slopes.shape, window, group
    if not ops.runs(_groups_plan, key, totals, images, slopes, passes=passes):
        return None
    return ops.xp.ascontiguousarray(totals.transpose(2, 3, 1, 0)).reshape(weight_shape)


def _parts(samples: int) -> tuple[int, int]:
    """Return the number of parts, and the samples of a part."""
    each = -(-samples // _PARTS)
    return -(-samples // each), each


Fits = Callable[[PlannedOps, Array, Shape, Shape, Window], bool]
"""Whether functions serve images, the results' and the kernels' shape, and a window."""


def _fits(ops: PlannedOps, x: Array, y: Shape, weight: Shape, window: Window) -> bool:
    return weight[1] == 1 and _is_served(ops, x, y, weight, window)


def _is_served(ops: PlannedOps, x: Array, y: Shape, weight: Shape, window: Window) -> bool:
    # oneDNN's kernels may store bfloat16.
    return (
        x.ndim == 4
        and not ops.narrow
        and ops.serves(1, x)
        and _are_worth_compiling(y, weight, window)
    )


def _are_worth_compiling(y: Shape, weight: Shape, window: Window) -> bool:
    return (
        weight[0] >= LANES
        and window.kernel[1] <= _TAPS
        and prod(y) * prod(window.kernel) * weight[1] >= _LEAST
        and has_compiler()
    )


def _fit_groups(ops: PlannedOps, x: Array, y: Shape, weight: Shape, window: Window) -> bool:
    """Whether a function serves groups of several inputs and as many outputs."""
    channels, group = weight[:2]
    small = group in _WRITTEN and channels % LANES == 0
    large = group >= LANES and group % PIXELS == 0
    return (
        window.groups > 1
        and window.groups * group == channels == x.shape[1]
        and _is_served(ops, x, y, weight, window)
        and (small or (large and _block(window, group, y[3])[0] > 0))
    )


def _fit_copies(ops: PlannedOps, x: Array, y: Shape, weight: Shape, window: Window) -> bool:
    """Whether a function also has room for copies of a line."""
    fits = _fit_groups(ops, x, y, weight, window)
    return fits and _copied(window, weight[1], y[3])[0] > 0


def _fits_forward(fits: Fits) -> Callable[..., bool]:
    def served(
        ops: PlannedOps, x: Array, weight: Array, bias: Array | None, window: Window
    ) -> bool:
        rest = [] if bias is None else [bias]
        made = (len(x), len(weight), *window._out_size(*x.shape[2:])) if x.ndim == 4 else ()
        return fits(ops, x, made, weight.shape, window) and ops.serves(1, weight, *rest)

    return served


def _fits_data(fits: Fits) -> Callable[..., bool]:
    def served(ops: PlannedOps, dy: Array, weight: Array, x_shape: Shape, window: Window) -> bool:
        steps = zip(window.stride, window.dilation, strict=True)
        return (
            all(1 in pair for pair in steps)
            and fits(ops, dy, x_shape, weight.shape, window)
            and ops.serves(1, weight)
            and all(
                before <= reach
                for reach, (before, _) in zip(_reach(window), window.pads, strict=True)
            )
        )

    return served


def _fits_weights(fits: Fits) -> Callable[..., bool]:
    def served(ops: PlannedOps, x: Array, dy: Array, weight_shape: Shape, window: Window) -> bool:
        return fits(ops, x, dy.shape, weight_shape, window) and ops.serves(1, dy)

    return served


def beats_direct(ops: PlannedOps, case: Case) -> bool:
    """Whether the gradient of these kernels takes oneDNN's own function several times as long.

    That is so but for kernels of 3×3.
    """
    (n, channels, *size), window = case.x, case.window
    return (
        prod(window.kernel) > _DIRECT
        and case.weight[:2] == (channels, 1)
        and not ops.narrow
        and _are_worth_compiling((n, channels, *window._out_size(*size)), case.weight, window)
    )


def _reach(window: Window) -> tuple[int, ...]:
    """Return the pixels from the first of a window to its last, by axis."""
    pairs = zip(window.kernel, window.dilation, strict=True)
    return tuple((size - 1) * spread for size, spread in pairs)


def _numbers(
    images: Shape, outs: tuple[int, ...], window: Window, group: int = 1
) -> tuple[int, ...]:
    _, *size, c = images
    before = [pad for pad, _ in window.pads]
    axes = size, outs, window.kernel, window.stride, before, window.dilation
    return (c, group, *(number for axis in axes for number in axis))


def _forward_plan(
    crew: Crew, images: Shape, window: Window, biased: bool, group: int
) -> CompiledPlan:
    """Operands: outputs, images, kernels and, if ``biased``, the bias."""
    outs = window._out_size(*images[1:3])
    whole = 0, window.kernel[1], 1, prod(outs), 0, outs[1], 1
    stages = _lines_shared(crew, images, outs, window, group, whole)
    function = _convolution(images[3], group, window, biased)
    return CompiledPlan(crew, function, stages, reads=(1, 2, 3)[: 2 + biased], writes=(0,))


def _lines_shared(
    crew: Crew,
    images: Shape,
    outs: tuple[int, ...],
    window: Window,
    group: int,
    more: tuple[int, ...],
) -> Stages:
    """Return the calls of a convolution; large groups copy the lines of a block of outputs."""
    n, numbers = images[0], (*_numbers(images, outs, window, group), *more)
    if group < LANES:
        return shared(numbers, (n * outs[0],), crew.threads)
    lines, wide = _block(window, group, outs[1])
    # Several blocks for each thread.
    lines = max(1, min(lines, outs[0], n * outs[0] // (4 * crew.threads)))
    return shared((*numbers, lines, wide), (n * -(-outs[0] // lines),), crew.threads)


def _block(window: Window, group: int, width: int) -> tuple[int, int]:
    """Return the lines of outputs of a block, and the pixels of a line that they read.

    There may be room for none.
    """
    (down, across), (high, wide) = window.stride, (max(each, 1) for each in window.extent)
    pixels = (width - 1) * across + wide
    vectors = pixels * -(-group // LANES)
    # Half of the room stays in the core's own cache.
    lines = max((READ // 2 // vectors - high) // down + 1, 1)
    return lines * (((lines - 1) * down + high) * vectors <= READ), pixels


class _StridedPhase(NamedTuple):
    """The pixels of an axis whose gradients have the same elements of the kernel.

    They begin with ``start``, and those of the flipped kernel with ``first``.
    """

    start: int
    pixels: int
    first: int
    taps: int
    pad: int


def _phases(window: Window, axis: int, size: int) -> list[_StridedPhase]:
    """Return one phase for each pixel of a stride."""
    stride, (before, _) = window.stride[axis], window.pads[axis]
    found = []
    for rest in range(stride):
        start = (rest - before) % stride
        taps = len(range(rest, window.kernel[axis], stride))
        # The first output that such a pixel is in, by the first element of the kernel.
        output, last = (start + before - rest) // stride, max(taps - 1, 0)
        first = window.kernel[axis] - 1 - rest - stride * last
        pad = last * window.dilation[axis] - output
        found.append(_StridedPhase(start, len(range(start, size, stride)), first, taps, pad))
    return found


def _data_plan(
    crew: Crew, slopes: Shape, images: Shape, window: Window, group: int
) -> CompiledPlan:
    """Operands: the images' gradient, the outputs' gradients, the flipped kernels."""
    _, height, width, c = images
    down, across = window.stride
    stages: list[Sequence[tuple[int, ...]]] = []
    for row, column in product(_phases(window, 0, height), _phases(window, 1, width)):
        pads = (row.pad, 0), (column.pad, 0)
        part = Window((row.taps, column.taps), (1, 1), pads, window.dilation)
        counts, columns = (row.pixels, column.pixels), window.kernel[1]
        taken = row.first * columns + column.first, down * columns, across
        made = height * width, row.start * width + column.start, down * width, across
        stages += _lines_shared(crew, slopes, counts, part, group, (*taken, *made))
    plain = replace(window, stride=(1, 1))
    if window.stride != (1, 1):
        # The function for any number of columns.
        plain = replace(window, kernel=(0, 0))
    function = _convolution(c, group, plain, False)
    return CompiledPlan(crew, function, stages, reads=(1, 2), writes=(0,))


def _groups_plan(
    crew: Crew, images: Shape, slopes: Shape, window: Window, group: int
) -> CompiledPlan:
    """Operands: the kernels' gradient, images, the outputs' gradients."""
    n, height, width, c = slopes
    lines, apart = _copied(window, group, width)
    numbers = *_numbers(images, (height, width), window, group), n, min(lines, height), apart
    stages = shared(numbers, (c // max(group, LANES),), crew.threads)
    # A function takes any large group.
    function = _group_gradient(group if group < LANES else 0)
    return CompiledPlan(crew, function, stages, reads=(1, 2), writes=(0,))


def _copied(window: Window, group: int, width: int) -> tuple[int, int]:
    """Return the lines of outputs that are copied together, and the pixels of such a line."""
    (down, across), (high, wide) = window.stride, window.extent
    # A line has the pixels that all of its windows read.
    apart = width + -(-max(wide - across, 0) // across)
    lines = READ // (down * across * apart * -(-group // LANES)) - (high - 1) // down
    return max(min(COPIED // apart, lines), 0), apart


def _weights_plan(crew: Crew, images: Shape, slopes: Shape, window: Window) -> CompiledPlan:
    """Operands: sums of the parts, images, the outputs' gradients."""
    (n, height, width, c), (parts, each) = slopes, _parts(slopes[0])
    numbers = *_numbers(images, (height, width), window), n * height, each * height
    stages = shared(numbers, (parts,), crew.threads)
    function = _gradient(c >= 2 * LANES, window.kernel[1])
    return CompiledPlan(crew, function, stages, reads=(1, 2), writes=(0,))


def _convolution(channels: int, group: int, window: Window, biased: bool) -> CompiledFunction:
    if group >= LANES:
        return _convolution_of_groups(group >= 2 * LANES, biased)
    taps = window.kernel[1]
    plain = taps > 0 and window.stride[1] == window.dilation[1] == 1
    return _convolution_of(channels >= 2 * LANES, taps, plain, biased, group)


@cache
def _convolution_of_groups(many: bool, biased: bool) -> CompiledFunction:
    from singanet.ops.compiled import engine, groups

    vectors = 2 if many and engine.is_wide() else 1
    # So many sums do not wait for each other, and are in registers.
    pixels = PIXELS * 2 // vectors if engine.is_wide() else PIXELS
    return engine.known(groups.convolution, vectors, pixels, biased)


@cache
def _convolution_of(
    many: bool, taps: int, plain: bool, biased: bool, group: int
) -> CompiledFunction:
    from singanet.ops.compiled import depthwise, engine

    vectors = 2 if many and engine.is_wide() else 1
    return engine.known(depthwise.convolution, vectors, taps, plain, biased, group)


@cache
def _group_gradient(group: int) -> CompiledFunction:
    from singanet.ops.compiled import engine, groups

    return engine.known(groups.gradient, group)


@cache
def _gradient(many: bool, taps: int) -> CompiledFunction:
    from singanet.ops.compiled import depthwise, engine

    wide = engine.is_wide() or taps <= 3
    return engine.known(depthwise.gradient, 2 if many and wide else 1, taps)


conv2d = in_order(Route("compiled", _forward, _fits_forward(_fits)), last=conv.depthwise_conv2d)
conv2d_backward_data = in_order(
    Route("compiled", _data, _fits_data(_fits)), last=conv.depthwise_conv2d_backward_data
)
conv2d_backward_weights = in_order(
    Route("compiled", weights, _fits_weights(_fits)), last=conv.depthwise_conv2d_backward_weights
)

groups = Route("compiled groups", _forward, _fits_forward(_fit_groups))
groups_data = Route("compiled groups", _data, _fits_data(_fit_groups))
groups_weights = Route("compiled groups", weights_of_groups, _fits_weights(_fit_copies))
