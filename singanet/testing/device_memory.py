"""Memory of a strict device: who has it, and which stream has done what with which bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import ref

import numpy as np

from singanet.base.addresses import address
from singanet.testing.device_order import Lane
from singanet.testing.device_watch import DeviceUseError, DeviceWatch, watches
from singanet.types import Array, Shape

__all__ = ["DeviceMemory", "MemoryPlace", "Pointer", "mapped"]


class DeviceMemory:
    """Bytes that were handed out together, to ``lane``, as the numbers of ``near``, NumPy's."""

    def __init__(self, near: Array, lane: Lane) -> None:
        self.near, self._lane = near, lane
        self.start = address(near)
        self._watches = watches()
        self._of_graphs = False
        # Of each stream the pieces that it used, and in which piece of its work it did so last.
        self._used: dict[Lane, dict[tuple[int, int, bool], int]] = {}
        for watch in self._watches:
            watch._hand_out(near.nbytes)
            _expect_ready(watch, lane)

    def belongs_to_graphs(self) -> None:
        """Have it counted as what graphs work in."""
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
        """All its bytes; an array that owns them may have its axes in any order."""
        near = self.near
        steps = (near.itemsize,)
        items = np.lib.stride_tricks.as_strided(near, (near.size,), steps)
        return items.view(np.uint8)

    def used(self, near: Array, lane: Lane, tick: int, writes: bool) -> None:
        """Note that work ``tick`` of ``lane`` reads the piece ``near``, or ``writes`` to it.

        Errors: another stream's work with it, not known to be done.
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
                        expected="memory that other streams are done with",
                        received=f"some that another stream {'writes' if wrote else 'reads'},"
                        f" while this one {'writes' if writes else 'reads'} it",
                        advice="record an event there and wait for it here, or synchronize",
                    )
        self._used.setdefault(lane, {})[start, end, writes] = tick


class Pointer:
    """An address in ``memory``, so many bytes from its first one."""

    def __init__(self, memory: DeviceMemory, offset: int) -> None:
        self.memory, self.offset = memory, offset

    @property
    def ptr(self) -> int:
        """The address as a number."""
        return self.memory.start + self.offset

    def __add__(self, offset: int) -> Pointer:
        return Pointer(self.memory, self.offset + offset)


class MemoryPlace(NamedTuple):
    """Where an array lies, which need not be there any more."""

    memory: ref[DeviceMemory]
    offset: int
    shape: Shape
    strides: Shape
    dtype: Any

    @classmethod
    def of(cls, near: Array, memory: DeviceMemory) -> MemoryPlace:
        """That of ``near`` in ``memory``."""
        offset = address(near) - memory.start if near.size else 0
        return cls(ref(memory), offset, near.shape, near.strides, near.dtype)

    def found(self) -> tuple[Array, DeviceMemory]:
        """The numbers that are there. Errors: the memory was let go."""
        memory = self.memory()
        if memory is None:
            raise DeviceUseError(
                f"array of shape {self.shape} of {self.dtype}",
                expected="memory that somebody still has when a graph uses it",
                received="some that was let go",
                advice="keep the arrays as long as the graph",
            )
        at = memory.flat
        return np.ndarray(self.shape, self.dtype, at, self.offset, self.strides), memory


def mapped(value: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """``value`` with what is of ``kind`` in its tuples, lists and dicts changed."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, dict):
        return {key: mapped(part, kind, change) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        parts = [mapped(part, kind, change) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


def _expect_ready(watch: DeviceWatch, lane: Lane) -> None:
    """Refuse memory for ``lane`` that it was given back before others were done with it."""
    if not watch._unready:
        return
    lane.follow_host()
    own = [entry for entry in watch._unready if entry[0] is lane]
    watch._unready = [entry for entry in watch._unready if entry[0] is not lane]
    if any(last > lane.known.get(other, 0) for _, other, last in own):
        raise DeviceUseError(
            "memory of a strict device",
            expected="arrays that are let go when other streams are done with them",
            received="one that another stream may use while its memory is handed out again",
            advice="wait for an event of that stream before the array is let go",
        )


def _bounds(near: Array) -> tuple[int, int]:
    """The first byte of an array, and the one behind its last."""
    start = address(near) if near.size else 0
    if near.flags.c_contiguous:
        return start, start + near.nbytes
    low, high = np.lib.array_utils.byte_bounds(near)
    return low, high
