"""The memory that arrays of a folder are brought into: the CPU's, or a GPU's."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Any

import numpy as np

from singanet.checkpoint.streaming import bytes_of
from singanet.device import Device, cpu
from singanet.ops.transfers import Transfers
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
    """The memory of ``device``, whose arrays cannot be made read-only; copies are `Transfers`."""

    def __init__(self, device: Device) -> None:
        self.xp = device.ops.xp
        self._device = device
        self._transfers = Transfers(self.xp, device.scope)

    def new(self, nbytes: int) -> Array:
        return self._transfers.new((nbytes,), np.dtype(np.uint8))

    def put(self, array: Array) -> Array:
        return self._device.put(array)

    def fill(self, array: Array, read: Move) -> None:
        read(bytes_of(self._transfers.staged(array)))
        self._transfers.send(array)

    def drain(self, array: Array, write: Move) -> None:
        write(bytes_of(self._transfers.fetch(array)))

    def lock(self, array: Array) -> None:
        """Nothing: on a device it cannot be forbidden."""


def room_on(device: Device) -> Room:
    """The memory in which a net of ``device`` has its arrays."""
    return Room() if device.ops.xp is np else DeviceRoom(device)


def on_host(array: Array) -> Array:
    """``array`` as NumPy's, in one piece."""
    return np.ascontiguousarray(cpu().put(array))
