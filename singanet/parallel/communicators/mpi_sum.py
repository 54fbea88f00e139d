"""Sums over MPI of which each rank adds a part, and tells it to the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from singanet.types import Array

LARGE = 1 << 17
"""Bytes from which on it is quicker than ``Iallreduce``, which one rank adds alone up to three."""

_TAGS = range(1 << 14, 1 << 15, 2)
"""Tags by which sums are told apart; all are below those that MPI has at least."""


class Sums:
    """Begins sums on ``comm``, and keeps the memory in which parts of others arrive."""

    def __init__(self, comm: Any) -> None:
        self.comm = comm
        self._count = 0
        self.broken: list[PartedSum] = []
        """Sums of which a part is under way, as a rank has died."""
        self._free: dict[tuple[Any, int], list[Array]] = {}

    def start(self, array: Array, bounds: Sequence[int] | None = None) -> PartedSum:
        """``array``, flat, becomes the sum of those of all ranks, who start sums in one order.

        With ``bounds`` only the part of it that is this rank's does.
        """
        self._count += 1
        made = PartedSum(self, array, _TAGS[self._count % len(_TAGS)], bounds)
        try:
            made.start()
        except BaseException:
            self.broken.append(made)
            raise
        return made

    def take(self, dtype: Any, size: int) -> Array:
        """Memory for ``size`` elements, until it is given back."""
        free = self._free.get((dtype, size))
        # New memory is touched page by page, which takes as long as an addition.
        return free.pop() if free else np.empty(size, dtype)

    def give_back(self, array: Array) -> None:
        """Let another sum have the memory."""
        self._free.setdefault((array.dtype, array.size), []).append(array)


class PartedSum:
    """A sum that `Sums` has begun; ``Test`` as a request of MPI.

    Each rank gets its part of all arrays, adds them in the order of ranks, and sends the sum to
    all: as many bytes as a ring takes, in two steps, and the same bits whatever lies beside. With
    ``bounds`` of the parts the first of these steps is all.
    """

    def __init__(
        self, sums: Sums, array: Array, tag: int, bounds: Sequence[int] | None = None
    ) -> None:
        self._sums, self._array, self._tag = sums, array, tag
        self._size, self._rank = sums.comm.Get_size(), sums.comm.Get_rank()
        even = [array.size * k // self._size for k in range(self._size + 1)]
        self._bounds, self._scattered = list(bounds or even), bounds is not None
        own = self._part(self._rank)
        self._parts = [
            own if rank == self._rank else sums.take(array.dtype, own.size)
            for rank in range(self._size)
        ]
        self.requests: list[Any] = []

    def start(self) -> None:
        """Send all other ranks their parts."""
        self.requests.extend(self._exchange(0))

    def Test(self) -> bool:  # noqa: N802 - as MPI has it
        """Carry it on; whether ``array`` is the sum."""
        if not _all_done(self.requests):
            return False
        if not self._parts:
            return True
        self._add()
        if not self._scattered:
            self.requests.extend(self._exchange(1))
        return _all_done(self.requests)

    def _part(self, rank: int) -> Array:
        part: Array = self._array[self._bounds[rank] : self._bounds[rank + 1]]
        return part

    def _exchange(self, phase: int) -> Iterator[Any]:
        """Start what each rank sends each other one in this phase."""
        comm, tag, own = self._sums.comm, self._tag + phase, self._part(self._rank)
        for rank in range(self._size):
            if rank != self._rank:
                theirs = self._part(rank)
                sent, received = (theirs, self._parts[rank]) if phase == 0 else (own, theirs)
                if received.size:
                    yield comm.Irecv(received, rank, tag)
                if sent.size:
                    yield comm.Isend(sent, rank, tag)

    def _add(self) -> None:
        parts, self._parts = self._parts, []
        own, total = parts[self._rank], parts[0]
        for part in parts[1:]:
            # What is in `own` is needed until its turn has come.
            total = np.add(total, part, out=own if part is own or total is own else total)
        for rank, part in enumerate(parts):
            if rank != self._rank:
                self._sums.give_back(part)


def _all_done(requests: list[Any]) -> bool:
    while requests and requests[-1].Test():
        requests.pop()
    return not requests
