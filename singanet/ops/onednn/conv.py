"""Convolution by oneDNN: channels-last images, weights in the layout that it likes best."""

from __future__ import annotations

from typing import Any

import numpy as np

from singanet.ops.numpy.windows import Window
from singanet.ops.onednn.binding import Algorithm, Arg, Prop, Query, dims
from singanet.ops.onednn.builder import Builder
from singanet.ops.onednn.cases import Case
from singanet.ops.onednn.descriptors import NotOfferedError
from singanet.ops.onednn.routes import OneDnnRoutes
from singanet.types import Array, Shape

_LEAST = 1
"""Elements from which oneDNN is faster: NumPy's many calls take longer even on few."""

_FEW = 4
"""Channels below which oneDNN's input gradient leaves most of its vectors empty."""

_ADDS_A_PASS = 32

_DIRECT = int(Algorithm.CONVOLUTION_DIRECT)
_TRAINING = int(Prop.FORWARD_TRAINING)


class OneDnnConvolution(OneDnnRoutes):
    """The weight is reordered at every call: it changes at every step, and is small."""

    def conv2d(
        self, x: Array, weight: Array, bias: Array | None, window: Window, groups: int = 1
    ) -> Array:
        """See `NumpyOps`; the bias is added by the same kernel."""
        y = self._convolved(x, weight, bias, window, groups)
        return super().conv2d(x, weight, bias, window, groups) if y is None else y

    def conv2d_backward_data(
        self, dy: Array, weight: Array, x_shape: Shape, window: Window, groups: int = 1
    ) -> Array:
        """See `NumpyOps`."""
        dx = self._data_gradient(dy, weight, x_shape, window, groups)
        if dx is None:
            return super().conv2d_backward_data(dy, weight, x_shape, window, groups)
        return dx

    def conv2d_backward_weights(
        self, x: Array, dy: Array, weight_shape: Shape, window: Window, groups: int = 1
    ) -> Array:
        """See `NumpyOps`."""
        dw = self._weight_gradient(x, dy, weight_shape, window, groups)
        if dw is None:
            return super().conv2d_backward_weights(x, dy, weight_shape, window, groups)
        return dw

    def depthwise_conv2d(
        self, x: Array, weight: Array, bias: Array | None, window: Window
    ) -> Array:
        """See `NumpyOps`: a convolution with as many groups as channels."""
        y = self._convolved(x, _by_output(weight), bias, window, len(weight))
        return super().depthwise_conv2d(x, weight, bias, window) if y is None else y

    def depthwise_conv2d_backward_data(
        self, dy: Array, weight: Array, x_shape: Shape, window: Window
    ) -> Array:
        """See `NumpyOps`."""
        dx = self._data_gradient(dy, _by_output(weight), x_shape, window, len(weight))
        if dx is None:
            return super().depthwise_conv2d_backward_data(dy, weight, x_shape, window)
        return dx

    def depthwise_conv2d_backward_weights(
        self, x: Array, dy: Array, weight_shape: Shape, window: Window
    ) -> Array:
        """See `NumpyOps`."""
        c, m, kh, kw = weight_shape
        dw = self._weight_gradient(x, dy, (c * m, 1, kh, kw), window, c)
        if dw is None:
            return super().depthwise_conv2d_backward_weights(x, dy, weight_shape, window)
        return dw.reshape(weight_shape)

    # Each gives None where the call is not oneDNN's.

    def _convolved(
        self, x: Array, weight: Array, bias: Array | None, window: Window, groups: int
    ) -> Array | None:
        operands = [x, weight] if bias is None else [x, weight, bias]
        if not self.serves(_LEAST, *operands):
            return None
        if self.takes("numpy", Case("forward", x.shape, weight.shape, window, groups), False):
            return None
        images = self.channels_last(x)
        y: Array = self.xp.empty((len(x), *window.out_size(*x.shape[2:]), len(weight)), np.float32)
        key = (images.shape, y.shape, window, groups, bias is not None)
        rest = [self.ordered(array) for array in operands[1:]]
        if y.size and self.runs(_forward, key, images, y, *rest, passes=passes_over(weight)):
            return y.transpose(0, 3, 1, 2)
        return None

    def _data_gradient(
        self, dy: Array, weight: Array, x_shape: Shape, window: Window, groups: int
    ) -> Array | None:
        n, c, h, w = x_shape
        if not self.serves(_LEAST, dy, weight):
            return None
        case = Case("data", x_shape, weight.shape, window, groups)
        if self.takes("numpy", case, c < _FEW and groups == 1):
            return None
        slopes = self.channels_last(dy)
        dx: Array = self.xp.empty((n, h, w, c), np.float32)
        key = (dx.shape, slopes.shape, window, groups)
        passes, kernels = passes_over(weight), self.ordered(weight)
        if dx.size and self.runs(_backward_data, key, dx, slopes, kernels, passes=passes):
            return dx.transpose(0, 3, 1, 2)
        return None

    def _weight_gradient(
        self, x: Array, dy: Array, weight_shape: Shape, window: Window, groups: int
    ) -> Array | None:
        if not self.serves(_LEAST, x, dy):
            return None
        if self.takes("numpy", Case("weights", x.shape, weight_shape, window, groups), False):
            return None
        images, slopes = self.channels_last(x), self.channels_last(dy)
        dw: Array = self.xp.empty(weight_shape, np.float32)
        key = (images.shape, slopes.shape, window, groups)
        if dw.size and self.runs(
            _backward_weights, key, images, slopes, dw, passes=passes_over(dw)
        ):
            return dw
        return None


def passes_over(weight: Array) -> int:
    """Multiply-adds for each value of the images, in what they take of the time of a pass."""
    return 1 + weight.size // weight.shape[1] // _ADDS_A_PASS


def _by_output(weight: Array) -> Array:
    """(C, M, kh, kw) as (C·M, 1, kh, kw)."""
    return weight.reshape(-1, 1, *weight.shape[2:])


def kernel_shape(images: Shape, outputs: Shape, window: Window, groups: int) -> Shape:
    """oneDNN's: with groups as an axis of their own."""
    each = (outputs[3] // groups, images[3] // groups, *window.kernel)
    return (groups, *each) if groups > 1 else each


def _geometry(window: Window) -> list[object]:
    """Strides, dilations (0 for none) and both paddings."""
    (top, bottom), (left, right) = window.pads
    if any(max(pads) >= size for pads, size in zip(window.pads, window.extent, strict=True)):
        # Windows that meet nothing but padding: oneDNN promises nothing about them.
        raise NotOfferedError("convolution")
    spread = (window.dilation[0] - 1, window.dilation[1] - 1)
    return [dims(window.stride), dims(spread), dims((top, left)), dims((bottom, right))]


def forward_desc(
    build: Builder,
    images: Shape,
    outputs: Shape,
    window: Window,
    groups: int,
    bias: bool,
    attributes: Any = None,
) -> object:
    """The forward convolution, with weights as oneDNN likes them."""
    weight = build.free(kernel_shape(images, outputs, window, groups))
    b = build.rows(outputs[3:]) if bias else None
    x, y = build.images(images), build.images(outputs)
    geometry = _geometry(window)
    given = (_TRAINING, _DIRECT, x, weight, b, y, *geometry)
    return build.primitive_desc("convolution_forward", *given, attributes=attributes)


def _forward(
    build: Builder, images: Shape, outputs: Shape, window: Window, groups: int, bias: bool
) -> None:
    desc = forward_desc(build, images, outputs, window, groups, bias)
    plain = build.rows(kernel_shape(images, outputs, window, groups))
    memories = {
        Arg.SRC: build.operand(0, build.images(images)),
        Arg.DST: build.operand(1, build.images(outputs)),
        Arg.WEIGHTS: build.packed_input(2, plain, build.layout(desc, Query.WEIGHTS)),
    }
    if bias:
        memories[Arg.BIAS] = build.operand(3, build.rows(outputs[3:]))
    build.stage(desc, memories)


def _backward_data(
    build: Builder, images: Shape, outputs: Shape, window: Window, groups: int
) -> None:
    hint = forward_desc(build, images, outputs, window, groups, bias=False)
    shape = kernel_shape(images, outputs, window, groups)
    x, y, weight = build.images(images), build.images(outputs), build.free(shape)
    geometry = _geometry(window)
    desc = build.primitive_desc("convolution_backward_data", _DIRECT, x, weight, y, *geometry, hint)
    memories = {
        Arg.DIFF_SRC: build.operand(0, x),
        Arg.DIFF_DST: build.operand(1, y),
        Arg.WEIGHTS: build.packed_input(2, build.rows(shape), build.layout(desc, Query.WEIGHTS)),
    }
    build.stage(desc, memories)


def _backward_weights(
    build: Builder, images: Shape, outputs: Shape, window: Window, groups: int
) -> None:
    hint = forward_desc(build, images, outputs, window, groups, bias=False)
    shape = kernel_shape(images, outputs, window, groups)
    x, y, weight = build.images(images), build.images(outputs), build.free(shape)
    desc = build.primitive_desc(
        "convolution_backward_weights", _DIRECT, x, weight, None, y, *_geometry(window), hint
    )
    made = build.layout(desc, Query.DIFF_WEIGHTS)
    packed, bring = build.packed_output(2, build.rows(shape), made)
    memories = {
        Arg.SRC: build.operand(0, x),
        Arg.DIFF_DST: build.operand(1, y),
        Arg.DIFF_WEIGHTS: packed,
    }
    build.stage(desc, memories)
    bring()
