"""Normalize by oneDNN.

Images are channels-last; (N, C) counts as one pixel a sample. The mask of a relu is oneDNN's
workspace, one bit for each value.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from singanet.ops.interface import Statistics
from singanet.ops.kernel import Route, in_order
from singanet.ops.llvm import few
from singanet.ops.llvm import kernels as compiled
from singanet.ops.llvm.kernels import images_of, like
from singanet.ops.numpy import normalise as by_numpy
from singanet.ops.onednn.base import OneDnnBase
from singanet.ops.onednn.binding import Algorithm, Arg, Norm, Prop, Query
from singanet.ops.onednn.builder import Builder
from singanet.types import Array, Shape

_LEAST = 512
"""Elements from which oneDNN is faster: benchmarks/onednn_kernels.py."""

_STATISTICS = (Arg.MEAN, Arg.VARIANCE)
_AFFINE = int(Norm.USE_SCALE | Norm.USE_SHIFT)
_FLAGS = (_AFFINE, _AFFINE | int(Norm.FUSE_RELU))
"""Without and with relu."""


def _batch_norm_train(
    ops: OneDnnBase, x: Array, gamma: Array, beta: Array, epsilon: float, relu: bool = False
) -> tuple[Array, ...] | None:
    images = images_of(ops, x)
    key = images.shape, epsilon, relu
    y, mean, var = (ops.xp.empty_like(array) for array in (images, gamma, gamma))
    mask = [ops.room(_train, key, 6, images)] if relu else []
    vectors = (mean, var, ops.ordered(gamma), ops.ordered(beta))
    if not ops.runs(_train, key, images, y, *vectors, *mask):
        return None
    if relu:
        _show_nan_of(ops, y, *vectors)
    return like(x, y), mean, var, _inverse(ops, var, epsilon), *mask


def _batch_norm(
    ops: OneDnnBase, x: Array, gamma: Array, beta: Array, mean: Array, var: Array, epsilon: float,
    relu: bool = False,
) -> tuple[Array, ...] | None:  # fmt: skip
    images = images_of(ops, x)
    y: Array = ops.xp.empty_like(images)
    vectors = [ops.ordered(vector) for vector in (mean, var, gamma, beta)]
    if not ops.runs(_given, (images.shape, epsilon, relu), images, y, *vectors):
        return None
    made = like(x, y), _inverse(ops, var, epsilon)
    if not relu:
        return made
    ops.show_nan(y, images)
    _show_nan_of(ops, y, *vectors)
    # With fixed statistics y serves as a mask.
    return *made, like(x, y)


def _batch_norm_backward(
    ops: OneDnnBase, dy: Array, x: Array, gamma: Array, mean: Array, inverse: Array, fixed: bool,
    mask: Array | None = None,
) -> tuple[Array, ...] | None:  # fmt: skip
    images, masks = images_of(ops, x), [] if mask is None else [mask]
    made = [ops.xp.empty_like(array) for array in (images, gamma, gamma)]
    # oneDNN computes 1 / sqrt(variance) itself.
    var = ops.xp.divide(1.0, ops.xp.square(inverse))
    given = [images_of(ops, dy), images, ops.ordered(mean), var, ops.ordered(gamma)]
    key = made[0].shape, fixed, mask is not None
    if not ops.runs(_backward, key, made[0], *given, *made[1:], *masks):
        return None
    return like(x, made[0]), made[1], made[2]


def _layer_norm(
    ops: OneDnnBase, x: Array, gamma: Array | None, beta: Array | None, epsilon: float
) -> tuple[Array, Statistics] | None:
    affine = [] if gamma is None or beta is None else [ops.ordered(gamma), ops.ordered(beta)]
    y: Array = ops.xp.empty(x.shape, np.float32)
    mean, var = (ops.xp.empty((len(x), 1), np.float32) for _ in range(2))
    key = (x.shape, epsilon, bool(affine))
    if not ops.runs(_rows, key, ops.ordered(x), y, mean, var, *affine):
        return None
    return y, (mean, _inverse(ops, var, epsilon))


def _layer_norm_backward(
    ops: OneDnnBase, dy: Array, x: Array, gamma: Array | None, statistics: Statistics
) -> tuple[Array | None, ...] | None:
    affine = [] if gamma is None else [ops.ordered(gamma)]
    mean, inverse = statistics
    dx: Array = ops.xp.empty(x.shape, np.float32)
    sums = [ops.xp.empty_like(gamma), ops.xp.empty_like(gamma)] if affine else []
    var = ops.xp.divide(1.0, ops.xp.square(inverse))
    given = (dx, ops.ordered(dy), ops.ordered(x), mean, var, *affine * 2, *sums)
    if not ops.runs(_rows_backward, (x.shape, bool(affine)), *given):
        return None
    return (dx, sums[0], sums[1]) if sums else (dx, None, None)


def _is_served(ops: OneDnnBase, x: Array, gamma: Array, beta: Array, *rest: Any) -> bool:
    vectors = gamma, beta, *compiled.statistics_among(rest)
    return x.shape[1] % compiled.VECTOR == 0 and ops.serves(_LEAST, x, *vectors)


def _is_served_back(
    ops: OneDnnBase, dy: Array, x: Array, gamma: Array, mean: Array, inverse: Array, fixed: bool,
    mask: Array | None = None,
) -> bool:  # fmt: skip
    if mask is not None:
        return mask.dtype == np.uint8
    return x.shape[1] % compiled.VECTOR == 0 and ops.serves(_LEAST, x, dy, gamma, mean, inverse)


def _is_row_served(
    ops: OneDnnBase, x: Array, gamma: Array | None, beta: Array | None, epsilon: float
) -> bool:
    affine = [] if gamma is None or beta is None else [gamma, beta]
    return ops.serves(_LEAST, x, *affine)


def _is_row_served_back(
    ops: OneDnnBase, dy: Array, x: Array, gamma: Array | None, statistics: Statistics
) -> bool:
    return ops.serves(_LEAST, x, dy, *([] if gamma is None else [gamma]))


batch_norm_train = in_order(
    compiled.batch_norm_train,
    Route("onednn", _batch_norm_train, _is_served),
    last=by_numpy.batch_norm_train,
)

batch_norm = in_order(
    compiled.batch_norm, Route("onednn", _batch_norm, _is_served), last=by_numpy.batch_norm
)

batch_norm_backward = in_order(
    compiled.batch_norm_backward,
    Route("onednn", _batch_norm_backward, _is_served_back),
    last=by_numpy.batch_norm_backward,
)

l2_norm = in_order(few.l2_norm, last=by_numpy.l2_norm)

l2_norm_backward = in_order(few.l2_norm_backward, last=by_numpy.l2_norm_backward)

layer_norm = in_order(Route("onednn", _layer_norm, _is_row_served), last=by_numpy.layer_norm)

layer_norm_backward = in_order(
    Route("onednn", _layer_norm_backward, _is_row_served_back),
    last=by_numpy.layer_norm_backward,
)


def _inverse(ops: OneDnnBase, var: Array, epsilon: float) -> Array:
    inverse: Array = ops.xp.add(var, epsilon)
    ops.xp.sqrt(inverse, out=inverse)
    ops.xp.divide(1.0, inverse, out=inverse)
    return inverse


def _show_nan_of(ops: OneDnnBase, y: Array, *vectors: Array) -> None:
    """Write NaN into each channel of ``y`` that has NaN in any of the ``vectors``.

    Statistics of a channel with NaN are NaN, and oneDNN's relu would turn them into zeros. Prepared
    kernels skip this, since no constant is NaN.
    """
    if ops.prepared:
        return
    total = ops.xp.add(vectors[0], vectors[1])
    for vector in vectors[2:]:
        ops.xp.add(total, vector, out=total)
    ops.show_nan_of(y, total)


def _batch_desc(
    build: Builder, x: object, epsilon: float, flags: int, prop: Prop = Prop.FORWARD_TRAINING
) -> object:
    return build.primitive_desc("batch_normalization_forward", int(prop), x, x, epsilon, flags)


def _forward_stage(
    build: Builder, shape: Shape, epsilon: float, flags: int, fills: tuple[Arg, ...] = ()
) -> None:
    """Operands: x, y, mean, variance, scale, shift, and the mask of training with relu."""
    # With fixed statistics y serves as the mask.
    prop = Prop.FORWARD_INFERENCE if flags & Norm.USE_GLOBAL_STATS else Prop.FORWARD_TRAINING
    plain, images = build.alike(partial(build.images, shape), 0, 1)
    desc = _batch_desc(build, images, epsilon, flags, prop)
    order = [Arg.SRC, Arg.DST, Arg.MEAN, Arg.VARIANCE, Arg.SCALE, Arg.SHIFT]
    vectors = [build.rows(shape[3:])] * 4
    mask = {}
    if flags & Norm.FUSE_RELU and prop is Prop.FORWARD_TRAINING:
        mask[Arg.WORKSPACE] = build.operand(6, build.layout(desc, Query.WORKSPACE))
    build.stage_on(desc, order, plain + vectors, [images] * 2 + vectors, fills, mask)


def _train(build: Builder, shape: Shape, epsilon: float, relu: bool) -> None:
    _forward_stage(build, shape, epsilon, _FLAGS[relu], _STATISTICS)


def _given(build: Builder, shape: Shape, epsilon: float, relu: bool) -> None:
    _forward_stage(build, shape, epsilon, _FLAGS[relu] | int(Norm.USE_GLOBAL_STATS))


def _backward(build: Builder, shape: Shape, fixed: bool, relu: bool) -> None:
    # A mask implies statistics of the batch.
    _backward_stage(build, shape, _FLAGS[relu] | (int(Norm.USE_GLOBAL_STATS) if fixed else 0))


def _backward_stage(build: Builder, shape: Shape, flags: int) -> None:
    """Operands: dx, dy, x, mean, variance, scale, dscale, dshift, and the mask with relu."""
    plain, images = build.alike(partial(build.images, shape), 0, 1, 2)
    hint = _batch_desc(build, images, 0.0, flags)
    kind, prop = "batch_normalization_backward", int(Prop.BACKWARD)
    desc = build.primitive_desc(kind, prop, images, images, images, 0.0, flags, hint)
    order = [Arg.DIFF_SRC, Arg.DIFF_DST, Arg.SRC, Arg.MEAN, Arg.VARIANCE]
    order += [Arg.SCALE, Arg.DIFF_SCALE, Arg.DIFF_SHIFT]
    vectors = [build.rows(shape[3:])] * 5
    mask = {}
    if flags & Norm.FUSE_RELU:
        mask[Arg.WORKSPACE] = build.operand(8, build.layout(hint, Query.WORKSPACE))
    build.stage_on(desc, order, plain + vectors, [images] * 3 + vectors, others=mask)


def _rows_desc(build: Builder, shape: Shape, epsilon: float, flags: int) -> object:
    prop, rows, each = int(Prop.FORWARD_TRAINING), build.rows(shape), build.rows(shape[:1])
    return build.primitive_desc(
        "layer_normalization_forward", prop, rows, rows, each, epsilon, flags
    )


def _rows(build: Builder, shape: Shape, epsilon: float, affine: bool) -> None:
    desc = _rows_desc(build, shape, epsilon, _AFFINE if affine else 0)
    rows, each, vector = build.rows(shape), build.rows(shape[:1]), build.rows(shape[1:])
    order = (Arg.SRC, Arg.DST, Arg.MEAN, Arg.VARIANCE, *([Arg.SCALE, Arg.SHIFT] * affine))
    memories = build.operands(order, [rows, rows, each, each, *([vector] * 2 * affine)])
    build.stage(desc, memories, _STATISTICS)


def _rows_backward(build: Builder, shape: Shape, affine: bool) -> None:
    flags = _AFFINE if affine else 0
    hint = _rows_desc(build, shape, 0.0, flags)
    rows, each, vector = build.rows(shape), build.rows(shape[:1]), build.rows(shape[1:])
    kind, prop = "layer_normalization_backward", int(Prop.BACKWARD)
    desc = build.primitive_desc(kind, prop, rows, rows, rows, each, 0.0, flags, hint)
    order = [Arg.DIFF_SRC, Arg.DIFF_DST, Arg.SRC, Arg.MEAN, Arg.VARIANCE]
    # Versions differ on whether the shift is an input; none reads it.
    order += [Arg.SCALE, Arg.SHIFT, Arg.DIFF_SCALE, Arg.DIFF_SHIFT] * affine
    build.stage(desc, build.operands(order, [rows] * 3 + [each] * 2 + [vector] * 4 * affine))


_LOCAL_RESPONSE_LEAST = 1024
"""Elements from which oneDNN is faster: benchmarks/onednn_kernels.py."""

_ACROSS = int(Algorithm.LRN_ACROSS_CHANNELS)


def _lrn(ops: OneDnnBase, x: Array, size: int, alpha: float, beta: float, k: float) -> Array | None:
    images = ops.channels_last(x)
    y: Array = ops.xp.empty_like(images)
    done = ops.runs(_forward, (images.shape, size, alpha * size, beta, k), images, y)
    return y.transpose(0, 3, 1, 2) if done else None


def _lrn_backward(
    ops: OneDnnBase, dy: Array, x: Array, size: int, alpha: float, beta: float, k: float
) -> Array | None:
    images, slopes = ops.channels_last(x), ops.channels_last(dy)
    dx: Array = ops.xp.empty_like(images)
    done = ops.runs(
        _local_response_backward, (images.shape, size, alpha * size, beta, k), dx, slopes, images
    )
    return dx.transpose(0, 3, 1, 2) if done else None


def _local_response_is_served(ops: OneDnnBase, x: Array, size: int, *_: float) -> bool:
    # Windows of one channel crash the process in oneDNN's backward.
    return size > 1 and x.ndim == 4 and ops.serves(_LOCAL_RESPONSE_LEAST, x)


def _local_response_is_served_back(
    ops: OneDnnBase, dy: Array, x: Array, size: int, *_: float
) -> bool:
    return size > 1 and x.ndim == 4 and ops.serves(_LOCAL_RESPONSE_LEAST, x, dy)


lrn = in_order(Route("onednn", _lrn, _local_response_is_served), last=by_numpy.lrn)

lrn_backward = in_order(
    Route("onednn", _lrn_backward, _local_response_is_served_back), last=by_numpy.lrn_backward
)


def _desc(
    build: Builder, shape: Shape, prop: Prop, size: int, alpha: float, beta: float, k: float
) -> object:
    x, y = build.images(shape), build.images(shape)
    return build.primitive_desc("lrn_forward", int(prop), _ACROSS, x, y, size, alpha, beta, k)


def _forward(build: Builder, shape: Shape, size: int, alpha: float, beta: float, k: float) -> None:
    desc = _desc(build, shape, Prop.FORWARD_INFERENCE, size, alpha, beta, k)
    build.stage(desc, build.operands((Arg.SRC, Arg.DST), [build.images(shape)] * 2))


def _local_response_backward(
    build: Builder, shape: Shape, size: int, alpha: float, beta: float, k: float
) -> None:
    """Run the forward pass again for its workspace, since between the calls only x is stored."""
    hint = _desc(build, shape, Prop.FORWARD_TRAINING, size, alpha, beta, k)
    x = build.images(shape)
    desc = build.primitive_desc("lrn_backward", _ACROSS, x, x, x, size, alpha, beta, k, hint)
    memories = build.operands((Arg.DIFF_SRC, Arg.DIFF_DST, Arg.SRC), [x] * 3)
    noted = build.layout(hint, Query.WORKSPACE)
    if build.size(noted):
        notes = build.inner(noted)
        again = {Arg.SRC: memories[Arg.SRC], Arg.DST: build.inner(x), Arg.WORKSPACE: notes}
        build.stage(hint, again)
        memories[Arg.WORKSPACE] = notes
    build.stage(desc, memories)
