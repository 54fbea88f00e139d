"""Rows divided by their root mean square, which norms of layers and of attention's heads share."""

from __future__ import annotations

from functools import partial
from typing import Any

from singanet.ops.interface import Ops
from singanet.ops.kernel import in_float32
from singanet.types import Array

__all__ = ["Kept", "rms_norm", "rms_norm_backward"]

Kept = tuple[Array, Array]
"""The rows as unit vectors, and a number each."""


@partial(in_float32, exact=(2,))
def rms_norm(
    ops: Ops, rows: Array, gamma: Array | None, epsilon: float, offset: float = 0.0
) -> tuple[Array, Array, Array]:
    """(offset + gamma) x / sqrt(mean(x²) + epsilon) of rows (R, D); without gamma a factor of 1.

    The two arrays of `Kept` follow it.
    """
    count = rows.shape[1]
    unit, inverse = ops.l2_norm(rows, epsilon * count)
    return ops.multiply(unit, _factor(ops, gamma, offset, count)), unit, inverse


@in_float32
def rms_norm_backward(
    ops: Ops, drows: Array, gamma: Array | None, kept: Kept, offset: float = 0.0
) -> tuple[Array, Array | None]:
    """Gradients of the rows and of gamma, from that of what `rms_norm` made."""
    unit, inverse = kept
    count = drows.shape[1]
    dunit = ops.multiply(drows, _factor(ops, gamma, offset, count))
    dx = ops.l2_norm_backward(dunit, unit, inverse)
    if gamma is None:
        return dx, None
    dgamma = ops.column_sums(ops.multiply(drows, unit))
    return dx, ops.multiply(dgamma, count**0.5, out=dgamma)


def _factor(ops: Ops, gamma: Array | None, offset: float, count: int) -> Any:
    """The factor of unit vectors of ``count`` elements."""
    if gamma is None:
        return count**0.5
    gain = ops.add(gamma, offset) if offset else gamma
    return ops.multiply(gain, count**0.5)
