"""The metric of preferences between answers."""

from __future__ import annotations

import numpy as np

from singanet.errors import ArgumentError, brief, did_you_mean, one_of
from singanet.loss.preference import KTO, PreferenceLoss
from singanet.metric.metric import Metric
from singanet.types import Array

_KINDS = ("chosen", "rejected", "margin", "accuracy")


class Reward(Metric):
    """The mean reward of answers, by the formula of a loss of preferences such as `DPO`.

    Args:
        loss: A `DPO`, `ORPO`, `KTO` or `RewardRanking`, which computes rewards from outputs and
            targets.
        of: "chosen" or "rejected" for the mean reward of these answers, "margin" for the difference
            of both means, or "accuracy" for the share of pairs in which the chosen answer has the
            higher reward.

    Examples:
        >>> x, y = np.array([[-10.0, -14.0]]), np.array([[-12.0, -12.0]])
        >>> singanet.metric.Reward(singanet.loss.DPO(beta=0.5), "margin").evaluate(x, y)
        2.0
    """

    better = "max"
    gathered = ("samples", "_sums", "_counts")

    def __init__(self, loss: PreferenceLoss, of: str = "margin") -> None:
        if not isinstance(loss, PreferenceLoss):
            raise ArgumentError(
                "Reward(loss=)",
                expected="a loss of preferences, such as DPO()",
                received=brief(loss)[:60],
                advice="pass the loss of the net",
            )
        if of not in _KINDS:
            raise ArgumentError(
                "Reward(of=)",
                expected=one_of(_KINDS),
                received=brief(of)[:60],
                advice=did_you_mean(str(of), _KINDS, "omit it for the margin"),
            )
        self.loss, self.of = loss, of
        super().__init__()

    @classmethod
    def each(cls, loss: PreferenceLoss) -> dict[str, Reward]:
        """Return the metrics for ``loss``, by their names in a history.

        `KTO` has no pairs, and no "reward_accuracy".
        """
        kinds = _KINDS[: 3 if isinstance(loss, KTO) else 4]
        names = (f"{of}_reward" if of in _KINDS[:2] else f"reward_{of}" for of in kinds)
        return {name: cls(loss, of) for name, of in zip(names, kinds, strict=True)}

    def reset(self) -> None:
        """Reset the state."""
        self.samples = 0
        # Weighted sums of the rewards of chosen and rejected answers, and sums of the weights.
        self._sums, self._counts = np.zeros(2), np.zeros(2)

    def update(self, x: Array, y: Array, weight: Array | None = None) -> None:
        """Add a batch; with weights the means are Σ w r / Σ w."""
        ops, x, y = self._outputs(x, y)
        found, there = self.loss.rewards(ops, x, y)
        found = found.astype("float64")
        if self.of == "accuracy":
            right = (found[:, :1] > found[:, 1:]).astype("float64")
            found = ops.concat([right, right], 1)
            there = None if there is None else there & there[:, ::-1]
        counts = ops.xp.ones(found.shape) if there is None else there.astype("float64")
        weights = self._weights(ops, weight, x.shape[:1])
        if weights is not None:
            counts = counts * weights[:, None]
        self._sums = self._sums + ops.host((found * counts).sum(axis=0))
        self._counts = self._counts + ops.host(counts.sum(axis=0))
        self.samples += len(x)

    def compute(self) -> float:
        """Return the measure; NaN without an answer of its kind."""
        chosen, rejected = np.divide(
            self._sums, self._counts, out=np.full(2, np.nan), where=self._counts > 0
        ).tolist()
        return {"rejected": rejected, "margin": chosen - rejected}.get(self.of, chosen)
