"""Adam's direction with a step in proportion to the parameter."""

from __future__ import annotations

import math
from typing import Any

from singanet.ops import ops_for
from singanet.optimizer.adam import Adam, epsilon_beside, moments
from singanet.optimizer.constraint import Constraint
from singanet.optimizer.element_wise import prepared
from singanet.optimizer.hyper import Hyper, at
from singanet.optimizer.norm import sum_of_squares
from singanet.optimizer.param_update import ParamUpdate
from singanet.optimizer.regularizer import Regularizer
from singanet.optimizer.scale import in_type
from singanet.optimizer.state import ParamState
from singanet.types import Array


class LAMB(Adam):
    """r = α m / (√v + ε) + λ w; w −= lr (‖w‖ / ‖r‖) r (You et al. 2020), for large batches.

    α is `Adam`'s for lr = 1. With ``epsilon_after_correction``, as in the paper and in Keras, the
    quotient is m̂ / (√v̂ + ε). The ratio is 1 where either norm is 0; the norms are of the whole
    parameter, or of the rows that a row-sparse gradient names. λ is ``weight_decay`` times
    ``decay_mult``. The direction is worked out twice, once for its norm, so that it is never held
    whole. State: m and v.
    """

    decoupled = True
    epsilon_after_correction = True

    def __init__(
        self,
        lr: Hyper | None = 0.001,
        beta_1: Hyper = 0.9,
        beta_2: Hyper = 0.999,
        epsilon: Hyper = 1e-6,
        weight_decay: Hyper | None = 0.01,
        regularizer: Regularizer | float | None = None,
        constraint: Constraint | float | None = None,
        epsilon_after_correction: bool = False,
    ) -> None:
        super().__init__(
            lr, beta_1, beta_2, epsilon, weight_decay, regularizer, constraint,
            epsilon_after_correction,
        )  # fmt: skip

    def _scalars(self, state: ParamState, rate: float) -> tuple[float, ...]:
        step = state.step
        beta_1, beta_2 = at(self.beta_1, step), at(self.beta_2, step)
        root = math.sqrt(1.0 - beta_2 ** (step + 1))
        decay = at(self.weight_decay, step) * state.decay_mult
        correction = root / (1.0 - beta_1 ** (step + 1))
        return rate, beta_1, beta_2, epsilon_beside(self, step, root), correction, decay

    def _sweep(self, update: ParamUpdate) -> None:
        _, value, grad, arrays, _, scalars, _ = update
        xp = ops_for(value).xp
        rate, beta_1, beta_2, epsilon, correction, decay = scalars
        of_value: Any = 0.0
        of_step: Any = 0.0
        for w, g, (first, second), a, b in self._blocks(xp, value, grad, arrays):
            g = prepared(xp, w, g, update, a, b)
            moments(xp, g, first, second, b, beta_1, beta_2)
            _direction((xp, w, first, second, a, b), epsilon, correction, decay)
            of_value = of_value + sum_of_squares(w)
            of_step = of_step + sum_of_squares(a)
        both = xp.logical_and(of_value != 0.0, of_step != 0.0)
        ratio = xp.sqrt(xp.where(both, of_value / xp.where(both, of_step, 1.0), 1.0))
        pace = in_type(xp, rate * ratio, value.dtype)
        for w, _, (first, second), a, b in self._blocks(xp, value, grad, arrays):
            _direction((xp, w, first, second, a, b), epsilon, correction, decay)
            xp.multiply(a, pace, out=a)
            xp.subtract(w, a, out=w)


def _direction(
    block: tuple[Any, Array, Array, Array, Array, Array],
    epsilon: float,
    correction: float,
    decay: float,
) -> None:
    """r in the first scratch array of ``block``; the second is written over."""
    xp, w, first, second, a, b = block
    xp.sqrt(second, out=a)
    xp.add(a, epsilon, out=a)
    xp.divide(first, a, out=a)
    xp.multiply(a, correction, out=a)
    if decay != 0.0:
        xp.multiply(w, decay, out=b)
        xp.add(a, b, out=a)
