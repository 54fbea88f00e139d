"""Constraint on the norm of one parameter's gradient."""

from __future__ import annotations

from singanet.ops import ops_for
from singanet.optimizer.constraint import Constraint
from singanet.optimizer.norm import sum_of_squares
from singanet.optimizer.scale import Scale, within
from singanet.types import Array, RowSparse


class ClipNorm(Constraint):
    """g · min(1, threshold / ‖g‖), ‖g‖ the L2 norm of the whole gradient.

    A number given as ``constraint`` means this: what SINGA's documents promise of theirs.
    """

    def factor(self, grad: Array | RowSparse, scale: Scale = 1.0) -> Scale:
        """``scale`` · min(1, threshold / ‖scale g‖)."""
        xp = ops_for(grad.rows if isinstance(grad, RowSparse) else grad).xp
        norm = abs(scale) * xp.sqrt(sum_of_squares(grad))
        return scale * within(xp, norm, self.threshold)
