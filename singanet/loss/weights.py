"""Weights of the two terms of a binary cross-entropy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from singanet.errors import ArgumentError, ShapeError
from singanet.ops.interface import Ops
from singanet.types import Array

Weight = float | Sequence[float] | None


class TermWeights:
    """Factors of −log p and −log(1 − p): ``both · positive · y`` and ``both · (1 − y)``.

    Each weight is a number, or one for every class (the last axis of the outputs).
    """

    def __init__(self, where: str, positive: Array, both: Array) -> None:
        self._where = where
        self._positive = positive
        self._both = both

    def of(self, ops: Ops, x: Array, y: Array) -> tuple[Array, Array]:
        """The two factors for targets ``y``, with the type of ``x``."""
        for weight in (self._positive, self._both):
            if weight.ndim and weight.shape != x.shape[-1:]:
                raise ShapeError(
                    self._where,
                    expected=f"{weight.size} classes, as there are weights",
                    received=f"outputs of shape {x.shape}",
                    advice="give one weight for every class, or a single number",
                )
        both = ops.xp.asarray(self._both, x.dtype)
        positive = ops.xp.asarray(self._positive, x.dtype)
        return both * positive * y, both * (1 - y)


def term_weights(where: str, positive: Weight, both: Weight) -> TermWeights | None:
    """The weights, checked; None where neither is given."""
    if positive is None and both is None:
        return None
    arrays = []
    for name, weight in (("pos_weight", positive), ("class_weight", both)):
        array = np.asarray(1.0 if weight is None else weight)
        fits = array.ndim <= 1 and array.size > 0 and array.dtype.kind in "fiu"
        if not fits or not np.isfinite(array).all() or array.min() < 0:
            raise ArgumentError(
                f"{where}({name}=)",
                expected="a finite number >= 0, or a sequence with one for every class",
                received=f"{type(weight).__name__} of shape {array.shape}",
                advice="weights above 1 make a class count more",
            )
        arrays.append(array.astype(np.float64))
    return TermWeights(where, arrays[0], arrays[1])
