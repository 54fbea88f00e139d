"""Convolve channel by channel by functions compiled with LLVM.

They read images where they are, without copies that are padded. Sums of the kernels' gradient are
split by sizes alone: results do not depend on the number of threads.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from singanet.ops.casts import has_compiler
from singanet.ops.compiled.sizes import LANES
from singanet.ops.costs import Case
from singanet.ops.kernel import Route, in_order
from singanet.ops.llvm.base import PlannedOps
from singanet.ops.llvm.plans import CompiledPlan, Crew, shared
from singanet.ops.numpy import conv
from singanet.ops.window import Window
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


def _forward(
    ops: PlannedOps, x: Array, weight: Array, bias: Array | None, window: Window
) -> Array | None:
    rest = [] if bias is None else [ops.ordered(bias)]
    return _convolved(ops, x, _lines(ops, weight), rest, window)


def _data(
    ops: PlannedOps, dy: Array, weight: Array, x_shape: Shape, window: Window
) -> Array | None:
    """Convolve the outputs' gradients with the flipped kernels."""
    pads = [
        (reach - before, size - out + before)
        for reach, (before, _), size, out in zip(
            _reach(window), window.pads, x_shape[2:], dy.shape[2:], strict=True
        )
    ]
    turned = replace(window, pads=(pads[0], pads[1]))
    return _convolved(ops, dy, _lines(ops, weight[:, :, ::-1, ::-1]), [], turned)


def _lines(ops: PlannedOps, weight: Array) -> Array:
    """Return kernels (channels, 1, kh, kw) as (kh·kw, channels)."""
    lines: Array = ops.xp.ascontiguousarray(weight.reshape(len(weight), -1).T)
    return lines


def _convolved(
    ops: PlannedOps, x: Array, lines: Array, rest: list[Array], window: Window
) -> Array | None:
    images = ops.channels_last(x)
    n, *size, c = images.shape
    y: Array = ops.xp.empty((n, *window._out_size(*size), c), np.float32)
    key = images.shape, window, bool(rest)
    passes = ops.passes(prod(window.kernel))
    done = ops.runs(_forward_plan, key, y, images, lines, *rest, passes=passes)
    return y.transpose(0, 3, 1, 2) if done else None


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


def _parts(samples: int) -> tuple[int, int]:
    """Return the number of parts, and the samples of a part."""
    each = -(-samples // _PARTS)
    return -(-samples // each), each


def _fits(ops: PlannedOps, x: Array, y: Shape, weight: Shape, window: Window) -> bool:
    # oneDNN's kernels may store bfloat16.
    return (
        x.ndim == 4
        and not ops.narrow
        and ops.serves(1, x)
        and _are_worth_compiling(y, weight, window)
    )


def _are_worth_compiling(y: Shape, weight: Shape, window: Window) -> bool:
    return (
        weight[1] == 1
        and weight[0] >= LANES
        and window.kernel[1] <= _TAPS
        and prod(y) * prod(window.kernel) >= _LEAST
        and has_compiler()
    )


def _fits_forward(
    ops: PlannedOps, x: Array, weight: Array, bias: Array | None, window: Window
) -> bool:
    rest = [] if bias is None else [bias]
    made = (len(x), len(weight), *window._out_size(*x.shape[2:])) if x.ndim == 4 else ()
    return _fits(ops, x, made, weight.shape, window) and ops.serves(1, weight, *rest)


def _fits_data(ops: PlannedOps, dy: Array, weight: Array, x_shape: Shape, window: Window) -> bool:
    return (
        window.stride == (1, 1)
        and _fits(ops, dy, x_shape, weight.shape, window)
        and ops.serves(1, weight)
        and all(
            before <= reach for reach, (before, _) in zip(_reach(window), window.pads, strict=True)
        )
    )


def _fits_weights(
    ops: PlannedOps, x: Array, dy: Array, weight_shape: Shape, window: Window
) -> bool:
    return _fits(ops, x, dy.shape, weight_shape, window) and ops.serves(1, dy)


def beats_direct(ops: PlannedOps, case: Case) -> bool:
    """Whether the gradient of these kernels takes oneDNN's own function several times as long.

    That is so but for kernels of 3×3.
    """
    (n, channels, *size), window = case.x, case.window
    return (
        prod(window.kernel) > _DIRECT
        and case.weight[0] == channels
        and not ops.narrow
        and _are_worth_compiling((n, channels, *window._out_size(*size)), case.weight, window)
    )


def _reach(window: Window) -> tuple[int, ...]:
    """Return the pixels from the first of a window to its last, by axis."""
    pairs = zip(window.kernel, window.dilation, strict=True)
    return tuple((size - 1) * spread for size, spread in pairs)


def _numbers(images: Shape, outs: tuple[int, ...], window: Window) -> tuple[int, ...]:
    _, *size, c = images
    before = [pad for pad, _ in window.pads]
    axes = size, outs, window.kernel, window.stride, before, window.dilation
    return (c, *(number for axis in axes for number in axis))


def _forward_plan(crew: Crew, images: Shape, window: Window, biased: bool) -> CompiledPlan:
    """Operands: outputs, images, kernels and, if ``biased``, the bias."""
    outs = window._out_size(*images[1:3])
    stages = shared(_numbers(images, outs, window), (images[0] * outs[0],), crew.threads)
    reads = (1, 2, 3)[: 2 + biased]
    plain = window.stride[1] == window.dilation[1] == 1
    function = _convolution(images[3] >= 2 * LANES, window.kernel[1], plain, biased)
    return CompiledPlan(crew, function, stages, reads, (0,))


def _weights_plan(crew: Crew, images: Shape, slopes: Shape, window: Window) -> CompiledPlan:
    """Operands: sums of the parts, images, the outputs' gradients."""
    (n, height, width, c), (parts, each) = slopes, _parts(slopes[0])
    numbers = *_numbers(images, (height, width), window), n * height, each * height
    stages = shared(numbers, (parts,), crew.threads)
    function = _gradient(c >= 2 * LANES, window.kernel[1])
    return CompiledPlan(crew, function, stages, reads=(1, 2), writes=(0,))


@cache
def _convolution(many: bool, taps: int, plain: bool, biased: bool) -> CompiledFunction:
    from singanet.ops.compiled import depthwise, engine

    vectors = 2 if many and engine.is_wide() else 1
    return engine.known(depthwise.convolution, vectors, taps, plain, biased)


@cache
def _gradient(many: bool, taps: int) -> CompiledFunction:
    from singanet.ops.compiled import depthwise, engine

    wide = engine.is_wide() or taps <= 3
    return engine.known(depthwise.gradient, 2 if many and wide else 1, taps)


conv2d = in_order(Route("compiled", _forward, _fits_forward), last=conv.depthwise_conv2d)
conv2d_backward_data = in_order(
    Route("compiled", _data, _fits_data), last=conv.depthwise_conv2d_backward_data
)
conv2d_backward_weights = in_order(
    Route("compiled", weights, _fits_weights), last=conv.depthwise_conv2d_backward_weights
)
