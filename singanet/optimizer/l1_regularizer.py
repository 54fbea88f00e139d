"""Penalty on the size of a parameter."""

from __future__ import annotations

from typing import Any

from singanet.optimizer.regularizer import Regularizer
from singanet.types import Array


class L1Regularizer(Regularizer):
    """c |w| for every element w: g + c sign(w), with sign(0) = 0."""

    def add(self, xp: Any, value: Array, grad: Array, coefficient: float, out: Array) -> None:
        """``out`` = g + c sign(w)."""
        xp.sign(value, out=out)
        xp.multiply(out, coefficient, out=out)
        xp.add(out, grad, out=out)
