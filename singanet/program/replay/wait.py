"""How long a net that changes runs by its layers before it is recorded again."""

from __future__ import annotations

WORTH = 8
"""Replays after which a recording has paid."""

LONGEST = 1 << 10


class Wait:
    """Calls by the layers until the next recording: twice as many after each that did not pay.

    A net whose layers are switched between trained and not at every step would else be recorded
    at every other one.
    """

    def __init__(self) -> None:
        self._calls = 1
        self._left = 0

    def start(self, replays: int) -> None:
        """Begin to wait, after a program that was replayed that often."""
        self._calls = 1 if replays >= WORTH else min(2 * self._calls, LONGEST)
        self._left = self._calls

    def goes_on(self) -> bool:
        """Whether one more call is to run by the layers."""
        self._left = max(self._left - 1, -1)
        return self._left >= 0
