"""What the loss of a batch counts: how its gradients weigh beside those of other batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.loss.loss import counted
from singanet.loss.multi_loss import MultiLoss

if TYPE_CHECKING:
    from singanet.engine.plan import Plan
    from singanet.optimizer.chain import UpdateChain
    from singanet.types import Array


@dataclass(frozen=True, slots=True)
class Counts:
    """The ``samples`` of a batch, and by output the positions that the mean of its loss is over.

    The gradients of ``sums`` are those of sums. Where outputs count ``apart``, one weight is not
    right for all of them: a batch weighs by its samples then, and each output has a share.
    """

    samples: float
    by_output: Mapping[str, float]
    sums: frozenset[str] = frozenset()
    apart: bool = False

    @classmethod
    def of(cls, loss: Any, outputs: Any, y: Any) -> Counts:
        """What ``loss`` counts of ``outputs`` with targets ``y``."""
        by_output = counted(loss, outputs, y)
        several = isinstance(outputs, Mapping)
        samples = float(len(next(iter(outputs.values())) if several else outputs))
        losses = loss.losses if isinstance(loss, MultiLoss) else dict.fromkeys(by_output, loss)
        sums = [n for n, own in losses.items() if getattr(own, "reduction", "mean") == "sum"]
        return cls(samples, by_output, frozenset(sums), getattr(loss, "counts_apart", False))

    def __add__(self, other: Counts) -> Counts:
        return self.with_numbers(self.numbers + other.numbers)

    def of_all(self, chain: UpdateChain, synchronized: bool) -> Counts:
        """The counts of the batch of which all processes of ``chain`` have a part; all come here.

        These where gradients are sums, or each process updates by its own. Layers that are
        ``synchronized`` make one batch of theirs all the same.
        """
        reducer = next(iter(chain.reducers), None)
        if reducer is None or reducer.alone or self.weight is None:
            return self
        if reducer.by_itself and not synchronized:
            return self
        return self.with_numbers(reducer.totals(self.numbers))

    @property
    def numbers(self) -> Array:
        """The samples and the counts, which add up over the parts of a batch."""
        return np.array([self.samples, *self.by_output.values()], np.float64)

    def with_numbers(self, numbers: Array) -> Counts:
        """Others of the same outputs."""
        samples, *counts = numbers.tolist()
        return replace(
            self, samples=samples, by_output=dict(zip(self.by_output, counts, strict=True))
        )

    @property
    def weight(self) -> float | None:
        """The weight of the batch's gradients beside those of others; None for sums."""
        if len(self.sums) == len(self.by_output):
            return None
        counts = {*self.by_output.values()}
        return self.samples if self.apart or len(counts) > 1 else counts.pop()

    def weight_in(self, whole: Counts) -> float | None:
        """The weight as a part of ``whole``, once gradients have their `shares`.

        It is above 0 wherever there are samples, as others' losses may depend on them.
        """
        weight = whole.weight
        return None if weight is None else self.samples * weight / (whole.samples or 1.0)

    def shares(self, whole: Counts) -> dict[str, float]:
        """The factors of the outputs' gradients as a part of ``whole``.

        Weighed by `weight_in`, the gradients of all parts then have those of the whole as mean.
        """
        rest = whole.samples / self.samples if self.samples else 0.0
        return {
            name: rest * (1.0 if name in self.sums else count / (whole.by_output[name] or 1.0))
            for name, count in self.by_output.items()
        }

    def losses(self, loss: Any, mean: float) -> dict[str, tuple[float, float]]:
        """By output Σ of the losses and their count, where ``loss`` was last told as ``mean``."""
        parts = {"": mean}
        if isinstance(loss, MultiLoss):
            weights = loss.weights
            parts = {
                n: float(p.mean()) * weights[n] if p.size else 0.0 for n, p in loss.parts.items()
            }
        return {
            n: (p * count if (count := self.by_output[n]) else 0.0, count) for n, p in parts.items()
        }


def tells(plan: Plan, loss: Any) -> bool:
    """Whether outputs' losses are means over numbers that parts of a batch have to tell.

    Sequences are as long as the longest of each part.
    """
    if not isinstance(loss, MultiLoss) or len(loss.losses) < 2 or loss.reduction == "sum":
        return False
    slots = plan.slots_of(loss.losses)
    return loss.counts_apart or any(-1 in plan.slot_shapes[slot] for slot in slots)
