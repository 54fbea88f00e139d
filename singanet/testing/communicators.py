"""Several ranks in one process: threads with shared memory and virtual clocks."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

import numpy as np

from singanet.base.arguments import checked_count
from singanet.errors import RankError, RankLostError, one_of
from singanet.parallel.communicators.communicator import (
    Communicator,
    Done,
    ReduceOp,
    Request,
    checked_array,
    checked_bounds,
    checked_group,
    checked_peer,
    late,
)
from singanet.types import Array

T = TypeVar("T")

_Mail: TypeAlias = tuple[int, int, tuple[tuple[int, ...], int]]
"""Sender, receiver, and the tag with the ranks of its communicator."""

LATENCY = 1e-6
"""Virtual seconds of an operation without data, and of a test of a request."""

_SUMS: dict[str, Any] = {"sum": np.add, "max": np.maximum, "min": np.minimum}


class FakeCommunicator(Communicator):
    """A rank that is a thread of this process; `communicators` makes them.

    Time is ``clock``: `advance` adds computation, and an operation adds its transfer at
    ``bandwidth`` bytes per second, which starts when the last rank has come. The result of `test`
    depends only on these clocks, not on threads. If ranks do different operations, or all wait,
    they get an error at once. An array in flight contains NaN, so that reads of it are noticed.
    Ranks that are ``_on_device`` accept device arrays, too. If a rank dies by `die`, the others get
    an error.

    Args:
        world: State that all ranks share.
        members: Numbers in ``world`` of the ranks of this communicator, in order.
        own: Number of this rank in ``world``.
    """

    def __init__(self, world: _RankGroup, members: tuple[int, ...], own: int) -> None:
        self.rank, self.size = members.index(own), len(members)
        self.deadline = world.deadline
        self._world, self._members, self._own = world, members, own

    @property
    def clock(self) -> float:
        """Virtual seconds since the start."""
        return self._world.clocks[self._own]

    def advance(self, seconds: float) -> None:
        """Add ``seconds`` of computation to the clock of this rank."""
        with self._world.changed:
            self._world.move(self._own, self.clock + seconds)

    def abort(self, error: BaseException) -> None:
        """End the waits of every rank with an error: this rank has failed with ``error``.

        `Ranks.run` calls it.
        """
        self._world.end(f"rank {self._own} failed: {type(error).__name__}: {error}")

    def die(self) -> None:
        """End this rank as SIGKILL would: its function stops, without a result."""
        raise _DeathError

    def start_all_reduce(
        self, array: Array, op: ReduceOp = "sum", what: str = "an all-reduce"
    ) -> Request:
        def reduced(parts: list[Array]) -> Array:
            return _reduced(parts, op)

        self._checked(what, array)
        self._count_reduced(array.nbytes)
        return self._collective(f"{op} of", array, what, reduced, (array.shape, array.dtype.str))

    def _start_reduce_scatter(
        self, array: Array, bounds: Sequence[int], what: str = "a reduce-scatter"
    ) -> Request:
        self._checked(what, array)
        start, stop = checked_bounds(self, array, bounds)
        self._count_scattered(array[start:stop].nbytes, array.nbytes)
        facts = (array.shape, array.dtype.str, *bounds)
        own = array[start:stop]
        begun = self._collective("scattered", array, what, lambda parts: _reduced(parts), facts)
        begun.only(own, start, stop)
        return begun

    def _start_gather_parts(
        self, array: Array, bounds: Sequence[int], what: str = "a gathering of parts"
    ) -> Request:
        def joined(parts: list[Array]) -> Array:
            cuts = zip(parts, bounds, bounds[1:], strict=False)
            return np.concatenate([part[start:stop] for part, start, stop in cuts])

        self._checked(what, array)
        start, stop = checked_bounds(self, array, bounds)
        self._count_gathered(array[start:stop].nbytes, array.nbytes)
        facts = (array.shape, array.dtype.str, *bounds)
        return self._collective("parts of", array, what, joined, facts)

    def _start_all_gather(self, array: Array, what: str = "an all-gather") -> Request:
        self._checked(what, array)
        facts = (array.shape[1:], array.dtype.str)
        # The bytes of the others are counted on arrival.
        self._count_gathered(array.nbytes, array.nbytes)
        return self._collective("gathered", array, what, lambda parts: list(parts), facts, False)

    def _start_broadcast(self, array: Array, root: int = 0, what: str = "a broadcast") -> Request:
        self._checked(what, array)
        checked_peer(what, root, self.size)
        facts = (array.shape, array.dtype.str)
        self._count_broadcast(root, array.nbytes)
        return self._collective(f"from {root},", array, what, lambda parts: parts[root], facts)

    def _start_barrier(self, what: str = "a barrier") -> Request:
        return self._collective("barrier", np.empty(0), what, lambda _: None, (), False)

    def _start_send(self, array: Array, to: int, tag: int = 0, what: str = "a send") -> Request:
        """Send a copy of ``array``."""
        self._checked(what, array)
        mail = self._own, self._members[checked_peer(what, to, self.size)], self._tagged(tag)
        world = self._world
        with world.changed:
            world.look(self, what)
            self.bytes_sent += array.nbytes
            arrival = self.clock + world.cost(array.nbytes)
            if world.receivers.get(mail):
                world.receivers[mail].popleft().arrive(_copied(array), arrival)
            else:
                world.mail.setdefault(mail, deque()).append((_copied(array), arrival))
            world.changed.notify_all()
        return Done()

    def _start_receive(
        self, array: Array, source: int, tag: int = 0, what: str = "a receive"
    ) -> Request:
        self._checked(what, array)
        source = self._members[checked_peer(what, source, self.size)]
        mail = source, self._own, self._tagged(tag)
        world = self._world
        with world.changed:
            world.look(self, what)
            self.bytes_received += array.nbytes
            receipt = _Receipt(source, self.clock)
            if world.mail.get(mail):
                receipt.arrive(*world.mail[mail].popleft())
            else:
                world.receivers.setdefault(mail, deque()).append(receipt)
        return _FakeRequest(self, receipt, array, what)

    def group(self, ranks: Sequence[int]) -> FakeCommunicator:
        members = tuple(self._members[rank] for rank in checked_group(self, ranks))
        return FakeCommunicator(self._world, members, self._own)

    def _next_message(
        self, sources: Sequence[int], tag: int = 0, wait: bool = True, what: str = "a message"
    ) -> tuple[int, Array] | None:
        """Return the message that arrives first by the clocks."""
        world, waits = self._world, _Messages(self, tag, sources, wait)
        with world.changed:
            world.look(self, what)
            if not wait:
                world.move(self._own, self.clock + LATENCY)
            world.waiting[self._own] = waits
            world.changed.notify_all()
            try:
                known = world.changed.wait_for(waits.certain, world.patience)
                world.look(self, what)
                if not known or not waits.complete:
                    error = late(self, what)
                    world.end(str(error))
                    raise error
            finally:
                del world.waiting[self._own]
            mail = waits.first
            if mail is None or not (wait or waits.arrival <= self.clock):
                return None
            array, arrival = world.mail[mail].popleft()
            world.move(self._own, arrival)
            self.bytes_received += array.nbytes
            return self._members.index(mail[0]), array.reshape(-1).view(np.uint8)

    def _tagged(self, tag: int) -> tuple[tuple[int, ...], int]:
        return self._members, tag

    def _checked(self, what: str, array: Any) -> None:
        """Errors: ``array`` is not an array that the ranks accept."""
        if not (self._on_device and _is_there(array)):
            checked_array(what, array)

    def _collective(
        self,
        kind: str,
        array: Array,
        what: str,
        result: Callable[[list[Array]], Any],
        facts: tuple[Any, ...],
        in_place: bool = True,
    ) -> _FakeRequest:
        world = self._world
        with world.changed:
            world.look(self, what)
            meeting = world.meeting(self, (kind, *facts), result, what)
            meeting.arrive(self._own, _copied(array), self.clock)
            if in_place and array.dtype.kind == "f":
                array.fill(np.nan)
            world.changed.notify_all()
        return _FakeRequest(self, meeting, array if in_place else None, what)


def _is_there(array: Any) -> bool:
    """Return True for a device array, which ranks accept if ``_on_device``."""
    return hasattr(array, "get") and hasattr(array, "set")


def _copied(array: Any) -> Array:
    """Return a copy on the host, which threads exchange."""
    made: Array = array.get() if _is_there(array) else array.copy()
    return made


def _fill(array: Any, result: Array) -> None:
    if _is_there(array):
        array.set(result.reshape(array.shape).astype(array.dtype, copy=False))
    else:
        array[...] = result


def _reduced(parts: list[Array], op: str = "sum") -> Array:
    total = parts[0].copy()
    for part in parts[1:]:
        _SUMS[op](total, part, out=total)
    return total


class _DeathError(BaseException):
    """The end of a rank that dies."""


class Ranks(list[FakeCommunicator]):
    """The communicators of all ranks, in order.

    Args:
        iterable: The communicators.
    """

    def run(self, work: Callable[[FakeCommunicator], T]) -> list[T]:
        """Run ``work(comm)`` for every rank in a thread; return the results in the order of ranks.

        The result of a rank that died is None. Errors: the error of the first rank that failed; the
        waits of the others end.
        """
        results: list[Any] = [None] * len(self)
        failed: list[BaseException] = []

        def one(place: int, comm: FakeCommunicator) -> None:
            try:
                results[place] = work(comm)
            except _DeathError:
                comm._world.lose(comm._own)
            except BaseException as error:  # noqa: BLE001 - raised below
                failed.append(error)
                comm.abort(error)
            finally:
                world = comm._world
                with world.changed:
                    world.ended.add(comm._own)
                    world.changed.notify_all()

        threads = [
            threading.Thread(target=one, args=(place, comm), daemon=True)
            for place, comm in enumerate(self)
        ]
        for comm in self:
            comm._world.ended.clear()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failed:
            raise failed[0]
        return results


@contextmanager
def communicators(
    count: int,
    deadline: float = 300.0,
    bandwidth: float = 1e9,
    patience: float = 60.0,
) -> Iterator[Ranks]:
    """Make ranks in this process, one per thread; ``comms.run(work)`` starts them.

    Args:
        count: Number of ranks, a positive int.
        deadline: Virtual seconds after which a wait is an error.
        bandwidth: Virtual bytes per second.
        patience: Real seconds to wait for threads that never come.
    """
    count = checked_count("communicators", "count", count, 1)
    world = _RankGroup(count, deadline, bandwidth, patience)
    try:
        everyone = tuple(range(count))
        yield Ranks(FakeCommunicator(world, everyone, rank) for rank in everyone)
    finally:
        world.end("the block of communicators(...) has ended")


class _RankGroup:
    """The state that the ranks share, guarded by ``changed``."""

    def __init__(self, size: int, deadline: float, bandwidth: float, patience: float) -> None:
        self.size, self.deadline = size, deadline
        self.bandwidth, self.patience = bandwidth, patience
        self.changed = threading.Condition(threading.RLock())
        self.clocks = [0.0] * size
        self.counts: dict[tuple[tuple[int, ...], int], int] = {}
        self.meetings: dict[tuple[tuple[int, ...], int], _Meeting] = {}
        self.mail: dict[_Mail, deque[tuple[Array, float]]] = {}
        self.receivers: dict[_Mail, deque[_Receipt]] = {}
        self.waiting: dict[int, Any] = {}
        self.ended: set[int] = set()
        self.lost: set[int] = set()
        self.over = ""

    def cost(self, nbytes: int) -> float:
        """Return the virtual seconds of a transfer of ``nbytes``."""
        return LATENCY + nbytes / self.bandwidth

    def move(self, rank: int, clock: float) -> None:
        """Advance the clock of ``rank`` to at least ``clock``."""
        self.clocks[rank] = max(self.clocks[rank], clock)
        self.changed.notify_all()

    def end(self, why: str) -> None:
        """End all waits; the first reason is reported."""
        with self.changed:
            self.over = self.over or why
            self.changed.notify_all()

    def lose(self, rank: int) -> None:
        """Record the death of ``rank``: operations in flight are lost."""
        with self.changed:
            self.lost.add(rank)
            self.changed.notify_all()

    def look(self, comm: FakeCommunicator, what: str) -> None:
        """Errors: `RankError` after an end; `RankLostError` if a rank has died."""
        if self.lost:
            raise RankLostError(
                f"rank {comm.rank} of {comm.size}, step {comm.step}",
                expected=f"{what} with the other ranks",
                received=f"the death of rank {one_of(map(str, sorted(self.lost)))}",
                advice="end all ranks, and restart from a checkpoint",
            )
        if self.over:
            raise RankError(
                f"rank {comm.rank} of {comm.size}, step {comm.step}",
                expected=f"{what} with the other ranks",
                received=self.over,
                advice="correct the first error",
            )

    def meeting(
        self, comm: FakeCommunicator, facts: tuple[Any, ...], result: Any, what: str
    ) -> _Meeting:
        """Return the next collective operation of ``comm``."""
        counted = comm._members, comm._own
        number = comm._members, self.counts.get(counted, 0)
        self.counts[counted] = number[1] + 1
        met = self.meetings.setdefault(number, _Meeting(self, facts, result, comm, what))
        if met.facts != facts:
            error = RankError(
                f"rank {comm.rank} of {comm.size}, step {comm.step}",
                expected=f"the operation of rank {met.first}: {met.what} {met.facts}",
                received=f"{what} {facts}",
                advice="let all ranks run the same operations in the same order",
            )
            self.end(str(error))
            raise error
        if len(met.parts) + 1 == comm.size:
            del self.meetings[number]
        return met

    def still(self, rank: int, until: float) -> bool:
        """Return True if ``rank`` does nothing unknown before ``until``."""
        if rank in self.ended or self.clocks[rank] >= until:
            return True
        waits = self.waiting.get(rank)
        return waits is not None and (not waits.complete or waits.done >= until)

    def stuck(self) -> bool:
        """Return True if every rank waits for a rank that waits or has ended."""
        return all(
            rank in self.ended or (rank in self.waiting and not self.waiting[rank].complete)
            for rank in range(self.size)
        )


class _Meeting:
    """A collective operation of all ranks."""

    def __init__(
        self, world: _RankGroup, facts: Any, result: Any, first: FakeCommunicator, what: str
    ) -> None:
        self.world, self.facts, self.first, self.what = world, facts, first.rank, what
        self.members = first._members
        self.parts: dict[int, Array] = {}
        self.result: Any = result
        self.complete, self.done = False, 0.0

    @property
    def missing(self) -> list[int]:
        """The ranks that have not come."""
        return [rank for rank in self.members if rank not in self.parts]

    def arrive(self, rank: int, part: Array, clock: float) -> None:
        """Record ``rank``; the last one computes the result."""
        self.parts[rank] = part
        self.done = max(self.done, clock)
        if len(self.parts) == len(self.members):
            parts = [self.parts[rank] for rank in self.members]
            self.result = self.result(parts)
            self.done += self.world.cost(max(each.nbytes for each in parts))
            self.complete = True


class _Receipt:
    """A message that a rank waits for."""

    def __init__(self, source: int, clock: float) -> None:
        self.missing, self.done = [source], clock
        self.complete, self.result = False, np.empty(0)

    def arrive(self, part: Array, clock: float) -> None:
        """Store the message."""
        self.result, self.done = part, max(self.done, clock)
        self.complete, self.missing = True, []


class _Messages:
    """The messages to a rank with one tag, awaited or tested.

    Only ``sources`` send with this tag; a source that has ended or waits sends no earlier message.
    """

    missing: Sequence[int] = ()

    def __init__(
        self, comm: FakeCommunicator, tag: int, sources: Sequence[int], wait: bool
    ) -> None:
        self.world, self._own, self._wait = comm._world, comm._own, wait
        self._mails = [(k, comm._own, comm._tagged(tag)) for k in comm._members]
        self._sources = [comm._members[rank] for rank in sources]

    @property
    def first(self) -> _Mail | None:
        """The mailbox of the message that arrives first."""
        mails = [mail for mail in self._mails if self.world.mail.get(mail)]
        return min(mails, key=lambda mail: (self.world.mail[mail][0][1], mail[0]), default=None)

    @property
    def complete(self) -> bool:
        """True if there is a message, or none can come."""
        return not self._wait or self.first is not None or self._deserted()

    @property
    def arrival(self) -> float:
        """The arrival time of the first message."""
        return 0.0 if self.first is None else self.world.mail[self.first][0][1]

    @property
    def done(self) -> float:
        """The time when the rank continues, by the current knowledge."""
        own = self.world.clocks[self._own]
        return max(own, self.arrival) if self._wait else own

    def certain(self) -> bool:
        """Return True if no message can arrive before the first one, or for a test before now."""
        world = self.world
        if world.over or not self.complete:
            return bool(world.over) or world.stuck()
        return all(world.still(k, self.done) for k in range(world.size) if k != self._own)

    def _deserted(self) -> bool:
        return all(rank in self.world.ended for rank in self._sources)


class _FakeRequest(Request):
    """A `Request` for the result of a `_Meeting` or `_Receipt`."""

    def __init__(self, comm: FakeCommunicator, awaited: Any, array: Any, what: str) -> None:
        self._comm, self._awaited, self._array, self._what = comm, awaited, array, what
        self._world, self._rank = comm._world, comm._own
        self._delivered = False
        self._cut: slice | None = None

    def only(self, own: Array, start: int, stop: int) -> None:
        """Write only the result's elements from ``start`` to ``stop``, to ``own``."""
        self._array, self._cut = own, slice(start, stop)

    def test(self) -> bool:
        """Return True if it is done, as soon as the clocks determine this."""
        comm, awaited = self._comm, self._awaited
        world, rank = self._world, self._rank
        with world.changed:
            world.look(comm, self._what)
            world.move(rank, comm.clock + LATENCY)
            now = comm.clock

            def certain() -> bool:
                late = any(world.clocks[k] >= now for k in awaited.missing)
                still = all(world.still(k, now) for k in range(world.size) if k != rank)
                return bool(awaited.complete or late or still or world.over or world.lost)

            self._patiently(certain)
            if awaited.complete and awaited.done <= now:
                self._deliver()
        return self._delivered

    def wait(self) -> Any:
        comm, awaited = self._comm, self._awaited
        world, rank = self._world, self._rank
        with world.changed:
            if self._delivered:
                return self._result()
            began = comm.clock
            world.waiting[rank] = awaited
            world.changed.notify_all()
            try:
                self._patiently(
                    lambda: awaited.complete or world.over or world.lost or world.stuck()
                )
                if not awaited.complete:
                    world.look(comm, self._what)
                if not awaited.complete or awaited.done > began + comm.deadline:
                    raise self._late()
            finally:
                del world.waiting[rank]
            world.move(rank, awaited.done)
            self._deliver()
        return self._result()

    def _patiently(self, until: Callable[[], Any]) -> None:
        world = self._world
        if not world.changed.wait_for(until, world.patience):
            raise self._late()

    def _late(self) -> RankError:
        comm, missing = self._comm, self._awaited.missing
        error = RankError(
            f"rank {comm.rank} of {comm.size}, step {comm.step}",
            expected=f"{self._what} within {comm.deadline:g} s",
            received=f"nothing from rank {one_of(map(str, missing))}"
            if missing
            else "an answer after the deadline",
            advice="look at the other ranks: one may have ended, or take fewer steps",
        )
        self._world.end(str(error))
        return error

    def _deliver(self) -> None:
        if self._delivered:
            return
        self._delivered = True
        if self._array is not None:
            result = self._awaited.result
            _fill(self._array, result if self._cut is None else result[self._cut])
        elif self._awaited.result is not None:
            parts = enumerate(self._awaited.result)
            rank = self._comm.rank
            self._comm.bytes_received += sum(p.nbytes for k, p in parts if k != rank)

    def _result(self) -> Any:
        return self._awaited.result if self._array is None else self._array
