"""Optimizers, and what goes beside them: schedules, regularizers, constraints, clipping."""

from __future__ import annotations

from typing import TYPE_CHECKING

from singanet.base.elsewhere import names_of
from singanet.optimizer import schedules
from singanet.optimizer.accumulating_adam import AccumulatingAdam
from singanet.optimizer.accumulating_sgd import AccumulatingSGD
from singanet.optimizer.accumulator import Accumulator
from singanet.optimizer.adadelta import Adadelta
from singanet.optimizer.adafactor import Adafactor
from singanet.optimizer.adagrad import AdaGrad
from singanet.optimizer.adalomo import AdaLomo
from singanet.optimizer.adam import Adam
from singanet.optimizer.adamax import Adamax
from singanet.optimizer.adamw import AdamW
from singanet.optimizer.amsgrad import AMSGrad
from singanet.optimizer.block_coordinate import BlockCoordinate
from singanet.optimizer.clip_by_global_norm import ClipByGlobalNorm, clip_by_global_norm
from singanet.optimizer.clip_by_layer_norm import ClipByLayerNorm
from singanet.optimizer.clip_by_running_norm import ClipByRunningNorm
from singanet.optimizer.clip_by_value import ClipByValue
from singanet.optimizer.clip_norm import ClipNorm
from singanet.optimizer.constraint import Constraint
from singanet.optimizer.element_wise import ElementWise
from singanet.optimizer.factored_adam import FactoredAdam
from singanet.optimizer.galore import GaLore
from singanet.optimizer.global_norm import global_norm
from singanet.optimizer.l1_regularizer import L1Regularizer
from singanet.optimizer.l2_constraint import L2Constraint
from singanet.optimizer.l2_regularizer import L2Regularizer
from singanet.optimizer.lamb import LAMB
from singanet.optimizer.lion import Lion
from singanet.optimizer.max_norm import MaxNorm
from singanet.optimizer.mixed_precision import MixedPrecision
from singanet.optimizer.nadam import NAdam
from singanet.optimizer.nesterov import Nesterov
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.radam import RAdam
from singanet.optimizer.regularizer import Regularizer
from singanet.optimizer.rmsprop import RMSProp
from singanet.optimizer.sgd import SGD
from singanet.optimizer.wrapper import Wrapper
from singanet.optimizer.zeroth_order import ZerothOrder

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
    "NAdam",
    "Nesterov",
    "Optimizer",
    "RAdam",
    "RMSProp",
    "Regularizer",
    "Wrapper",
    "ZerothOrder",
    "clip_by_global_norm",
    "global_norm",
    "schedules",
]

if not TYPE_CHECKING:  # else type checkers accept any name
    __getattr__ = names_of(__name__, __all__)
