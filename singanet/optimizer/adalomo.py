"""Adafactor's division at the whole rate."""

from __future__ import annotations

from singanet.optimizer.adafactor import Adafactor
from singanet.optimizer.constraint import Constraint
from singanet.optimizer.hyper import Hyper, at
from singanet.optimizer.regularizer import Regularizer
from singanet.optimizer.state import ParamState


class AdaLomo(Adafactor):
    """w −= lr max(ε₂, rms(w)) u / max(1, rms(u) / clip), u as in `Adafactor` (Lv et al. 2023).

    So a step changes each parameter by up to ``lr`` of its size, however late it comes: there is
    no 1 / √t. The decay comes before, as w −= lr λ w. With the streaming backward this is the
    fused update of the paper: gradients of one layer at a time.
    """

    def __init__(
        self,
        lr: Hyper | None = 0.001,
        beta2_decay: float = -0.8,
        epsilon_1: float | None = None,
        epsilon_2: float = 1e-3,
        clip: float = 1.0,
        weight_decay: Hyper | None = None,
        regularizer: Regularizer | float | None = None,
        constraint: Constraint | float | None = None,
    ) -> None:
        super().__init__(
            lr, beta2_decay, epsilon_1, epsilon_2, clip, weight_decay, regularizer, constraint
        )

    def _scalars(self, state: ParamState, rate: float) -> tuple[float, ...]:
        kept = 1.0 - rate * at(self.weight_decay, state.step) * state.decay_mult
        return rate, (state.step + 1) ** self.beta2_decay, kept
