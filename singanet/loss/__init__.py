"""Losses: values per sample, and the gradient of their mean."""

from __future__ import annotations

from typing import TYPE_CHECKING

from singanet.base.elsewhere import names_of
from singanet.loss.binary_cross_entropy import (
    BinaryCrossEntropy,
    SigmoidCrossEntropy,
    SigmoidFocal,
)
from singanet.loss.ctc import CTC
from singanet.loss.head_loss import HeadLoss
from singanet.loss.hinge import Hinge
from singanet.loss.kl_divergence import KLDivergence
from singanet.loss.loss import Loss
from singanet.loss.multi_loss import MultiLoss
from singanet.loss.regression import (
    GaussianNLL,
    Huber,
    MeanAbsoluteError,
    MeanSquaredError,
    Poisson,
    SmoothL1,
    SquaredError,
)
from singanet.loss.similarity import CosineSimilarity, Dice, TripletMargin
from singanet.loss.softmax_cross_entropy import (
    CategoricalCrossEntropy,
    SoftmaxCrossEntropy,
    SoftmaxFocal,
)

__all__ = [
    "CTC",
    "BinaryCrossEntropy",
    "CategoricalCrossEntropy",
    "CosineSimilarity",
    "Dice",
    "GaussianNLL",
    "HeadLoss",
    "Hinge",
    "Huber",
    "KLDivergence",
    "Loss",
    "MeanAbsoluteError",
    "MeanSquaredError",
    "MultiLoss",
    "Poisson",
    "SigmoidCrossEntropy",
    "SigmoidFocal",
    "SmoothL1",
    "SoftmaxCrossEntropy",
    "SoftmaxFocal",
    "SquaredError",
    "TripletMargin",
]

if not TYPE_CHECKING:  # else type checkers accept any name
    __getattr__ = names_of(__name__, __all__)
