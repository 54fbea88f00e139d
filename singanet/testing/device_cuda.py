"""What CuPy has as ``cuda``, of a strict device: devices, pools of memory, streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from singanet.testing.device_memory import DeviceMemory
from singanet.testing.device_streams import (
    CUDARuntimeError,
    Event,
    Stream,
    expect_no_capture,
    get_current_stream,
    own,
)

__all__ = ["cuda", "given_out"]


class CudaDevice:
    """The only device there is."""

    def __init__(self, index: int = 0) -> None:
        self.id = index

    def __enter__(self) -> CudaDevice:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def synchronize(self) -> None:
        """Have the host wait for the current stream."""
        get_current_stream().synchronize()


class MemoryPool:
    """Has what was made by its ``malloc`` in a capture: graphs go on using it."""

    def __init__(self) -> None:
        self.held: list[DeviceMemory] = []

    def malloc(self, memory: DeviceMemory) -> None:
        """Hold ``memory``, for good: what is dropped in between is not used again, as CuPy does."""
        memory.belongs_to_graphs()
        self.held.append(memory)


def given_out(memory: DeviceMemory) -> None:
    """Let the allocator that is in use know. Errors: a capture, and no pool that holds it."""
    if get_current_stream().capture is None:
        return
    allocator = getattr(own, "allocator", None)
    if allocator is None:
        expect_no_capture("new memory")
    else:
        allocator(memory)


@contextmanager
def using_allocator(allocator: Callable[[DeviceMemory], object] | None = None) -> Iterator[None]:
    """Have memory of ``allocator`` inside of it."""
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
