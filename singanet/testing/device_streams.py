"""Streams, events and graphs of a strict device, as CuPy has them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

from singanet.testing.device_memory import DeviceMemory, MemoryPlace, mapped
from singanet.testing.device_order import DEFAULT, Lane, learnt_by_host
from singanet.testing.device_watch import DeviceUseError, launched, noted
from singanet.types import Array

__all__ = ["CUDARuntimeError", "Capture", "Event", "LaunchGraph", "Stream", "expect_no_capture"]
__all__ += ["get_current_stream", "own"]


class CUDARuntimeError(DeviceUseError):
    """What CUDA itself refuses."""


class Event:
    """A place in a stream's work."""

    def __init__(self, *options: Any, **named: Any) -> None:
        self.known: Mapping[Lane, int] = {}

    def record(self, stream: Stream | None = None) -> None:
        """Stand behind all work of ``stream`` so far, the current one by default."""
        self.known = (stream or get_current_stream()).lane.now()

    @property
    def done(self) -> bool:
        """True, as work is done at once: who has seen it need not wait."""
        learnt_by_host(self.known)
        return True

    def synchronize(self) -> None:
        """Have the host wait."""
        _wait("event.synchronize", self.known)


class Stream:
    """A stream; one that is not ``non_blocking`` takes turns with the default one."""

    def __init__(self, null: bool = False, non_blocking: bool = False) -> None:
        self.lane = Lane() if non_blocking and not null else DEFAULT
        self.ptr = 0 if null else next(_pointers)
        self.capture: Capture | None = None
        self._outer: list[Stream] = []

    def __enter__(self) -> Stream:
        self._outer.append(get_current_stream())
        own.stream = self
        return self

    def __exit__(self, *error: object) -> None:
        own.stream = self._outer.pop()

    def record(self, event: Event | None = None) -> Event:
        """An event behind all work so far."""
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        """Let later work come after ``event``."""
        self.lane.learn(event.known)

    def synchronize(self) -> None:
        """Have the host wait for all work so far."""
        _wait("stream.synchronize", self.lane.now())

    def begin_capture(self, mode: Any = None) -> None:
        """Keep the calls that are made in it, for a graph. Errors: the default stream."""
        if self.ptr == 0:
            raise CUDARuntimeError(
                "stream.begin_capture",
                expected="a stream of its own",
                received="the default one",
                advice="capture in a cuda.Stream(non_blocking=True)",
            )
        self.capture = Capture()

    def end_capture(self) -> LaunchGraph:
        """The graph of what was called. Errors: something was called that cannot be captured."""
        capture, self.capture = self.capture, None
        if capture is None:
            raise CUDARuntimeError(
                "stream.end_capture",
                expected="a capture that has begun",
                received="none",
                advice="call begin_capture before",
            )
        return capture.ended()


class CapturedCall(NamedTuple):
    """A call of a graph: what it reads and writes, and where what it makes new is put."""

    function: Callable[..., Any]
    args: Any
    kwargs: Any
    reads: Sequence[MemoryPlace]
    writes: Sequence[MemoryPlace]
    fills: Sequence[MemoryPlace]


class Capture:
    """Calls that are kept; they are tried, and at the end all memory is as it was before them."""

    def __init__(self) -> None:
        self.calls: list[CapturedCall] = []
        self.broken = ""
        self._before: dict[DeviceMemory, Array] = {}

    def meet(self, memories: Iterable[DeviceMemory]) -> None:
        """Remember what is in ``memories``, which the next call uses."""
        for memory in memories:
            if memory not in self._before:
                self._before[memory] = memory.near.copy()

    def refuse(self, what: str) -> None:
        """Refuse ``what``, which breaks the capture."""
        self.broken = what
        raise CUDARuntimeError(
            what,
            expected="calls that fill arrays, inside of a capture",
            received="one that waits, moves arrays from or to the host, or asks for memory",
            advice="do it before the capture, or give memory by using_allocator(pool.malloc)",
        )

    def ended(self) -> LaunchGraph:
        """The graph of the calls. Errors: something was refused."""
        for memory, before in self._before.items():
            memory.near[...] = before
        self._before.clear()
        if self.broken:
            raise CUDARuntimeError(
                "stream.end_capture",
                expected="a capture in which nothing was refused",
                received=f"one that was broken by {self.broken}",
                advice="leave that call out of it",
            )
        return LaunchGraph(self.calls)


class LaunchGraph:
    """Calls that are launched together, by the addresses that they were captured with."""

    def __init__(self, calls: Sequence[CapturedCall]) -> None:
        self._calls = tuple(calls)

    def launch(self, stream: Stream | None = None) -> None:
        """Make the calls in ``stream``, the current one by default. Errors: memory was let go."""
        expect_no_capture("graph.launch")
        launched(len(self._calls), graph=True)
        lane = (stream or get_current_stream()).lane
        for call in self._calls:
            tick = lane.next()
            for writes, places in ((False, call.reads), (True, (*call.writes, *call.fills))):
                for place in places:
                    near, memory = place.found()
                    memory.used(near, lane, tick, writes)
            args, kwargs = mapped(
                (call.args, call.kwargs), MemoryPlace, lambda place: place.found()[0]
            )
            made = call.function(*args, **kwargs)
            parts = made if isinstance(made, (tuple, list)) else [made]
            for place, part in zip(call.fills, parts, strict=bool(call.fills)):
                place.found()[0][...] = part


def get_current_stream() -> Stream:
    """The stream of this thread's calls."""
    found: Stream = getattr(own, "stream", _NULL)
    return found


def expect_no_capture(what: str) -> None:
    """Refuse ``what`` while the current stream is captured."""
    capture = get_current_stream().capture
    if capture is not None:
        capture.refuse(what)


def _wait(what: str, known: Mapping[Lane, int]) -> None:
    expect_no_capture(what)
    noted("waits", what, "waits")
    learnt_by_host(known)


_pointers = count(1)
own = threading.local()
"""What each thread has as its own: the current stream, and who gives memory."""
_NULL = Stream(null=True)
