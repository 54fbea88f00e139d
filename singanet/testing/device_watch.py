"""What a strict device is asked for: counted while somebody watches, or refused where it is asked.

Strict arrays tell it; on a GPU the same calls would have the host wait, or move bytes.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock

from singanet.errors import ArgumentError, SingaNetError, one_of
from singanet.testing.device_order import Lane

__all__ = ["DeviceUseError", "DeviceWatch", "launched", "noted", "watch_device", "watches"]

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
