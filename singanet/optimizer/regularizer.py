"""The base class of regularizers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from singanet.base.described import Configurable
from singanet.base.edits import Counted
from singanet.ops import ops_for
from singanet.optimizer.hyper import Hyper, at, checked
from singanet.types import Array


class Regularizer(Counted, Configurable, ABC):
    """Adds the gradient of a penalty on a parameter to its gradient, element by element."""

    def __init__(self, coefficient: Hyper) -> None:
        self.coefficient = checked(type(self).__name__, "coefficient", coefficient)

    def apply(self, epoch: int, value: Array, grad: Array, step: int = -1) -> Array:
        """``grad`` plus the penalty's gradient, as a new array (SINGA's interface).

        ``epoch`` is not used; ``step`` matters where the coefficient is a schedule.
        """
        xp = ops_for(value).xp
        out: Array = xp.empty_like(grad)
        self.add(xp, value, grad, at(self.coefficient, max(step, 0)), out)
        return out

    @abstractmethod
    def add(self, xp: Any, value: Array, grad: Array, coefficient: float, out: Array) -> None:
        """``out`` = ``grad`` plus the penalty's gradient; ``out`` may not be ``grad``."""
