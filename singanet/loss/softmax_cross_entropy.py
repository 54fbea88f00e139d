"""Cross-entropy between classes: of the softmax of scores, and of probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from singanet.errors import ArgumentError, DataError, ShapeError
from singanet.loss.layer import spread
from singanet.loss.loss import Loss
from singanet.loss.targets import checked_gamma, checked_smoothing, class_labels, real_targets
from singanet.ops import Ops, ops_for
from singanet.types import Array


class _OfClasses(Loss):
    """A loss of rows of C numbers, one for every class, for labels or distributions."""

    def __init__(
        self,
        label_smoothing: float = 0.0,
        ignore_index: int | None = None,
        reduction: str = "mean",
        class_weight: Sequence[float] | None = None,
    ) -> None:
        super().__init__(reduction)
        self.label_smoothing = checked_smoothing(type(self).__name__, label_smoothing)
        self.ignore_index = ignore_index
        self._class_weight = _checked_class_weight(type(self).__name__, class_weight)

    def count(self, x: Array, y: Array) -> float:
        """Rows, without those whose label is ``ignore_index``."""
        return int(self.count_there(x, y, None))

    def count_there(self, x: Array, y: Array, mask: Array | None) -> Any:
        """Rows of steps that are there, without those whose label is ``ignore_index``."""
        if self.ignore_index is None or _is_soft(x, y):
            rows = prod(x.shape[:-1])
            return rows if mask is None else mask.sum() * (rows / max(mask.size, 1))
        there: Any = self.where_counted(x, y, mask)
        return there.sum()

    def where_counted(self, x: Array, y: Array, mask: Array | None = None) -> Array | None:
        """The rows that the mask keeps and whose label is not ``ignore_index``."""
        if self.ignore_index is None or y.shape not in (x.shape[:-1], (*x.shape[:-1], 1)):
            return mask
        there: Array = y.reshape(x.shape[:-1]) != self.ignore_index
        return there if mask is None else there & spread(mask, there)

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

    def _targets(self, ops: Ops, x: Array, y: Array) -> tuple[Array, Array | None]:
        """``y`` as rows (N, C) that sum to 1, smoothed, and then times the weights of classes.

        And where it counts (None: everywhere); the other rows are zero.
        """
        name, mask = type(self).__name__, None
        if _is_soft(x, y):
            target: Array = real_targets(name, x, y).reshape(-1, x.shape[-1])
            total = target.sum(axis=1, keepdims=True)
            ops.check(partial(_expect_parts, name), target)
            target = ops.divide(target, total)
        else:
            labels, mask = class_labels(name, ops, x, y, self.ignore_index)
            target = (labels[:, None] == ops.xp.arange(x.shape[-1])).astype(x.dtype)
        if self.label_smoothing:
            target *= 1.0 - self.label_smoothing
            target += self.label_smoothing / target.shape[1]
        if self._class_weight is not None:
            if len(self._class_weight) != x.shape[-1]:
                raise ShapeError(
                    f"{name}(class_weight=)",
                    expected=f"{len(self._class_weight)} classes, as there are weights",
                    received=f"outputs of shape {x.shape}",
                    advice="give one weight for every class",
                )
            target *= ops.xp.asarray(self._class_weight, x.dtype)
        return _counted(ops, target, mask), mask


class SoftmaxCrossEntropy(_OfClasses):
    """−Σ_j t_j log softmax(x)_j for scores ``x`` (B, ..., C); a position is one row of C.

    ``y`` holds integer labels (B, ...) or (B, ..., 1), or, with the shape of ``x``, rows of
    non-negative numbers that are divided by their sum (one-hot, counts or probabilities), as in
    SINGA. ``label_smoothing`` s replaces t by (1 − s) t + s / C (Szegedy et al. 2016), and
    ``class_weight`` w then by w_j t_j; the mean divides by positions, not by weights.
    Positions labelled ``ignore_index`` have no loss and no gradient, and the mean is over the
    others, so that padded sequences cost nothing. Gradient of a position: softmax(x) − t.
    """

    link_name = "softmax"

    def __init__(
        self,
        label_smoothing: float = 0.0,
        ignore_index: int | None = None,
        reduction: str = "mean",
        class_weight: Sequence[float] | None = None,
    ) -> None:
        super().__init__(label_smoothing, ignore_index, reduction, class_weight)
        # What a subclass does nobody knows.
        self.goes_by_rows = type(self) is SoftmaxCrossEntropy and class_weight is None

    def link(self, x: Array) -> Array:
        """softmax(x) along the last axis."""
        return ops_for(x).softmax(x)

    def compute(self, ops: Ops, x: Array, y: Array) -> tuple[Array, Any]:
        rows = self._rows(x)
        if self._class_weight is not None:
            target, mask = self._targets(ops, x, y)
            # The kernel's rows sum to 1: that of the weighted ones goes before.
            total = target.sum(axis=1)
            target /= ops.maximum(total, float(np.finfo(x.dtype).tiny))[:, None]
            losses, p = ops.softmax_cross_entropy_soft(_counted(ops, rows, mask), target)
            losses *= total
            return losses.reshape(x.shape[:-1]), (x.shape, p, target, None, total)
        if _is_soft(x, y):
            target, _ = self._targets(ops, x, y)
            losses, p = ops.softmax_cross_entropy_soft(rows, target)
            return losses.reshape(x.shape[:-1]), (x.shape, p, target, None, None)
        labels, mask = class_labels("SoftmaxCrossEntropy", ops, x, y, self.ignore_index)
        losses, p = ops.softmax_cross_entropy(rows, labels, self.label_smoothing)
        if mask is not None:
            # Not times the mask: an ignored row may hold what is no number.
            losses = ops.where(mask, losses, 0)
        return losses.reshape(x.shape[:-1]), (x.shape, p, labels, mask, None)

    def gradient(self, ops: Ops, saved: Any) -> Array:
        shape, p, target, mask, total = saved
        if target.ndim == 2:
            p -= target
            if total is not None:
                p *= total[:, None]
        else:
            ops.softmax_cross_entropy_backward(p, target, self.label_smoothing)
        if mask is not None:
            # Where they are: rows of many classes are not to be there twice.
            ops.xp.copyto(p, 0, where=~mask[:, None])
        return p.reshape(shape)


class CategoricalCrossEntropy(_OfClasses):
    """−Σ_j t_j log x_j for probabilities ``x`` (B, ..., C), which a last `Softmax` yields.

    Targets, ``label_smoothing``, weights and ``ignore_index`` are those of `SoftmaxCrossEntropy`,
    which takes the scores before the softmax and is the better choice where they are at hand: what
    float32 rounds to 0 there has no gradient here. Rows of ``x`` must sum to 1 within 0.001.
    Logarithms and quotients are of numbers no smaller than the type's smallest normal one.
    Gradient of a position: −t / x.
    """

    def compute(self, ops: Ops, x: Array, y: Array) -> tuple[Array, Any]:
        rows = self._rows(x)
        target, _ = self._targets(ops, x, y)
        ops.check(_expect_probabilities, rows)
        above = ops.maximum(rows, float(np.finfo(x.dtype).tiny))
        losses = -(target * ops.log(above)).sum(axis=1)
        return losses.reshape(x.shape[:-1]), (x.shape, above, target)

    def gradient(self, ops: Ops, saved: Any) -> Array:
        shape, above, target = saved
        return ops.negative(ops.divide(target, above)).reshape(shape)


class SoftmaxFocal(_OfClasses):
    """−Σ_j (1 − p_j)^γ t_j log p_j for p = softmax(x), ``x`` (B, ..., C): the sure count less.

    Targets, ``label_smoothing``, ``ignore_index`` and ``class_weight``, which others call α, are
    those of `SoftmaxCrossEntropy`, which γ = 0 gives. Lin et al., 2017.
    """

    link_name = "softmax"

    def __init__(
        self,
        gamma: float = 2.0,
        label_smoothing: float = 0.0,
        ignore_index: int | None = None,
        reduction: str = "mean",
        class_weight: Sequence[float] | None = None,
    ) -> None:
        super().__init__(label_smoothing, ignore_index, reduction, class_weight)
        self.gamma = checked_gamma("SoftmaxFocal", gamma)

    def link(self, x: Array) -> Array:
        """softmax(x) along the last axis."""
        return ops_for(x).softmax(x)

    def compute(self, ops: Ops, x: Array, y: Array) -> tuple[Array, Any]:
        target, mask = self._targets(ops, x, y)
        rows = _counted(ops, self._rows(x), mask)
        # What a class costs that is not asked for is nothing, be its score -inf.
        log_p = ops.where(target > 0, ops.log_softmax(rows), 0)
        p = ops.softmax(rows)
        rest = ops.where(target > 0, 1 - p, 1)
        factor = rest**self.gamma
        losses = -(target * factor * log_p).sum(axis=1)
        return losses.reshape(x.shape[:-1]), (x.shape, p, target, log_p, rest, factor)

    def gradient(self, ops: Ops, saved: Any) -> Array:
        shape, p, target, log_p, rest, factor = saved
        # (1 - p)^(γ - 1) p log p goes to 0 with 1 - p for any γ above 0.
        least = float(np.finfo(p.dtype).tiny)
        bend = self.gamma * factor / ops.maximum(rest, least) * p * log_p
        slopes = target * (bend - factor)
        slopes -= p * slopes.sum(axis=1, keepdims=True)
        return slopes.reshape(shape)


def _checked_class_weight(where: str, weight: Sequence[float] | None) -> Array | None:
    if weight is None:
        return None
    array = np.asarray(weight)
    fits = array.ndim == 1 and array.size > 1 and array.dtype.kind in "fiu"
    if not fits or not np.isfinite(array).all() or array.min() < 0:
        raise ArgumentError(
            f"{where}(class_weight=)",
            expected="a sequence of finite numbers >= 0, one for every class",
            received=f"{type(weight).__name__} of shape {array.shape}",
            advice="weights above 1 make a class count more",
        )
    return array.astype(np.float64)


def _counted(ops: Ops, rows: Array, mask: Array | None) -> Array:
    """``rows``, of which those that do not count may hold what is no number, and become 0."""
    return rows if mask is None else ops.where(mask[:, None], rows, 0)


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
