"""Micro-batches folded into Adam's moments."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from singanet.optimizer.adam import Adam, descend
from singanet.optimizer.checks import Grad, checked_every, refuse_rows
from singanet.optimizer.constraint import Constraint
from singanet.optimizer.hyper import Hyper
from singanet.optimizer.regularizer import Regularizer
from singanet.optimizer.state import ParamState, together
from singanet.types import Array


class AccumulatingAdam(Adam):
    """`Adam` over ``every`` micro-batches, without a buffer for their sum (Zhang et al. 2023).

    At the first of k micro-batches m = β₁ m, v = β₂ v; at each m += (1 − β₁) g / k and
    v += (1 − β₂) (g / k)²; at the last w moves as in Adam. m is that of the mean gradient; v sums
    squares instead of squaring the sum, which is the same where micro-batches differ by noise
    alone. Schedules see the number of changes of w. A constraint acts on each micro-batch.
    Dense gradients only.
    """

    def __init__(
        self,
        every: int,
        lr: Hyper | None = 0.001,
        beta_1: Hyper = 0.9,
        beta_2: Hyper = 0.999,
        epsilon: Hyper = 1e-8,
        weight_decay: Hyper | None = None,
        regularizer: Regularizer | float | None = None,
        constraint: Constraint | float | None = None,
        epsilon_after_correction: bool = False,
    ) -> None:
        super().__init__(
            lr, beta_1, beta_2, epsilon, weight_decay, regularizer, constraint,
            epsilon_after_correction,
        )  # fmt: skip
        self.every = checked_every("AccumulatingAdam", every)

    def update(
        self,
        names: Sequence[str],
        values: Sequence[Array],
        grads: Sequence[Grad],
        scale: float = 1.0,
    ) -> None:
        """As `Optimizer.update`; values change at every ``every``-th call for their name."""
        refuse_rows("AccumulatingAdam", names, grads)
        super().update(names, values, grads, scale)

    def case(self) -> Hashable:
        """Whether the next micro-batch is the first or last; once for what goes together."""
        turns = (state.step % self.every for state in self.states())
        return together((turn == 0, turn == self.every - 1) for turn in turns)

    def _scalars(self, state: ParamState, rate: float) -> tuple[float, ...]:
        turn = state.step % self.every
        return (*super()._scalars(state, rate), turn == 0, turn == self.every - 1)

    def _rule(self, xp: Any, w: Array, g: Array, arrays: list[Array], s: Array, *n: float) -> None:
        alpha, beta_1, beta_2, epsilon, begins, ends = n
        first, second = arrays
        if begins:
            xp.multiply(first, beta_1, out=first)
            xp.multiply(second, beta_2, out=second)
        xp.multiply(g, (1.0 - beta_1) / self.every, out=s)
        xp.add(first, s, out=first)
        xp.multiply(g, g, out=s)
        xp.multiply(s, (1.0 - beta_2) / self.every**2, out=s)
        xp.add(second, s, out=second)
        if ends:
            xp.sqrt(second, out=s)
            descend(xp, w, first, s, alpha, epsilon)
