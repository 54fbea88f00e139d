"""The state of metrics, to be saved in the middle of an epoch."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

import numpy as np

from singanet.errors import StateMismatchError
from singanet.metric import Metric
from singanet.types import Array


def save_metrics(metrics: Mapping[str, Metric]) -> tuple[dict[str, Array], dict[str, Any]]:
    """The arrays among the attributes of each metric, and the numbers, both by metric.

    A list of arrays becomes one: what metrics keep so, they join in the end.
    """
    arrays: dict[str, Array] = {}
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
    """Put back what `save_metrics` took; a metric that was not there then starts anew.

    Errors: `StateMismatchError` for what a metric has no place for, and what its result raises.
    """
    for name, metric in metrics.items():
        own = vars(metric)
        for key, value in numbers.get(name, {}).items():
            if not isinstance(own.get(key), (int, float)):
                raise mismatch(f"metric {name!r}", "its own numbers", repr(key)[:60])
            own[key] = type(own[key])(value)
        for path, array in arrays.items():
            owner, kind, key = path.rsplit("/", 2)
            if owner == name:
                # What is begun by the first sample cannot be there before it.
                now = own.get(key, 0)
                fits = array.shape == now.shape if hasattr(now, "shape") else bool(metric.samples)
                fits = fits and isinstance(now, list) == (kind == "list")
                if isinstance(now, (int, float)) or not fits:
                    raise mismatch(f"metric {name!r}", "its own arrays", repr(key)[:60])
                own[key] = [array.copy()] if kind == "list" else array.copy()
        if metric.samples:
            copy(metric).result()  # raises for arrays that do not fit together


def mismatch(where: str, expected: str, received: str) -> StateMismatchError:
    """The error for a saved state that is another training's."""
    return StateMismatchError(
        where,
        expected=expected,
        received=received,
        advice="resume with the net, optimizer and callbacks that were saved; nothing was changed",
    )
