"""Optimizers, and what goes beside them: schedules, regularizers, constraints, clipping."""

from __future__ import annotations

from singanet.optimizer.adam import Adam
from singanet.optimizer.clip_norm import ClipNorm
from singanet.optimizer.constraint import Constraint
from singanet.optimizer.element_wise import ElementWise
from singanet.optimizer.l1_regularizer import L1Regularizer
from singanet.optimizer.l2_constraint import L2Constraint
from singanet.optimizer.l2_regularizer import L2Regularizer
from singanet.optimizer.max_norm import MaxNorm
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.regularizer import Regularizer
from singanet.optimizer.sgd import SGD

__all__ = [
    "SGD",
    "Adam",
    "ClipNorm",
    "Constraint",
    "ElementWise",
    "L1Regularizer",
    "L2Constraint",
    "L2Regularizer",
    "MaxNorm",
    "Optimizer",
    "Regularizer",
]
