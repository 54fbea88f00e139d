"""The exchange that opens a step: what each rank is about to do, and its gradients' weight."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from singanet.errors import RankError
from singanet.parallel.communicators.communicator import Communicator, Request
from singanet.types import Array

_KINDS = ("agree", "count", "preview", "step")


@dataclass(frozen=True, slots=True)
class Said:
    """What all ranks are about to do: one of `_KINDS`, or "" if none has a batch.

    This rank's gradients weigh its count times ``factor``. If all counts are equal (``even``),
    each weight is 1, which saves a product.
    """

    kind: str
    refused: bool
    even: bool
    factor: float


class Announcement:
    """The exchange under way; ranks without a batch start it too, with no kind."""

    def __init__(self, comm: Communicator, numbers: Array) -> None:
        self._comm = comm
        self._request: Request = comm.start_all_reduce(numbers, what="the start of a step")

    def test(self) -> bool:
        """Whether all have told."""
        return self._request.test()

    def wait(self) -> Said:
        """The result. Errors: `RankError` if ranks contradict each other."""
        numbers = self._request.wait()
        came = [(k, int(n)) for k, n in zip(_KINDS, numbers, strict=False) if n]
        refused, summed, *weights = numbers[len(_KINDS) :].tolist()
        ranks = sum(n for _, n in came)
        if len(came) > 1 or summed not in (0, ranks):
            told = " and ".join(f"{n} for {kind!r}" for kind, n in came)
            raise RankError(
                f"rank {self._comm.rank} of {self._comm.size}, step {self._comm.step}",
                expected="all ranks at the same point of a step, with losses reduced alike",
                received=f"{told}, {int(summed)} with losses that are sums",
                advice="let all ranks run the same code with the same arguments",
            )
        if came and came[0][0] == "agree" and len({n for n in weights if n}) > 1:
            left = [int(n) for n in weights]
            raise RankError(
                f"rank {self._comm.rank} of {self._comm.size}, step {self._comm.step}",
                expected="as many micro-batches an update on all ranks, in mixed precision",
                received=f"{left} left of each rank's",
                advice="accumulate alike on all ranks; one without samples walks empty batches",
            )
        even = not summed and len(set(weights)) == 1 and weights[0] > 0
        total = 1.0 if summed else float(len(weights)) if even else sum(weights)
        # Where nothing counts, sums are of zeros.
        factor = 1.0 / total if total else 1.0
        return Said(came[0][0] if came else "", bool(refused), even, factor)


def announced(
    comm: Communicator, kind: str, count: float | None = 0.0, refused: bool = False
) -> Announcement:
    """Tell the others what this rank is about to do: one of `_KINDS`, or "" without a batch.

    ``count`` is the weight of its gradients, None for sums; for "agree" it is the number of
    micro-batches left of the update, this one included.
    """
    came = [float(kind == each) for each in _KINDS]
    weights = [0.0] * comm.size
    weights[comm.rank] = count or 0.0
    return Announcement(comm, np.array([*came, refused, count is None, *weights]))
