"""SINGA's own constraint."""

from __future__ import annotations

from singanet.ops import ops_for
from singanet.optimizer.constraint import Constraint
from singanet.optimizer.norm import sum_of_squares
from singanet.optimizer.scale import Scale
from singanet.types import Array, RowSparse


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
