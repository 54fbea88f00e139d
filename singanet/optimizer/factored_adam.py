"""Adam whose second moments are the product of a column and a row."""

from __future__ import annotations

import math
from typing import Any

from singanet.ops import ops_for
from singanet.optimizer.adam import descend, epsilon_beside
from singanet.optimizer.constraint import Constraint
from singanet.optimizer.factors import as_matrix, factors_of, row_blocks, sweep_rows
from singanet.optimizer.hyper import Hyper, at, checked
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.param_update import ParamUpdate
from singanet.optimizer.regularizer import Regularizer
from singanet.optimizer.state import ParamState
from singanet.types import Array, Shape

_TINY = 1e-30
"""The least mean of R: where every gradient was zero, so is V."""


class FactoredAdam(Optimizer):
    """`AdamW` with v of an m × n parameter as m + n numbers: half of its state.

    m is the moving mean of g; R, C are those of the means of g² over columns and over rows, and
    v = R C / mean(R) (Shazeer, Stern 2018, section 3). Parameters of more than two axes are seen
    as (shape[0], the rest), those of fewer keep a whole v, and so are `AdamW`'s. A row-sparse
    gradient changes m and R of its rows, and C from them alone.
    """

    slots = ("first", "rows", "columns", "full")
    hypers = (*Optimizer.hypers, "beta_1", "beta_2", "epsilon")
    decoupled = True
    in_one_call = True
    _always_written = ("epsilon_after_correction",)
    epsilon_after_correction = True

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

    def slot_sizes(self, shape: Shape) -> tuple[int, ...]:
        """As `Optimizer.slot_sizes`: m, then rows and columns, or every element of a vector."""
        size = math.prod(shape)
        return (
            (size, shape[0], size // max(shape[0], 1), 0) if len(shape) > 1 else (size, 0, 0, size)
        )

    def _scalars(self, state: ParamState, rate: float) -> tuple[float, ...]:
        beta_1, beta_2 = at(self.beta_1, state.step), at(self.beta_2, state.step)
        root = math.sqrt(1.0 - beta_2 ** (state.step + 1))
        alpha = rate * root / (1.0 - beta_1 ** (state.step + 1))
        kept = 1.0 - rate * at(self.weight_decay, state.step) * state.decay_mult
        epsilon = epsilon_beside(self, state.step, root)
        return alpha, beta_1, 1.0 - beta_1, 1.0 - beta_2, epsilon, kept

    def _sweep(self, update: ParamUpdate) -> None:
        _, value, grad, arrays, _, scalars, _ = update
        if not value.size:
            return
        xp = ops_for(value).xp
        alpha, beta_1, new, fresh, epsilon, kept = scalars
        w = as_matrix(xp, value)
        g, first = grad.reshape(w.shape), arrays[0].reshape(w.shape)

        def blocks() -> Any:
            return row_blocks(xp, w, g, update)

        second = factors_of(xp, value, arrays[1:])
        second.learn(blocks(), w.shape, fresh, _TINY)
        for part, rows, h, b in blocks():
            mean = first[part]
            xp.multiply(mean, beta_1, out=mean)
            xp.multiply(h, new, out=b)
            xp.add(mean, b, out=mean)
            second.root(part, b)
            if kept != 1.0:
                xp.multiply(rows, kept, out=rows)
            descend(xp, rows, mean, b, alpha, epsilon)
        if not value.flags.c_contiguous:
            value[...] = w.reshape(value.shape)

    def _sweep_rows(self, indices: Array, update: ParamUpdate) -> None:
        sweep_rows(self._sweep, indices, update)
