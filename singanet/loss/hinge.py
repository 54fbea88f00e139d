"""Margins."""

from __future__ import annotations

from typing import Any

from singanet.errors import DataError
from singanet.loss.loss import Loss
from singanet.loss.targets import checked_positive, real_targets
from singanet.ops.interface import Ops
from singanet.types import Array


class Hinge(Loss):
    """max(0, margin − s x) for scores ``x`` (B, ...), s = ±1; a position is an element.

    ``y`` has the shape of ``x`` and holds −1 and 1, or 0 and 1, of which 0 means −1. Gradient of
    an element: −s where the margin is not kept, else 0. ``squared`` squares the loss.
    """

    def __init__(self, margin: float = 1.0, squared: bool = False, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.margin = checked_positive("Hinge(margin=)", margin)
        self.squared = bool(squared)

    def count(self, x: Array, y: Array) -> float:
        """Elements."""
        return x.size

    def compute(self, ops: Ops, x: Array, y: Array) -> tuple[Array, Any]:
        y = real_targets("Hinge", x, y)
        wrong = (y != 1) & (y != 0) & (y != -1)
        if bool(wrong.any()):
            first = float(y[wrong][0])
            raise DataError(
                "Hinge",
                expected="targets among -1, 0 and 1",
                received=f"{first:g}",
                advice="pass -1 or 0 for no and 1 for yes",
            )
        sign = ops.where(y > 0, 1, -1).astype(x.dtype)
        short = ops.maximum(self.margin - sign * x, 0)
        if self.squared:
            return short * short, -2 * sign * short
        return short, -sign * (short > 0)

    def gradient(self, ops: Ops, saved: Any) -> Array:
        return saved
