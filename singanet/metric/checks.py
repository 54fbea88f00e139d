"""Checks of targets that several metrics share."""

from __future__ import annotations

from singanet.errors import DataError, ShapeError
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
    if y.ndim == x.ndim and y.shape[-1] == x.shape[-1] and (y.shape[-1] > 1 or y.dtype.kind == "f"):
        if y.shape != x.shape:
            raise _other_shape(where, x, y)
        return y.argmax(axis=-1).reshape(-1)
    return class_labels(where, ops, x, y)[0]


def multi_hot(where: str, x: Array, y: Array) -> Array:
    """``y`` as booleans of the shape (B, C) of ``x``."""
    if x.ndim != 2 or y.shape != x.shape:
        raise _other_shape(where, x, y)
    if y.dtype.kind not in "fiub":
        raise DataError(
            where,
            expected="rows of 0 and 1",
            received=f"targets of type {y.dtype}",
            advice="pass booleans, integers or floats",
        )
    return y.astype(bool)


def _other_shape(where: str, x: Array, y: Array) -> ShapeError:
    return ShapeError(
        where,
        expected="targets of the shape (batch, classes) of the outputs",
        received=f"targets of shape {y.shape} for outputs of shape {x.shape}",
        advice="give every sample a row with an element for every class",
    )
