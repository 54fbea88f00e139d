"""Losses of the difference to real targets: squared, absolute, and Huber's between them."""

from __future__ import annotations

from typing import Any

from singanet.errors import ArgumentError
from singanet.loss.loss import Loss
from singanet.loss.targets import real_targets
from singanet.ops.interface import Ops
from singanet.types import Array


class SquaredError(Loss):
    """½ (x − y)² for ``x`` and ``y`` of one shape (B, ...); a position is an element.

    A sample's value is the mean over its elements, so that `evaluate` is SINGA's
    Σ ½ (x − y)² / number of elements, and the gradient is (x − y) / number of elements;
    ``reduction="sum"`` gives SINGA's gradient x − y.
    """

    def count(self, x: Array, y: Array) -> float:
        """Elements."""
        return x.size

    def compute(self, ops: Ops, x: Array, y: Array) -> tuple[Array, Any]:
        """See `Loss`."""
        difference = ops.subtract(x, real_targets("SquaredError", x, y))
        losses = ops.multiply(difference, difference)
        losses *= 0.5
        return losses, difference

    def gradient(self, ops: Ops, saved: Any) -> Array:
        """See `Loss`."""
        return saved


class MeanSquaredError(Loss):
    """(x − y)² for ``x`` and ``y`` of one shape (B, ...); a position is an element.

    What other libraries call so: twice `SquaredError`, which is SINGA's.
    """

    def count(self, x: Array, y: Array) -> float:
        """Elements."""
        return x.size

    def compute(self, ops: Ops, x: Array, y: Array) -> tuple[Array, Any]:
        """See `Loss`."""
        difference = ops.subtract(x, real_targets("MeanSquaredError", x, y))
        return ops.multiply(difference, difference), difference

    def gradient(self, ops: Ops, saved: Any) -> Array:
        """See `Loss`."""
        return saved * 2


class MeanAbsoluteError(Loss):
    """|x − y| for ``x`` and ``y`` of one shape (B, ...); a position is an element.

    Gradient of an element: sign(x − y), 0 where they are equal.
    """

    def count(self, x: Array, y: Array) -> float:
        """Elements."""
        return x.size

    def compute(self, ops: Ops, x: Array, y: Array) -> tuple[Array, Any]:
        """See `Loss`."""
        difference = ops.subtract(x, real_targets("MeanAbsoluteError", x, y))
        return ops.absolute(difference), difference

    def gradient(self, ops: Ops, saved: Any) -> Array:
        """See `Loss`."""
        return ops.sign(saved)


class Huber(Loss):
    """½ d² where |d| ≤ δ, else δ (|d| − ½ δ), d = x − y (Huber 1964); a position is an element.

    ``x`` and ``y`` have one shape (B, ...). Gradient of an element: d brought into [−δ, δ].
    """

    def __init__(self, delta: float = 1.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        if not isinstance(delta, (int, float)) or not 0.0 < delta < float("inf"):
            raise ArgumentError(
                "Huber(delta=)",
                expected="a finite number above 0",
                received=repr(delta),
                advice="1 is usual for targets of size about 1",
            )
        self.delta = float(delta)

    def count(self, x: Array, y: Array) -> float:
        """Elements."""
        return x.size

    def compute(self, ops: Ops, x: Array, y: Array) -> tuple[Array, Any]:
        """See `Loss`."""
        difference = ops.subtract(x, real_targets("Huber", x, y))
        slope = ops.maximum(ops.minimum(difference, self.delta), -self.delta)
        # With s the slope, both branches are s (d - s / 2).
        losses = ops.multiply(slope, difference - 0.5 * slope)
        return losses, slope

    def gradient(self, ops: Ops, saved: Any) -> Array:
        """See `Loss`."""
        return saved
