"""The memory and the streams of a device, simulated on the host."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from types import SimpleNamespace
from typing import Any, NamedTuple
from weakref import ref

import numpy as np

from singanet.base.heap import address
from singanet.testing.device_watch import (
    DEFAULT,
    DeviceUseError,
    DeviceWatch,
    Lane,
    launched,
    learnt_by_host,
    noted,
    watches,
)
from singanet.types import Array, Shape


class DeviceMemory:
    """A block of memory allocated on ``lane``, with the NumPy array ``near`` as its contents."""

    def __init__(self, near: Array, lane: Lane) -> None:
        self.near, self._lane = near, lane
        self.start = address(near)
        self._watches = watches()
        self._of_graphs = False
        # For each stream the parts that it used, and the number of its last operation on each.
        self._used: dict[Lane, dict[tuple[int, int, bool], int]] = {}
        for watch in self._watches:
            watch._hand_out(near.nbytes)
            _expect_ready(watch, lane)

    def belongs_to_graphs(self) -> None:
        """Count it as memory of graphs."""
        self._of_graphs = True
        for watch in self._watches:
            watch._hand_to_graphs(self.near.nbytes)

    def __del__(self) -> None:
        for watch in self._watches:
            watch._take_back(self.near.nbytes, self._of_graphs)
        for lane, pieces in self._used.items():
            last = max(pieces.values())
            if lane is not self._lane and last > self._lane.known.get(lane, 0):
                for watch in self._watches:
                    watch._unready.append((self._lane, lane, last))

    @property
    def flat(self) -> Array:
        """All its bytes; the array that owns them may have any order of axes."""
        near = self.near
        steps = (near.itemsize,)
        items = np.lib.stride_tricks.as_strided(near, (near.size,), steps)
        return items.view(np.uint8)

    def used(self, near: Array, lane: Lane, tick: int, writes: bool) -> None:
        """Record that operation ``tick`` of ``lane`` reads the part ``near``, or ``writes`` to it.

        Errors: an operation of another stream on it may still be running.
        """
        start, end = _bounds(near)
        for other, pieces in self._used.items():
            if other is lane:
                continue
            done = lane.known.get(other, 0)
            for (first, last, wrote), when in pieces.items():
                if when > done and (writes or wrote) and first < end and start < last:
                    raise DeviceUseError(
                        f"array of shape {near.shape} of {near.dtype}",
                        expected="memory that no other stream uses",
                        received=f"memory that another stream {'writes' if wrote else 'reads'},"
                        f" while this one {'writes' if writes else 'reads'} it",
                        advice="record an event there and wait for it here, or synchronize",
                    )
        self._used.setdefault(lane, {})[start, end, writes] = tick


class Pointer:
    """An address in ``memory``, at a byte ``offset``."""

    def __init__(self, memory: DeviceMemory, offset: int) -> None:
        self.memory, self.offset = memory, offset

    @property
    def ptr(self) -> int:
        """The address as a number."""
        return self.memory.start + self.offset

    def __add__(self, offset: int) -> Pointer:
        return Pointer(self.memory, self.offset + offset)


class MemoryPlace(NamedTuple):
    """The place of an array, which may have been freed."""

    memory: ref[DeviceMemory]
    offset: int
    shape: Shape
    strides: Shape
    dtype: Any

    @classmethod
    def of(cls, near: Array, memory: DeviceMemory) -> MemoryPlace:
        """Return the place of ``near`` in ``memory``."""
        offset = address(near) - memory.start if near.size else 0
        return cls(ref(memory), offset, near.shape, near.strides, near.dtype)

    def found(self) -> tuple[Array, DeviceMemory]:
        """Return the array at the place. Errors: the memory was freed."""
        memory = self.memory()
        if memory is None:
            raise DeviceUseError(
                f"array of shape {self.shape} of {self.dtype}",
                expected="memory that is alive when a graph uses it",
                received="freed memory",
                advice="keep the arrays alive as long as the graph",
            )
        at = memory.flat
        return np.ndarray(self.shape, self.dtype, at, self.offset, self.strides), memory


def mapped(value: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """Apply ``change`` to the objects of ``kind`` in nested tuples, lists and dicts."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, dict):
        return {key: mapped(part, kind, change) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        parts = [mapped(part, kind, change) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


def _expect_ready(watch: DeviceWatch, lane: Lane) -> None:
    """Refuse memory for ``lane`` that was freed before other streams had finished with it."""
    if not watch._unready:
        return
    lane.follow_host()
    own = [entry for entry in watch._unready if entry[0] is lane]
    watch._unready = [entry for entry in watch._unready if entry[0] is not lane]
    if any(last > lane.known.get(other, 0) for _, other, last in own):
        raise DeviceUseError(
            "memory of a strict device",
            expected="arrays that are freed when no other stream uses them",
            received="an array that another stream may use while its memory is reused",
            advice="wait for an event of that stream before the array is freed",
        )


def _bounds(near: Array) -> tuple[int, int]:
    """Return the first byte of an array, and the byte after its last one."""
    start = address(near) if near.size else 0
    if near.flags.c_contiguous:
        return start, start + near.nbytes
    low, high = np.lib.array_utils.byte_bounds(near)
    return low, high


class CUDARuntimeError(DeviceUseError):
    """An operation that CUDA itself refuses."""


class Event:
    """A position in a stream's work."""

    def __init__(self, *options: Any, **named: Any) -> None:
        self.known: Mapping[Lane, int] = {}

    def record(self, stream: Stream | None = None) -> None:
        """Record the work of ``stream`` so far, by default of the current one."""
        self.known = (stream or get_current_stream()).lane.now()

    @property
    def done(self) -> bool:
        """True, as work is done at once; the host then knows that it is done."""
        learnt_by_host(self.known)
        return True

    def synchronize(self) -> None:
        """Wait for the event on the host."""
        _wait("event.synchronize", self.known)


class Stream:
    """A stream; unless ``non_blocking``, it shares the order of the default stream."""

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
        """Return an event after all work so far."""
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        """Order later work after ``event``."""
        self.lane.learn(event.known)

    def synchronize(self) -> None:
        """Wait for all work so far on the host."""
        _wait("stream.synchronize", self.lane.now())

    def begin_capture(self, mode: Any = None) -> None:
        """Start to record calls for a graph. Errors: the default stream."""
        if self.ptr == 0:
            raise CUDARuntimeError(
                "stream.begin_capture",
                expected="a new stream",
                received="the default stream",
                advice="capture in a cuda.Stream(non_blocking=True)",
            )
        self.capture = Capture()

    def end_capture(self) -> LaunchGraph:
        """Return the graph of the calls. Errors: a call that cannot be captured."""
        capture, self.capture = self.capture, None
        if capture is None:
            raise CUDARuntimeError(
                "stream.end_capture",
                expected="a capture after begin_capture",
                received="none",
                advice="call begin_capture first",
            )
        return capture.ended()


class CapturedCall(NamedTuple):
    """A call of a graph: its reads, its writes, and the places of its new arrays."""

    function: Callable[..., Any]
    args: Any
    kwargs: Any
    reads: Sequence[MemoryPlace]
    writes: Sequence[MemoryPlace]
    fills: Sequence[MemoryPlace]


class Capture:
    """Recorded calls; they also run, and at the end the arrays that they used are restored."""

    def __init__(self) -> None:
        self.calls: list[CapturedCall] = []
        self.broken = ""
        self._before: list[tuple[Array, Array]] = []

    def meet(self, arrays: Iterable[Array]) -> None:
        """Save the contents of ``arrays``, which the next call uses.

        Other streams may write elsewhere in their memory.
        """
        self._before += [(near, near.copy()) for near in arrays if near.flags.writeable]

    def refuse(self, what: str) -> None:
        """Refuse ``what``, which invalidates the capture."""
        self.broken = what
        raise CUDARuntimeError(
            what,
            expected="calls that only write arrays, in a capture",
            received="a call that waits, moves arrays from or to the host, or allocates memory",
            advice="do it before the capture, or allocate by using_allocator(pool.malloc)",
        )

    def ended(self) -> LaunchGraph:
        """Return the graph of the calls. Errors: something was refused."""
        for near, before in reversed(self._before):
            near[...] = before
        self._before.clear()
        if self.broken:
            raise CUDARuntimeError(
                "stream.end_capture",
                expected="a capture without refused calls",
                received=f"a capture invalidated by {self.broken}",
                advice="remove that call from it",
            )
        return LaunchGraph(self.calls)


class LaunchGraph:
    """Calls that are launched together, with the addresses of their capture."""

    def __init__(self, calls: Sequence[CapturedCall]) -> None:
        self._calls = tuple(calls)

    def launch(self, stream: Stream | None = None) -> None:
        """Run the calls in ``stream``, by default the current one. Errors: memory was freed."""
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
    """Return the current stream of this thread."""
    found: Stream = getattr(own, "stream", _NULL)
    return found


def expect_no_capture(what: str) -> None:
    """Refuse ``what`` during a capture of the current stream."""
    capture = get_current_stream().capture
    if capture is not None:
        capture.refuse(what)


def _wait(what: str, known: Mapping[Lane, int]) -> None:
    expect_no_capture(what)
    noted("waits", what, "waits")
    learnt_by_host(known)


_pointers = count(1)
own = threading.local()
"""The current stream and the allocator of each thread."""
_NULL = Stream(null=True)


class CudaDevice:
    """The only device."""

    def __init__(self, index: int = 0) -> None:
        self.id = index

    def __enter__(self) -> CudaDevice:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def synchronize(self) -> None:
        """Wait for the current stream on the host."""
        get_current_stream().synchronize()


class MemoryPool:
    """A pool that owns memory allocated by its ``malloc`` in a capture, which graphs reuse."""

    def __init__(self) -> None:
        self.held: list[DeviceMemory] = []

    def malloc(self, memory: DeviceMemory) -> None:
        """Own ``memory`` for good; memory freed within a capture is not reused."""
        memory.belongs_to_graphs()
        self.held.append(memory)


def given_out(memory: DeviceMemory) -> None:
    """Report new memory to the allocator. Errors: a capture without a pool."""
    if get_current_stream().capture is None:
        return
    allocator = getattr(own, "allocator", None)
    if allocator is None:
        expect_no_capture("new memory")
    else:
        allocator(memory)


@contextmanager
def using_allocator(allocator: Callable[[DeviceMemory], object] | None = None) -> Iterator[None]:
    """Use ``allocator`` for memory in the block."""
    outer, own.allocator = getattr(own, "allocator", None), allocator
    try:
        yield
    finally:
        own.allocator = outer


cuda: Any = SimpleNamespace(
    Device=CudaDevice,
    Event=Event,
    MemoryPool=MemoryPool,
    Stream=Stream,
    alloc_pinned_memory=bytearray,
    get_current_stream=get_current_stream,
    runtime=SimpleNamespace(CUDARuntimeError=CUDARuntimeError, getDeviceCount=lambda: 1),
    using_allocator=using_allocator,
)
