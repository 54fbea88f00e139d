"""Convolutions whose weight never changes: it is laid out once, by a kernel of its own."""

from __future__ import annotations

from math import prod

import numpy as np

from singanet.ops.numpy.windows import Window
from singanet.ops.onednn.binding import Arg, Query
from singanet.ops.onednn.builder import Builder
from singanet.ops.onednn.cases import Case
from singanet.ops.onednn.conv import forward_desc, kernel_shape, passes_over
from singanet.ops.onednn.conv_winograd import OneDnnWinograd
from singanet.ops.onednn.runtime import SHARED
from singanet.ops.onednn.winograd_constant import enter, forward_entered
from singanet.ops.onednn.winograd_plan import POINTS
from singanet.ops.onednn.winograd_tiles import Tiles
from singanet.types import Array, Shape

_DIRECT, _PRODUCTS = 0.0155, 0.018
"""Nanoseconds for a multiplication in oneDNN's convolution and in Winograd's products, a thread."""

_VALUE, _READ = 2.2, 0.36
"""Nanoseconds for each of the 36 values of a tile and a channel; to read one of a kernel."""

_HANDOVER = 100_000
"""Nanoseconds to hand work to another thread and to wait for it."""

_GAIN = 1.13
"""How much faster the estimate has to be."""


class OneDnnConstantConvolution(OneDnnWinograd):
    """The weight goes through a call that reads nothing else, so that a program can make it once.

    oneDNN's kernels then need not rearrange it, nor Winograd's transform it.
    """

    def conv2d_constant(
        self,
        x: Array,
        weight: Array,
        bias: Array | None,
        window: Window,
        groups: int = 1,
        relu: bool = False,
        add: Array | None = None,
    ) -> Array:
        """See `NumpyOps`; sum and relu are done by the same kernel, whose relu drops NaN."""
        beside = [array for array in (bias, add) if array is not None]
        if self.serves(1, x, weight, *beside):
            self.drops_nan |= relu
            case = Case("constant", x.shape, weight.shape, window, groups)
            y = self._by_tiles(case, x, weight, bias, relu, add)
            if y is None:
                y = self._laid_out(case, x, weight, bias, relu, add)
            if y is not None:
                return y
        return super().conv2d_constant(x, weight, bias, window, groups, relu, add)

    def _laid_out(
        self,
        case: Case,
        x: Array,
        weight: Array,
        bias: Array | None,
        relu: bool,
        add: Array | None,
    ) -> Array | None:
        images, window = self.channels_last(x), case.window
        shape = (len(x), *window.out_size(*x.shape[2:]), len(weight))
        # The layout may depend on the number of threads, which has to be the same for both calls.
        passes = SHARED if images.size * passes_over(weight) >= SHARED else 0
        key = (images.shape, shape, window, case.groups, bias is not None, relu, add is not None)
        packed = self.room(_pack, key, 0, weight, passes)
        if not prod(shape) or not packed.size:
            return None
        y: Array = self.xp.empty(shape, np.float32)
        rest = [] if bias is None else [self.ordered(bias)]
        rest += [] if add is None else [self.channels_last(add)]
        self.runs(_pack, key, packed, self.ordered(weight), passes=passes)
        self.runs(_forward_packed, key, images, y, packed, *rest, passes=passes)
        return y.transpose(0, 3, 1, 2)

    def _by_tiles(
        self,
        case: Case,
        x: Array,
        weight: Array,
        bias: Array | None,
        relu: bool,
        add: Array | None,
    ) -> Array | None:
        tiles = self._cut(case)
        if tiles is None or not self.takes("winograd", case, _pays(tiles)):
            return None
        y: Array = self.xp.empty((tiles.n, *tiles.out), np.float32)
        kernels: Array = self.xp.empty((POINTS, tiles.image[2] * tiles.out[2]), np.float32)
        rest = [] if bias is None else [self.ordered(bias)]
        rest += [] if add is None else [self.channels_last(add)]
        given = self.channels_last(x), kernels
        key = (tiles, bias is not None, relu, add is not None)
        entered = self.runs(enter, (kernels.shape[1],), kernels, self.ordered(weight), passes=0)
        if not entered or not self.runs(forward_entered, key, y, *given, *rest, passes=POINTS):
            return None
        return y.transpose(0, 3, 1, 2)


def _pays(tiles: Tiles) -> bool:
    """Whether Winograd's transforms are faster; kernels, read four times as large, count too."""
    c, f = tiles.image[2], tiles.out[2]
    count = tiles.n * prod(tiles.grid)
    direct = _DIRECT * tiles.n * prod(tiles.out) * c * 9 / tiles.workers
    multiplied = _PRODUCTS * POINTS * count * c * f
    transforms = POINTS * _VALUE * count * (c + f) / 2
    handed = _HANDOVER * (tiles.workers - 1)
    read = POINTS * _READ * c * f
    return (multiplied + transforms) / tiles.workers + read + handed < direct / _GAIN


def _desc(
    build: Builder,
    images: Shape,
    outputs: Shape,
    window: Window,
    groups: int,
    bias: bool,
    relu: bool,
    add: bool,
) -> object:
    other = build.images(outputs) if add else None
    attributes = build.post_ops(relu=relu, other=other) if relu or add else None
    return forward_desc(build, images, outputs, window, groups, bias, attributes)


def _pack(
    build: Builder, images: Shape, outputs: Shape, window: Window, groups: int, *rest: bool
) -> None:
    """Operands: the weight as the convolution wants it, and as it is."""
    wanted = build.layout(_desc(build, images, outputs, window, groups, *rest), Query.WEIGHTS)
    plain = build.rows(kernel_shape(images, outputs, window, groups))
    packed, weight = build.operand(0, wanted), build.operand(1, plain)
    build.reorder(plain, weight, wanted, packed)


def _forward_packed(
    build: Builder,
    images: Shape,
    outputs: Shape,
    window: Window,
    groups: int,
    bias: bool,
    relu: bool,
    add: bool,
) -> None:
    """Operands: images, outputs, the packed weight, the bias, what is added."""
    desc = _desc(build, images, outputs, window, groups, bias, relu, add)
    order = [Arg.SRC, Arg.DST, Arg.WEIGHTS, *[Arg.BIAS] * bias]
    order += [build.argument_of_other(desc)] * add
    layouts = [build.images(images), build.images(outputs), build.layout(desc, Query.WEIGHTS)]
    layouts += [build.rows(outputs[3:])] * bias + [build.images(outputs)] * add
    build.stage(desc, build.operands(order, layouts))
