"""Copies between the host and a device, beside the kernels that are under way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np

from singanet.types import Array, Shape


class Transfers:
    """Copies to and from arrays of ``xp`` by pinned host memory, on a stream of their own.

    A copy begins when the computations that were started before, in the stream that is current
    now, are done with what it touches, and is done when it returns. ``scope()`` is where arrays
    of the device are made. One thread uses it at a time.
    """

    def __init__(self, xp: Any, scope: Callable[[], AbstractContextManager[Any]]) -> None:
        self._xp, self._scope = xp, scope
        self._staging: Array = np.empty(0, np.uint8)
        with scope():
            self._stream = xp.cuda.Stream(non_blocking=True)
            self._computing = xp.cuda.get_current_stream()

    def new(self, shape: Shape, dtype: np.dtype[Any]) -> Array:
        """An array of the device, not filled."""
        with self._copying():
            made: Array = self._xp.empty(shape, dtype)
        return made

    def staged(self, array: Array) -> Array:
        """Host memory of the form of ``array``; it is the same for all."""
        if self._staging.nbytes < array.nbytes:
            pinned = self._xp.cuda.alloc_pinned_memory(array.nbytes)
            self._staging = np.frombuffer(pinned, np.uint8)
        return self._staging[: array.nbytes].view(array.dtype).reshape(array.shape)

    def send(self, array: Array) -> None:
        """Fill ``array`` with what is `staged` for it."""
        with self._copying():
            array.set(self.staged(array))  # type: ignore[attr-defined]

    def fetch(self, array: Array) -> Array:
        """What is in ``array``, `staged`."""
        found = self.staged(array)
        with self._copying():
            array.get(out=found)  # type: ignore[attr-defined]
        return found

    @contextmanager
    def _copying(self) -> Iterator[None]:
        with self._scope():
            # Who computes has let go of an array before it is read into or freed, not before the
            # kernels that it started are done with it.
            self._stream.wait_event(self._computing.record())
            with self._stream:
                yield
            self._stream.synchronize()
