"""The share of Python steps in a recorded step's time, told once if it is large."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Sequence

from singanet.program.bind_call import Ready
from singanet.program.ir import Call

MUCH = 0.1
"""The part of a step from which on its Python steps are told."""

_PYTHON = frozenset(("python step", "loss"))
_FIRST, _LAST = 2, 5
"""The replays that are timed: not the first ones, which meet their memory for the first time."""


class PythonShare:
    """Runs the calls of a step and times them, until it is known what Python steps take."""

    def __init__(self, calls: Sequence[Call], notes: Sequence[str]) -> None:
        made = [call.function is not None for call in calls]
        begin = made.index(False) + 1 if False in made else 0
        self._python = [call.name in _PYTHON for call in calls[begin:]]
        self._notes = notes
        self._replays = 0
        self._seconds = [0.0, 0.0]

    @property
    def known(self) -> bool:
        """Whether there is nothing left to time."""
        return not self._notes or self._replays >= _LAST

    def run(self, calls: Iterable[Ready]) -> None:
        """Make the calls. Warns after the last replay that is timed."""
        clock, seconds = time.perf_counter, [0.0, 0.0]
        for call, python in zip(calls, self._python, strict=False):
            start = clock()
            call()
            seconds[python] += clock() - start
        self._replays += 1
        if self._replays > _FIRST:
            self._seconds = [a + b for a, b in zip(self._seconds, seconds, strict=True)]
        if self.known:
            self._tell()

    def _tell(self) -> None:
        kernels, python = self._seconds
        share = python / max(kernels + python, 1e-12)
        if share > MUCH:
            warnings.warn(
                f"net.step: Python steps take {share:.0%} of a recorded step "
                f"({'; '.join(self._notes)}); net.programs.notes tells them",
                stacklevel=2,
            )
