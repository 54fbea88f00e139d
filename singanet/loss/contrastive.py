"""Losses of pairs among the other pairs of a batch."""

from __future__ import annotations

from typing import Any

from singanet.errors import DataError, ShapeError
from singanet.loss.loss import Loss, checked_positive, real_targets
from singanet.ops import Ops
from singanet.types import Array

_TINY = 1e-12
"""The least squared length of a divisor, as in `CosineSimilarity`."""


class MultipleNegativesRanking(Loss):
    """The cross-entropy of finding the key of each query among all keys of the batch.

    Outputs ``x`` (B, 2, D) are a query and its key; in (B, 2 + H, D) H hard negatives follow, which
    no query should find. The loss of query i is log Σ_k exp(s cos(q_i, k)) − s cos(q_i, k_i), with
    k over the keys and hard negatives of all samples. The targets ``y`` (B,) are weights of the
    pairs, usually ones; the key of a pair of weight 0 is a negative all the same. A net that embeds
    one item is called on each by `TimeDistributed`. Negatives are of the batch that is computed at
    a time, of the own rank where several train; a ``memory_budget`` splits no batch. Henderson et
    al., 2017.

    Args:
        scale: s, above 0, the factor of the cosines.
        reduction: "mean" or "sum", see `Loss`.

    Examples:
        >>> x = np.array([[[1.0, 0.0], [1.0, 0.0]], [[0.0, 1.0], [0.0, 1.0]]])
        >>> loss = singanet.loss.MultipleNegativesRanking(scale=2.0)
        >>> round(loss.evaluate(False, x, np.ones(2)), 4)
        0.1269
    """

    _compares_samples = True

    def __init__(self, scale: float = 20.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.scale = checked_positive("MultipleNegativesRanking(scale=)", scale)

    def compute(self, ops: Ops, x: Array, y: Array) -> tuple[Array, Any]:
        kind = type(self).__name__
        if x.ndim != 3 or x.shape[1] < 2:
            raise ShapeError(
                kind,
                expected="outputs of shape (batch, 2, features): query, key; more are negatives",
                received=f"outputs of shape {x.shape}",
                advice="join two towers by Concat and Reshape, or share one by TimeDistributed",
            )
        y = real_targets(kind, x[:, 0, 0], y)
        ops.check(_ExpectWeights(kind), y)
        length = ops.sqrt(ops.maximum((x * x).sum(axis=2, keepdims=True), _TINY))
        units = x / length
        # First the keys, so that the key of query i is row i.
        keys = ops.concat([units[:, k] for k in range(1, x.shape[1])], 0)
        scores = ops.matmul(units[:, 0], keys.T)
        scores *= self.scale
        if not len(x):
            # Rows of no scores have no softmax.
            return y + 0, (units, length, keys, scores, y)
        losses, p = ops.softmax_cross_entropy(scores, ops.xp.arange(len(x)))
        return losses * y, (units, length, keys, p, y)

    def gradient(self, ops: Ops, saved: Any, factor: Any = 1.0) -> Array:
        units, length, keys, p, y = saved
        batch, towers, features = units.shape
        if batch:
            p = ops.softmax_cross_entropy_backward(p, ops.xp.arange(batch))
        p *= (y * factor * self.scale)[:, None]
        of_queries = ops.matmul(p, keys)
        of_keys = ops.matmul(p.T, units[:, 0]).reshape(towers - 1, batch, features)
        slopes = ops.concat([of_queries[None], of_keys], 0).transpose(1, 0, 2)
        return (slopes - units * (units * slopes).sum(axis=2, keepdims=True)) / length

    def _weighed_gradient(self, ops: Ops, saved: Any, factor: Any) -> Array:
        # A sample's loss depends on the other samples: its factor belongs to the loss.
        return self.gradient(ops, saved[0], factor)


class InfoNCE(MultipleNegativesRanking):
    """`MultipleNegativesRanking` with ``scale`` 1 / τ: outputs (B, 2, D) are two views of a sample.

    The loss of sample i is log Σ_k exp(cos(q_i, k) / τ) − cos(q_i, k_i) / τ, from query to key.
    Targets, hard negatives and the batch are as there. van den Oord et al., 2018.

    Args:
        temperature: τ, above 0; 0.07 to 0.5 are usual.
        reduction: "mean" or "sum", see `Loss`.

    Examples:
        >>> x = np.array([[[1.0, 0.0], [1.0, 0.0]], [[0.0, 1.0], [0.0, 1.0]]])
        >>> round(singanet.loss.InfoNCE(temperature=0.5).evaluate(False, x, np.ones(2)), 4)
        0.1269
    """

    def __init__(self, temperature: float = 0.1, reduction: str = "mean") -> None:
        self.temperature = checked_positive("InfoNCE(temperature=)", temperature)
        super().__init__(1.0 / self.temperature, reduction)


class _ExpectWeights:
    """A check that targets are weights, not all 0: these may be meant as no targets."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __call__(self, y: Array) -> None:
        # Negated, so that NaN is refused, too.
        if y.size and not (float(y.min()) >= 0 and float(y.max()) > 0):
            raise DataError(
                self._kind,
                expected="targets of at least 0, not all 0: the weights of the pairs",
                received=f"targets from {float(y.min()):g} to {float(y.max()):g}",
                advice="pass numpy.ones(len(x))",
            )
