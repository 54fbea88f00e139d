"""Adaptive moments."""

from __future__ import annotations

import math
from typing import Any

from singanet.optimizer.constraint import Constraint
from singanet.optimizer.element_wise import ElementWise
from singanet.optimizer.hyper import Hyper, at, checked
from singanet.optimizer.regularizer import Regularizer
from singanet.optimizer.state import ParamState
from singanet.types import Array


class Adam(ElementWise):
    """m, v = moving means of g, g²; w −= α m / (√v + ε), α = lr √(1 − β₂ᵗ) / (1 − β₁ᵗ).

    SINGA and Keras use this form, from section 2 of Kingma and Ba (2015): ε is added to √v before
    the correction of its bias. With ``epsilon_after_correction`` it is added after, as in PyTorch:
    w −= lr m̂ / (√v̂ + ε). All rules of this kind take that argument. t counts the updates of each
    parameter. State: m and v, two arrays a parameter.
    """

    slots: tuple[str, ...] = ("first", "second")
    hypers = (*ElementWise.hypers, "beta_1", "beta_2", "epsilon")
    _always_written = ("epsilon_after_correction",)
    epsilon_after_correction = False

    def __init__(
        self,
        lr: Hyper | None = 0.001,
        beta_1: Hyper = 0.9,
        beta_2: Hyper = 0.999,
        epsilon: Hyper = 1e-8,
        weight_decay: Hyper | None = None,
        regularizer: Regularizer | float | None = None,
        constraint: Constraint | float | None = None,
        epsilon_after_correction: bool = False,
    ) -> None:
        super().__init__(lr, weight_decay, regularizer, constraint)
        self.epsilon_after_correction = bool(epsilon_after_correction)
        where = type(self).__name__
        self.beta_1 = checked(where, "beta_1", beta_1, 0.0, 1.0)
        self.beta_2 = checked(where, "beta_2", beta_2, 0.0, 1.0)
        self.epsilon = checked(where, "epsilon", epsilon)

    def _scalars(self, state: ParamState, rate: float) -> tuple[float, ...]:
        step = state.step // self.every
        beta_1, beta_2 = at(self.beta_1, step), at(self.beta_2, step)
        root = math.sqrt(1.0 - beta_2 ** (step + 1))
        alpha = rate * root / (1.0 - beta_1 ** (step + 1))
        return alpha, beta_1, beta_2, epsilon_beside(self, step, root)

    def _rule(self, xp: Any, w: Array, g: Array, arrays: list[Array], s: Array, *n: float) -> None:
        alpha, beta_1, beta_2, epsilon = n
        first, second, *largest = arrays
        moments(xp, g, first, second, s, beta_1, beta_2)
        for top in largest:
            second = xp.maximum(top, second, out=top)
        xp.sqrt(second, out=s)
        descend(xp, w, first, s, alpha, epsilon)


def epsilon_beside(rule: Any, step: int, root: float) -> float:
    """ε of ``rule`` as a number to add to √v, which the correction divides by ``root``."""
    epsilon = at(rule.epsilon, step)
    return epsilon * root if rule.epsilon_after_correction else epsilon


def moments(
    xp: Any, g: Array, first: Array, second: Array, s: Array, beta_1: float, beta_2: float
) -> None:
    """Move the means of g and g² one step on; ``s`` is scratch."""
    xp.multiply(first, beta_1, out=first)
    xp.multiply(g, 1.0 - beta_1, out=s)
    xp.add(first, s, out=first)
    xp.multiply(second, beta_2, out=second)
    xp.multiply(g, g, out=s)
    xp.multiply(s, 1.0 - beta_2, out=s)
    xp.add(second, s, out=second)


def descend(xp: Any, w: Array, first: Array, root: Array, alpha: float, epsilon: float) -> None:
    """w −= α m / (root + ε); ``root`` is written over."""
    xp.add(root, epsilon, out=root)
    xp.divide(first, root, out=root)
    xp.multiply(root, alpha, out=root)
    xp.subtract(w, root, out=w)
