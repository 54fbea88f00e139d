"""Checks of targets and thresholds that several metrics share."""

from __future__ import annotations

import math
from typing import Any

from singanet.base.arguments import is_number
from singanet.errors import ArgumentError, DataError, ShapeError
from singanet.loss.targets import class_labels
from singanet.ops.interface import Ops
from singanet.types import Array


def scored_classes(where: str, ops: Ops, x: Array, y: Array) -> Array:
    """Labels (N,) for scores ``x`` (..., C), from integers or from rows of the shape of ``x``."""
    if x.ndim < 2 or x.shape[-1] == 0:
        raise DataError(
            where,
            expected="outputs of shape (batch, ..., classes)",
            received=f"outputs of shape {x.shape}",
            advice="end the net in a layer with one output for every class",
        )
    if x.shape[-1] == 1:
        raise DataError(
            where,
            expected="scores of two or more classes",
            received=f"outputs of shape {x.shape}, of which the only class is always the highest",
            advice="measure a yes-or-no output by BinaryAccuracy(), or F1(threshold=0.5)",
        )
    if y.ndim == x.ndim and y.shape[-1] == x.shape[-1]:
        if y.shape != x.shape:
            raise _other_shape(where, x, y)
        return _only_class(where, y.reshape(-1, y.shape[-1]))
    return class_labels(where, ops, x, y)[0]


def _only_class(where: str, rows: Array) -> Array:
    """The class of each of ``rows``, of which one element is the largest."""
    if rows.dtype.kind not in "fiub":
        raise _no_numbers(where, rows)
    ones = (rows == 1).sum(axis=1)
    wrong = (ones > 1) | ~(rows > 0).any(axis=1)
    if bool(wrong.any()):
        index = int(wrong.argmax())
        raise DataError(
            where,
            expected="target rows of one class each",
            received=f"a row of {int(ones[index])} classes at index {index}",
            advice="measure several labels a sample by BinaryAccuracy(), or F1(threshold=0.5)",
        )
    return rows.argmax(axis=1)


def yes_or_no(where: str, x: Array, y: Array) -> tuple[Array, Array]:
    """Scores and booleans, both (N, C), for ``x`` (B,) or (B, ..., C) and ``y`` of its shape.

    ``y`` may also be (B,) for ``x`` (B, 1). Errors: other shapes, targets other than 0 and 1.
    """
    if y.shape != x.shape and not (x.shape == (len(y), 1) and y.ndim == 1):
        raise ShapeError(
            where,
            expected=f"targets of the outputs' shape {x.shape}",
            received=f"targets of shape {y.shape}",
            advice="give every output a 0 or a 1; measure integer classes by Accuracy()",
        )
    classes = x.shape[-1] if x.ndim > 1 else 1
    return x.reshape(-1, classes), _booleans(where, y).reshape(-1, classes)


def checked_threshold(where: str, threshold: Any) -> float:
    """``threshold`` as a float. Errors: no finite number."""
    if not is_number(threshold) or not math.isfinite(threshold):
        raise ArgumentError(
            f"{where}(threshold=)",
            expected="a finite number",
            received=repr(threshold),
            advice="0.5 is usual for probabilities, 0 for scores",
        )
    return float(threshold)


def multi_hot(where: str, x: Array, y: Array) -> Array:
    """``y`` as booleans of the shape (B, C) of ``x``."""
    if x.ndim != 2 or y.shape != x.shape:
        raise _other_shape(where, x, y)
    return _booleans(where, y)


def _booleans(where: str, y: Array) -> Array:
    if y.dtype.kind not in "fiub":
        raise _no_numbers(where, y)
    yes = y == 1
    wrong = ~(yes | (y == 0))
    if bool(wrong.any()):
        raise DataError(
            where,
            expected="targets that are 0 or 1",
            received=f"{float(y[wrong][0]):g}",
            advice="compare first, as in y > 0.5",
        )
    return yes


def _no_numbers(where: str, y: Array) -> DataError:
    return DataError(
        where,
        expected="rows of 0 and 1",
        received=f"targets of type {y.dtype}",
        advice="pass booleans, integers or floats",
    )


def _other_shape(where: str, x: Array, y: Array) -> ShapeError:
    return ShapeError(
        where,
        expected="targets of the shape (batch, classes) of the outputs",
        received=f"targets of shape {y.shape} for outputs of shape {x.shape}",
        advice="give every sample a row with an element for every class",
    )
