"""Schedules: hyper-parameters that change with the step."""

from __future__ import annotations

from singanet.optimizer.schedules.chained import Chained
from singanet.optimizer.schedules.constant import Constant
from singanet.optimizer.schedules.cosine import Cosine, CosineRestarts
from singanet.optimizer.schedules.cyclic import Cyclic
from singanet.optimizer.schedules.exponential import Exponential
from singanet.optimizer.schedules.multi_step import MultiStep
from singanet.optimizer.schedules.one_cycle import OneCycle
from singanet.optimizer.schedules.plateau import Plateau
from singanet.optimizer.schedules.polynomial import Polynomial
from singanet.optimizer.schedules.schedule import Schedule
from singanet.optimizer.schedules.step import Step
from singanet.optimizer.schedules.warm_up import WarmUp

__all__ = [
    "Chained",
    "Constant",
    "Cosine",
    "CosineRestarts",
    "Cyclic",
    "Exponential",
    "MultiStep",
    "OneCycle",
    "Plateau",
    "Polynomial",
    "Schedule",
    "Step",
    "WarmUp",
]
