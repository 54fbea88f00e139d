"""The size of the difference."""

from __future__ import annotations

from typing import Any

from singanet.loss.loss import Loss
from singanet.loss.targets import real_targets
from singanet.ops.interface import Ops
from singanet.types import Array


class MeanAbsoluteError(Loss):
    """|x − y| for ``x`` and ``y`` of one shape (B, ...); a position is an element.

    Gradient of an element: sign(x − y), 0 where they are equal.
    """

    def _forward(self, ops: Ops, x: Array, y: Array) -> tuple[Array, float, Any]:
        difference = ops.subtract(x, real_targets("MeanAbsoluteError", x, y))
        return ops.absolute(difference), x.size, difference

    def _backward(self, ops: Ops, saved: Any) -> Array:
        return ops.sign(saved)
