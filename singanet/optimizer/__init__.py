"""Optimizers, schedules, regularizers, constraints and clipping.

`optimizer`, `element_wise` and `state` are the base; `sgd`, `adam`, `factored`, `muon` and
`schedule_free` are the rules. `wrapper` is the base of stages, which a `chain` combines:
`clipping`, `accumulating`, `averaged`, `mixed_precision` and the `reducer` between ranks.
`schedules` and `hyper` define hyper-parameters, `regularization` penalties and constraints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from singanet.base.elsewhere import names_when_asked

if TYPE_CHECKING:  # else when they are asked for
    from singanet.optimizer import schedules
    from singanet.optimizer.accumulating import AccumulatingAdam, AccumulatingSGD, Accumulator
    from singanet.optimizer.adam import LAMB, Adam, Adamax, AdamW, AMSGrad, Lion, NAdam, RAdam
    from singanet.optimizer.averaged import BlockCoordinate
    from singanet.optimizer.chain import global_norm
    from singanet.optimizer.clipping import (
        ClipByGlobalNorm,
        ClipByLayerNorm,
        ClipByRunningNorm,
        ClipByValue,
        clip_by_global_norm,
    )
    from singanet.optimizer.element_wise import ElementWise
    from singanet.optimizer.factored import Adafactor, AdaLomo, FactoredAdam, GaLore
    from singanet.optimizer.mixed_precision import MixedPrecision
    from singanet.optimizer.muon import Muon
    from singanet.optimizer.optimizer import Optimizer
    from singanet.optimizer.regularization import (
        ClipNorm,
        Constraint,
        L1Regularizer,
        L2Constraint,
        L2Regularizer,
        MaxNorm,
        Regularizer,
    )
    from singanet.optimizer.schedule_free import ScheduleFreeAdamW
    from singanet.optimizer.sgd import SGD, Adadelta, AdaGrad, Nesterov, RMSProp
    from singanet.optimizer.wrapper import StageTraits, Wrapper

__all__ = [
    "LAMB",
    "SGD",
    "AMSGrad",
    "AccumulatingAdam",
    "AccumulatingSGD",
    "Accumulator",
    "AdaGrad",
    "AdaLomo",
    "Adadelta",
    "Adafactor",
    "Adam",
    "AdamW",
    "Adamax",
    "BlockCoordinate",
    "ClipByGlobalNorm",
    "ClipByLayerNorm",
    "ClipByRunningNorm",
    "ClipByValue",
    "ClipNorm",
    "Constraint",
    "ElementWise",
    "FactoredAdam",
    "GaLore",
    "L1Regularizer",
    "L2Constraint",
    "L2Regularizer",
    "Lion",
    "MaxNorm",
    "MixedPrecision",
    "Muon",
    "NAdam",
    "Nesterov",
    "Optimizer",
    "RAdam",
    "RMSProp",
    "Regularizer",
    "ScheduleFreeAdamW",
    "StageTraits",
    "Wrapper",
    "clip_by_global_norm",
    "global_norm",
    "schedules",
]

if not TYPE_CHECKING:  # else type checkers accept any name
    __getattr__, __dir__ = names_when_asked(__name__, __all__)
