"""Penalty on the square of a parameter."""

from __future__ import annotations

from typing import Any

from singanet.optimizer.regularizer import Regularizer
from singanet.types import Array


class L2Regularizer(Regularizer):
    """½ c w² for every element w: g + c w. SINGA's ``L2Regularizer``."""

    def add(self, xp: Any, value: Array, grad: Array, coefficient: float, out: Array) -> None:
        """``out`` = g + c w."""
        xp.multiply(value, coefficient, out=out)
        xp.add(out, grad, out=out)
