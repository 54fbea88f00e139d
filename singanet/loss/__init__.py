"""Losses: values per sample, and the gradient of their mean."""

from __future__ import annotations

from singanet.loss.binary_cross_entropy import BinaryCrossEntropy
from singanet.loss.hinge import Hinge
from singanet.loss.huber import Huber
from singanet.loss.kl_divergence import KLDivergence
from singanet.loss.loss import Loss
from singanet.loss.mean_absolute_error import MeanAbsoluteError
from singanet.loss.multi_loss import MultiLoss
from singanet.loss.sigmoid_cross_entropy import SigmoidCrossEntropy
from singanet.loss.softmax_cross_entropy import SoftmaxCrossEntropy
from singanet.loss.squared_error import SquaredError

__all__ = [
    "BinaryCrossEntropy",
    "Hinge",
    "Huber",
    "KLDivergence",
    "Loss",
    "MeanAbsoluteError",
    "MultiLoss",
    "SigmoidCrossEntropy",
    "SoftmaxCrossEntropy",
    "SquaredError",
]
