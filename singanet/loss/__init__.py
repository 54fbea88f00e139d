"""Losses: values per sample, and the gradient of their mean."""

from __future__ import annotations

from singanet.loss.loss import Loss
from singanet.loss.sigmoid_cross_entropy import SigmoidCrossEntropy
from singanet.loss.softmax_cross_entropy import SoftmaxCrossEntropy
from singanet.loss.squared_error import SquaredError

__all__ = ["Loss", "SigmoidCrossEntropy", "SoftmaxCrossEntropy", "SquaredError"]
