"""Metrics: what a net is judged by, exactly, over any number of batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from singanet.base.elsewhere import names_of
from singanet.metric.accuracy import Accuracy
from singanet.metric.auc import AUC
from singanet.metric.binary_accuracy import BinaryAccuracy
from singanet.metric.confusion_matrix import ConfusionMatrix
from singanet.metric.edit_distance import LabelErrorRate
from singanet.metric.f_beta import F1, IOU, FBeta, PrecisionScore, RecallScore
from singanet.metric.metric import MeanMetric, Metric
from singanet.metric.perplexity import Perplexity
from singanet.metric.precision_recall import Precision, Recall
from singanet.metric.regression import R2, MeanAbsoluteError, RootMeanSquaredError

__all__ = [
    "AUC",
    "F1",
    "IOU",
    "R2",
    "Accuracy",
    "BinaryAccuracy",
    "ConfusionMatrix",
    "FBeta",
    "LabelErrorRate",
    "MeanAbsoluteError",
    "MeanMetric",
    "Metric",
    "Perplexity",
    "Precision",
    "PrecisionScore",
    "Recall",
    "RecallScore",
    "RootMeanSquaredError",
]

if not TYPE_CHECKING:  # else type checkers accept any name
    __getattr__ = names_of(__name__, __all__)
