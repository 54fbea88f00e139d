"""Weights of samples, given for each or for each class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from singanet.engine.intake import as_array
from singanet.errors import ArgumentError, DataError
from singanet.loss.layer import spread
from singanet.types import Array


def checked_class_weight(given: Mapping[int, float] | None) -> dict[int, float] | None:
    """``given`` as plain numbers. Errors: a class or weight that is none."""
    if given is None:
        return None
    whole = isinstance(given, Mapping) and all(hasattr(key, "__index__") for key in given)
    weights = list(given.values()) if whole else []
    numbers = all(isinstance(w, (int, float, np.number)) for w in weights)
    if not whole or not numbers or not all(np.isfinite(w) and w >= 0 for w in weights):
        raise ArgumentError(
            "net.fit, class_weight",
            expected="a dict from class numbers to finite weights >= 0",
            received=str(given)[:80],
            advice="write {0: 1.0, 1: 5.0}; classes that are not in it weigh 1",
        )
    return {int(key): float(weight) for key, weight in given.items()}


def joined_weight(
    y: Any, sample_weight: Any, class_weight: Mapping[int, float] | None
) -> Array | None:
    """``sample_weight`` times the weight of each sample's class; None if neither is given.

    ``sample_weight`` is (B,), or (B, ...) for each position. With ``class_weight`` ``y`` is integer
    labels (B,) or (B, 1), 0 and 1 of any type, or one-hot rows (B, C). Errors: targets that name
    no class a sample.
    """
    weight = None
    if sample_weight is not None:
        weight = as_array("net.fit, sample_weight", sample_weight)
        if not bool(np.isfinite(weight).all()):
            raise DataError(
                "net.fit, sample_weight",
                expected="weights that are finite numbers",
                received="NaN or infinity",
                advice="weigh samples that do not count by 0",
            )
        for target in y.values() if isinstance(y, Mapping) else (y,):
            shape: Any = getattr(target, "shape", weight.shape)
            if weight.ndim > 1 and tuple(shape[: weight.ndim]) != weight.shape:
                raise DataError(
                    "net.fit, sample_weight",
                    expected="one weight a sample, shape (samples,), or one for each position of"
                    f" targets of shape {tuple(shape)}",
                    received=f"shape {weight.shape}",
                    advice="weigh whole samples",
                )
    if class_weight is None:
        return weight
    labels = _labels(y)
    by_class = np.ones(len(labels), np.float32)
    for key, value in class_weight.items():
        by_class[labels == key] = value
    return by_class if weight is None else spread(by_class, weight) * weight


def _labels(y: Any) -> Array:
    labels = y.get() if hasattr(y, "get") and hasattr(y, "ndim") else y
    ndim = getattr(labels, "ndim", 0)
    rows = ndim == 2 and labels.shape[1] > 1
    # Several labels a sample, and targets to be met, look like rows of classes but for their sums.
    if rows and bool(((labels == 0) | (labels == 1)).all()) and bool((labels.sum(1) == 1).all()):
        return np.asarray(labels.argmax(axis=1))
    real = ndim and labels.dtype.kind == "f" and bool(((labels == 0) | (labels == 1)).all())
    if rows or ndim not in (1, 2) or not (real or labels.dtype.kind in "iub"):
        raise DataError(
            "net.fit, class_weight",
            expected="labels, one a sample: integers, or 0 and 1; or one-hot rows of a single 1",
            received=f"targets of shape {labels.shape} and type {labels.dtype}"
            if ndim
            else f"a {type(y).__name__}",
            advice="pass sample_weight instead",
        )
    return np.asarray(labels.reshape(-1))
