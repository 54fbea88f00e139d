"""Sums whose parts travel as float16 and are added in float32."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from singanet.parallel.communicators.communicator import Communicator, Request
from singanet.types import Array

_MOST = float(np.finfo(np.float16).max)


class Halves:
    """Rounds to float16; what is too large becomes the largest, and is counted."""

    def __init__(self) -> None:
        self.overflowed = 0
        self._tags = 0

    def rounded(self, array: Array) -> Array:
        """``array`` in float16; NaN and infinity stay."""
        beyond = (np.abs(array) > _MOST) & np.isfinite(array)
        if beyond.any():
            self.overflowed += int(beyond.sum())
            array = np.where(beyond, np.copysign(_MOST, array), array)
        # Infinity is no overflow here: it was there before.
        return array.astype(np.float16)

    def start_sum(self, comm: Communicator, array: Array, what: str) -> Request:
        """The sum of the flat arrays of all ranks, in the type of ``array``.

        Each rank adds a part and tells the others, all of it in float16: half of the bytes of an
        all-reduce in float32. The ranks start sums in one order.
        """
        self._tags += 2
        return _HalfSum(self, comm, array, self._tags % (1 << 14), what)


class _HalfSum(Request):
    """A `Request`: the parts are exchanged, added, and exchanged again."""

    def __init__(
        self, halves: Halves, comm: Communicator, array: Array, tag: int, what: str
    ) -> None:
        self._halves, self._comm, self._tag, self._what = halves, comm, tag, what
        self._dtype = array.dtype
        self._bounds = [array.size * k // comm.size for k in range(comm.size + 1)]
        self._own = halves.rounded(array)
        mine = self._part(self._own, comm.rank)
        self._parts = [np.empty_like(mine) for _ in range(comm.size)]
        self._parts[comm.rank][...] = mine
        self._total: Array | None = None
        self._requests = list(self._exchange(0))

    def _part(self, array: Array, rank: int) -> Array:
        return array[self._bounds[rank] : self._bounds[rank + 1]]

    def _exchange(self, phase: int) -> Iterator[Request]:
        """Start what each rank sends each other one in this phase; parts of no element stay."""
        comm, tag = self._comm, self._tag + phase
        mine = self._part(self._own, comm.rank)
        for rank in range(comm.size):
            theirs = self._part(self._own, rank)
            sent, received = (theirs, self._parts[rank]) if phase == 0 else (mine, theirs)
            if rank != comm.rank and received.size:
                yield comm.start_receive(received, rank, tag, self._what)
            if rank != comm.rank and sent.size:
                yield comm.start_send(sent, rank, tag, self._what)

    def _add(self) -> None:
        """Add the parts in the order of ranks, and send the sum on."""
        total = self._parts[0].astype(np.float32)
        for part in self._parts[1:]:
            total += part
        self._part(self._own, self._comm.rank)[...] = self._halves.rounded(total)
        self._parts = []
        self._requests = list(self._exchange(1))

    def test(self) -> bool:
        # Each is carried on by being asked.
        done = [request.test() for request in self._requests]
        if all(done) and self._parts:
            self._add()
            return False
        return all(done)

    def wait(self) -> Any:
        while self._total is None:
            for request in self._requests:
                request.wait()
            if self._parts:
                self._add()
            else:
                self._total = self._own.astype(self._dtype)
        return self._total
