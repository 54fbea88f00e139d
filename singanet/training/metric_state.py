"""What metrics have gathered in an epoch that is not over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from singanet.metric import Metric
from singanet.types import Array

_Arrays = dict[str, Array]


def save_metrics(metrics: Mapping[str, Metric]) -> tuple[_Arrays, dict[str, Any]]:
    """The arrays among the attributes of each metric, and the numbers, both by metric.

    A list of arrays becomes one: what metrics keep so, they join in the end.
    """
    arrays: _Arrays = {}
    numbers: dict[str, Any] = {}
    for name, metric in metrics.items():
        numbers[name] = {}
        for key, value in vars(metric).items():
            if isinstance(value, (int, float)):
                numbers[name][key] = value
            elif hasattr(value, "dtype") and hasattr(value, "shape"):
                arrays[f"{name}/array/{key}"] = value
            elif isinstance(value, list) and value and all(hasattr(v, "dtype") for v in value):
                arrays[f"{name}/list/{key}"] = np.concatenate(value)
    return arrays, numbers


def load_metrics(
    metrics: Mapping[str, Metric], numbers: Mapping[str, Any], arrays: Mapping[str, Array]
) -> None:
    """Put back what `save_metrics` took; a metric that was not there then starts anew."""
    for name, metric in metrics.items():
        for key, value in numbers.get(name, {}).items():
            setattr(metric, key, value)
        for path, array in arrays.items():
            owner, kind, key = path.rsplit("/", 2)
            if owner == name:
                setattr(metric, key, [array.copy()] if kind == "list" else array.copy())
