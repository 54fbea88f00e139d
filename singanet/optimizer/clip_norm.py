"""Constraint on the norm of one parameter's gradient."""

from __future__ import annotations

import math

from singanet.optimizer.constraint import Constraint
from singanet.optimizer.norm import sum_of_squares
from singanet.types import Array, RowSparse


class ClipNorm(Constraint):
    """g · min(1, threshold / ‖g‖), ‖g‖ the L2 norm of the whole gradient.

    A number given as ``constraint`` means this: what SINGA's documents promise of theirs.
    """

    def factor(self, grad: Array | RowSparse, scale: float = 1.0) -> float:
        """``scale`` · min(1, threshold / ‖scale g‖)."""
        norm = scale * math.sqrt(sum_of_squares(grad))
        return scale * self.threshold / norm if norm > self.threshold else scale
