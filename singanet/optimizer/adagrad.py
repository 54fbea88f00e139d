"""Division by the root of all squares so far."""

from __future__ import annotations

from typing import Any

from singanet.optimizer.constraint import Constraint
from singanet.optimizer.element_wise import ElementWise
from singanet.optimizer.hyper import Hyper, at, checked
from singanet.optimizer.regularizer import Regularizer
from singanet.optimizer.state import ParamState
from singanet.types import Array


class AdaGrad(ElementWise):
    """h += g²; w −= lr g / √(h + ε) (SINGA's form; Duchi et al. 2011).

    PyTorch adds its ε to √h instead. State: h, one array a parameter.
    """

    slots = ("square",)
    hypers = (*ElementWise.hypers, "epsilon")

    def __init__(
        self,
        lr: Hyper | None = 0.01,
        epsilon: Hyper = 1e-8,
        weight_decay: Hyper | None = None,
        regularizer: Regularizer | float | None = None,
        constraint: Constraint | float | None = None,
    ) -> None:
        super().__init__(lr, weight_decay, regularizer, constraint)
        self.epsilon = checked(type(self).__name__, "epsilon", epsilon)

    def _scalars(self, state: ParamState, rate: float) -> tuple[float, ...]:
        return rate, at(self.epsilon, state.step)

    def _rule(self, xp: Any, w: Array, g: Array, arrays: list[Array], s: Array, *n: float) -> None:
        lr, epsilon = n
        square = arrays[0]
        xp.multiply(g, g, out=s)
        xp.add(square, s, out=square)
        xp.add(square, epsilon, out=s)
        xp.sqrt(s, out=s)
        xp.divide(g, s, out=s)
        xp.multiply(s, lr, out=s)
        xp.subtract(w, s, out=w)
