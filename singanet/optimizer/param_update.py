"""The input of an optimizer's rule: one update of one parameter."""

from __future__ import annotations

from typing import NamedTuple

from singanet.optimizer.regularizer import Regularizer
from singanet.optimizer.scale import Scale
from singanet.optimizer.state import ParamState
from singanet.types import Array


class ParamUpdate(NamedTuple):
    """The arrays of one update of one parameter, and the numbers of its step.

    The gradient is ``grad`` times ``scale``. ``arrays`` is the flat state, which changes in place
    as ``value`` does. ``penalty`` is the coefficient of the regularizer, ``scalars`` are the rule's
    own numbers.
    """

    state: ParamState
    value: Array
    grad: Array
    arrays: list[Array]
    penalty: float
    scalars: tuple[float, ...]
    scale: Scale = 1.0

    @property
    def regularizer(self) -> Regularizer | None:
        """The regularizer, None if its penalty is 0 and stays so."""
        return self.state.regularizer_at(self.penalty)
