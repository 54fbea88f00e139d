"""Convolutions whose weight never changes, by oneDNN's own kernels.

The weight is laid out by a call that reads nothing else, so that a program can make it once.
"""

from __future__ import annotations

from math import prod

import numpy as np

from singanet.ops.llvm.plans import SHARED
from singanet.ops.onednn.base import OneDnnBase
from singanet.ops.onednn.binding import F32, Arg, Query
from singanet.ops.onednn.builder import Builder, NotOfferedError
from singanet.ops.onednn.conv.direct import forward_desc, kernel_shape
from singanet.ops.window import Window
from singanet.types import Array, Shape

_GAIN = 3
"""Times what sharing costs that a convolution takes alone, from which it is shared.

From 2 on it would pay, were there no doubt. Its neighbours are shared as well: threads are awake.
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
    """See `Ops.conv2d_constant`; sum and relu are done by the same kernel, whose relu drops NaN.

    ``own`` is as for `direct.forward`.
    """
    images = ops.channels_last(x)
    shape = (len(x), *window._out_size(*x.shape[2:]), len(weight))
    # The layout may depend on the number of threads, which has to be the same for both calls.
    passes = SHARED if _is_worth_threads(ops, shape, weight) else 0
    key = (images.shape, shape, window, bias is not None, relu, add is not None, own)
    packed = ops.room(_pack, key, 0, weight, passes)
    if not prod(shape) or not packed.size:
        return None
    y: Array = ops.xp.empty(shape, np.float32)
    if add is not None:
        # The kernel adds to what is there: in a program `add` itself, where nobody needs it after.
        ops.xp.positive(ops.channels_last(add), out=y)
    rest = [] if bias is None else [ops.ordered(bias)]
    ops.runs(_pack, key, packed, ops.ordered(weight), passes=passes)
    ops.runs(_forward_packed, key, images, y, packed, *rest, passes=passes)
    if ops.prepared is not None:
        ops.prepared.drops_nan |= relu
    return y.transpose(0, 3, 1, 2)


def _is_worth_threads(ops: OneDnnBase, outputs: Shape, weight: Array) -> bool:
    """Whether a convolution to ``outputs`` (N, H, W, C) is to be shared."""
    if ops.threads == 1:
        return False
    speeds, (images, *size, _) = ops.speeds(), outputs
    alone = speeds.direct_time(images, prod(size), weight.size, arranged=True)
    if ops.narrow:
        alone *= speeds.narrow / speeds.direct
    return alone >= _GAIN * speeds.shared


def _desc(
    build: Builder,
    images: Shape,
    outputs: Shape,
    window: Window,
    bias: bool,
    relu: bool,
    add: bool,
    own: bool,
    made: int = F32,
) -> object:
    attributes = build.post_ops(add, relu)
    return forward_desc(build, images, outputs, window, bias, own, made, attributes)


def _pack(build: Builder, images: Shape, outputs: Shape, window: Window, *rest: bool) -> None:
    """Operands: the weight as the convolution wants it, and as it is."""
    wanted = build.layout(_desc(build, images, outputs, window, *rest), Query.WEIGHTS)
    plain = build.rows(kernel_shape(images, outputs, window))
    packed, weight = build.operand(0, wanted), build.operand(1, plain)
    build.reorder(plain, weight, wanted, packed)


def _forward_packed(
    build: Builder,
    images: Shape,
    outputs: Shape,
    window: Window,
    bias: bool,
    relu: bool,
    add: bool,
    own: bool,
) -> None:
    """Operands: images, outputs, to which is added, the packed weight, the bias."""
    # What is added to is float32.
    made = F32 if add else build.kind(1)
    given = (build, images, outputs, window, bias, relu, add, own)
    desc = _desc(*given, made)
    wanted = build.layout(desc, Query.WEIGHTS)
    if not build.same(wanted, build.layout(_desc(*given), Query.WEIGHTS)):
        # It was packed for outputs of float32.
        raise NotOfferedError("convolution")
    plain = build.images(outputs, made)
    y, bring = build.packed_output(1, plain, build.layout(desc, Query.DST), add)
    x = build.images(images, build.factor(0))
    memories = {
        Arg.SRC: build.packed_input(0, x, build.layout(desc, Query.SRC)),
        Arg.DST: y,
        Arg.WEIGHTS: build.operand(2, wanted),
    }
    if bias:
        memories[Arg.BIAS] = build.operand(3, build.rows(outputs[3:]))
    build.stage(desc, memories, adds_to=[Arg.DST] if add else ())
    bring()
