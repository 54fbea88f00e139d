"""Calls lowered to functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple, Protocol

import numpy as np

from singanet.base.heap import address, populated, small_pages
from singanet.ops import cpu_ops
from singanet.ops.numpy import linear
from singanet.ops.workers import side_by_side
from singanet.program.ir import Call, Ref, refs_of
from singanet.program.layout import ALIGNMENT
from singanet.program.lower_sweeps import Ready, ready_call
from singanet.types import Array


def ready_in_parts(call: Call, array_of: Callable[[Ref], Array]) -> Ready:
    """`ready_call`, or such calls in parallel, each on a part of the result; same bits."""
    filled = _filled(call)
    work = 0 if filled is None else prod(filled.shape) * linear.SWEEP
    if filled is None or work < linear.LEAST:
        return ready_call(call, array_of)
    axis = max(range(len(filled.shape)), key=lambda k: (filled.shape[k] > 1) * filled.strides[k])
    # Counted from the last axis, as shapes broadcast.
    axis -= len(filled.shape)
    parts = [*cpu_ops().lanes(filled.shape[axis], work)]
    if len(parts) < 2 or not _reads_own_elements(call, filled):
        return ready_call(call, array_of)

    def on(part: slice) -> Ready:
        return ready_call(call, lambda ref: _part(array_of(ref), axis, part))

    return partial(side_by_side, [[on(part)] for part in parts])


def _filled(call: Call) -> Ref | None:
    """The array that an element-wise call fills, None for other calls."""
    function = call.function
    if call.bind is not None:
        return None
    if function is np.copyto:
        out = call.arguments[0]
    elif isinstance(function, np.ufunc) and function.signature is None and function.nout == 1:
        out = call.keywords.get("out")
    else:
        return None
    out = out[0] if type(out) is tuple else out
    if type(out) is not Ref or not out.shape or min(out.strides) < 0:
        return None
    return out


def _reads_own_elements(call: Call, out: Ref) -> bool:
    """Whether each value of ``out`` depends only on operands at its own position."""
    return all(ref == out or ref.token != out.token for ref in refs_of(call))


def _part(array: Array, axis: int, part: slice) -> Array:
    """The part along an axis, counted from the last one; the whole of a repeated axis."""
    axis += array.ndim
    if axis < 0 or array.shape[axis] == 1:
        return array
    return array[(slice(None),) * axis + (part,)]


class Launches(NamedTuple):
    """The requests of a host to a device: ``graphs``, the calls ``in_graphs``, and others.

    ``singly`` are calls that are launched one by one, as all are the first time, ``draws`` are
    arrays of random numbers, ``on_host`` are calls of the host, which reads values. Elementwise
    calls that run as one kernel count as one.
    """

    graphs: int = 0
    in_graphs: int = 0
    singly: int = 0
    draws: int = 0
    on_host: int = 0

    @classmethod
    def of_all(cls, parts: Iterable[Launches]) -> Launches:
        """The sum of ``parts``."""
        return cls(*map(sum, zip(cls(), *parts, strict=True)))

    def __str__(self) -> str:
        return (
            f"{self.graphs:,} graphs of {self.in_graphs:,} calls, {self.singly:,} calls by"
            f" themselves, {self.draws:,} draws, {self.on_host:,} calls of the host"
        )


Lowered = tuple[Callable[..., Any], dict[str, Any]]
"""A function of a backend, and its keyword arguments."""


class ReadyCalls(Protocol):
    """Calls that are ready to run; their iterators have the number of remaining calls as hint."""

    def __iter__(self) -> Iterator[Ready]:
        """Iterate from the first call."""


class Lowering(Protocol):
    """A backend of programs: it allocates their memory and prepares their calls."""

    @property
    def beside(self) -> int:
        """The bytes of its kernels' working memory, in addition to the programs'."""

    def memory(self, size: int, holes: bool = False) -> Array:
        """Allocate an array of ``size`` bytes; with ``holes`` much of it is never written."""

    def start(self, memory: Array) -> int:
        """The first byte of ``memory`` that a program may use."""

    def array(self, ref: Ref, memory: Array, start: int) -> Array:
        """The array at ``ref`` in ``memory``, in which its token starts at ``start``."""

    def view(self, root: Array, ref: Ref) -> Array:
        """The array at ``ref`` in the memory of ``root``, an array from outside."""

    def outside(self, outside: Mapping[Ref, Array]) -> Mapping[Ref, Array]:
        """The backend's arrays for the arrays ``outside`` a recording's arena."""

    def ordered(self, calls: Sequence[Call]) -> list[Call]:
        """``calls`` in the order that the backend prefers."""

    def expect_known(self, calls: Sequence[Call]) -> None:
        """Refuse unsupported calls. Raises `NotRecordableError`."""

    def ready(self, calls: Sequence[Call], array_of: Callable[[Ref], Array]) -> ReadyCalls:
        """``calls`` on the arrays at their refs."""

    def once(self, call: Call, array_of: Callable[[Ref], Array]) -> None:
        """Run ``call`` once, now, on the arrays at its refs."""

    def returning(self, function: Any, named: Mapping[str, Any]) -> Lowered:
        """The form of NumPy's ``function``, with keywords ``named``, that returns its result.

        Raises `NotRecordableError` if the backend lacks it.
        """

    def singly(self, calls: Any) -> Iterator[Ready]:
        """Iterate over the result of `ready`, one recorded call at a time, complete on return."""

    def launches(self, calls: Any) -> Launches | None:
        """The requests to a device by the result of `ready`; None if the host computes."""

    def fill(self, target: Array, value: Any) -> None:
        """Copy the caller's ``value`` to ``target``."""


class _Memory:
    """Memory of ``base`` described by NumPy's interface, with a reference to ``base``."""

    def __init__(self, base: Array, interface: Mapping[str, Any]) -> None:
        self.__array_interface__, self.base = dict(interface), base


def view_of(root: Array, ref: Ref) -> Array:
    """Return the array of NumPy's at ``ref`` in the memory of ``root``."""
    start, is_readonly = root.__array_interface__["data"]
    interface = {
        "data": (start + ref.offset, is_readonly),
        "shape": ref.shape,
        "strides": ref.strides,
        "typestr": ref.dtype.str,
        "version": 3,
    }
    return np.asarray(_Memory(root, interface))


class OnHost:
    """Calls of NumPy and of the CPU's kernels."""

    beside = 0

    def memory(self, size: int, holes: bool = False) -> Array:
        """Allocate an array and its pages; on small pages, ``holes`` take no memory."""
        if not holes:
            return populated(np.empty(size, np.uint8))
        with small_pages():
            return np.empty(size, np.uint8)

    def start(self, memory: Array) -> int:
        """Return the first aligned address."""
        return -address(memory) % ALIGNMENT

    def array(self, ref: Ref, memory: Array, start: int) -> Array:
        return ref.array(memory, start)

    def view(self, root: Array, ref: Ref) -> Array:
        return view_of(root, ref)

    def outside(self, outside: Mapping[Ref, Array]) -> Mapping[Ref, Array]:
        """Return the arrays unchanged."""
        return outside

    def ordered(self, calls: Sequence[Call]) -> list[Call]:
        """Return the calls unchanged."""
        return list(calls)

    def expect_known(self, calls: Sequence[Call]) -> None:
        """Accept all calls."""

    def ready(self, calls: Sequence[Call], array_of: Callable[[Ref], Array]) -> ReadyCalls:
        """Return the calls, with large element-wise ones in parts for threads."""
        return tuple([ready_in_parts(call, array_of) for call in calls])

    def once(self, call: Call, array_of: Callable[[Ref], Array]) -> None:
        ready_call(call, array_of)()

    def returning(self, function: Any, named: Mapping[str, Any]) -> Lowered:
        """Return the function itself."""
        return function, dict(named)

    def singly(self, calls: Any) -> Iterator[Ready]:
        """Return the calls, which are single already."""
        return iter(calls)

    def launches(self, calls: Any) -> None:
        """Return None."""

    def fill(self, target: Array, value: Any) -> None:
        np.copyto(target, value)


ON_HOST = OnHost()
