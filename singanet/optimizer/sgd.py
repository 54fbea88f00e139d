"""Stochastic gradient descent."""

from __future__ import annotations

from typing import Any

from singanet.errors import ArgumentError
from singanet.optimizer.constraint import Constraint
from singanet.optimizer.element_wise import ElementWise
from singanet.optimizer.hyper import Hyper, at, checked
from singanet.optimizer.regularizer import Regularizer
from singanet.optimizer.state import ParamState
from singanet.types import Array


class SGD(ElementWise):
    """w −= lr g; with momentum μ: h = μ h + lr g, w −= h (SINGA's form).

    ``nesterov`` takes the step w −= μ h + lr g instead. At a constant rate both are PyTorch's;
    when the rate changes, what h holds keeps the rate that it was made with. From the second step
    on ``dampening`` d adds (1 − d) lr g to h, as in PyTorch. State: h, one array a parameter, none
    without momentum.

    With ``each_use`` a parameter of several layers, such as a table of words that is the head's,
    too, is updated by the gradient of each as it comes, where the others look up rows of it: the
    same to rounding, and no gradient waits for another. Without momentum, decay and constraint
    alone; behind no other stage, and in memory.
    """

    hypers = (*ElementWise.hypers, "momentum", "dampening")
    only_with_rate = True

    def __init__(
        self,
        lr: Hyper | None = 0.01,
        momentum: Hyper | None = None,
        weight_decay: Hyper | None = None,
        regularizer: Regularizer | float | None = None,
        constraint: Constraint | float | None = None,
        nesterov: bool = False,
        dampening: Hyper = 0.0,
        each_use: bool = False,
    ) -> None:
        super().__init__(lr, weight_decay, regularizer, constraint)
        self.momentum = checked(type(self).__name__, "momentum", momentum or 0.0, 0.0, 1.0)
        self.nesterov = bool(nesterov)
        if self.momentum == 0.0 and nesterov:
            raise ArgumentError(
                type(self).__name__,
                expected="a momentum above 0 with nesterov=True",
                received=f"momentum={momentum!r}",
                advice="0.9 is usual",
            )
        self.dampening = checked(type(self).__name__, "dampening", dampening, 0.0, 1.0)
        if self.dampening != 0.0 and (nesterov or self.momentum == 0.0):
            raise ArgumentError(
                f"{type(self).__name__}(dampening=)",
                expected="a momentum above 0, and not Nesterov's",
                received=f"momentum={momentum!r}, nesterov={nesterov}",
                advice="leave dampening out",
            )
        self.each_use = bool(each_use)
        if self.each_use and (self.momentum != 0.0 or self.regularizer or self.constraint):
            raise ArgumentError(
                f"{type(self).__name__}(each_use=)",
                expected="neither momentum nor decay nor a constraint: they need the sum",
                received=repr(self),
                advice="leave each_use out",
            )
        if self.momentum != 0.0:
            self.slots = ("momentum",)

    def _scalars(self, state: ParamState, rate: float) -> tuple[float, ...]:
        if self.momentum == 0.0:
            return rate, 0.0
        step = state.step // self.every
        if step and self.dampening != 0.0:
            rate *= 1.0 - at(self.dampening, step)
        return rate, at(self.momentum, step)

    def _rule(self, xp: Any, w: Array, g: Array, arrays: list[Array], s: Array, *n: float) -> None:
        lr, momentum = n
        xp.multiply(g, lr, out=s)
        if not arrays:
            xp.subtract(w, s, out=w)
            return
        h = arrays[0]
        xp.multiply(h, momentum, out=h)
        xp.add(h, s, out=h)
        if self.nesterov:
            xp.subtract(w, s, out=w)
            xp.multiply(h, momentum, out=s)
            xp.subtract(w, s, out=w)
        else:
            xp.subtract(w, h, out=w)
