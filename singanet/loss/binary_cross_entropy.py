"""Binary and multi-label cross-entropy, of scores and of probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from singanet.errors import ArgumentError, DataError, ShapeError
from singanet.loss.loss import Loss
from singanet.loss.targets import checked_gamma, checked_smoothing, unit_targets
from singanet.ops import Ops, ops_for
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
        """``y``, smoothed."""
        y = unit_targets(type(self).__name__, ops, x, y)
        smoothing = self.label_smoothing
        return y * (1.0 - smoothing) + 0.5 * smoothing if smoothing else y


class SigmoidCrossEntropy(_TwoTerms):
    """−y log σ(x) − (1 − y) log(1 − σ(x)) for scores ``x`` and targets ``y`` in [0, 1].

    Both have one shape (B, ...): (B,) or (B, 1) for one yes-or-no question, (B, C) for C labels;
    a position is an element. ``pos_weight`` multiplies the first term and ``class_weight`` both;
    each is a number or one for every class (the last axis). ``label_smoothing`` s replaces y by
    (1 − s) y + s / 2. Computed from the scores without
    overflow, so SINGA's ε is not needed. Gradient of an element: σ(x) − y, weighted.
    """

    link_name = "sigmoid"

    def link(self, x: Array) -> Array:
        """σ(x)."""
        return ops_for(x).sigmoid(x)

    def compute(self, ops: Ops, x: Array, y: Array) -> tuple[Array, Any]:
        y = self._targets(ops, x, y)
        if self._weights is None:
            return ops.sigmoid_cross_entropy(x, y), (x, y, None, None)
        # w (p y softplus(-x) + (1 - y) softplus(x)) with the two terms apart.
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
    """−y log x − (1 − y) log(1 − x) for probabilities ``x``, which a last sigmoid yields.

    Shapes, weights and smoothing are as for `SigmoidCrossEntropy`, which takes the scores before
    the sigmoid: if scores are at hand, it is the better choice. Logarithms are of numbers no
    smaller than the type's smallest normal one, and the gradient keeps x as far as the type's
    resolution from 0 and 1.
    """

    def compute(self, ops: Ops, x: Array, y: Array) -> tuple[Array, Any]:
        y = self._targets(ops, x, y)
        if x.size and (float(x.min()) < 0 or float(x.max()) > 1):
            raise DataError(
                "BinaryCrossEntropy",
                expected="outputs from 0 to 1",
                received=f"outputs from {float(x.min()):g} to {float(x.max()):g}",
                advice="end the net in a sigmoid, or use SigmoidCrossEntropy on scores",
            )
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

    m = y (1 − p) + (1 − y) p, p = σ(x), is how far off the output is, so that what is sure and
    right counts little; ``alpha`` weighs yes and 1 − alpha no: a = y α + (1 − y)(1 − α), or 1
    without it. Both have one shape (B, ...); a position is an element. Lin et al., 2017.
    """

    link_name = "sigmoid"

    def __init__(
        self, gamma: float = 2.0, alpha: float | None = None, reduction: str = "mean"
    ) -> None:
        super().__init__(reduction)
        self.gamma = checked_gamma("SigmoidFocal", gamma)
        number = isinstance(alpha, (int, float)) and not isinstance(alpha, bool)
        if alpha is not None and not (number and 0 < alpha < 1):
            raise ArgumentError(
                "SigmoidFocal(alpha=)",
                expected="a number between 0 and 1, or None",
                received=repr(alpha),
                advice="0.25 is usual where most answers are no",
            )
        self.alpha = alpha

    def link(self, x: Array) -> Array:
        """σ(x)."""
        return ops_for(x).sigmoid(x)

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
        # The derivative of off by x is (1 - 2 y) p (1 - p), which is 0 where off may be.
        info = np.finfo(p.dtype)
        bend = self.gamma / ops.maximum(off, float(info.tiny)) * (1 - 2 * y) * p * (1 - p)
        return factor * (p - y + bend * ops.minimum(each, float(info.max)))


def _share(ops: Ops, weight: Array, losses: Array) -> Array:
    """``weight`` times ``losses``, and 0 where the weight is, of whatever loss."""
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


def _term_weights(where: str, positive: Weight, both: Weight) -> _TermWeights | None:
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
    return _TermWeights(where, arrays[0], arrays[1])
