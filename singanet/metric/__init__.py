"""Metrics, exact over any number of batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from singanet.base.elsewhere import names_when_asked

if TYPE_CHECKING:  # else when they are asked for
    from singanet.metric.auc import AUC
    from singanet.metric.classification import (
        F1,
        IOU,
        Accuracy,
        BinaryAccuracy,
        ConfusionMatrix,
        FBeta,
        Precision,
        PrecisionScore,
        Recall,
        RecallScore,
    )
    from singanet.metric.metric import MeanMetric, Metric
    from singanet.metric.preference import Reward
    from singanet.metric.regression import (
        R2,
        LabelErrorRate,
        MeanAbsoluteError,
        Perplexity,
        RootMeanSquaredError,
    )

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
    "Reward",
    "RootMeanSquaredError",
]

if not TYPE_CHECKING:  # a `__getattr__` would let type checkers accept any name
    __getattr__, __dir__ = names_when_asked(__name__, __all__)
