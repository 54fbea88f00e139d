"""Losses: values per sample, and the gradient of their mean."""

from __future__ import annotations

from typing import TYPE_CHECKING

from singanet.base.elsewhere import names_when_asked

if TYPE_CHECKING:  # else when they are asked for
    from singanet.loss.classification import (
        BinaryCrossEntropy,
        CategoricalCrossEntropy,
        Hinge,
        KLDivergence,
        SigmoidCrossEntropy,
        SigmoidFocal,
        SoftmaxCrossEntropy,
        SoftmaxFocal,
    )
    from singanet.loss.contrastive import InfoNCE, MultipleNegativesRanking
    from singanet.loss.ctc import CTC
    from singanet.loss.functions import from_function
    from singanet.loss.head_loss import HeadLoss, MultiLoss, TokenLogProbabilities
    from singanet.loss.loss import Loss
    from singanet.loss.preference import DPO, KTO, ORPO, RewardRanking
    from singanet.loss.regression import (
        CosineSimilarity,
        Dice,
        GaussianNLL,
        Huber,
        MarginRanking,
        MeanAbsoluteError,
        MeanSquaredError,
        Poisson,
        SmoothL1,
        SquaredError,
        TripletMargin,
        Tversky,
    )

__all__ = [
    "CTC",
    "DPO",
    "KTO",
    "ORPO",
    "BinaryCrossEntropy",
    "CategoricalCrossEntropy",
    "CosineSimilarity",
    "Dice",
    "GaussianNLL",
    "HeadLoss",
    "Hinge",
    "Huber",
    "InfoNCE",
    "KLDivergence",
    "Loss",
    "MarginRanking",
    "MeanAbsoluteError",
    "MeanSquaredError",
    "MultiLoss",
    "MultipleNegativesRanking",
    "Poisson",
    "RewardRanking",
    "SigmoidCrossEntropy",
    "SigmoidFocal",
    "SmoothL1",
    "SoftmaxCrossEntropy",
    "SoftmaxFocal",
    "SquaredError",
    "TokenLogProbabilities",
    "TripletMargin",
    "Tversky",
    "from_function",
]

if not TYPE_CHECKING:  # else type checkers accept any name
    __getattr__, __dir__ = names_when_asked(__name__, __all__)
