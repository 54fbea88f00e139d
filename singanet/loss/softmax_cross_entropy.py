"""Cross-entropy of the softmax of scores."""

from __future__ import annotations

from math import prod
from typing import Any

from singanet.errors import ArgumentError, DataError
from singanet.loss.loss import Loss
from singanet.loss.targets import class_labels, real_targets
from singanet.ops import Ops, ops_for
from singanet.types import Array


class SoftmaxCrossEntropy(Loss):
    """−Σ_j t_j log softmax(x)_j for scores ``x`` (B, ..., C); a position is one row of C.

    ``y`` holds integer labels (B, ...) or (B, ..., 1), or, with the shape of ``x``, rows of
    non-negative numbers that are divided by their sum (one-hot, counts or probabilities), as in
    SINGA. ``label_smoothing`` s replaces t by (1 − s) t + s / C (Szegedy et al. 2016).
    Positions labelled ``ignore_index`` have no loss and no gradient, and the mean is over the
    others, so that padded sequences cost nothing. Gradient of a position: softmax(x) − t.
    """

    def __init__(
        self,
        label_smoothing: float = 0.0,
        ignore_index: int | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction)
        if not 0.0 <= label_smoothing < 1.0:
            raise ArgumentError(
                "SoftmaxCrossEntropy(label_smoothing=)",
                expected="a number in [0, 1)",
                received=repr(label_smoothing),
                advice="0.1 is usual, 0 smooths nothing",
            )
        self.label_smoothing = float(label_smoothing)
        self.ignore_index = ignore_index

    def link(self, x: Array) -> Array:
        """softmax(x) along the last axis."""
        return ops_for(x).softmax(x)

    def count(self, x: Array, y: Array) -> float:
        """Rows, without those whose label is ``ignore_index``."""
        if self.ignore_index is None or _is_soft(x, y):
            return prod(x.shape[:-1])
        return int((y != self.ignore_index).sum())

    def _forward(self, ops: Ops, x: Array, y: Array) -> tuple[Array, Any]:
        if x.ndim < 2 or x.shape[-1] == 0:
            raise DataError(
                "SoftmaxCrossEntropy",
                expected="outputs of shape (batch, ..., classes)",
                received=f"outputs of shape {x.shape}",
                advice="end the net in a layer with one output for every class",
            )
        rows = x.reshape(-1, x.shape[-1])
        if _is_soft(x, y):
            target = self._distribution(ops, rows, real_targets("SoftmaxCrossEntropy", x, y))
            losses, p = ops.softmax_cross_entropy_soft(rows, target)
            return losses.reshape(x.shape[:-1]), (x.shape, p, target, None)
        labels, mask = class_labels("SoftmaxCrossEntropy", ops, x, y, self.ignore_index)
        losses, p = ops.softmax_cross_entropy(rows, labels, self.label_smoothing)
        if mask is not None:
            # Not times the mask: an ignored row may hold what is no number.
            losses = ops.where(mask, losses, 0)
        return losses.reshape(x.shape[:-1]), (x.shape, p, labels, mask)

    def _backward(self, ops: Ops, saved: Any) -> Array:
        shape, p, target, mask = saved
        if target.ndim == 2:
            p -= target
        else:
            ops.softmax_cross_entropy_backward(p, target, self.label_smoothing)
        if mask is not None:
            p = ops.where(mask[:, None], p, 0)
        return p.reshape(shape)

    def _distribution(self, ops: Ops, rows: Array, y: Array) -> Array:
        """``y`` as rows that sum to 1, smoothed."""
        target: Array = y.reshape(rows.shape)
        total = target.sum(axis=1, keepdims=True)
        ops.check(_expect_parts, target)
        target = ops.divide(target, total)
        if self.label_smoothing:
            target *= 1.0 - self.label_smoothing
            target += self.label_smoothing / rows.shape[1]
        return target


def _is_soft(x: Array, y: Array) -> bool:
    """Whether the targets ``y`` are rows of the shape of ``x``, not labels."""
    same = y.ndim == x.ndim and y.shape[-1] == x.shape[-1]
    return same and (x.shape[-1] > 1 or y.dtype.kind == "f")


def _expect_parts(target: Array) -> None:
    if not target.size or (float(target.min()) >= 0 and float(target.sum(axis=1).min()) > 0):
        return
    wrong = int(((target < 0).any(axis=1) | (target.sum(axis=1) <= 0)).argmax())
    raise DataError(
        "SoftmaxCrossEntropy",
        expected="target rows of non-negative numbers with a positive sum",
        received=f"another kind of row at index {wrong}",
        advice="give every sample at least one class, or pass integer labels",
    )
