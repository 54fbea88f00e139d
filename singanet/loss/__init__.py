"""Losses: values per sample, and the gradient of their mean."""

from __future__ import annotations

from singanet.loss.binary_cross_entropy import BinaryCrossEntropy, SigmoidCrossEntropy
from singanet.loss.hinge import Hinge
from singanet.loss.kl_divergence import KLDivergence
from singanet.loss.loss import Loss
from singanet.loss.multi_loss import MultiLoss
from singanet.loss.regression import Huber, MeanAbsoluteError, MeanSquaredError, SquaredError
from singanet.loss.softmax_cross_entropy import CategoricalCrossEntropy, SoftmaxCrossEntropy

__all__ = [
    "BinaryCrossEntropy",
    "CategoricalCrossEntropy",
    "Hinge",
    "Huber",
    "KLDivergence",
    "Loss",
    "MeanAbsoluteError",
    "MeanSquaredError",
    "MultiLoss",
    "SigmoidCrossEntropy",
    "SoftmaxCrossEntropy",
    "SquaredError",
]
