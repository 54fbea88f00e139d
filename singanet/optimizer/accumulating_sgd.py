"""Micro-batches folded into the momentum."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from singanet.errors import ArgumentError
from singanet.optimizer.checks import Grad, checked_every, refuse_rows
from singanet.optimizer.constraint import Constraint
from singanet.optimizer.hyper import Hyper
from singanet.optimizer.regularizer import Regularizer
from singanet.optimizer.sgd import SGD
from singanet.optimizer.state import ParamState, together
from singanet.types import Array


class AccumulatingSGD(SGD):
    """`SGD` with momentum over the mean of ``every`` micro-batches, without a buffer for it.

    h = μ h at the first of them, h += lr g / every at each, w −= h at the last: exactly what
    `Accumulator` around `SGD` does, and a gradient-sized array less. Schedules see the number of
    changes of w. A constraint acts on each micro-batch. Dense gradients only.
    """

    def __init__(
        self,
        every: int,
        lr: Hyper | None = 0.01,
        momentum: Hyper = 0.9,
        weight_decay: Hyper | None = None,
        regularizer: Regularizer | float | None = None,
        constraint: Constraint | float | None = None,
    ) -> None:
        super().__init__(lr, momentum, weight_decay, regularizer, constraint)
        self.every = checked_every("AccumulatingSGD", every)
        if not self.slots:
            raise ArgumentError(
                "AccumulatingSGD(momentum=)",
                expected="a momentum above 0, whose state holds the sum",
                received=repr(momentum),
                advice="use Accumulator(SGD(...)) without momentum",
            )

    def update(
        self,
        names: Sequence[str],
        values: Sequence[Array],
        grads: Sequence[Grad],
        scale: float = 1.0,
    ) -> None:
        """As `Optimizer.update`; values change at every ``every``-th call for their name."""
        refuse_rows("AccumulatingSGD", names, grads)
        super().update(names, values, grads, scale)

    def case(self) -> Hashable:
        """Whether the next micro-batch is the last; once for all parameters that go together."""
        return together(state.step % self.every == self.every - 1 for state in self.states())

    def _scalars(self, state: ParamState, rate: float) -> tuple[float, ...]:
        rate, momentum = super()._scalars(state, rate)
        turn = state.step % self.every
        return rate / self.every, momentum if turn == 0 else 1.0, turn == self.every - 1

    def _rule(self, xp: Any, w: Array, g: Array, arrays: list[Array], s: Array, *n: float) -> None:
        rate, kept, last = n
        h = arrays[0]
        if kept != 1.0:
            xp.multiply(h, kept, out=h)
        xp.multiply(g, rate, out=s)
        xp.add(h, s, out=h)
        if last:
            xp.subtract(w, h, out=w)
