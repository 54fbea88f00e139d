"""Losses of directions, of overlaps and of distances between vectors."""

from __future__ import annotations

from math import prod
from typing import Any

from singanet.errors import DataError, ShapeError
from singanet.loss.loss import Loss
from singanet.loss.targets import checked_positive, real_targets, unit_targets
from singanet.ops import Ops, ops_for
from singanet.types import Array

_TINY = 1e-12
"""The least square of a length that is divided by, as in Keras."""


class CosineSimilarity(Loss):
    """−cos(x, y) for vectors ``x`` and ``y`` (B, ..., D); a position is one vector.

    It is −1 for one direction, 1 for opposite ones, and 0 where a vector is zero.
    """

    def count(self, x: Array, y: Array) -> float:
        """Vectors."""
        return prod(x.shape[:-1])

    def compute(self, ops: Ops, x: Array, y: Array) -> tuple[Array, Any]:
        if x.ndim < 2:
            raise ShapeError(
                "CosineSimilarity",
                expected="outputs of shape (batch, ..., features)",
                received=f"outputs of shape {x.shape}",
                advice="let the net yield a vector a sample",
            )
        y = real_targets("CosineSimilarity", x, y)
        length = ops.sqrt(ops.maximum((x * x).sum(axis=-1, keepdims=True), _TINY))
        along = x / length
        target = y / ops.sqrt(ops.maximum((y * y).sum(axis=-1, keepdims=True), _TINY))
        cosine = (along * target).sum(axis=-1, keepdims=True)
        return -cosine[..., 0], (along, target, cosine, length)

    def gradient(self, ops: Ops, saved: Any) -> Array:
        """(cos(x, y) x / |x| − y / |y|) / |x|."""
        along, target, cosine, length = saved
        return (along * cosine - target) / length


class Dice(Loss):
    """1 − (2 Σ p y + ε) / (Σ p + Σ y + ε) for scores ``x``, p = σ(x), and ``y`` in [0, 1].

    Both have one shape: of images (B, C, ...) a position is a channel of a sample, whose pixels
    are summed over, of rows (B, D) a sample. ``smooth`` is ε, which makes the loss of an empty
    channel that is seen to be so 0. Milletari et al., 2016.
    """

    link_name = "sigmoid"

    def __init__(self, smooth: float = 1.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.smooth = checked_positive("Dice(smooth=)", smooth)

    def link(self, x: Array) -> Array:
        """σ(x)."""
        return ops_for(x).sigmoid(x)

    def count(self, x: Array, y: Array) -> float:
        """Channels of samples, or samples."""
        return prod(x.shape[:2]) if x.ndim > 2 else len(x)

    def compute(self, ops: Ops, x: Array, y: Array) -> tuple[Array, Any]:
        if x.ndim < 2:
            raise ShapeError(
                "Dice",
                expected="outputs of shape (batch, channels, ...) or (batch, elements)",
                received=f"outputs of shape {x.shape}",
                advice="give the net an output for every pixel",
            )
        y = unit_targets("Dice", ops, x, y)
        p = ops.sigmoid(x)
        axes = tuple(range(2, x.ndim)) or (1,)
        both = 2 * (p * y).sum(axis=axes, keepdims=True) + self.smooth
        each = (p + y).sum(axis=axes, keepdims=True) + self.smooth
        losses = 1 - both / each
        return losses.reshape(x.shape[: len(x.shape) - len(axes)]), (p, y, both, each)

    def gradient(self, ops: Ops, saved: Any) -> Array:
        p, y, both, each = saved
        return (both / each - 2 * y) / each * p * (1 - p)


class TripletMargin(Loss):
    """max(0, margin + s (|a − p| − |a − n|)) for vectors a, p, n: ``x`` (B, 3, D).

    ``y`` (B,) says which of the last two is nearer the first: s = 1 for the second of the three,
    the usual triplet of anchor, positive and negative, and −1, or 0, for the third. Lengths are
    those of differences plus 1e-6, as in PyTorch. Schroff et al., 2015.
    """

    def __init__(self, margin: float = 1.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.margin = checked_positive("TripletMargin(margin=)", margin)

    def compute(self, ops: Ops, x: Array, y: Array) -> tuple[Array, Any]:
        if x.ndim != 3 or x.shape[1] != 3:
            raise ShapeError(
                "TripletMargin",
                expected="outputs of shape (batch, 3, features): anchor, positive, negative",
                received=f"outputs of shape {x.shape}",
                advice="join three towers by Concat and Reshape, or share one by TimeDistributed",
            )
        y = real_targets("TripletMargin", x[:, 0, 0], y)
        ops.check(_expect_sides, y)
        sign = ops.where(y > 0, 1, -1).astype(x.dtype)
        ways = x[:, :1] - x[:, 1:] + 1e-6
        lengths = ops.sqrt((ways * ways).sum(axis=2))
        losses = ops.maximum(self.margin + sign * (lengths[:, 0] - lengths[:, 1]), 0)
        return losses, (ways / lengths[:, :, None], sign * (losses > 0))

    def gradient(self, ops: Ops, saved: Any) -> Array:
        toward, sign = saved
        near, far = toward[:, 0], -toward[:, 1]
        dx = ops.concat([part[:, None] for part in (near + far, -near, -far)], 1)
        dx *= sign[:, None, None]
        return dx


def _expect_sides(y: Array) -> None:
    wrong = (y != 1) & (y != 0) & (y != -1)
    if bool(wrong.any()):
        raise DataError(
            "TripletMargin",
            expected="targets among -1, 0 and 1",
            received=f"{float(y[wrong][0]):g}",
            advice="pass 1 where the second vector is the one that is alike, as in most triplets",
        )
