"""Metrics: what a net is judged by, exactly, over any number of batches."""

from __future__ import annotations

from singanet.metric.accuracy import Accuracy
from singanet.metric.auc import AUC
from singanet.metric.confusion_matrix import ConfusionMatrix
from singanet.metric.f1 import F1
from singanet.metric.mean_absolute_error import MeanAbsoluteError
from singanet.metric.mean_metric import MeanMetric
from singanet.metric.metric import Metric
from singanet.metric.perplexity import Perplexity
from singanet.metric.precision import Precision
from singanet.metric.r2 import R2
from singanet.metric.recall import Recall
from singanet.metric.root_mean_squared_error import RootMeanSquaredError

__all__ = [
    "AUC",
    "F1",
    "R2",
    "Accuracy",
    "ConfusionMatrix",
    "MeanAbsoluteError",
    "MeanMetric",
    "Metric",
    "Perplexity",
    "Precision",
    "Recall",
    "RootMeanSquaredError",
]
