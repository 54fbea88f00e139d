"""How far workers are, and how far ahead of the slowest one may be."""

from __future__ import annotations


class WorkerProgress:
    """Steps that each worker has finished; nobody reads for a step too far ahead.

    With ``staleness`` k a worker begins step s, counted from 0, once all others have finished
    s − k; None lets everybody go on. Those that are ``away`` have no batches left, and are not
    waited for until all are: then all are back, where the furthest was.
    """

    def __init__(self, workers: int, staleness: int | None) -> None:
        self.finished = [0] * workers
        self.staleness = staleness
        self.away: set[int] = set()
        self.ahead = 0

    @property
    def least(self) -> int:
        """The number of steps that all present workers have finished."""
        if not self.away:
            return min(self.finished)
        there = [n for worker, n in enumerate(self.finished) if worker not in self.away]
        return min(there) if there else max(self.finished)

    def allows(self, worker: int, need: int) -> bool:
        """Whether ``worker`` may read now for step ``need``, which it has to have come to."""
        if self.finished[worker] < need:
            return False
        lead = need - self.least
        if self.staleness is not None and lead > self.staleness:
            return False
        self.ahead = max(self.ahead, lead)
        return True

    def finish(self, worker: int) -> None:
        """``worker`` has finished one step more."""
        self.finished[worker] += 1
        self.away.discard(worker)

    def leave(self, worker: int) -> bool:
        """``worker`` has no batch left; whether that is so of all, who are back then."""
        self.away.add(worker)
        if len(self.away) < len(self.finished):
            return False
        self.finished = [max(self.finished)] * len(self.finished)
        self.away.clear()
        return True
