"""The memory that arrays of a folder are brought into: the CPU's, or a GPU's."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from singanet.checkpoint.streaming import bytes_of
from singanet.device import Device, cpu
from singanet.types import Array

Move = Callable[[memoryview], None]
"""Fills bytes from a file, or writes them to it."""


class Room:
    """The CPU's memory."""

    xp: Any = np

    def new(self, nbytes: int) -> Array:
        """So many bytes, in pages of their own, which the system has back once they are let go."""
        return np.frombuffer(mmap.mmap(-1, nbytes) if nbytes else b"", np.uint8)

    def put(self, array: Array) -> Array:
        """``array`` as one of this memory."""
        return np.asarray(array)

    def fill(self, array: Array, read: Move) -> None:
        """Have ``read`` fill ``array``."""
        read(bytes_of(array))

    def drain(self, array: Array, write: Move) -> None:
        """Have ``write`` take ``array``."""
        write(bytes_of(array))

    def lock(self, array: Array) -> None:
        """Make ``array`` read-only, if this memory can forbid writing."""
        array.flags.writeable = False


class DeviceRoom(Room):
    """The memory of ``device``: arrays go through pinned host memory, on a stream of their own.

    A copy begins when the computations that were started before are done with what it touches, and
    is done when it returns. CuPy's arrays cannot be made read-only.
    """

    def __init__(self, device: Device) -> None:
        self.xp = device.ops.xp
        self._device = device
        self._cuda: Any = self.xp.cuda
        self._staging = np.empty(0, np.uint8)
        with device.scope():
            self._stream: Any = self._cuda.Stream(non_blocking=True)
            self._computing: Any = self._cuda.get_current_stream()

    def new(self, nbytes: int) -> Array:
        with self._copying():
            found: Array = self.xp.empty(nbytes, np.uint8)
        return found

    def put(self, array: Array) -> Array:
        return self._device.put(array)

    def fill(self, array: Array, read: Move) -> None:
        staging = self._staged(array)
        read(bytes_of(staging))
        with self._copying():
            array.set(staging)  # type: ignore[attr-defined]

    def drain(self, array: Array, write: Move) -> None:
        staging = self._staged(array)
        with self._copying():
            array.get(out=staging)  # type: ignore[attr-defined]
        write(bytes_of(staging))

    def lock(self, array: Array) -> None:
        """Nothing: on a device it cannot be forbidden."""

    def _staged(self, array: Array) -> Array:
        """Host memory as large as ``array``, the same for all."""
        if self._staging.nbytes < array.nbytes:
            self._staging = np.frombuffer(self._cuda.alloc_pinned_memory(array.nbytes), np.uint8)
        return self._staging[: array.nbytes].view(array.dtype).reshape(array.shape)

    @contextmanager
    def _copying(self) -> Iterator[None]:
        with self._device.scope():
            # Who computes has let go of an array before it is read into or freed, not before the
            # kernels that it started are done with it.
            self._stream.wait_event(self._computing.record())
            with self._stream:
                yield
            self._stream.synchronize()


def room_on(device: Device) -> Room:
    """The memory in which a net of ``device`` has its arrays."""
    return Room() if device.ops.xp is np else DeviceRoom(device)


def on_host(array: Array) -> Array:
    """``array`` as NumPy's, in one piece."""
    return np.ascontiguousarray(cpu().put(array))
