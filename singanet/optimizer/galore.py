"""Adam within a few directions of each matrix's gradient."""

from __future__ import annotations

import math
from typing import Any

from singanet.base.arguments import checked_count
from singanet.ops import ops_for
from singanet.optimizer.adam import epsilon_beside
from singanet.optimizer.constraint import Constraint
from singanet.optimizer.element_wise import prepared
from singanet.optimizer.factors import as_matrix
from singanet.optimizer.hyper import Hyper, at, checked
from singanet.optimizer.norm import BLOCK
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.param_update import ParamUpdate
from singanet.optimizer.regularizer import Regularizer
from singanet.optimizer.scale import in_type
from singanet.optimizer.state import ParamState
from singanet.types import Array, Shape


class GaLore(Optimizer):
    """Adam on gradients projected onto their ``rank`` strongest directions (Zhao et al. 2024).

    Of an m × n matrix with m ≤ n, P are the first ``rank`` left singular vectors of the gradient at
    every ``refresh``-th step, each with its largest element positive; R = Pᵀ g goes through `Adam`
    with its ``epsilon_after_correction``, and w −= gain · lr · P Adam(R), after w −= lr λ w. With m
    > n the right ones serve. State: P and two moments of R, rank (m + 2 n) numbers, kept when P
    changes. Parameters of more than two axes are seen as (shape[0], the rest); those without more
    than ``rank`` rows and columns are Adam's as they are. A row-sparse gradient of one with m > n
    changes its rows alone, and their directions are its; of others it is made dense.
    """

    slots = ("basis", "first", "second")
    hypers = (*Optimizer.hypers, "beta_1", "beta_2", "epsilon")
    decoupled = True
    in_one_call = True
    _always_written = ("epsilon_after_correction",)
    epsilon_after_correction = True

    def __init__(
        self,
        lr: Hyper | None = 0.001,
        rank: int = 128,
        refresh: int = 200,
        gain: float = 0.25,
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
        self.rank = checked_count(where, "rank", rank, 1)
        self.refresh = checked_count(where, "refresh", refresh, 1)
        self.gain = at(checked(where, "gain", gain, 1e-300), 0)
        self.beta_1 = checked(where, "beta_1", beta_1, 0.0, 1.0)
        self.beta_2 = checked(where, "beta_2", beta_2, 0.0, 1.0)
        self.epsilon = checked(where, "epsilon", epsilon)

    def slot_sizes(self, shape: Shape) -> tuple[int, ...]:
        """As `Optimizer.slot_sizes`: P and the moments of R, or those of every element."""
        size = math.prod(shape)
        if len(shape) < 2 or not size:
            return 0, size, size
        less, more = sorted((shape[0], size // shape[0]))
        if less <= self.rank:
            return 0, size, size
        return less * self.rank, self.rank * more, self.rank * more

    def _scalars(self, state: ParamState, rate: float) -> tuple[float, ...]:
        step = state.step
        beta_1, beta_2 = at(self.beta_1, step), at(self.beta_2, step)
        root = math.sqrt(1.0 - beta_2 ** (step + 1))
        alpha = rate * root / (1.0 - beta_1 ** (step + 1))
        kept = 1.0 - rate * at(self.weight_decay, step) * state.decay_mult
        renews = float(step % self.refresh == 0)
        return alpha, 1.0 - beta_1, 1.0 - beta_2, epsilon_beside(self, step, root), kept, renews

    def _sweep(self, update: ParamUpdate) -> None:
        rows = len(update.value) if update.value.ndim > 1 else 1
        self._step(update, rows * rows <= update.value.size)

    def _step(self, update: ParamUpdate, wide: bool) -> None:
        """`_sweep` of a matrix with no more rows than columns, or of others or rows of them."""
        _, value, grad, (basis, first, second), _, scalars, scale = update
        if not value.size:
            return
        xp = ops_for(value).xp
        alpha, new, fresh, epsilon, kept, renews = scalars
        w = as_matrix(xp, value)
        g = grad.reshape(w.shape)
        if update.regularizer is not None:
            g, scale = prepared(xp, w, g, update, xp.empty_like(w), xp.empty_like(w)), 1.0
        p = basis.reshape(-1, self.rank) if basis.size else None
        if p is not None and renews:
            _strongest(xp, g @ g.T if wide else g.T @ g, p)
        r = g if p is None else p.T @ g if wide else g @ p
        r = r * in_type(xp, scale, w.dtype)
        m, v = first.reshape(r.shape), second.reshape(r.shape)
        m += new * (r - m)
        v += fresh * (r * r - v)
        step = alpha * m / (xp.sqrt(v) + epsilon)
        if p is not None:
            step *= self.gain
        if kept != 1.0:
            w *= kept
        count = max(1, BLOCK // w.shape[1])
        for start in range(0, len(w), count):
            rows = slice(start, start + count)
            if p is None:
                w[rows] -= step[rows]
            else:
                w[rows] -= p[rows] @ step if wide else step[rows] @ p.T
        if not value.flags.c_contiguous:
            value[...] = w.reshape(value.shape)

    def _sweep_rows(self, indices: Array, update: ParamUpdate) -> None:
        value, constraint, xp = update.value, update.state.constraint, ops_for(update.value).xp
        basis, *moments = update.arrays
        if basis.size and len(value) ** 2 <= value.size:
            dense = xp.zeros_like(value)
            dense[indices] = update.grad
            self._step(update._replace(grad=dense), wide=True)
            if constraint is not None:
                constraint.project(value)
            return
        whole = [value, *(array.reshape(len(value), -1) for array in moments)]
        w, *parts = [array[indices] for array in whole]
        self._step(update._replace(value=w, arrays=[basis, *parts]), wide=False)
        if constraint is not None:
            constraint.project(w)
        for array, changed in zip(whole, (w, *parts), strict=True):
            array[indices] = changed


def _strongest(xp: Any, gram: Array, out: Array) -> None:
    """The eigenvectors of ``gram`` with the largest values, the largest first, as columns."""
    if not xp.isfinite(gram).all():
        # What is no number is to be seen, as with other rules.
        out[...] = xp.nan
        return
    _, vectors = xp.linalg.eigh(gram.astype("float64"))
    found = vectors[:, : -out.shape[1] - 1 : -1]
    places = abs(found).argmax(axis=0)
    out[...] = found * xp.sign(found[places, xp.arange(found.shape[1])])
