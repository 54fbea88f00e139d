"""Convolve by oneDNN's own kernels, with weights in the layout that oneDNN chooses.

The weight is reordered at every call: it changes at every step, and is small.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import numpy as np

from singanet.ops.llvm.plans import SHARED
from singanet.ops.numpy.windows import channels_first
from singanet.ops.onednn.base import OneDnnBase
from singanet.ops.onednn.binding import F32, Algorithm, Arg, Prop, Query, dims
from singanet.ops.onednn.builder import Builder, NotOfferedError
from singanet.ops.window import Window
from singanet.types import Array, Shape

_DIRECT = int(Algorithm.CONVOLUTION_DIRECT)
_TRAINING = int(Prop.FORWARD_TRAINING)


class Shapes(NamedTuple):
    """A convolution of ``images`` to ``outputs``, both (N, H, W, C), with its post-operations.

    ``own`` reorders images to the layout that oneDNN chooses, and back.
    """

    images: Shape
    outputs: Shape
    window: Window
    bias: bool = False
    own: bool = False
    relu: bool = False
    add: bool = False

    @property
    def kernels(self) -> Shape:
        """The weight's shape in oneDNN, with an axis of groups."""
        groups = self.window.groups
        each = (self.outputs[-1] // groups, self.images[-1] // groups, *self.window.kernel)
        return (groups, *each) if groups > 1 else each

    @property
    def geometry(self) -> list[object]:
        """Strides, dilations (0 for none) and both paddings."""
        window = self.window
        if any(max(pads) >= size for pads, size in zip(window.pads, window.extent, strict=True)):
            # Windows of padding alone: oneDNN does not define their result.
            raise NotOfferedError("convolution")
        spread = tuple(d - 1 for d in window.dilation)
        return [dims(each) for each in (window.stride, spread, *zip(*window.pads, strict=True))]

    def described(self, build: Builder, images: int, outputs: int) -> tuple[Any, Any]:
        """Describe images and outputs of these dtypes, in the kernel's layout."""
        pairs = (self.images, images), (self.outputs, outputs)
        if not self.own:
            return build.images(*pairs[0]), build.images(*pairs[1])
        x, y = (build.free((n, c, *size), kind) for (n, *size, c), kind in pairs)
        return x, y

    def forward(self, build: Builder, made: int = F32) -> object:
        """Describe the forward convolution to outputs of ``made``; oneDNN chooses layouts."""
        weight = build.free(self.kernels, build.factors)
        bias = build.rows(self.outputs[-1:]) if self.bias else None
        x, y = self.described(build, build.factors, made)
        given = (_TRAINING, _DIRECT, x, weight, bias, y, *self.geometry)
        after = build.post_ops(self.add, self.relu)
        return build.primitive_desc("convolution_forward", *given, attributes=after)


def forward(
    ops: OneDnnBase,
    x: Array,
    weight: Array,
    bias: Array | None,
    window: Window,
    own: bool = False,
) -> Array | None:
    """Convolve, with the bias in the same kernel; for ``own`` see `Shapes`."""
    images = ops.channels_last(x)
    y: Array = ops.xp.empty((len(x), *window._out_size(*x.shape[2:]), len(weight)), np.float32)
    key = (Shapes(images.shape, y.shape, window, bias is not None, own),)
    rest = [ops.ordered(array) for array in (weight, bias) if array is not None]
    done = y.size and ops.runs(forward_plan, key, images, y, *rest, passes=passes_over(ops, weight))
    return channels_first(y) if done else None


def data(
    ops: OneDnnBase,
    dy: Array,
    weight: Array,
    x_shape: Shape,
    window: Window,
    own: bool = False,
) -> Array | None:
    n, c, *size = x_shape
    slopes = ops.channels_last(dy)
    dx: Array = ops.xp.empty((n, *size, c), np.float32)
    key = (Shapes(dx.shape, slopes.shape, window, own=own),)
    passes, kernels = passes_over(ops, weight), ops.ordered(weight)
    done = dx.size and ops.runs(_backward_data, key, dx, slopes, kernels, passes=passes)
    return channels_first(dx) if done else None


def weights(
    ops: OneDnnBase, x: Array, dy: Array, weight_shape: Shape, window: Window
) -> Array | None:
    images, slopes = ops.channels_last(x), ops.channels_last(dy)
    dw: Array = ops.xp.empty(weight_shape, np.float32)
    key = (Shapes(images.shape, slopes.shape, window),)
    passes = passes_over(ops, dw)
    done = dw.size and ops.runs(_backward_weights, key, images, slopes, dw, passes=passes)
    return dw if done else None


def passes_over(ops: OneDnnBase, weight: Array) -> int:
    """Return the passes over images that the multiply-adds for each of their values take."""
    return ops.passes(weight.size // weight.shape[1])


def forward_plan(build: Builder, shapes: Shapes) -> None:
    """Operands: images, outputs, the weight, the bias."""
    made = build.kind(1)
    desc, plain = shapes.forward(build, made), build.rows(shapes.kernels)
    _stage_forward(build, shapes, desc, made, lambda wanted: build.packed_input(2, plain, wanted))


def _stage_forward(
    build: Builder, shapes: Shapes, desc: object, made: int, weight: Callable[[Any], Any]
) -> None:
    """Add the stage of ``desc``; ``weight`` returns the weight in the layout passed to it."""
    layouts = [build.layout(desc, of) for of in (Query.SRC, Query.DST, Query.WEIGHTS)]
    plain = build.images(shapes.outputs, made)
    y, bring = build.packed_output(1, plain, layouts[1], shapes.add)
    x = build.packed_input(0, build.images(shapes.images, build.factor(0)), layouts[0])
    memories = {Arg.SRC: x, Arg.DST: y, Arg.WEIGHTS: weight(layouts[2])}
    if shapes.bias:
        memories[Arg.BIAS] = build.operand(3, build.rows(shapes.outputs[-1:]))
    build.stage(desc, memories, adds_to=[Arg.DST] if shapes.add else ())
    bring()


def _backward_data(build: Builder, shapes: Shapes) -> None:
    hint, made = shapes.forward(build), build.kind(0)
    x, y = shapes.described(build, made, build.factors)
    weight = build.free(shapes.kernels, build.factors)
    geometry = shapes.geometry
    desc = build.primitive_desc("convolution_backward_data", _DIRECT, x, weight, y, *geometry, hint)
    wanted = [build.layout(desc, of) for of in (Query.DIFF_SRC, Query.DIFF_DST, Query.WEIGHTS)]
    dx, bring = build.packed_output(0, build.images(shapes.images, made), wanted[0])
    slopes = build.images(shapes.outputs, build.factor(1))
    memories = {
        Arg.DIFF_SRC: dx,
        Arg.DIFF_DST: build.packed_input(1, slopes, wanted[1]),
        Arg.WEIGHTS: build.packed_input(2, build.rows(shapes.kernels), wanted[2]),
    }
    build.stage(desc, memories)
    bring()


def _backward_weights(build: Builder, shapes: Shapes) -> None:
    hint, weight = shapes.forward(build), build.free(shapes.kernels)
    x, y = shapes.described(build, build.factors, build.factors)
    given = (_DIRECT, x, weight, None, y, *shapes.geometry, hint)
    desc = build.primitive_desc("convolution_backward_weights", *given)
    made = build.layout(desc, Query.DIFF_WEIGHTS)
    packed, bring = build.packed_output(2, build.rows(shapes.kernels), made)
    images, slopes = (
        build.images(shape, build.factor(number))
        for number, shape in enumerate((shapes.images, shapes.outputs))
    )
    memories = {
        Arg.SRC: build.packed_input(0, images, x),
        Arg.DIFF_DST: build.packed_input(1, slopes, y),
        Arg.DIFF_WEIGHTS: packed,
    }
    build.stage(desc, memories)
    bring()


# Convolutions with constant weights. A call that reads nothing but the weight reorders it, so that
# a program calls it once.

_GAIN = 2
"""Least time of a convolution, relative to the cost of sharing, for which threads share it.

Neighbouring kernels use threads too, so these are awake.
"""


def constant(
    ops: OneDnnBase,
    x: Array,
    weight: Array,
    bias: Array | None,
    window: Window,
    relu: bool = False,
    add: Array | None = None,
    own: bool = False,
) -> Array | None:
    """Convolve, add and apply relu in one kernel, which loses NaN; for ``own`` see `Shapes`."""
    images = ops.channels_last(x)
    shape = (len(x), *window._out_size(*x.shape[2:]), len(weight))
    # The layout may depend on the thread count, so both calls use the same.
    passes = SHARED if _is_worth_threads(ops, shape, weight) else 0
    key = (Shapes(images.shape, shape, window, bias is not None, own, relu, add is not None),)
    packed = ops.room(_pack, key, 0, weight, passes)
    if not prod(shape) or not packed.size:
        return None
    y: Array = ops.xp.empty(shape, np.float32)
    if add is not None:
        # The kernel adds in place: in a program to `add` itself, if nothing reads it later.
        ops.xp.positive(ops.channels_last(add), out=y)
    rest = [] if bias is None else [ops.ordered(bias)]
    ops.runs(_pack, key, packed, ops.ordered(weight), passes=passes)
    ops.runs(_forward_packed, key, images, y, packed, *rest, passes=passes)
    if ops.prepared is not None:
        ops.prepared.drops_nan |= relu
    return y.transpose(0, 3, 1, 2)


def _is_worth_threads(ops: OneDnnBase, outputs: Shape, weight: Array) -> bool:
    """Whether threads should share a convolution to ``outputs`` (N, H, W, C)."""
    if ops.threads == 1:
        return False
    speeds, (images, *size, _) = ops.speeds(), outputs
    alone = speeds.direct_time(images, prod(size), weight.size, arranged=True)
    if ops.narrow:
        alone *= speeds.narrow / speeds.direct
    return alone >= _GAIN * speeds.shared


def _pack(build: Builder, shapes: Shapes) -> None:
    """Operands: the weight in the convolution's layout, and plain."""
    wanted = build.layout(shapes.forward(build), Query.WEIGHTS)
    plain = build.rows(shapes.kernels)
    packed, weight = build.operand(0, wanted), build.operand(1, plain)
    build.reorder(plain, weight, wanted, packed)


def _forward_packed(build: Builder, shapes: Shapes) -> None:
    """Operands: images, outputs, the packed weight, the bias; the kernel adds to the outputs."""
    # oneDNN adds to float32.
    made = F32 if shapes.add else build.kind(1)
    desc, packed = shapes.forward(build, made), shapes.forward(build)
    if not build.same(*(build.layout(each, Query.WEIGHTS) for each in (desc, packed))):
        # It was packed for float32 outputs.
        raise NotOfferedError("convolution")
    _stage_forward(build, shapes, desc, made, lambda wanted: build.operand(2, wanted))
