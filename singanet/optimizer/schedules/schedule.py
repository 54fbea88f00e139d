"""The base class of schedules."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

from singanet.base.described import Configurable
from singanet.errors import ArgumentError


class Schedule(Configurable):
    """A hyper-parameter as a function of the step, which is 0 at the first update.

    Any callable from int to float does as well; these check their arguments.
    """

    @abstractmethod
    def __call__(self, step: int) -> float:
        """The value at ``step``."""

    def _number(
        self, name: str, value: Any, low: float = -math.inf, high: float = math.inf
    ) -> float:
        """``value`` as a float where it is a finite number in [low, high]."""
        good = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not good or not math.isfinite(value) or not low <= value <= high:
            raise ArgumentError(
                f"{type(self).__name__}({name}=)",
                expected=f"a finite number from {low:g} to {high:g}",
                received=repr(value),
                advice=f"change {name}",
            )
        return float(value)

    def _count(self, name: str, value: Any, low: int = 1) -> int:
        """``value`` where it is an integer of at least ``low``."""
        if not isinstance(value, int) or isinstance(value, bool) or value < low:
            raise ArgumentError(
                f"{type(self).__name__}({name}=)",
                expected=f"an integer of at least {low}",
                received=repr(value),
                advice="steps are counted in updates of a parameter, not in epochs",
            )
        return value
