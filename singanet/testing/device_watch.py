"""Accesses of a simulated device, and their order.

Strict arrays report their operations, for which on a GPU the host would wait or bytes would move.
All work is done at once. The records show whether a GPU would do it in that order: each stream, and
the host, knows the progress of the others only by events and waits.
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

from singanet.errors import ArgumentError, SingaNetError, brief, one_of

_LOCK = RLock()
"""Threads share the lanes and the host's knowledge."""


class Lane:
    """A sequence of work: its length so far, and the ``known`` progress of other lanes.

    Other lanes are forgotten with their streams, as each graph is captured in a new one.
    """

    def __init__(self) -> None:
        self.ticks = 0
        self.known: WeakKeyDictionary[Lane, int] = WeakKeyDictionary()

    def next(self) -> int:
        """Return the number of the next operation."""
        with _LOCK:
            self.follow_host()
            self.ticks += 1
            return self.ticks

    def follow_host(self) -> None:
        """Learn all that the host has waited for, as new work comes after it."""
        if self.known.get(_HOST, 0) != _HOST.ticks:
            self.learn(_HOST.now())

    def learn(self, known: Mapping[Lane, int]) -> None:
        """Learn the progress in ``known``."""
        with _LOCK:
            for lane, tick in known.items():
                if tick > self.known.get(lane, 0):
                    self.known[lane] = tick

    def now(self) -> dict[Lane, int]:
        """Return the known progress after all work so far."""
        with _LOCK:
            return {**self.known, self: self.ticks}


DEFAULT = Lane()
"""The work of the default stream."""

_HOST = Lane()


def learnt_by_host(known: Mapping[Lane, int]) -> None:
    """Let the host learn ``known``, so that new work comes after it."""
    with _LOCK:
        _HOST.ticks += 1
        _HOST.learn(known)


KINDS = "reads", "waits", "transfers"
"""The kinds of accesses that can be refused."""

_ADVICE = {
    "reads": "keep the value on the device, or read it outside of the watch",
    "waits": "let streams wait for events, or wait outside of the watch",
    "transfers": "copy it once with net.device.put, before the watch",
}

_HERE = str(Path(__file__).parent / "device_")


_COUNTING = RLock()
"""Guards the counts of all threads; arrays may be freed within it."""


class DeviceUseError(SingaNetError, RuntimeError):
    """An operation on a strict device that a GPU refuses, gets wrong, or waits for."""


@dataclass(eq=False)
class DeviceWatch:
    """Counts of the operations of a strict device.

    ``launches`` are kernels launched one by one, ``graphs`` launched graphs, and ``in_graphs`` the
    kernels in these. ``reads`` are values read by the host, which waits for the device; ``waits``
    are waits for streams and events. ``to_device`` and ``to_host`` are moved arrays, with their
    bytes in ``to_device_bytes`` and ``to_host_bytes``. ``live_bytes`` is the live memory allocated
    since the start without ``graph_bytes``, the memory of graphs, and ``most_bytes`` its maximum.
    ``places`` counts reads, waits and transfers by line. The kinds in ``refuse`` are refused.
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
    # For freed memory, its owner, and the lane with work on it that may be running.
    _unready: list[tuple[Lane, Lane, int]] = field(default_factory=list, init=False, repr=False)

    def _hand_out(self, nbytes: int) -> None:
        """Count allocated memory."""
        with _COUNTING:
            self.live_bytes += nbytes
            self.most_bytes = max(self.most_bytes, self.live_bytes)

    def _hand_to_graphs(self, nbytes: int) -> None:
        """Count allocated memory as memory of graphs."""
        with _COUNTING:
            self.live_bytes -= nbytes
            self.graph_bytes += nbytes

    def _take_back(self, nbytes: int, of_graphs: bool) -> None:
        """Count freed memory."""
        with _COUNTING:
            if of_graphs:
                self.graph_bytes -= nbytes
            else:
                self.live_bytes -= nbytes


_watches: list[DeviceWatch] = []


@contextmanager
def watch_device(*, refuse: Collection[str] = ()) -> Iterator[DeviceWatch]:
    """Count the operations of strict devices in the block, of all threads.

    Errors: `ArgumentError` for another kind.

    Args:
        refuse: Kinds of operations ("reads", "waits", "transfers") that raise `DeviceUseError` at
            their line.
    """
    if isinstance(refuse, str) or not set(refuse) <= set(KINDS):
        raise ArgumentError(
            "watch_device, refuse",
            expected=f"a tuple of {one_of(KINDS)}",
            received=brief(refuse),
            advice="pass the kinds to refuse, as in watch_device(refuse=('reads',))",
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
    """Count ``what``, of ``kind``, under ``count`` with its bytes. Errors: it is refused."""
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
    """Count a kernel launched by the host, or a ``graph`` of ``kernels``."""
    with _COUNTING:
        for watch in _watches:
            if graph:
                watch.graphs += 1
                watch.in_graphs += kernels
            else:
                watch.launches += kernels


def watches() -> tuple[DeviceWatch, ...]:
    """Return the active watches."""
    return tuple(_watches)


def _place() -> str:
    """Return the line that used the arrays."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
