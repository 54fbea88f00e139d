"""Accesses of a device in their order.

Strict arrays tell it; on a GPU the same calls would have the host wait, or move bytes.

All work is done when it is asked for. What is kept is whether a GPU would have done it in that
order: each stream, and the host, knows how far the others are by events and waiting alone.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock
from weakref import WeakKeyDictionary

from singanet.errors import ArgumentError, SingaNetError, one_of

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


KINDS = "reads", "waits", "transfers"
"""What can be refused."""

_ADVICE = {
    "reads": "keep the value on the device, or read it outside of what is watched",
    "waits": "let streams wait for events, or wait outside of what is watched",
    "transfers": "bring it over once with net.device.put, before what is watched",
}

_HERE = str(Path(__file__).parent / "device_")


_COUNTING = RLock()
"""Threads count by one watch; arrays are let go in the middle of it."""


class DeviceUseError(SingaNetError, RuntimeError):
    """Something was done with a strict device that a GPU refuses, or gets wrong, or waits for."""


@dataclass(eq=False)
class DeviceWatch:
    """What a strict device was asked for while it was watched.

    ``launches`` are kernels that were launched one by one, ``graphs`` graphs that were, and
    ``in_graphs`` the kernels in those. ``reads`` are values that the host looked at, which waits
    for the device, ``waits`` streams and events that it waited for. ``to_device`` and ``to_host``
    are arrays that were moved, with their bytes. ``live_bytes`` is the memory handed out since the
    watch began that somebody still has, ``most_bytes`` the most that it was. ``places`` are the
    lines of reads, waits and transfers, each with how often.
    """

    refuse: frozenset[str] = frozenset()
    launches: int = 0
    graphs: int = 0
    in_graphs: int = 0
    reads: int = 0
    waits: int = 0
    to_device: int = 0
    to_device_bytes: int = 0
    to_host: int = 0
    to_host_bytes: int = 0
    live_bytes: int = 0
    most_bytes: int = 0
    graph_bytes: int = 0
    places: Counter[str] = field(default_factory=Counter)
    # Of memory that was let go: who had it, and whose work with it was not known to be done.
    _unready: list[tuple[Lane, Lane, int]] = field(default_factory=list, init=False, repr=False)

    def _hand_out(self, nbytes: int) -> None:
        """Count memory that somebody has."""
        with _COUNTING:
            self.live_bytes += nbytes
            self.most_bytes = max(self.most_bytes, self.live_bytes)

    def _hand_to_graphs(self, nbytes: int) -> None:
        """Count memory that was handed out as what graphs work in."""
        with _COUNTING:
            self.live_bytes -= nbytes
            self.graph_bytes += nbytes

    def _take_back(self, nbytes: int, of_graphs: bool) -> None:
        """Count memory that was let go."""
        with _COUNTING:
            if of_graphs:
                self.graph_bytes -= nbytes
            else:
                self.live_bytes -= nbytes


_watches: list[DeviceWatch] = []


@contextmanager
def watch_device(*, refuse: Collection[str] = ()) -> Iterator[DeviceWatch]:
    """Count what strict devices are asked for inside of it, by all threads.

    ``refuse`` names what raises `DeviceUseError` at its line instead: "reads", "waits",
    "transfers". Errors: another name.
    """
    if isinstance(refuse, str) or not set(refuse) <= set(KINDS):
        raise ArgumentError(
            "watch_device, refuse",
            expected=f"a tuple of {one_of(KINDS)}",
            received=repr(refuse),
            advice="name what is not to happen, as in watch_device(refuse=('reads',))",
        )
    watch = DeviceWatch(frozenset(refuse))
    with _COUNTING:
        _watches.append(watch)
    try:
        yield watch
    finally:
        with _COUNTING:
            _watches.remove(watch)


def noted(kind: str, what: str, count: str, nbytes: int = 0) -> None:
    """Count ``what``, of ``kind``, under ``count`` and its bytes. Errors: it is refused."""
    if not _watches:
        return
    place = _place()
    with _COUNTING:
        _note(kind, what, count, nbytes, place)


def _note(kind: str, what: str, count: str, nbytes: int, place: str) -> None:
    for watch in _watches:
        if kind in watch.refuse:
            raise DeviceUseError(
                what,
                expected=f"no {kind} while watch_device refuses them",
                received=f"one at {place}",
                advice=_ADVICE[kind],
            )
        setattr(watch, count, getattr(watch, count) + 1)
        if kind == "transfers":
            sent = f"{count}_bytes"
            setattr(watch, sent, getattr(watch, sent) + nbytes)
        watch.places[f"{what} at {place}"] += 1


def launched(kernels: int = 1, graph: bool = False) -> None:
    """Count a kernel that the host launched, or a ``graph`` of so many."""
    with _COUNTING:
        for watch in _watches:
            if graph:
                watch.graphs += 1
                watch.in_graphs += kernels
            else:
                watch.launches += kernels


def watches() -> tuple[DeviceWatch, ...]:
    """Who watches now."""
    return tuple(_watches)


def _place() -> str:
    """The line of who asked the arrays."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
