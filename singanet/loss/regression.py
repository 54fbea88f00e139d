"""Losses for regression and similarity."""

from __future__ import annotations

from math import prod
from typing import Any

from singanet.base.arguments import checked_number
from singanet.errors import DataError, ShapeError
from singanet.loss.loss import Loss, checked_positive, real_targets, unit_targets
from singanet.ops import Ops, ops_for
from singanet.types import Array


class SquaredError(Loss):
    """½ (x − y)² for ``x`` and ``y`` of one shape (B, ...); a position is an element.

    A sample's value is the mean over its elements, so that `evaluate` is SINGA's
    Σ ½ (x − y)² / number of elements, and the gradient is (x − y) / number of elements;
    ``reduction="sum"`` gives SINGA's gradient x − y.

    Args:
        reduction: "mean" or "sum", see `Loss`.

    Examples:
        >>> x, y = np.array([[1.0, 3.0]]), np.array([[0.0, 0.0]])
        >>> round(singanet.loss.SquaredError().evaluate(False, x, y), 4)
        2.5
    """

    def count(self, x: Array, y: Array) -> float:
        """Elements."""
        return x.size

    def compute(self, ops: Ops, x: Array, y: Array) -> tuple[Array, Any]:
        difference = ops.subtract(x, real_targets("SquaredError", x, y))
        losses = ops.multiply(difference, difference)
        losses *= 0.5
        return losses, difference

    def gradient(self, ops: Ops, saved: Any) -> Array:
        return saved


class MeanSquaredError(Loss):
    """(x − y)² for ``x`` and ``y`` of one shape (B, ...); a position is an element.

    It is twice `SquaredError`, which has SINGA's factor ½.

    Args:
        reduction: "mean" or "sum", see `Loss`.

    Examples:
        >>> x, y = np.array([[1.0, 3.0]]), np.array([[0.0, 0.0]])
        >>> round(singanet.loss.MeanSquaredError().evaluate(False, x, y), 4)
        5.0
    """

    def count(self, x: Array, y: Array) -> float:
        """Elements."""
        return x.size

    def compute(self, ops: Ops, x: Array, y: Array) -> tuple[Array, Any]:
        difference = ops.subtract(x, real_targets("MeanSquaredError", x, y))
        return ops.multiply(difference, difference), difference

    def gradient(self, ops: Ops, saved: Any) -> Array:
        return saved * 2


class MeanAbsoluteError(Loss):
    """|x − y| for ``x`` and ``y`` of one shape (B, ...); a position is an element.

    Gradient of an element: sign(x − y), 0 if they are equal.

    Args:
        reduction: "mean" or "sum", see `Loss`.

    Examples:
        >>> x, y = np.array([[1.0, 3.0]]), np.array([[0.0, 0.0]])
        >>> round(singanet.loss.MeanAbsoluteError().evaluate(False, x, y), 4)
        2.0
    """

    def count(self, x: Array, y: Array) -> float:
        """Elements."""
        return x.size

    def compute(self, ops: Ops, x: Array, y: Array) -> tuple[Array, Any]:
        difference = ops.subtract(x, real_targets("MeanAbsoluteError", x, y))
        return ops.absolute(difference), difference

    def gradient(self, ops: Ops, saved: Any) -> Array:
        return ops.sign(saved)


class Huber(Loss):
    """½ d² if |d| ≤ δ, else δ (|d| − ½ δ), d = x − y (Huber 1964); a position is an element.

    ``x`` and ``y`` have one shape (B, ...). Gradient of an element: d clipped to [−δ, δ].

    Args:
        delta: δ, above 0.
        reduction: "mean" or "sum", see `Loss`.

    Examples:
        >>> x, y = np.array([[0.5, 3.0]]), np.array([[0.0, 0.0]])
        >>> round(singanet.loss.Huber(delta=1.0).evaluate(False, x, y), 4)
        1.3125
    """

    def __init__(self, delta: float = 1.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.delta = checked_positive(f"{type(self).__name__}(delta=)", delta)

    def count(self, x: Array, y: Array) -> float:
        """Elements."""
        return x.size

    def compute(self, ops: Ops, x: Array, y: Array) -> tuple[Array, Any]:
        difference = ops.subtract(x, real_targets(type(self).__name__, x, y))
        slope = ops.maximum(ops.minimum(difference, self.delta), -self.delta)
        # With s the slope, both branches are s (d - s / 2).
        losses = ops.multiply(slope, difference - 0.5 * slope)
        return losses, slope

    def gradient(self, ops: Ops, saved: Any) -> Array:
        return saved


class SmoothL1(Huber):
    """½ d² / β if |d| < β, else |d| − ½ β, d = x − y: `Huber`'s loss with δ = β, over β.

    Gradient of an element: d / β clipped to [−1, 1]. Girshick, 2015.

    Args:
        beta: β, above 0.
        reduction: "mean" or "sum", see `Loss`.

    Examples:
        >>> x, y = np.array([[0.5, 3.0]]), np.array([[0.0, 0.0]])
        >>> round(singanet.loss.SmoothL1(beta=1.0).evaluate(False, x, y), 4)
        1.3125
    """

    def __init__(self, beta: float = 1.0, reduction: str = "mean") -> None:
        super().__init__(checked_positive("SmoothL1(beta=)", beta), reduction)

    def compute(self, ops: Ops, x: Array, y: Array) -> tuple[Array, Any]:
        losses, slope = super().compute(ops, x, y)
        return losses / self.delta, slope / self.delta


class Poisson(Loss):
    """exp(x) − y x for the logarithm ``x`` of a rate and counts ``y``; a position is an element.

    Both have one shape (B, ...). Counts may be fractions, but not negative. The constant log y!
    of −log P(y) is omitted. `predict` returns the rates. Gradient: exp(x) − y.

    Args:
        reduction: "mean" or "sum", see `Loss`.

    Examples:
        >>> x, y = np.array([[0.0]]), np.array([[2.0]])
        >>> round(singanet.loss.Poisson().evaluate(False, x, y), 4)
        1.0
    """

    def link(self, x: Array) -> Array:
        """exp(x)."""
        return ops_for(x).exp(x)

    def count(self, x: Array, y: Array) -> float:
        """Elements."""
        return x.size

    def compute(self, ops: Ops, x: Array, y: Array) -> tuple[Array, Any]:
        y = real_targets("Poisson", x, y)
        ops.check(_expect_counts, y)
        rate = ops.exp(x)
        return rate - ops.multiply(x, y), rate - y

    def gradient(self, ops: Ops, saved: Any) -> Array:
        return saved


def _expect_counts(y: Array) -> None:
    # Negated, so that NaN is refused, too.
    if y.size and not float(y.min()) >= 0:
        raise DataError(
            "Poisson",
            expected="targets of at least 0",
            received=f"{float(y.min()):g}",
            advice="pass counts",
        )


class GaussianNLL(Loss):
    """The mean of ½ (s + (y − μ)² exp(−s)), for means μ and logarithms s of variances.

    ``x`` is (B, ..., 2 D), the D means and then the D logarithms, and ``y`` (B, ..., D): a
    position is a row. The constant ½ log 2π is omitted. Gradients, over D: (μ − y) exp(−s), and
    ½ (1 − (y − μ)² exp(−s)). Nix and Weigend, 1994.

    Args:
        reduction: "mean" or "sum", see `Loss`.

    Examples:
        >>> x, y = np.array([[1.0, 0.0]]), np.array([[3.0]])
        >>> round(singanet.loss.GaussianNLL().evaluate(False, x, y), 4)
        2.0
    """

    def count(self, x: Array, y: Array) -> float:
        """Rows."""
        return prod(x.shape[:-1])

    def compute(self, ops: Ops, x: Array, y: Array) -> tuple[Array, Any]:
        if x.ndim < 2 or x.shape[-1] % 2 or not x.shape[-1]:
            raise ShapeError(
                "GaussianNLL",
                expected="outputs of shape (batch, ..., 2 D): D means, then D logarithms",
                received=f"outputs of shape {x.shape}",
                advice="end the net in a layer with two outputs for every target",
            )
        half = x.shape[-1] // 2
        mean, log_variance = x[..., :half], x[..., half:]
        off = ops.subtract(mean, real_targets("GaussianNLL", mean, y))
        slope = off * ops.exp(-log_variance)
        squares = off * slope
        losses = 0.5 * (log_variance + squares).mean(axis=-1)
        return losses, (slope / half, (0.5 - 0.5 * squares) / half)

    def gradient(self, ops: Ops, saved: Any) -> Array:
        return ops.concat(list(saved), saved[0].ndim - 1)


_TINY = 1e-12
"""The least squared length of a divisor, as in Keras."""


class CosineSimilarity(Loss):
    """−cos(x, y) for vectors ``x`` and ``y`` (B, ..., D); a position is one vector.

    It is −1 for the same direction, 1 for opposite directions, and 0 if a vector is zero.

    Args:
        reduction: "mean" or "sum", see `Loss`.

    Examples:
        >>> x, y = np.array([[1.0, 0.0]]), np.array([[1.0, 1.0]])
        >>> round(singanet.loss.CosineSimilarity().evaluate(False, x, y), 4)
        -0.7071
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
                advice="end the net in a layer with a vector for every sample",
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


class Tversky(Loss):
    """1 − (tp + ε) / (tp + α fp + β fn + ε) for scores ``x``, p = σ(x), and ``y`` in [0, 1].

    tp = Σ p y, false positives fp = Σ p (1 − y), false negatives fn = Σ (1 − p) y. Both arrays have
    one shape. For images (B, C, ...) a position is a channel of a sample, and the sums are over its
    pixels; for rows (B, D) it is a sample. α = β = ½ gives `Dice`, of twice the ``smooth``. Salehi
    et al., 2017.

    Args:
        alpha: α, the weight of false positives, at least 0.
        beta: β, the weight of false negatives, at least 0; above ½ favours recall.
        smooth: ε, above 0. The loss of an empty channel with p = 0 is 0.
        reduction: "mean" or "sum", see `Loss`.

    Examples:
        >>> x, y = np.array([[9.0, -9.0]]), np.array([[1.0, 1.0]])
        >>> round(singanet.loss.Tversky(alpha=0.3, beta=0.7).evaluate(False, x, y), 4)
        0.2593
    """

    link_name = "sigmoid"
    _hits = 1.0
    """The weight of true positives."""

    def __init__(
        self, alpha: float = 0.5, beta: float = 0.5, smooth: float = 1.0, reduction: str = "mean"
    ) -> None:
        super().__init__(reduction)
        kind, usual = type(self).__name__, "0.3 and 0.7 favour recall, 0.5 and 0.5 are Dice"
        least = "a finite number of at least 0"
        self.alpha = checked_number(f"{kind}(alpha=)", alpha, least, lambda a: a >= 0, usual)
        # With both 0 the loss would be 0 for any outputs.
        least = least if self.alpha else "a finite number above 0, since alpha is 0"
        self.beta = checked_number(
            f"{kind}(beta=)", beta, least, lambda b: b >= 0 and self.alpha + b > 0, usual
        )
        self.smooth = checked_positive(f"{kind}(smooth=)", smooth)

    def count(self, x: Array, y: Array) -> float:
        """Channels of samples, or samples."""
        return prod(x.shape[:2]) if x.ndim > 2 else len(x)

    def compute(self, ops: Ops, x: Array, y: Array) -> tuple[Array, Any]:
        kind = type(self).__name__
        if x.ndim < 2:
            raise ShapeError(
                kind,
                expected="outputs of shape (batch, channels, ...) or (batch, elements)",
                received=f"outputs of shape {x.shape}",
                advice="give the net an output for every pixel",
            )
        y = unit_targets(kind, ops, x, y)
        p = ops.sigmoid(x)
        axes = tuple(range(2, x.ndim)) or (1,)
        # The slope of the divisor by p is the factor of p in it.
        slope = self.alpha + (self._hits - self.alpha - self.beta) * y
        both = self._hits * (p * y).sum(axis=axes, keepdims=True) + self.smooth
        each = (slope * p + self.beta * y).sum(axis=axes, keepdims=True) + self.smooth
        losses = 1 - both / each
        return losses.reshape(x.shape[: len(x.shape) - len(axes)]), (p, y, both, each, slope)

    def gradient(self, ops: Ops, saved: Any) -> Array:
        p, y, both, each, slope = saved
        return (both / each * slope - self._hits * y) / each * p * (1 - p)


class Dice(Tversky):
    """1 − (2 Σ p y + ε) / (Σ p + Σ y + ε) for scores ``x``, p = σ(x), and ``y`` in [0, 1].

    Both have one shape. For images (B, C, ...) a position is a channel of a sample, and the sums
    are over its pixels; for rows (B, D) it is a sample. Milletari et al., 2016.

    Args:
        smooth: ε, above 0. The loss of an empty channel with p = 0 is 0.
        reduction: "mean" or "sum", see `Loss`.

    Examples:
        >>> x, y = np.array([[9.0, -9.0]]), np.array([[1.0, 0.0]])
        >>> round(singanet.loss.Dice().evaluate(False, x, y), 4)
        0.0001
    """

    _hits = 2.0

    def __init__(self, smooth: float = 1.0, reduction: str = "mean") -> None:
        super().__init__(1.0, 1.0, smooth, reduction)


class TripletMargin(Loss):
    """max(0, margin + s (|a − p| − |a − n|)) for vectors a, p, n: ``x`` (B, 3, D).

    The targets ``y`` (B,) name the positive. If y is 1, it is the second vector, as in the usual
    triplet of anchor, positive and negative, and s = 1. If y is −1 or 0, it is the third vector,
    and s = −1. 1e-6 is added to each difference, as in PyTorch. Schroff et al., 2015.

    Args:
        margin: The margin, above 0.
        reduction: "mean" or "sum", see `Loss`.

    Examples:
        >>> x, y = np.array([[[0.0], [0.5], [1.0]]]), np.array([1])
        >>> round(singanet.loss.TripletMargin().evaluate(False, x, y), 4)
        0.5
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
            advice="pass 1 if the second vector is the positive one, as usual",
        )


class MarginRanking(Loss):
    """max(0, margin − y (x₁ − x₂)) for two scores ``x`` (B, 2) and ``y`` (B,); a sample a position.

    If y is 1, the first score should be the higher, if −1, the second. A net that scores one item
    is called on both by `TimeDistributed`.

    Args:
        margin: The margin, at least 0.
        reduction: "mean" or "sum", see `Loss`.

    Examples:
        >>> x, y = np.array([[0.5, 0.2]]), np.array([1])
        >>> round(singanet.loss.MarginRanking(margin=1.0).evaluate(False, x, y), 4)
        0.7
    """

    def __init__(self, margin: float = 0.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        least, usual = "a finite number of at least 0", "0 asks for the order alone, 1 is usual"
        self.margin = checked_number(
            "MarginRanking(margin=)", margin, least, lambda m: m >= 0, usual
        )

    def compute(self, ops: Ops, x: Array, y: Array) -> tuple[Array, Any]:
        if x.ndim != 2 or x.shape[1] != 2:
            raise ShapeError(
                "MarginRanking",
                expected="outputs of shape (batch, 2): the scores of both items",
                received=f"outputs of shape {x.shape}",
                advice="join two scores by Concat, or score both by TimeDistributed and Flatten",
            )
        y = real_targets("MarginRanking", x[:, 0], y)
        ops.check(_expect_order, y)
        losses = ops.maximum(self.margin - y * (x[:, 0] - x[:, 1]), 0)
        return losses, y * (losses > 0)

    def gradient(self, ops: Ops, saved: Any) -> Array:
        return ops.concat([-saved[:, None], saved[:, None]], 1)


def _expect_order(y: Array) -> None:
    wrong = (y != 1) & (y != -1)
    if bool(wrong.any()):
        raise DataError(
            "MarginRanking",
            expected="targets that are 1 or -1",
            received=f"{float(y[wrong][0]):g}",
            advice="pass 1 if the first item is the higher, -1 if the second; leave ties out",
        )
