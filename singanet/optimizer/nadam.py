"""Adam with Nesterov's momentum."""

from __future__ import annotations

import math
from typing import Any

from singanet.optimizer.adam import Adam, epsilon_beside, moments
from singanet.optimizer.constraint import Constraint
from singanet.optimizer.hyper import Hyper, at, checked
from singanet.optimizer.regularizer import Regularizer
from singanet.optimizer.state import ParamState
from singanet.types import Array


class NAdam(Adam):
    """w −= lr √(1 − β₂ᵗ) (μ' m / (1 − Π μ') + (1 − μ) g / (1 − Π μ)) / (√v + ε), with `Adam`'s ε.

    With ``epsilon_after_correction`` the divisor is √v̂ + ε, as in PyTorch and Keras.
    μ = β₁ (1 − 0.96^(ψ t) / 2) at step t, μ' at the next, Π the product of all so far, and ψ is
    ``momentum_decay``; Keras' is 1. Dozat, 2016. State: m and v, two arrays a parameter.
    """

    hypers = (*Adam.hypers, "momentum_decay")
    epsilon_after_correction = True

    def __init__(
        self,
        lr: Hyper | None = 0.001,
        beta_1: Hyper = 0.9,
        beta_2: Hyper = 0.999,
        epsilon: Hyper = 1e-8,
        momentum_decay: Hyper = 0.004,
        weight_decay: Hyper | None = None,
        regularizer: Regularizer | float | None = None,
        constraint: Constraint | float | None = None,
        epsilon_after_correction: bool = False,
    ) -> None:
        super().__init__(
            lr, beta_1, beta_2, epsilon, weight_decay, regularizer, constraint,
            epsilon_after_correction,
        )  # fmt: skip
        self.momentum_decay = checked("NAdam", "momentum_decay", momentum_decay)
        # Of the last step asked for, since all parameters mostly stand at one: step and product.
        self._product: list[tuple[Hyper, Hyper, int, float]] = []

    def _momentum(self, step: int) -> float:
        decay: float = 0.96 ** (at(self.momentum_decay, step) * (step + 1))
        return at(self.beta_1, step) * (1.0 - 0.5 * decay)

    def _product_to(self, step: int) -> float:
        """The product of the momenta of the steps up to this one: a function of it alone."""
        begun, product = 0, 1.0
        for beta, decay, done, value in self._product:
            if beta == self.beta_1 and decay == self.momentum_decay and done <= step + 1:
                begun, product = done, value
        for each in range(begun, step + 1):
            product *= self._momentum(each)
        self._product[:] = [(self.beta_1, self.momentum_decay, step + 1, product)]
        return product

    def _scalars(self, state: ParamState, rate: float) -> tuple[float, ...]:
        step = state.step // self.every
        beta_1, beta_2 = at(self.beta_1, step), at(self.beta_2, step)
        now, after, product = self._momentum(step), self._momentum(step + 1), self._product_to(step)
        root = math.sqrt(1.0 - beta_2 ** (step + 1))
        fresh = rate * root * (1.0 - now) / (1.0 - product)
        held = rate * root * after / (1.0 - product * after)
        return fresh, held, beta_1, beta_2, epsilon_beside(self, step, root)

    def _rule(self, xp: Any, w: Array, g: Array, arrays: list[Array], s: Array, *n: float) -> None:
        fresh, held, beta_1, beta_2, epsilon = n
        first, second = arrays
        moments(xp, g, first, second, s, beta_1, beta_2)
        ahead = xp.multiply(first, held)
        xp.multiply(g, fresh, out=s)
        xp.add(ahead, s, out=ahead)
        xp.sqrt(second, out=s)
        xp.add(s, epsilon, out=s)
        xp.divide(ahead, s, out=s)
        xp.subtract(w, s, out=w)
