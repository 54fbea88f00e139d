"""How much the gradients of a batch weigh beside other batches: what its loss counts."""

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
    """The ``samples`` of a batch, and by output the number of positions that have a loss.

    The losses of the outputs in ``sums`` are sums, the others means over these positions. If
    outputs count ``apart``, no one weight is right for all of them: the batch weighs by its
    samples then, and each output has a share.
    """

    samples: float
    by_output: Mapping[str, float]
    sums: frozenset[str] = frozenset()
    apart: bool = False

    @classmethod
    def of(cls, loss: Any, outputs: Any, y: Any) -> Counts:
        """The counts of ``loss`` for ``outputs`` with targets ``y``."""
        by_output = counted(loss, outputs, y)
        several = isinstance(outputs, Mapping)
        samples = float(len(next(iter(outputs.values())) if several else outputs))
        losses = loss.losses if isinstance(loss, MultiLoss) else dict.fromkeys(by_output, loss)
        sums = [n for n, own in losses.items() if getattr(own, "reduction", "mean") == "sum"]
        return cls(samples, by_output, frozenset(sums), getattr(loss, "counts_apart", False))

    def __add__(self, other: Counts) -> Counts:
        return self.with_numbers(self.numbers + other.numbers)

    def of_all(self, chain: UpdateChain, synchronized: bool) -> Counts:
        """The counts of the batch that the processes of ``chain`` share; all of them call it.

        Returns these counts if gradients are sums, or if each process updates by itself and no
        layer is ``synchronized``.
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
        """Counts of the same outputs, with other ``numbers``."""
        samples, *counts = numbers.tolist()
        return replace(
            self, samples=samples, by_output=dict(zip(self.by_output, counts, strict=True))
        )

    @property
    def weight(self) -> float | None:
        """The weight of the batch's gradients beside other batches; None for sums."""
        if len(self.sums) == len(self.by_output):
            return None
        counts = {*self.by_output.values()}
        return self.samples if self.apart or len(counts) > 1 else counts.pop()

    def weight_in(self, whole: Counts) -> float | None:
        """The weight as a part of ``whole``, for gradients multiplied by their `shares`.

        It is above 0 if there are samples, as losses of other parts may depend on them.
        """
        weight = whole.weight
        return None if weight is None else self.samples * weight / (whole.samples or 1.0)

    def shares(self, whole: Counts) -> dict[str, float]:
        """The factors of the outputs' gradients as a part of ``whole``.

        The mean of all parts' gradients, weighed by `weight_in`, is then the gradient of the whole.
        """
        rest = whole.samples / self.samples if self.samples else 0.0
        return {
            name: rest * (1.0 if name in self.sums else count / (whole.by_output[name] or 1.0))
            for name, count in self.by_output.items()
        }

    def losses(self, loss: Any, mean: float) -> dict[str, tuple[float, float]]:
        """By output the sum of its losses and their count; ``mean`` is the loss of the batch."""
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
    """Whether parts of a batch have to exchange the counts of several outputs' losses.

    Outputs over sequences do, as each part is as long as its longest sequence.
    """
    if not isinstance(loss, MultiLoss) or len(loss.losses) < 2 or loss.reduction == "sum":
        return False
    slots = plan.slots_of(loss.losses)
    return loss.counts_apart or any(-1 in plan.slot_shapes[slot] for slot in slots)
