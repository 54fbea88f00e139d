"""SINGA's own constraint."""

from __future__ import annotations

import math

from singanet.optimizer.constraint import Constraint
from singanet.optimizer.norm import sum_of_squares
from singanet.types import Array, RowSparse


class L2Constraint(Constraint):
    """g · threshold / (‖g‖ / n) for a gradient of n elements, as SINGA computes it.

    It scales up as well as down and its target depends on the size: use `ClipNorm` to bound a
    norm. A zero gradient stays zero, where SINGA divides by zero.
    """

    def factor(self, grad: Array | RowSparse, scale: float = 1.0) -> float:
        """Threshold · n / ‖g‖, or ``scale`` where g = 0."""
        array = grad.rows if isinstance(grad, RowSparse) else grad
        norm = math.sqrt(sum_of_squares(grad))
        return self.threshold * array.size / norm if norm > 0 else scale
