"""Regularizers, constraints and norms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from singanet.base.described import Configurable, Counted
from singanet.errors import ArgumentError, brief
from singanet.ops import Ops, ops_for
from singanet.ops.kernel import in_float32, widened
from singanet.optimizer.hyper import Hyper, Scale, at, checked, in_type, within
from singanet.types import Array, RowSparse


class Regularizer(Counted, Configurable, ABC):
    """Adds the gradient of a penalty on a parameter to its gradient, element by element.

    Args:
        coefficient: c, at least 0, a number or schedule.

    """

    def __init__(self, coefficient: Hyper) -> None:
        self.coefficient = checked(type(self).__name__, "coefficient", coefficient)

    def apply(self, epoch: int, value: Array, grad: Array, step: int = -1) -> Array:
        """Return ``grad`` plus the gradient of the penalty on ``value`` (SINGA's interface).

        The result is a new array. ``epoch`` is not used; ``step`` is used if the coefficient is a
        schedule.
        """
        xp = ops_for(value).xp
        out: Array = xp.empty_like(grad)
        self.add(xp, value, grad, at(self.coefficient, max(step, 0)), out)
        return out

    @abstractmethod
    def add(self, xp: Any, value: Array, grad: Array, coefficient: float, out: Array) -> None:
        """Compute ``out`` = ``grad`` plus the gradient of the penalty on ``value``.

        ``coefficient`` is its current number, ``xp`` the array module. ``out`` may not be ``grad``.
        """


class L1Regularizer(Regularizer):
    """c |w| for every element w: g + c sign(w), with sign(0) = 0.

    Args:
        coefficient: c, at least 0, a number or schedule.

    Examples:
        >>> w, g = np.array([2.0, -3.0]), np.zeros(2)
        >>> singanet.optimizer.L1Regularizer(0.1).apply(0, w, g)
        array([ 0.1, -0.1])
    """

    def add(self, xp: Any, value: Array, grad: Array, coefficient: float, out: Array) -> None:
        """Compute ``out`` = g + c sign(w)."""
        xp.sign(value, out=out)
        xp.multiply(out, coefficient, out=out)
        xp.add(out, grad, out=out)


class L2Regularizer(Regularizer):
    """½ c w² for every element w: g + c w. SINGA's ``L2Regularizer``; Keras' L2(l2) is c = 2 l2.

    Args:
        coefficient: c, at least 0, a number or schedule.

    Examples:
        >>> w, g = np.array([2.0, -3.0]), np.zeros(2)
        >>> singanet.optimizer.L2Regularizer(0.1).apply(0, w, g)
        array([ 0.2, -0.3])
    """

    def add(self, xp: Any, value: Array, grad: Array, coefficient: float, out: Array) -> None:
        """Compute ``out`` = g + c w."""
        xp.multiply(value, coefficient, out=out)
        xp.add(out, grad, out=out)


class Constraint(Counted, Configurable):
    """Bounds a parameter or its gradient; a subclass overrides `factor` or `project`.

    Args:
        threshold: The bound, above 0.

    """

    def __init__(self, threshold: float) -> None:
        self.threshold = at(checked(type(self).__name__, "threshold", threshold), 0)
        if not self.threshold:
            raise ArgumentError(
                f"{type(self).__name__}(threshold=)",
                expected="a number above 0",
                received=brief(threshold),
                advice="omit the constraint, or freeze the parameter",
            )

    def factor(self, grad: Array | RowSparse, scale: Scale = 1.0) -> Scale:
        """Return the factor of ``grad`` that replaces ``scale``, before the regularizer."""
        return scale

    def project(self, value: Array) -> None:
        """Constrain the updated parameter ``value``, or its updated rows, in place."""

    def apply(self, epoch: int, value: Array, grad: Array, step: int = -1) -> Array:
        """Return the constrained gradient, a new array (SINGA's interface).

        It uses ``grad`` alone, not ``epoch``, ``value`` and ``step``.
        """
        return grad * in_type(ops_for(grad).xp, self.factor(grad), grad.dtype)


class MaxNorm(Constraint):
    """w · min(1, max_value / ‖w‖) after an update, ‖w‖ the L2 norm along ``axis``.

    Args:
        max_value: The largest norm, above 0 (default in Keras: 2).
        axis: The axes of a norm. None bounds the whole parameter, or the rows of a row-sparse
            gradient. 0, Keras' default, bounds the weights into each unit of a Dense weight
            (in, out) (Srivastava et al. 2014). (1, 2, 3) bounds each kernel of a convolution
            (Keras: [0, 1, 2]).

    Examples:
        >>> w = np.array([3.0, -4.0])
        >>> singanet.optimizer.MaxNorm(1.0).project(w)
        >>> w
        array([ 0.6, -0.8])
    """

    max_value: float

    def __init__(self, max_value: float, axis: int | Sequence[int] | None = None) -> None:
        super().__init__(max_value)
        axis = tuple(axis) if isinstance(axis, list) else axis
        axes = axis if isinstance(axis, tuple) else (axis,)
        if not all(a is None or isinstance(a, int) for a in axes):
            raise ArgumentError(
                "MaxNorm(axis=)",
                expected="an axis, a tuple of axes or None",
                received=brief(axis),
                advice="0 bounds the weights into each unit of a Dense layer",
            )
        self.axis = axis

    def project(self, value: Array) -> None:
        """Scale ``value`` in place if its norm is too large."""
        xp = ops_for(value).xp
        norm = xp.sqrt(xp.square(widened(value)).sum(axis=self.axis, keepdims=True))
        xp.multiply(value, self.max_value / xp.maximum(norm, self.max_value), out=value)


BLOCK = 1 << 15
"""Number of elements summed in their own dtype."""


def sum_of_squares(grad: Array | RowSparse) -> Any:
    """Return Σ g² of a dense or row-sparse gradient, a float64 or a float64 array without axes.

    Blocks are summed in the dtype of the array and their sums in float64, so that the error does
    not grow with the number of elements.
    """
    if isinstance(grad, RowSparse):
        return ops_for(grad.rows).of_rows(sum_of_squares, *grad)
    ops = ops_for(grad)
    if grad.size <= BLOCK:
        return _of_block(ops.xp, _flat(grad))
    total = ops.xp.empty((), np.float64)
    # A large table has hundreds of blocks, which a program sums in one call.
    ops.as_one(_sum_over_blocks, (total,), (grad,), (1, np.float64), grad.size)
    return total


def _sum_over_blocks(ops: Ops, room: Array, total: Array, grad: Array) -> None:
    flat = _flat(grad)
    total[...] = _of_block(ops.xp, flat[:BLOCK])
    for start in range(BLOCK, flat.size, BLOCK):
        part = flat[start : start + BLOCK]
        total += _of_block(ops.xp, part)


def _flat(array: Array) -> Array:
    # In memory order, if there is one, so that a transposed gradient is not copied.
    return array.T.reshape(-1) if array.flags.f_contiguous else array.reshape(-1)


@in_float32
def _of_block(xp: Any, flat: Array) -> Any:
    return xp.dot(flat, flat).astype(np.float64)


class L2Constraint(Constraint):
    """g · threshold / (‖g‖ / n) for a gradient of n elements, as SINGA computes it.

    It scales up as well as down, and its target depends on the size: use `ClipNorm` to bound a
    norm. A zero gradient stays zero; SINGA divides by zero.

    Args:
        threshold: The norm of the result over its number of elements, above 0.

    Examples:
        >>> w, g = np.zeros(2), np.array([3.0, -4.0])
        >>> singanet.optimizer.L2Constraint(1.0).apply(0, w, g)
        array([ 1.2, -1.6])
    """

    def factor(self, grad: Array | RowSparse, scale: Scale = 1.0) -> Scale:
        """Return threshold · n / ‖g‖, or ``scale`` if g = 0."""
        array = grad.rows if isinstance(grad, RowSparse) else grad
        squares = sum_of_squares(grad)
        xp = ops_for(array).xp
        norm = xp.sqrt(xp.where(squares > 0.0, squares, 1.0))
        return xp.where(squares > 0.0, self.threshold * array.size / norm, scale)


class ClipNorm(Constraint):
    """g · min(1, threshold / ‖g‖), ‖g‖ the L2 norm of the whole gradient.

    A number as the argument ``constraint`` is the threshold of a ClipNorm, as in SINGA's documents.

    Args:
        threshold: The largest norm, above 0.

    Examples:
        >>> w, g = np.zeros(2), np.array([3.0, -4.0])
        >>> singanet.optimizer.ClipNorm(1.0).apply(0, w, g)
        array([ 0.6, -0.8])
    """

    def factor(self, grad: Array | RowSparse, scale: Scale = 1.0) -> Scale:
        """Return ``scale`` · min(1, threshold / ‖scale g‖)."""
        xp = ops_for(grad.rows if isinstance(grad, RowSparse) else grad).xp
        norm = abs(scale) * xp.sqrt(sum_of_squares(grad))
        return scale * within(xp, norm, self.threshold)
