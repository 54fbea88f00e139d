"""Cross-entropy between classes: of the softmax of scores, and of probabilities."""

from __future__ import annotations

import math
from functools import partial
from math import prod
from typing import Any

import numpy as np

from singanet.errors import ArgumentError, DataError
from singanet.loss.loss import Loss
from singanet.loss.targets import class_labels, real_targets
from singanet.ops import Ops, ops_for
from singanet.types import Array


class _OfClasses(Loss):
    """A loss of rows of C numbers, one for every class, for labels or distributions."""

    def __init__(
        self,
        label_smoothing: float = 0.0,
        ignore_index: int | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction)
        if not 0.0 <= label_smoothing < 1.0:
            raise ArgumentError(
                f"{type(self).__name__}(label_smoothing=)",
                expected="a number in [0, 1)",
                received=repr(label_smoothing),
                advice="0.1 is usual, 0 smooths nothing",
            )
        self.label_smoothing = float(label_smoothing)
        self.ignore_index = ignore_index

    def count(self, x: Array, y: Array) -> float:
        """Rows, without those whose label is ``ignore_index``."""
        if self.ignore_index is None or _is_soft(x, y):
            return prod(x.shape[:-1])
        return int((y != self.ignore_index).sum())

    def _rows(self, x: Array) -> Array:
        """``x`` (B, ..., C) as (N, C). Errors: fewer than two classes."""
        if x.ndim < 2 or x.shape[-1] < 2:
            raise DataError(
                type(self).__name__,
                expected="outputs of shape (batch, ..., classes), two classes or more",
                received=f"outputs of shape {x.shape}",
                advice="end the net in a layer with one output for every class,"
                " or use SigmoidCrossEntropy for a single yes-or-no output",
            )
        return x.reshape(-1, x.shape[-1])

    def _distribution(self, ops: Ops, x: Array, y: Array) -> Array:
        """``y``, of the shape of ``x``, as rows (N, C) that sum to 1, smoothed."""
        name = type(self).__name__
        target: Array = real_targets(name, x, y).reshape(-1, x.shape[-1])
        total = target.sum(axis=1, keepdims=True)
        ops.check(partial(_expect_parts, name), target)
        return self._smoothed(ops.divide(target, total))

    def _smoothed(self, target: Array) -> Array:
        if self.label_smoothing:
            target *= 1.0 - self.label_smoothing
            target += self.label_smoothing / target.shape[1]
        return target


class SoftmaxCrossEntropy(_OfClasses):
    """−Σ_j t_j log softmax(x)_j for scores ``x`` (B, ..., C); a position is one row of C.

    ``y`` holds integer labels (B, ...) or (B, ..., 1), or, with the shape of ``x``, rows of
    non-negative numbers that are divided by their sum (one-hot, counts or probabilities), as in
    SINGA. ``label_smoothing`` s replaces t by (1 − s) t + s / C (Szegedy et al. 2016).
    Positions labelled ``ignore_index`` have no loss and no gradient, and the mean is over the
    others, so that padded sequences cost nothing. Gradient of a position: softmax(x) − t.
    """

    link_name = "softmax"

    def link(self, x: Array) -> Array:
        """softmax(x) along the last axis."""
        return ops_for(x).softmax(x)

    def compute(self, ops: Ops, x: Array, y: Array) -> tuple[Array, Any]:
        """See `Loss`."""
        rows = self._rows(x)
        if _is_soft(x, y):
            target = self._distribution(ops, x, y)
            losses, p = ops.softmax_cross_entropy_soft(rows, target)
            return losses.reshape(x.shape[:-1]), (x.shape, p, target, None)
        labels, mask = class_labels("SoftmaxCrossEntropy", ops, x, y, self.ignore_index)
        losses, p = ops.softmax_cross_entropy(rows, labels, self.label_smoothing)
        if mask is not None:
            # Not times the mask: an ignored row may hold what is no number.
            losses = ops.where(mask, losses, 0)
        return losses.reshape(x.shape[:-1]), (x.shape, p, labels, mask)

    def gradient(self, ops: Ops, saved: Any) -> Array:
        """See `Loss`."""
        shape, p, target, mask = saved
        if target.ndim == 2:
            p -= target
        else:
            ops.softmax_cross_entropy_backward(p, target, self.label_smoothing)
        if mask is not None:
            p = ops.where(mask[:, None], p, 0)
        return p.reshape(shape)


class CategoricalCrossEntropy(_OfClasses):
    """−Σ_j t_j log x_j for probabilities ``x`` (B, ..., C), which a last `Softmax` yields.

    Targets, ``label_smoothing`` and ``ignore_index`` are those of `SoftmaxCrossEntropy`, which
    takes the scores before the softmax and is the better choice where they are at hand: what
    float32 rounds to 0 there has no gradient here. Rows of ``x`` must sum to 1 within 0.001.
    Logarithms and quotients are of numbers no smaller than the type's smallest normal one.
    Gradient of a position: −t / x.
    """

    def compute(self, ops: Ops, x: Array, y: Array) -> tuple[Array, Any]:
        """See `Loss`."""
        rows = self._rows(x)
        mask = None
        if _is_soft(x, y):
            target = self._distribution(ops, x, y)
        else:
            labels, mask = class_labels("CategoricalCrossEntropy", ops, x, y, self.ignore_index)
            one_hot = labels[:, None] == ops.xp.arange(x.shape[-1])
            target = self._smoothed(one_hot.astype(x.dtype))
            if mask is not None:
                target = ops.where(mask[:, None], target, 0)
        ops.check(_expect_probabilities, rows)
        above = ops.maximum(rows, float(np.finfo(x.dtype).tiny))
        losses = -(target * ops.log(above)).sum(axis=1)
        return losses.reshape(x.shape[:-1]), (x.shape, above, target)

    def gradient(self, ops: Ops, saved: Any) -> Array:
        """See `Loss`."""
        shape, above, target = saved
        return ops.negative(ops.divide(target, above)).reshape(shape)


def _is_soft(x: Array, y: Array) -> bool:
    """Whether the targets ``y`` are rows of the shape of ``x``, not labels."""
    return y.ndim == x.ndim and y.shape[-1] == x.shape[-1]


def _expect_probabilities(rows: Array) -> None:
    if not rows.size:
        return
    off = abs(rows.sum(axis=1, dtype="float64") - 1.0)
    wrong = (rows < 0).any(axis=1) | ~(off <= 1e-3)
    if bool(wrong.any()):
        index = int(wrong.argmax())
        raise DataError(
            "CategoricalCrossEntropy",
            expected="outputs that are probabilities of classes",
            received=f"a row with sum {float(rows[index].sum()):g} and least element "
            f"{float(rows[index].min()):g} at index {index}",
            advice="end the net in a Softmax, or use SoftmaxCrossEntropy on scores",
        )


def _expect_parts(name: str, target: Array) -> None:
    if not target.size:
        return
    total = target.sum(axis=1)
    if float(target.min()) >= 0 and float(total.min()) > 0 and float(total.max()) < math.inf:
        return
    right = (target >= 0).all(axis=1) & (total > 0) & (total < math.inf)
    wrong = int((~right).argmax())
    raise DataError(
        name,
        expected="target rows of non-negative numbers with a positive, finite sum",
        received=f"another kind of row at index {wrong}",
        advice="give every sample at least one class, or pass integer labels",
    )
