"""Batch normalisation with the relu that follows it, so that a backend may do both in one pass."""

from __future__ import annotations

from collections.abc import Callable

from singanet.ops.numpy.normalise import Normalisation
from singanet.types import Array


class NormalisationRelu(Normalisation):
    """As the kernels of `Normalisation`, y being max(y, 0).

    ``mask`` tells the backward kernel where y is above zero; what it holds is the backend's.
    """

    activation_backward: Callable[..., Array]

    def batch_norm_relu_train(
        self, x: Array, gamma: Array, beta: Array, epsilon: float
    ) -> tuple[Array, Array, Array, Array, Array]:
        """y, mean, var, 1 / sqrt(var + epsilon), mask."""
        y, mean, var, inverse = self.batch_norm_train(x, gamma, beta, epsilon)
        self.xp.maximum(y, 0, out=y)
        return y, mean, var, inverse, y

    def batch_norm_relu(
        self, x: Array, gamma: Array, beta: Array, mean: Array, var: Array, epsilon: float
    ) -> tuple[Array, Array, Array]:
        """y, 1 / sqrt(var + epsilon), mask."""
        y, inverse = self.batch_norm(x, gamma, beta, mean, var, epsilon)
        self.xp.maximum(y, 0, out=y)
        return y, inverse, y

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
        """(dx, dgamma, dbeta) of `batch_norm_backward` for ``dy`` where y is above zero."""
        slopes = self.activation_backward("relu", dy, mask)
        return self.batch_norm_backward(slopes, x, gamma, mean, inverse, fixed)
