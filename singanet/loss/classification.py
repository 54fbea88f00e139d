"""Losses for classes and distributions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from singanet.base.arguments import checked_number
from singanet.errors import ArgumentError, DataError, ShapeError
from singanet.loss.loss import (
    Loss,
    checked_gamma,
    checked_ignored,
    checked_positive,
    checked_smoothing,
    class_labels,
    count_under,
    real_targets,
    spread,
    unit_targets,
)
from singanet.ops import Ops
from singanet.types import Array

Weight = float | Sequence[float] | None


class _TwoTerms(Loss):
    """A loss of two terms, one for targets of 1 and one for targets of 0, each with a weight."""

    def __init__(
        self,
        pos_weight: Weight = None,
        class_weight: Weight = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(reduction)
        self.label_smoothing = checked_smoothing(type(self).__name__, label_smoothing)
        self._weights = _term_weights(type(self).__name__, pos_weight, class_weight)

    def count(self, x: Array, y: Array) -> float:
        """Elements."""
        return x.size

    def _targets(self, ops: Ops, x: Array, y: Array) -> Array:
        """Return the targets ``y`` after label smoothing."""
        y = unit_targets(type(self).__name__, ops, x, y)
        smoothing = self.label_smoothing
        return y * (1.0 - smoothing) + 0.5 * smoothing if smoothing else y


class SigmoidCrossEntropy(_TwoTerms):
    """−y log σ(x) − (1 − y) log(1 − σ(x)) for scores ``x`` and targets ``y`` in [0, 1].

    Both have one shape (B, ...): (B,) or (B, 1) for one yes-or-no question, (B, C) for C labels;
    a position is an element. The computation from scores cannot overflow, so SINGA's ε is not
    needed. Gradient of an element: σ(x) − y, weighted.

    Args:
        pos_weight: Factors of the first term: a number, or one for every class (the last axis).
        class_weight: Factors of both terms: a number, or one for every class.
        reduction: "mean" or "sum", see `Loss`.
        label_smoothing: s in [0, 1), replaces y by (1 − s) y + s / 2.

    Examples:
        >>> x, y = np.array([[2.0], [-1.0]]), np.array([[1], [0]])
        >>> round(singanet.loss.SigmoidCrossEntropy().evaluate(False, x, y), 4)
        0.2201
    """

    link_name = "sigmoid"

    def compute(self, ops: Ops, x: Array, y: Array) -> tuple[Array, Any]:
        y = self._targets(ops, x, y)
        if self._weights is None:
            return ops.sigmoid_cross_entropy(x, y), (x, y, None, None)
        # w (p y softplus(-x) + (1 - y) softplus(x)), one term at a time.
        yes, no = self._weights.of(ops, x, y)
        zero = ops.zeros(x.shape, x)
        losses = _share(ops, no, ops.sigmoid_cross_entropy(x, zero))
        losses += _share(ops, yes, ops.sigmoid_cross_entropy(ops.negative(x), zero))
        return losses, (x, y, yes, no)

    def gradient(self, ops: Ops, saved: Any) -> Array:
        x, y, yes, no = saved
        dx = ops.sigmoid(x)
        if yes is None:
            dx -= y
        else:
            dx *= yes + no
            dx -= yes
        return dx


class BinaryCrossEntropy(_TwoTerms):
    """−y log x − (1 − y) log(1 − x) for probabilities ``x``, the outputs of a sigmoid.

    Shapes are as for `SigmoidCrossEntropy`, which is more accurate if the scores before the sigmoid
    are available. The logarithm's argument is at least the smallest normal number of the dtype. In
    the gradient x and 1 − x are at least the dtype's resolution.

    Args:
        pos_weight: Factors of the first term: a number, or one for every class (the last axis).
        class_weight: Factors of both terms: a number, or one for every class.
        reduction: "mean" or "sum", see `Loss`.
        label_smoothing: s in [0, 1), replaces y by (1 − s) y + s / 2.

    Examples:
        >>> x, y = np.array([[0.9], [0.2]]), np.array([[1], [0]])
        >>> round(singanet.loss.BinaryCrossEntropy().evaluate(False, x, y), 4)
        0.1643
    """

    def compute(self, ops: Ops, x: Array, y: Array) -> tuple[Array, Any]:
        y = self._targets(ops, x, y)
        ops.check(_expect_shares, x)
        yes, no = (y, 1 - y) if self._weights is None else self._weights.of(ops, x, y)
        tiny = float(np.finfo(x.dtype).tiny)
        losses = -yes * ops.log(ops.maximum(x, tiny)) - no * ops.log(ops.maximum(1 - x, tiny))
        return losses, (x, yes, no)

    def gradient(self, ops: Ops, saved: Any) -> Array:
        x, yes, no = saved
        edge = float(np.finfo(x.dtype).eps)
        return no / ops.maximum(1 - x, edge) - yes / ops.maximum(x, edge)


class SigmoidFocal(Loss):
    """a m^γ c for scores ``x`` and targets ``y`` in [0, 1], c their `SigmoidCrossEntropy`.

    m = y (1 − p) + (1 − y) p, p = σ(x), is the error of the output, so that outputs that are sure
    and right count little. Both have one shape (B, ...); a position is an element. Lin et al.,
    2017.

    Args:
        gamma: γ, at least 0; 0 gives the cross-entropy.
        alpha: α in (0, 1), the weight of targets of 1: a = y α + (1 − y)(1 − α). None sets a to 1,
            as Keras' BinaryFocalCrossentropy does unless ``apply_class_balancing`` is True.
        reduction: "mean" or "sum", see `Loss`.

    Examples:
        >>> x, y = np.array([[2.0], [-1.0]]), np.array([[1], [0]])
        >>> round(singanet.loss.SigmoidFocal(gamma=2.0).evaluate(False, x, y), 4)
        0.0122
    """

    link_name = "sigmoid"

    def __init__(
        self, gamma: float = 2.0, alpha: float | None = None, reduction: str = "mean"
    ) -> None:
        super().__init__(reduction)
        self.gamma = checked_gamma("SigmoidFocal", gamma)
        if alpha is not None:
            usual = "0.25 is usual if most answers are no"
            between, where = "a number between 0 and 1, or None", "SigmoidFocal(alpha=)"
            alpha = checked_number(where, alpha, between, lambda a: 0 < a < 1, usual)
        self.alpha = alpha

    def count(self, x: Array, y: Array) -> float:
        """Elements."""
        return x.size

    def compute(self, ops: Ops, x: Array, y: Array) -> tuple[Array, Any]:
        y = unit_targets("SigmoidFocal", ops, x, y)
        p = ops.sigmoid(x)
        off = y * (1 - p) + (1 - y) * p
        factor = off**self.gamma
        if self.alpha is not None:
            factor *= y * self.alpha + (1 - y) * (1 - self.alpha)
        each = ops.sigmoid_cross_entropy(x, y)
        return factor * each, (p, y, off, factor, each)

    def gradient(self, ops: Ops, saved: Any) -> Array:
        p, y, off, factor, each = saved
        # The derivative of off by x is (1 - 2 y) p (1 - p), which is 0 if off is 0.
        info = np.finfo(p.dtype)
        bend = self.gamma / ops.maximum(off, float(info.tiny)) * (1 - 2 * y) * p * (1 - p)
        return factor * (p - y + bend * ops.minimum(each, float(info.max)))


def _share(ops: Ops, weight: Array, losses: Array) -> Array:
    """Return ``weight`` times ``losses``; a weight of 0 gives 0 even for an infinite loss."""
    return ops.multiply(weight, ops.where(weight > 0, losses, 0))


class _TermWeights:
    """Factors of −log p and −log(1 − p): ``both · positive · y`` and ``both · (1 − y)``.

    Each weight is a number, or one for every class (the last axis of the outputs).
    """

    def __init__(self, where: str, positive: Array, both: Array) -> None:
        self._where = where
        self._positive = positive
        self._both = both

    def of(self, ops: Ops, x: Array, y: Array) -> tuple[Array, Array]:
        """Return the two factors for targets ``y`` in the dtype of ``x``."""
        for weight in (self._positive, self._both):
            if weight.ndim and weight.shape != x.shape[-1:]:
                raise ShapeError(
                    self._where,
                    expected=f"{weight.size} classes, one for each weight",
                    received=f"outputs of shape {x.shape}",
                    advice="give one weight for every class, or a single number",
                )
        both = ops.xp.asarray(self._both, x.dtype)
        positive = ops.xp.asarray(self._positive, x.dtype)
        return both * positive * y, both * (1 - y)


def _term_weights(where: str, positive: Weight, both: Weight) -> _TermWeights | None:
    """Check the weights. Return None if both are None."""
    if positive is None and both is None:
        return None
    arrays = []
    for name, weight in (("pos_weight", positive), ("class_weight", both)):
        array = np.asarray(1.0 if weight is None else weight)
        fits = array.ndim <= 1 and array.size > 0 and array.dtype.kind in "fiu"
        if not fits or not np.isfinite(array).all() or array.min() < 0:
            raise ArgumentError(
                f"{where}({name}=)",
                expected="a finite number >= 0, or a sequence of a number for every class",
                received=f"{type(weight).__name__} of shape {array.shape}",
                advice="weights above 1 make a class count more",
            )
        arrays.append(array.astype(np.float64))
    return _TermWeights(where, arrays[0], arrays[1])


class _OfClasses(Loss):
    """A loss for rows of C scores, one for every class, with labels or distributions."""

    def __init__(
        self,
        label_smoothing: float = 0.0,
        ignore_index: int | None = None,
        reduction: str = "mean",
        class_weight: Sequence[float] | None = None,
    ) -> None:
        super().__init__(reduction)
        self.label_smoothing = checked_smoothing(type(self).__name__, label_smoothing)
        self.ignore_index = checked_ignored(type(self).__name__, ignore_index)
        self._class_weight = _checked_class_weight(type(self).__name__, class_weight)

    def count(self, x: Array, y: Array) -> float:
        """Rows whose label is not ``ignore_index``."""
        return int(self._count_there(x, y, None))

    def _count_there(self, x: Array, y: Array, mask: Array | None) -> Any:
        """Count the rows under ``mask`` whose label is not ``ignore_index``."""
        if self.ignore_index is None or _is_soft(x, y):
            rows = prod(x.shape[:-1])
            return rows if mask is None else count_under(mask, rows, x)
        there: Any = self._where_counted(x, y, mask)
        return there.sum()

    def _where_counted(self, x: Array, y: Array, mask: Array | None = None) -> Array | None:
        """Return True for rows under ``mask`` whose label is not ``ignore_index``."""
        if self.ignore_index is None or y.shape not in (x.shape[:-1], (*x.shape[:-1], 1)):
            return mask
        there: Array = y.reshape(x.shape[:-1]) != self.ignore_index
        return there if mask is None else there & spread(mask, there)

    def _rows(self, x: Array) -> Array:
        """Reshape ``x`` (B, ..., C) to (N, C). Errors: fewer than two classes."""
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
        """Return ``y`` as rows (N, C) of sum 1, smoothed, times the class weights, and a mask.

        The mask (N,) is False for ignored rows, which are zero. None means that all rows count.
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
                    expected=f"{len(self._class_weight)} classes, one for each weight",
                    received=f"outputs of shape {x.shape}",
                    advice="give one weight for every class",
                )
            target *= ops.xp.asarray(self._class_weight, x.dtype)
        return _counted(ops, target, mask), mask


class SoftmaxCrossEntropy(_OfClasses):
    """−Σ_j t_j log softmax(x)_j for scores ``x`` (B, ..., C); a position is one row of C.

    The targets ``y`` are integer labels (B, ...) or (B, ..., 1), or, with the shape of ``x``, rows
    of non-negative numbers (one-hot, counts or probabilities), which are divided by their sum, as
    in SINGA. Gradient of a position: softmax(x) − t.

    Args:
        label_smoothing: s in [0, 1), replaces t by (1 − s) t + s / C (Szegedy et al. 2016).
        ignore_index: An integer label (PyTorch: -100) or None. Positions with this label have no
            loss and no gradient, and the mean is over the others.
        reduction: "mean" or "sum", see `Loss`.
        class_weight: One factor w_j ≥ 0 of t_j for every class, after the smoothing. The mean
            divides by positions; PyTorch's divides by weights.

    Examples:
        >>> x, y = np.array([[2.0, 0.0]]), np.array([0])
        >>> round(singanet.loss.SoftmaxCrossEntropy().evaluate(False, x, y), 4)
        0.1269
    """

    link_name = "softmax"

    @property
    def _goes_by_rows(self) -> bool:
        """Whether a `HeadLoss` can use it; a subclass may compute another loss."""
        return type(self) is SoftmaxCrossEntropy and self._class_weight is None

    def compute(self, ops: Ops, x: Array, y: Array) -> tuple[Array, Any]:
        rows = self._rows(x)
        if self._class_weight is not None:
            target, mask = self._targets(ops, x, y)
            # The kernel expects rows that sum to 1: the sum of the weighted row is a factor.
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
            # Not a product with the mask: an ignored row may contain NaN.
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
            # In place, to save a copy of rows of many classes.
            ops.xp.copyto(p, 0, where=~mask[:, None])
        return p.reshape(shape)


class CategoricalCrossEntropy(_OfClasses):
    """−Σ_j t_j log x_j for probabilities ``x`` (B, ..., C), the outputs of a `Softmax`.

    Targets are as for `SoftmaxCrossEntropy`, which is more accurate if the scores before the
    softmax are available: a probability that float32 rounds to 0 has no gradient here. Rows of
    ``x`` must sum to 1 within 0.001. In logarithms and quotients x is at least the smallest normal
    number of the dtype. Gradient of a position: −t / x.

    Args:
        label_smoothing: s in [0, 1), replaces t by (1 − s) t + s / C (Szegedy et al. 2016).
        ignore_index: An integer label (PyTorch: -100) or None. Positions with this label have no
            loss and no gradient, and the mean is over the others.
        reduction: "mean" or "sum", see `Loss`.
        class_weight: One factor w_j ≥ 0 of t_j for every class, after the smoothing. The mean
            divides by positions; PyTorch's divides by weights.

    Examples:
        >>> x, y = np.array([[0.9, 0.1]]), np.array([0])
        >>> round(singanet.loss.CategoricalCrossEntropy().evaluate(False, x, y), 4)
        0.1054
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
    """−Σ_j (1 − p_j)^γ t_j log p_j for p = softmax(x), ``x`` (B, ..., C).

    Positions whose output is sure count less. Targets are as for `SoftmaxCrossEntropy`. Lin et
    al., 2017.

    Args:
        gamma: γ, at least 0; 0 gives `SoftmaxCrossEntropy`.
        label_smoothing: s in [0, 1), replaces t by (1 − s) t + s / C (Szegedy et al. 2016).
        ignore_index: An integer label (PyTorch: -100) or None. Positions with this label have no
            loss and no gradient, and the mean is over the others.
        reduction: "mean" or "sum", see `Loss`.
        class_weight: α, one factor ≥ 0 for every class. Keras' CategoricalFocalCrossentropy
            weighs all classes by 0.25.

    Examples:
        >>> x, y = np.array([[2.0, 0.0]]), np.array([0])
        >>> round(singanet.loss.SoftmaxFocal(gamma=2.0).evaluate(False, x, y), 4)
        0.0018
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

    def compute(self, ops: Ops, x: Array, y: Array) -> tuple[Array, Any]:
        target, mask = self._targets(ops, x, y)
        rows = _counted(ops, self._rows(x), mask)
        # A class with target 0 has no loss, even if its score is -inf.
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
    """Return ``rows`` with zeros for ignored rows, which may contain NaN."""
    return rows if mask is None else ops.where(mask[:, None], rows, 0)


def _is_soft(x: Array, y: Array) -> bool:
    """Return True if the targets ``y`` have the shape of ``x``, and False for labels."""
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


def _expect_shares(x: Array) -> None:
    if x.size and (float(x.min()) < 0 or float(x.max()) > 1):
        raise DataError(
            "BinaryCrossEntropy",
            expected="outputs from 0 to 1",
            received=f"outputs from {float(x.min()):g} to {float(x.max()):g}",
            advice="end the net in a sigmoid, or use SigmoidCrossEntropy on scores",
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
        received=f"another row at index {wrong}",
        advice="give every sample at least one class, or pass integer labels",
    )


class Hinge(Loss):
    """max(0, margin − s x) for scores ``x`` (B, ...), s = ±1; a position is an element.

    The targets ``y`` have the shape of ``x`` and are −1 and 1, or 0 and 1; 0 means −1. Gradient of
    an element: −s if s x < margin, else 0.

    Args:
        margin: The margin, above 0.
        squared: If True, the loss is squared.
        reduction: "mean" or "sum", see `Loss`.

    Examples:
        >>> x, y = np.array([[2.0], [0.5]]), np.array([[1], [1]])
        >>> round(singanet.loss.Hinge().evaluate(False, x, y), 4)
        0.25
    """

    def __init__(self, margin: float = 1.0, squared: bool = False, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.margin = checked_positive("Hinge(margin=)", margin)
        self.squared = bool(squared)

    def count(self, x: Array, y: Array) -> float:
        """Elements."""
        return x.size

    def compute(self, ops: Ops, x: Array, y: Array) -> tuple[Array, Any]:
        y = real_targets("Hinge", x, y)
        ops.check(_expect_signs, y)
        sign = ops.where(y > 0, 1, -1).astype(x.dtype)
        short = ops.maximum(self.margin - sign * x, 0)
        if self.squared:
            return short * short, -2 * sign * short
        return short, -sign * (short > 0)

    def gradient(self, ops: Ops, saved: Any) -> Array:
        return saved


class KLDivergence(Loss):
    """Σ_j t_j (log t_j − log softmax(x)_j) for scores ``x`` and probabilities ``t`` (B, ..., C).

    A position is one row of C, so that the mean is over rows, as PyTorch's ``"batchmean"``;
    PyTorch's "mean" divides by C, too. 0 log 0 is 0. Rows of ``t`` must be non-negative and sum to
    1 within 0.001. The loss is the cross-entropy minus the entropy of the targets, and 0 for equal
    distributions. Gradient of a position: softmax(x) − t.

    Args:
        reduction: "mean" or "sum", see `Loss`.

    Examples:
        >>> x, y = np.array([[0.0, 0.0]]), np.array([[0.9, 0.1]])
        >>> round(singanet.loss.KLDivergence().evaluate(False, x, y), 4)
        0.3681
    """

    link_name = "softmax"

    def count(self, x: Array, y: Array) -> float:
        """Rows."""
        return prod(x.shape[:-1])

    def compute(self, ops: Ops, x: Array, y: Array) -> tuple[Array, Any]:
        target = real_targets("KLDivergence", x, y)
        if x.ndim < 2 or x.shape[-1] == 0:
            raise DataError(
                "KLDivergence",
                expected="outputs of shape (batch, ..., classes)",
                received=f"outputs of shape {x.shape}",
                advice="end the net in a layer with one output for every class",
            )
        rows, target = x.reshape(-1, x.shape[-1]), target.reshape(-1, x.shape[-1])
        ops.check(_expect_distributions, target)
        losses, p = ops.softmax_cross_entropy_soft(rows, target)
        own = ops.where(target > 0, target, 1)
        losses += (target * ops.log(own)).sum(axis=1)
        return losses.reshape(x.shape[:-1]), (x.shape, p, target)

    def gradient(self, ops: Ops, saved: Any) -> Array:
        shape, p, target = saved
        p -= target
        return p.reshape(shape)


def _expect_signs(y: Array) -> None:
    wrong = (y != 1) & (y != 0) & (y != -1)
    if bool(wrong.any()):
        raise DataError(
            "Hinge",
            expected="targets among -1, 0 and 1",
            received=f"{float(y[wrong][0]):g}",
            advice="pass -1 or 0 for no and 1 for yes",
        )


def _expect_distributions(target: Array) -> None:
    off = abs(target.sum(axis=1) - 1.0)
    # Negated, so that NaN is refused, too.
    if target.size and not (float(target.min()) >= 0 and float(off.max()) <= 1e-3):
        wrong = int((~((target >= 0).all(axis=1) & (off <= 1e-3))).argmax())
        raise DataError(
            "KLDivergence",
            expected="target rows that are distributions",
            received=f"a row with sum {float(target[wrong].sum()):g} at index {wrong}",
            advice="divide each row by its sum",
        )
