"""Arrays put together of the slices of all ranks, a layer ahead of where they are needed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from singanet.base.lent import LentMemory
from singanet.errors import RankError
from singanet.parallel.communicators.communicator import Communicator, Request
from singanet.parallel.slices.storage import Gathering, Slices
from singanet.types import Array

_KINDS = ("an evaluation", "a training forward", "the end of its batches")


class Gathers(Gathering):
    """Gathers over the ranks of ``comm``, on a communicator of their own.

    A pass is followed group by group, each what a layer needs: while one is in use, the next is
    under way, and what was before is dropped. All ranks go through the same passes, and read the
    same in them.
    """

    def __init__(self, comm: Communicator) -> None:
        # Apart from sums, which need not begin at the same points of a pass on all ranks.
        self.comm, self._counting = comm.group(range(comm.size)), comm
        self.lent: list[Slices] = []
        self.by_slices = False
        """Whether a step is under way whose updates go to the slices, whatever is lent."""
        self._groups: Sequence[tuple[Slices, ...]] = ()
        self._at = self._pass = 0
        self._held: dict[Slices, tuple[Array, Request, LentMemory]] = {}
        self._free: list[LentMemory] = []

    def follow(self, kind: str, groups: Sequence[tuple[Slices, ...]]) -> int:
        """Begin a pass, whose layers need ``groups`` one after the other; its number.

        Errors: `RankError` on all ranks if another one does something else.
        """
        self.put_back()
        self._come_for(kind)
        self._groups, self._at = [group for group in groups if group], 0
        self._pass += 1
        return self._pass

    def end(self, number: int) -> None:
        """End the pass of this ``number``, unless another one has begun."""
        if number == self._pass:
            self.drop()

    def listen(self) -> None:
        """Say that this rank has no more batches. Errors: as `follow`."""
        self.put_back()
        self._come_for(_KINDS[-1])

    def drop(self) -> None:
        """End the pass: nothing that was gathered stays."""
        self._groups, self._at = (), 0
        self._keep(set())
        self._free.clear()

    def end_loans(self) -> None:
        """Keep what has become of what was lent."""
        while self.lent:
            self.lent.pop().put_back()

    def put_back(self) -> None:
        """End all loans, and the pass."""
        self.end_loans()
        self.drop()

    def read(self, slices: Slices) -> Array:
        """The whole array, until it is dropped."""
        coming = range(self._at, len(self._groups))
        at = next((k for k in coming if slices in self._groups[k]), None)
        self._at = self._at if at is None else at
        near = [each for group in self._groups[self._at : self._at + 2] for each in group]
        self._keep({slices, *near})
        for each in (slices, *near):
            if each not in self._held:
                self._held[each] = self._started(each)
        array, request, _ = self._held[slices]
        request.wait()
        if not self._groups:
            # Outside of passes nobody tells when it is not needed any more.
            del self._held[slices]
        return array

    def _started(self, slices: Slices) -> tuple[Array, Request, LentMemory]:
        bounds, rank = slices.bounds, self.comm.rank
        memory = self._memory(bounds[-1] * slices.dtype.itemsize)
        flat = memory.lend((bounds[-1],), slices.dtype)
        flat[bounds[rank] : bounds[rank + 1]] = slices.own.reshape(-1)
        request = self.comm.start_gather_parts(flat, bounds, f"the values of {slices.name}")
        self._counting.count_gathered(slices.nbytes, flat.nbytes)
        return flat.reshape(slices.shape), request, memory

    def _keep(self, wanted: set[Slices]) -> None:
        """Drop all but the ``wanted``; memory of it is used again, if nobody else has it."""
        for slices in self._held.keys() - wanted:
            array, request, memory = self._held.pop(slices)
            request.wait()
            del array, request
            if not memory.is_lent:
                self._free.append(memory)

    def _memory(self, nbytes: int) -> LentMemory:
        for k, free in enumerate(self._free):
            if free.nbytes == nbytes:
                return self._free.pop(k)
        most = max((sum(each.nbytes for each in group) for group in self._sizes()), default=0)
        while self._free and sum(free.nbytes for free in self._free) + nbytes > most:
            self._free.pop(0)
        return LentMemory(np.empty(nbytes, np.uint8))

    def _sizes(self) -> list[list[Array]]:
        return [[each.stand_in for each in group] for group in self._groups]

    def _come_for(self, kind: str) -> None:
        self.comm.step = self._counting.step
        came = np.array([float(kind == each) for each in _KINDS])
        counts = self.comm.all_reduce(came, what=f"the beginning of {kind}")
        told = [(each, int(n)) for each, n in zip(_KINDS, counts.tolist(), strict=True) if n]
        if len(told) > 1:
            raise RankError(
                f"rank {self.comm.rank} of {self.comm.size}, step {self.comm.step}",
                expected="all ranks in the same pass of a net whose parameters are in slices",
                received=" and ".join(f"{n} in {each}" for each, n in told),
                advice="give all ranks as many batches, empty ones too, as net.fit does by itself",
            )
