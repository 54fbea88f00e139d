"""The time that each kernel of a program takes, measured in replays."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from time import perf_counter

Run = Callable[[], object]


class Clock:
    """Seconds of each of ``kernels`` kernels, one a timed run.

    ``skip`` first runs of each are not counted: they meet cold caches.
    """

    def __init__(self, kernels: int, skip: int = 1) -> None:
        self.skip = skip
        self._seconds: list[list[float]] = [[] for _ in range(kernels)]

    @property
    def runs(self) -> int:
        """Counted runs of the kernel that has the fewest, marks left out."""
        counted = [len(seconds) for seconds in self._seconds if seconds]
        return max(min(counted, default=0) - self.skip, 0)

    def around(self, segments: Sequence[Sequence[Run]], marks: Sequence[bool]) -> list[list[Run]]:
        """``segments`` of calls that measure themselves.

        ``marks`` tells of each kernel in turn whether it is but a mark, for which nothing is
        called; the others are the calls, in the same order.
        """
        numbers = iter([number for number, mark in enumerate(marks) if not mark])
        return [[self._timed(call, next(numbers)) for call in segment] for segment in segments]

    def seconds(self) -> list[float] | None:
        """The median of each kernel, 0 for marks; None before the first counted run."""
        if not self.runs:
            return None
        return [
            statistics.median(seconds[self.skip :]) if seconds else 0.0 for seconds in self._seconds
        ]

    def _timed(self, call: Run, number: int) -> Run:
        seconds = self._seconds[number]

        def timed() -> None:
            start = perf_counter()
            call()
            seconds.append(perf_counter() - start)

        return timed
