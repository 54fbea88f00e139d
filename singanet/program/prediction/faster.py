"""The faster of two ways to compute the same, by the clock."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

_TURN = 0.02
"""Seconds of calls, or one call, whose mean counts: some time slices of the system."""

_FIRST, _SELDOM = 8, 64
"""How many times the loss of a trial passes before the next one, at first and at most."""


class Faster:
    """A function that ``shared``, by several threads, and ``alone``, by one, compute equally.

    It calls the faster one. Beside other programs a thread waits for a core, so ``shared`` may
    become slower than ``alone``, and faster again. So the slower one is tried now and then: after
    8 times what its last trial has lost, and each time that it loses again after twice as long, up
    to 64 times. ``seconds`` is the least time of ``alone``: while ``shared`` takes no longer,
    ``alone`` is not tried.
    """

    def __init__(
        self,
        shared: Callable[..., Any],
        alone: Callable[..., Any],
        seconds: float,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._ways, self._clock = (shared, alone), clock
        self._taken, self._least = [0.0, seconds], seconds
        self._present = self._usual = 0
        self._spent, self._calls = 0.0, 0
        self._patience, self._next = _FIRST, float("-inf")

    def __call__(self, *given: Any) -> Any:
        """The result of one of the functions."""
        start = self._clock()
        made = self._ways[self._present](*given)
        end = self._clock()
        self._spent += end - start
        self._calls += 1
        if self._spent >= _TURN:
            self._compare(end)
        return made

    def _compare(self, now: float) -> None:
        """Choose the function of the next calls."""
        taken, present = self._taken, self._present
        taken[present] = self._spent / self._calls
        self._spent, self._calls = 0.0, 0
        best = 0 if taken[0] <= taken[1] else 1
        if best != self._usual:
            self._usual, self._patience = best, _FIRST
        elif present != best:
            self._patience = min(2 * self._patience, _SELDOM)
        elif now >= self._next and (present or taken[0] > self._least):
            self._present = 1 - best
            return
        else:
            return
        self._present = best
        lost = abs(taken[0] - taken[1]) * max(1, _TURN / max(taken))
        self._next = now + lost * self._patience
