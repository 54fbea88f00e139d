"""Second moments as the product of a column and a row."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from singanet.ops import ops_for
from singanet.optimizer.constraint import Constraint
from singanet.optimizer.factors import as_matrix, factors_of, row_blocks, sweep_rows
from singanet.optimizer.hyper import Hyper, at, checked
from singanet.optimizer.norm import sum_of_squares
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.param_update import ParamUpdate
from singanet.optimizer.regularizer import Regularizer
from singanet.optimizer.scale import in_type
from singanet.optimizer.state import ParamState
from singanet.types import Array, Shape


class Adafactor(Optimizer):
    """Adam's division with m + n numbers of state for an m × n parameter (Shazeer, Stern 2018).

    With 1 − β = t^beta2_decay: R, C = moving means of g² over columns and over rows,
    V = R C / mean(R), u = g / √max(V, ε₁²), w −= α u / max(1, rms(u) / clip), where
    α = max(ε₂, rms(w)) · min(lr, 1 / √t), after w −= lr λ w. PyTorch's form; ε₁ None is the
    type's resolution. Parameters of more than two axes are seen as (shape[0], the rest), those
    of fewer keep a full V. A row-sparse gradient changes R of its rows, and C from them alone.
    """

    slots = ("rows", "columns", "full")
    hypers = (*Optimizer.hypers, "beta2_decay")
    decoupled = True
    in_one_call = True

    def __init__(
        self,
        lr: Hyper | None = 0.01,
        beta2_decay: float = -0.8,
        epsilon_1: float | None = None,
        epsilon_2: float = 1e-3,
        clip: float = 1.0,
        weight_decay: Hyper | None = None,
        regularizer: Regularizer | float | None = None,
        constraint: Constraint | float | None = None,
    ) -> None:
        super().__init__(lr, weight_decay, regularizer, constraint)
        where = type(self).__name__
        self.beta2_decay = at(checked(where, "beta2_decay", beta2_decay, -math.inf, 1e-300), 0)
        small = 0.0 if epsilon_1 is None else at(checked(where, "epsilon_1", epsilon_1), 0)
        self.epsilon_1 = None if epsilon_1 is None else small
        self.epsilon_2 = at(checked(where, "epsilon_2", epsilon_2), 0)
        self.clip = at(checked(where, "clip", clip, 1e-300), 0)

    def slot_sizes(self, shape: Shape) -> tuple[int, ...]:
        """As `Optimizer.slot_sizes`: rows and columns, or every element of a vector."""
        if len(shape) > 1:
            return shape[0], math.prod(shape[1:]), 0
        return 0, 0, math.prod(shape)

    def _scalars(self, state: ParamState, rate: float) -> tuple[float, ...]:
        t = state.step + 1
        kept = 1.0 - rate * at(self.weight_decay, state.step) * state.decay_mult
        return min(rate, t**-0.5), t**self.beta2_decay, kept

    def _sweep(self, update: ParamUpdate) -> None:
        _, value, grad, arrays, _, scalars, _ = update
        if not value.size:
            return
        xp = ops_for(value).xp
        rate, fresh, kept = scalars
        w = as_matrix(xp, value)
        g = grad.reshape(w.shape)
        tiny = float(np.finfo(value.dtype).eps) if self.epsilon_1 is None else self.epsilon_1

        def blocks() -> Any:
            return row_blocks(xp, w, g, update)

        second = factors_of(xp, value, arrays)
        size = xp.sqrt(sum_of_squares(w) / w.size)
        second.learn(blocks(), w.shape, fresh, tiny)
        squares: Any = 0.0
        for part, _, h, b in blocks():
            squares = squares + second.divide(part, h, b, tiny)
        step = xp.sqrt(squares / w.size) / self.clip
        alpha = xp.fmax(self.epsilon_2, size) * rate / xp.fmax(1.0, step)
        alpha = in_type(xp, alpha, value.dtype)
        for part, rows, h, b in blocks():
            second.divide(part, h, b, tiny)
            xp.multiply(b, alpha, out=b)
            if kept != 1.0:
                xp.multiply(rows, kept, out=rows)
            xp.subtract(rows, b, out=rows)
        if not value.flags.c_contiguous:
            value[...] = w.reshape(value.shape)

    def _sweep_rows(self, indices: Array, update: ParamUpdate) -> None:
        sweep_rows(self._sweep, indices, update)
