"""Nesterov's accelerated gradient."""

from __future__ import annotations

from singanet.optimizer.constraint import Constraint
from singanet.optimizer.hyper import Hyper
from singanet.optimizer.regularizer import Regularizer
from singanet.optimizer.sgd import SGD


class Nesterov(SGD):
    """h' = μ h + lr g, w −= (1 + μ) h' − μ h (SINGA's form), which is w −= μ h' + lr g.

    At a constant rate it is PyTorch's SGD with ``nesterov=True``. State: h, one array.
    """

    def __init__(
        self,
        lr: Hyper | None = 0.01,
        momentum: Hyper = 0.9,
        weight_decay: Hyper | None = None,
        regularizer: Regularizer | float | None = None,
        constraint: Constraint | float | None = None,
    ) -> None:
        super().__init__(lr, momentum, weight_decay, regularizer, constraint, nesterov=True)
