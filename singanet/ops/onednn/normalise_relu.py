"""Batch normalisation and relu in one pass of oneDNN's, forward and backward."""

from __future__ import annotations

import numpy as np

from singanet.ops.onednn.binding import Norm
from singanet.ops.onednn.builder import Builder
from singanet.ops.onednn.normalise import (
    AFFINE,
    LEAST,
    STATISTICS,
    OneDnnNormalisation,
    backward_stage,
    forward_stage,
    like,
)
from singanet.types import Array, Shape

_FLAGS = AFFINE | int(Norm.FUSE_RELU)


class OneDnnNormalisationRelu(OneDnnNormalisation):
    """The mask is oneDNN's own note, a bit for each value."""

    def batch_norm_relu_train(
        self, x: Array, gamma: Array, beta: Array, epsilon: float
    ) -> tuple[Array, Array, Array, Array, Array]:
        """See `NumpyOps`."""
        if self._fits(x) and self.serves(LEAST, x, gamma, beta):
            images = self._images(x)
            y, mean, var = (self.xp.empty_like(array) for array in (images, gamma, gamma))
            key = (images.shape, epsilon)
            mask = self.room(_train, key, 6, images)
            vectors = (mean, var, self.ordered(gamma), self.ordered(beta))
            if self.runs(_train, key, images, y, *vectors, mask):
                self._show_nan_of(y, *vectors)
                return like(x, y), mean, var, self._inverse(var, epsilon), mask
        return super().batch_norm_relu_train(x, gamma, beta, epsilon)

    def batch_norm_relu(
        self, x: Array, gamma: Array, beta: Array, mean: Array, var: Array, epsilon: float
    ) -> tuple[Array, Array, Array]:
        """See `NumpyOps`; the mask is y."""
        if self._fits(x) and self.serves(LEAST, x, gamma, beta, mean, var):
            images = self._images(x)
            y = self.xp.empty_like(images)
            vectors = [self.ordered(vector) for vector in (mean, var, gamma, beta)]
            if self.runs(_given, (images.shape, epsilon), images, y, *vectors):
                self.show_nan(y, images)
                self._show_nan_of(y, *vectors)
                return like(x, y), self._inverse(var, epsilon), like(x, y)
        return super().batch_norm_relu(x, gamma, beta, mean, var, epsilon)

    def batch_norm_relu_backward(
        self,
        dy: Array,
        x: Array,
        gamma: Array,
        mean: Array,
        inverse: Array,
        fixed: bool,
        mask: Array,
    ) -> tuple[Array, Array, Array]:
        """See `NumpyOps`."""
        if mask.dtype != np.uint8:
            return super().batch_norm_relu_backward(dy, x, gamma, mean, inverse, fixed, mask)
        given, made = self._for_backward(dy, x, gamma, mean, inverse)
        self.runs(_backward, (made[0].shape,), made[0], *given, *made[1:], mask)
        return like(x, made[0]), made[1], made[2]

    def _show_nan_of(self, y: Array, *vectors: Array) -> None:
        """Put NaN into each channel of ``y`` for which one of the ``vectors`` holds it.

        Statistics of a channel with NaN are NaN, and oneDNN's relu would make zeros of it. No
        constant is NaN where kernels are prepared.
        """
        if self.prepared:
            return
        total = self.xp.add(vectors[0], vectors[1])
        for vector in vectors[2:]:
            self.xp.add(total, vector, out=total)
        self.xp.sign(total, out=total)
        self.xp.multiply(total, 0.0, out=total)
        first = y.reshape(len(y), -1, y.shape[-1])[:, 0]
        self.xp.add(first, total, out=first)


def _train(build: Builder, shape: Shape, epsilon: float) -> None:
    forward_stage(build, shape, epsilon, _FLAGS, STATISTICS)


def _given(build: Builder, shape: Shape, epsilon: float) -> None:
    forward_stage(build, shape, epsilon, _FLAGS | int(Norm.USE_GLOBAL_STATS))


def _backward(build: Builder, shape: Shape) -> None:
    backward_stage(build, shape, _FLAGS)
