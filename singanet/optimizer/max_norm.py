"""Constraint on the norm of the weights."""

from __future__ import annotations

from singanet.errors import ArgumentError
from singanet.ops import ops_for
from singanet.ops.kernel import widened
from singanet.optimizer.constraint import Constraint
from singanet.types import Array


class MaxNorm(Constraint):
    """After an update, w · min(1, threshold / ‖w‖), ‖w‖ the L2 norm along ``axis``.

    For a Dense weight (in, out) ``axis=0`` bounds the weights into each unit (Srivastava et al.
    2014). ``axis=None`` bounds the parameter as a whole, and for a row-sparse gradient the rows
    that it touches.
    """

    def __init__(self, threshold: float, axis: int | tuple[int, ...] | None = None) -> None:
        super().__init__(threshold)
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
        xp.multiply(value, self.threshold / xp.maximum(norm, self.threshold), out=value)
