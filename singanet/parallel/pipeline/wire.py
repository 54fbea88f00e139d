"""Arrays on their way from stage to stage, with what says their shapes and types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from singanet.device import Device
from singanet.parallel.communicators.communicator import Communicator, Request
from singanet.types import Array

FORWARD, BACKWARD, SHARED, ASKED = range(4)
"""Tags: activations, their gradients, parameters of several stages, parameters asked for."""

_AXES = 8
"""Axes that an array has at most."""


class Wire:
    """Sends and receives lists of arrays of ``device``, of which some may be None.

    Sends are begun and not waited for: two stages that send each other large arrays would wait
    for ever. A number goes with each list.
    """

    def __init__(self, comm: Communicator, device: Device) -> None:
        self.comm, self.device = comm, device
        self._pending: list[Request] = []

    def send(
        self, arrays: Sequence[Any], to: int, tag: int, what: str, number: float = 0.0
    ) -> None:
        """Begin to send ``arrays``, which nobody may change before `settle`."""
        # One that is done lets go of its array.
        self._pending = [request for request in self._pending if not request.test()]
        header = np.zeros((len(arrays) + 1, 2 + _AXES), np.float64)
        header[0, 0] = number
        own = [None if each is None else self._on_host(each) for each in arrays]
        for row, array in zip(header[1:], own, strict=True):
            if array is not None:
                row[:2] = ord(array.dtype.char), array.ndim
                row[2 : 2 + array.ndim] = array.shape
        for array in [header, *own]:
            if array is not None:
                self._pending.append(self.comm.start_send(array, to, tag, what))

    def receive(self, count: int, source: int, tag: int, what: str) -> tuple[list[Any], float]:
        """The ``count`` arrays that ``source`` has sent, and the number."""
        header = np.empty((count + 1, 2 + _AXES), np.float64)
        self.comm.receive(header, source, tag, what)
        found: list[Any] = []
        for row in header[1:]:
            kind, ndim, *shape = row.astype(int).tolist()
            if not kind:
                found.append(None)
                continue
            array = np.empty(shape[:ndim], chr(kind))
            found.append(self.device.put(self.comm.receive(array, source, tag, what)))
        return found, float(header[0, 0])

    def settle(self) -> None:
        """Wait until all that was sent is gone."""
        while self._pending:
            self._pending.pop(0).wait()

    def _on_host(self, array: Any) -> Array:
        return np.ascontiguousarray(self.device.ops.host(array))
