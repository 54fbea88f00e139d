"""The part of a communicator that lower rooms need."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from singanet.types import Array


class Collectives(Protocol):
    """``rank`` of ``size`` processes; `singanet.parallel.Communicator` implements it.

    All ranks call the same methods in the same order. Arrays are NumPy's.
    """

    rank: int
    size: int
    bytes_sent: int
    bytes_received: int
    step: int

    def all_reduce(self, array: Array, op: Any = "sum", what: str = "an all-reduce") -> Array:
        """Return the sum of the arrays of all ranks."""

    def all_gather(self, array: Array, what: str = "an all-gather") -> list[Array]:
        """Return the arrays of all ranks, which may differ in length along axis 0."""

    def _gather_parts(
        self, array: Array, bounds: Sequence[int], what: str = "a gathering of parts"
    ) -> Array:
        """Gather in place: each part of ``array``, between two ``bounds``, comes from its rank."""

    def broadcast(self, array: Array, root: int = 0, what: str = "a broadcast") -> Array:
        """Return the array of the rank ``root``."""

    def send(self, array: Array, to: int, tag: int = 0, what: str = "a send") -> None:
        """Send ``array``; arrays from one rank to another arrive in order."""

    def receive(self, array: Array, source: int, tag: int = 0, what: str = "a receive") -> Array:
        """Receive into ``array`` from ``source``."""


def gathered(comm: Collectives, value: Any, what: str) -> list[Any]:
    """Return the ``value`` of every rank, in the order of ranks: plain data and arrays."""
    parts = comm.all_gather(np.frombuffer(pickle.dumps(value), np.uint8).copy(), what)
    return [pickle.loads(part.tobytes()) for part in parts]


def of_first(comm: Collectives, value: Any, what: str) -> Any:
    """Return the ``value`` of rank 0."""
    return gathered(comm, None if comm.rank else value, what)[0]


@contextmanager
def uncounted(comm: Collectives) -> Iterator[None]:
    """Within the block no bytes are counted, since disk timing determines their number."""
    sent, received = comm.bytes_sent, comm.bytes_received
    try:
        yield
    finally:
        comm.bytes_sent, comm.bytes_received = sent, received


class SharedBatch:
    """The batch whose parts are on all ranks, for layers with statistics over all of it.

    ``weight`` is the weight of this rank's gradients, None for sums.
    """

    def __init__(self, comm: Collectives) -> None:
        self.comm = comm
        self.weight: float | None = None
