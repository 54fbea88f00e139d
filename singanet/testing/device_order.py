"""Which work of a strict device is known to be done before which.

All work is done when it is asked for. What is kept is whether a GPU would have done it in that
order: each stream, and the host, knows how far the others are by events and waiting alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from threading import RLock
from weakref import WeakKeyDictionary

__all__ = ["DEFAULT", "Lane", "learnt_by_host"]


_LOCK = RLock()
"""Threads give work to one lane, and learn from one host."""


class Lane:
    """Work in the order in which it is given: how much so far, and what is ``known`` of others.

    Others are forgotten with their streams: each graph is captured in one of its own.
    """

    def __init__(self) -> None:
        self.ticks = 0
        self.known: WeakKeyDictionary[Lane, int] = WeakKeyDictionary()

    def next(self) -> int:
        """The number of the next piece of work."""
        with _LOCK:
            self.follow_host()
            self.ticks += 1
            return self.ticks

    def follow_host(self) -> None:
        """Come after all that the host has waited for, as work does that it asks for now."""
        if self.known.get(_HOST, 0) != _HOST.ticks:
            self.learn(_HOST.now())

    def learn(self, known: Mapping[Lane, int]) -> None:
        """Come after all that is ``known``."""
        with _LOCK:
            for lane, tick in known.items():
                if tick > self.known.get(lane, 0):
                    self.known[lane] = tick

    def now(self) -> dict[Lane, int]:
        """What is known once all work so far is done."""
        with _LOCK:
            return {**self.known, self: self.ticks}


DEFAULT = Lane()
"""The work of the default stream."""

_HOST = Lane()


def learnt_by_host(known: Mapping[Lane, int]) -> None:
    """Let all work that is given from now on come after what is ``known``."""
    with _LOCK:
        _HOST.ticks += 1
        _HOST.learn(known)
