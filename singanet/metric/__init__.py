"""Metrics: what a net is judged by, exactly, over any number of batches."""

from __future__ import annotations

from singanet.metric.accuracy import Accuracy
from singanet.metric.mean_metric import MeanMetric
from singanet.metric.metric import Metric
from singanet.metric.precision import Precision
from singanet.metric.recall import Recall

__all__ = ["Accuracy", "MeanMetric", "Metric", "Precision", "Recall"]
