"""Batch and layer normalisation by oneDNN."""

from __future__ import annotations

import numpy as np

from singanet.ops.numpy.standardise import Statistics
from singanet.ops.onednn.base import OneDnnBase
from singanet.ops.onednn.binding import Arg, Norm, Prop, Query
from singanet.ops.onednn.builder import Builder
from singanet.types import Array, Shape

LEAST = 512
"""Elements from which oneDNN is faster: benchmarks/onednn_kernels.py."""

_VECTOR = 16
"""Channels have to fill whole vectors: else oneDNN's kernels can be slower than NumPy's."""

STATISTICS = (Arg.MEAN, Arg.VARIANCE)
AFFINE = int(Norm.USE_SCALE | Norm.USE_SHIFT)


class OneDnnNormalisation(OneDnnBase):
    """Images are channels-last; (N, C) is taken as one pixel a sample."""

    def batch_norm_train(
        self, x: Array, gamma: Array, beta: Array, epsilon: float
    ) -> tuple[Array, Array, Array, Array]:
        """See `NumpyOps`; one kernel makes the statistics and the output."""
        if self._fits(x) and self.serves(LEAST, x, gamma, beta):
            images = self._images(x)
            y, mean, var = (
                self.xp.empty_like(images),
                self.xp.empty_like(gamma),
                self.xp.empty_like(gamma),
            )
            given = (images, y, mean, var, self.ordered(gamma), self.ordered(beta))
            if self.runs(_train, (images.shape, epsilon), *given):
                return like(x, y), mean, var, self._inverse(var, epsilon)
        return super().batch_norm_train(x, gamma, beta, epsilon)

    def batch_norm(
        self, x: Array, gamma: Array, beta: Array, mean: Array, var: Array, epsilon: float
    ) -> tuple[Array, Array]:
        """See `NumpyOps`."""
        if self._fits(x) and self.serves(LEAST, x, gamma, beta, mean, var):
            images = self._images(x)
            y = self.xp.empty_like(images)
            vectors = [self.ordered(vector) for vector in (mean, var, gamma, beta)]
            if self.runs(_given, (images.shape, epsilon), images, y, *vectors):
                return like(x, y), self._inverse(var, epsilon)
        return super().batch_norm(x, gamma, beta, mean, var, epsilon)

    def batch_norm_backward(
        self, dy: Array, x: Array, gamma: Array, mean: Array, inverse: Array, fixed: bool
    ) -> tuple[Array, Array, Array]:
        """See `NumpyOps`."""
        if self._fits(x) and self.serves(LEAST, x, dy, gamma, mean, inverse):
            given, made = self._for_backward(dy, x, gamma, mean, inverse)
            if self.runs(_backward, (made[0].shape, fixed), made[0], *given, *made[1:]):
                return like(x, made[0]), made[1], made[2]
        return super().batch_norm_backward(dy, x, gamma, mean, inverse, fixed)

    def layer_norm(
        self, x: Array, gamma: Array | None, beta: Array | None, epsilon: float
    ) -> tuple[Array, Statistics]:
        """See `NumpyOps`."""
        affine = [] if gamma is None or beta is None else [self.ordered(gamma), self.ordered(beta)]
        if self.serves(LEAST, x, *affine):
            y = self.xp.empty(x.shape, np.float32)
            mean, var = (self.xp.empty((len(x), 1), np.float32) for _ in range(2))
            if self.runs(
                _rows, (x.shape, epsilon, bool(affine)), self.ordered(x), y, mean, var, *affine
            ):
                return y, (mean, self._inverse(var, epsilon))
        return super().layer_norm(x, gamma, beta, epsilon)

    def layer_norm_backward(
        self, dy: Array, x: Array, gamma: Array | None, statistics: Statistics
    ) -> tuple[Array, Array | None, Array | None]:
        """See `NumpyOps`."""
        affine = [] if gamma is None else [self.ordered(gamma)]
        if self.serves(LEAST, x, dy, *affine):
            mean, inverse = statistics
            dx = self.xp.empty(x.shape, np.float32)
            sums = [self.xp.empty_like(gamma), self.xp.empty_like(gamma)] if affine else []
            var = self.xp.divide(1.0, self.xp.square(inverse))
            given = (dx, self.ordered(dy), self.ordered(x), mean, var, *affine * 2, *sums)
            if self.runs(_rows_backward, (x.shape, bool(affine)), *given):
                return (dx, sums[0], sums[1]) if sums else (dx, None, None)
        return super().layer_norm_backward(dy, x, gamma, statistics)

    def _inverse(self, var: Array, epsilon: float) -> Array:
        inverse: Array = self.xp.add(var, epsilon)
        self.xp.sqrt(inverse, out=inverse)
        self.xp.divide(1.0, inverse, out=inverse)
        return inverse

    def _for_backward(
        self, dy: Array, x: Array, gamma: Array, mean: Array, inverse: Array
    ) -> tuple[list[Array], list[Array]]:
        """What a backward kernel reads, and room for dx, dgamma and dbeta."""
        images = self._images(x)
        made = [self.xp.empty_like(array) for array in (images, gamma, gamma)]
        # oneDNN takes the variance and makes the inverse of its root by itself.
        var = self.xp.divide(1.0, self.xp.square(inverse))
        given = [self._images(dy), images, self.ordered(mean), var, self.ordered(gamma)]
        return given, made

    def _fits(self, x: Array) -> bool:
        return x.shape[1] % _VECTOR == 0

    def _images(self, x: Array) -> Array:
        return self.ordered(x)[:, None, None] if x.ndim == 2 else self.channels_last(x)


def like(x: Array, images: Array) -> Array:
    """The channels-last ``images`` in the form of ``x``."""
    return images[:, 0, 0] if x.ndim == 2 else images.transpose(0, 3, 1, 2)


def _batch_desc(
    build: Builder, shape: Shape, epsilon: float, flags: int, prop: Prop = Prop.FORWARD_TRAINING
) -> object:
    x, y = build.images(shape), build.images(shape)
    return build.primitive_desc("batch_normalization_forward", int(prop), x, y, epsilon, flags)


def forward_stage(
    build: Builder, shape: Shape, epsilon: float, flags: int, fills: tuple[Arg, ...] = ()
) -> None:
    """Operands: x, y, mean, variance, scale, shift, and the mask of training with relu."""
    # With given statistics no mask is made: y tells as much.
    prop = Prop.FORWARD_INFERENCE if flags & Norm.USE_GLOBAL_STATS else Prop.FORWARD_TRAINING
    desc = _batch_desc(build, shape, epsilon, flags, prop)
    images, vector = build.images(shape), build.rows(shape[3:])
    order = [Arg.SRC, Arg.DST, Arg.MEAN, Arg.VARIANCE, Arg.SCALE, Arg.SHIFT]
    layouts = [images] * 2 + [vector] * 4
    memories = build.operands(order, layouts)
    if flags & Norm.FUSE_RELU and prop is Prop.FORWARD_TRAINING:
        memories[Arg.WORKSPACE] = build.operand(6, build.layout(desc, Query.WORKSPACE))
    build.stage(desc, memories, fills)


def _train(build: Builder, shape: Shape, epsilon: float) -> None:
    forward_stage(build, shape, epsilon, AFFINE, STATISTICS)


def _given(build: Builder, shape: Shape, epsilon: float) -> None:
    forward_stage(build, shape, epsilon, AFFINE | int(Norm.USE_GLOBAL_STATS))


def _backward(build: Builder, shape: Shape, fixed: bool) -> None:
    backward_stage(build, shape, AFFINE | (int(Norm.USE_GLOBAL_STATS) if fixed else 0))


def backward_stage(build: Builder, shape: Shape, flags: int) -> None:
    """Operands: dx, dy, x, mean, variance, scale, dscale, dshift, and the mask with relu."""
    hint = _batch_desc(build, shape, 0.0, flags)
    images, vector = build.images(shape), build.rows(shape[3:])
    kind, prop = "batch_normalization_backward", int(Prop.BACKWARD)
    desc = build.primitive_desc(kind, prop, images, images, images, 0.0, flags, hint)
    order = [Arg.DIFF_SRC, Arg.DIFF_DST, Arg.SRC, Arg.MEAN, Arg.VARIANCE]
    order += [Arg.SCALE, Arg.DIFF_SCALE, Arg.DIFF_SHIFT]
    memories = build.operands(order, [images] * 3 + [vector] * 5)
    if flags & Norm.FUSE_RELU:
        memories[Arg.WORKSPACE] = build.operand(8, build.layout(hint, Query.WORKSPACE))
    build.stage(desc, memories)


def _rows_desc(build: Builder, shape: Shape, epsilon: float, flags: int) -> object:
    prop, rows, each = int(Prop.FORWARD_TRAINING), build.rows(shape), build.rows(shape[:1])
    return build.primitive_desc(
        "layer_normalization_forward", prop, rows, rows, each, epsilon, flags
    )


def _rows(build: Builder, shape: Shape, epsilon: float, affine: bool) -> None:
    desc = _rows_desc(build, shape, epsilon, AFFINE if affine else 0)
    rows, each, vector = build.rows(shape), build.rows(shape[:1]), build.rows(shape[1:])
    order = (Arg.SRC, Arg.DST, Arg.MEAN, Arg.VARIANCE, *([Arg.SCALE, Arg.SHIFT] * affine))
    memories = build.operands(order, [rows, rows, each, each, *([vector] * 2 * affine)])
    build.stage(desc, memories, STATISTICS)


def _rows_backward(build: Builder, shape: Shape, affine: bool) -> None:
    flags = AFFINE if affine else 0
    hint = _rows_desc(build, shape, 0.0, flags)
    rows, each, vector = build.rows(shape), build.rows(shape[:1]), build.rows(shape[1:])
    kind, prop = "layer_normalization_backward", int(Prop.BACKWARD)
    desc = build.primitive_desc(kind, prop, rows, rows, rows, each, 0.0, flags, hint)
    order = [Arg.DIFF_SRC, Arg.DIFF_DST, Arg.SRC, Arg.MEAN, Arg.VARIANCE]
    # Versions differ in whether they count the shift among the inputs; none reads it.
    order += [Arg.SCALE, Arg.SHIFT, Arg.DIFF_SCALE, Arg.DIFF_SHIFT] * affine
    build.stage(desc, build.operands(order, [rows] * 3 + [each] * 2 + [vector] * 4 * affine))
