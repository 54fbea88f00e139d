"""Regularizers, constraints, and norms of values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from singanet.base.described import Configurable, Counted
from singanet.errors import ArgumentError
from singanet.ops import Ops, ops_for
from singanet.ops.kernel import in_float32, widened
from singanet.optimizer.hyper import Hyper, Scale, at, checked, in_type, within
from singanet.types import Array, RowSparse


class Regularizer(Counted, Configurable, ABC):
    """Adds the gradient of a penalty on a parameter to its gradient, element by element."""

    def __init__(self, coefficient: Hyper) -> None:
        self.coefficient = checked(type(self).__name__, "coefficient", coefficient)

    def apply(self, epoch: int, value: Array, grad: Array, step: int = -1) -> Array:
        """``grad`` plus the penalty's gradient, as a new array (SINGA's interface).

        ``epoch`` is not used; ``step`` matters where the coefficient is a schedule.
        """
        xp = ops_for(value).xp
        out: Array = xp.empty_like(grad)
        self.add(xp, value, grad, at(self.coefficient, max(step, 0)), out)
        return out

    @abstractmethod
    def add(self, xp: Any, value: Array, grad: Array, coefficient: float, out: Array) -> None:
        """``out`` = ``grad`` plus the penalty's gradient; ``out`` may not be ``grad``."""


class L1Regularizer(Regularizer):
    """c |w| for every element w: g + c sign(w), with sign(0) = 0."""

    def add(self, xp: Any, value: Array, grad: Array, coefficient: float, out: Array) -> None:
        """``out`` = g + c sign(w)."""
        xp.sign(value, out=out)
        xp.multiply(out, coefficient, out=out)
        xp.add(out, grad, out=out)


class L2Regularizer(Regularizer):
    """½ c w² for every element w: g + c w. SINGA's ``L2Regularizer``; Keras' L2(l2) is c = 2 l2."""

    def add(self, xp: Any, value: Array, grad: Array, coefficient: float, out: Array) -> None:
        """``out`` = g + c w."""
        xp.multiply(value, coefficient, out=out)
        xp.add(out, grad, out=out)


class Constraint(Counted, Configurable):
    """Keeps a parameter, or its gradient, within bounds; a subclass overrides what it needs."""

    def __init__(self, threshold: float) -> None:
        self.threshold = at(checked(type(self).__name__, "threshold", threshold), 0)
        if not self.threshold:
            raise ArgumentError(
                f"{type(self).__name__}(threshold=)",
                expected="a number above 0",
                received=repr(threshold),
                advice="leave the constraint out, or freeze the parameter",
            )

    def factor(self, grad: Array | RowSparse, scale: Scale = 1.0) -> Scale:
        """The factor of ``grad`` in the place of ``scale``, before all else is done with it."""
        return scale

    def project(self, value: Array) -> None:
        """Change the updated parameter, or its updated rows, in place."""

    def apply(self, epoch: int, value: Array, grad: Array, step: int = -1) -> Array:
        """The constrained gradient as a new array (SINGA's interface); only ``grad`` matters."""
        return grad * in_type(ops_for(grad).xp, self.factor(grad), grad.dtype)


class MaxNorm(Constraint):
    """After an update, w · min(1, max_value / ‖w‖), ‖w‖ the L2 norm along ``axis``.

    ``axis=None`` bounds the parameter as a whole, where Keras' default, 0, bounds the weights into
    each unit of a Dense weight (in, out) (Srivastava et al. 2014); into each kernel of a
    convolution they are bound by (1, 2, 3) here, by [0, 1, 2] there. For a row-sparse gradient None
    bounds the rows that it touches. ``max_value`` is 2 in Keras unless said.
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
                received=repr(axis),
                advice="0 bounds the weights into each unit of a Dense layer",
            )
        self.axis = axis

    def project(self, value: Array) -> None:
        """Scale ``value`` in place where its norm is too large."""
        xp = ops_for(value).xp
        norm = xp.sqrt(xp.square(widened(value)).sum(axis=self.axis, keepdims=True))
        xp.multiply(value, self.max_value / xp.maximum(norm, self.max_value), out=value)


BLOCK = 1 << 15
"""Elements that are summed in their own type."""


def sum_of_squares(grad: Array | RowSparse) -> Any:
    """Σ g² over a gradient, dense or row-sparse, as a float64, or an array of it without axes.

    Blocks are summed in the array's own type and then as doubles, so that the error does not
    grow with the number of elements.
    """
    if isinstance(grad, RowSparse):
        return ops_for(grad.rows).of_rows(sum_of_squares, *grad)
    ops = ops_for(grad)
    if grad.size <= BLOCK:
        return _of_block(ops.xp, _flat(grad))
    total = ops.xp.empty((), np.float64)
    # Of a large table there are hundreds of blocks, which are one call of a program.
    ops.as_one(_sum_over_blocks, (total,), (grad,), (1, np.float64), grad.size)
    return total


def _sum_over_blocks(ops: Ops, room: Array, total: Array, grad: Array) -> None:
    flat = _flat(grad)
    total[...] = _of_block(ops.xp, flat[:BLOCK])
    for start in range(BLOCK, flat.size, BLOCK):
        part = flat[start : start + BLOCK]
        total += _of_block(ops.xp, part)


def _flat(array: Array) -> Array:
    # In memory order where there is one, so that no copy is made of a transposed gradient.
    return array.T.reshape(-1) if array.flags.f_contiguous else array.reshape(-1)


@in_float32
def _of_block(xp: Any, flat: Array) -> Any:
    return xp.dot(flat, flat).astype(np.float64)


class L2Constraint(Constraint):
    """g · threshold / (‖g‖ / n) for a gradient of n elements, as SINGA computes it.

    It scales up as well as down and its target depends on the size: use `ClipNorm` to bound a
    norm. A zero gradient stays zero, where SINGA divides by zero.
    """

    def factor(self, grad: Array | RowSparse, scale: Scale = 1.0) -> Scale:
        """Threshold · n / ‖g‖, or ``scale`` where g = 0."""
        array = grad.rows if isinstance(grad, RowSparse) else grad
        squares = sum_of_squares(grad)
        xp = ops_for(array).xp
        norm = xp.sqrt(xp.where(squares > 0.0, squares, 1.0))
        return xp.where(squares > 0.0, self.threshold * array.size / norm, scale)


class ClipNorm(Constraint):
    """g · min(1, threshold / ‖g‖), ‖g‖ the L2 norm of the whole gradient.

    A number given as ``constraint`` means this: what SINGA's documents promise of theirs.
    """

    def factor(self, grad: Array | RowSparse, scale: Scale = 1.0) -> Scale:
        """``scale`` · min(1, threshold / ‖scale g‖)."""
        xp = ops_for(grad.rows if isinstance(grad, RowSparse) else grad).xp
        norm = abs(scale) * xp.sqrt(sum_of_squares(grad))
        return scale * within(xp, norm, self.threshold)
