"""Half the squared difference."""

from __future__ import annotations

from typing import Any

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

    def _forward(self, ops: Ops, x: Array, y: Array) -> tuple[Array, float, Any]:
        difference = ops.subtract(x, real_targets("SquaredError", x, y))
        losses = ops.multiply(difference, difference)
        losses *= 0.5
        return losses, x.size, difference

    def _backward(self, ops: Ops, saved: Any) -> Array:
        return saved
