"""Communicators of ranks, and sums in half precision."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np

from singanet.errors import ArgumentError, RankError, brief
from singanet.types import Array

ReduceOp: TypeAlias = Literal["sum", "max", "min"]
"""The elementwise operations of an all-reduce."""


class Exchanged(NamedTuple):
    """Bytes that a rank has sent to and received from other ranks, without headers.

    The counts assume a direct exchange, in which each rank sends every other rank its share: an
    all-reduce of n bytes over p ranks sends 2 (p − 1) / p · n, an all-gather (p − 1) times the
    rank's own bytes, a reduce-scatter all bytes except the rank's own part. Rings send as much in
    total.
    """

    sent: int
    received: int

    def since(self, before: Exchanged) -> Exchanged:
        """Return the difference from ``before``."""
        return Exchanged(self.sent - before.sent, self.received - before.received)


class Request(Protocol):
    """An operation in flight, which owns its arrays until `wait` returns."""

    def test(self) -> bool:
        """Return True if it is done.

        The call also advances it, as nothing else does while Python computes.
        """

    def wait(self) -> Any:
        """Wait and return the result, again the same. Errors: `RankError` past the deadline."""


class Communicator(ABC):
    """The ``rank`` of this process among ``size`` processes, and its operations with the others.

    Arrays are contiguous NumPy arrays and are changed in place. All ranks start the same collective
    operations in the same order, with arrays of the same type and size. ``start_...`` returns a
    `Request`; the method without it waits. A wait of more than ``deadline`` seconds raises a
    `RankError` with this rank, the ``step`` that its user counts, and ``what``, the name of the
    operation. ``bytes_sent`` and ``bytes_received`` count the traffic.
    """

    rank: int
    size: int
    deadline: float
    step: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    _on_device: bool = False
    """True if arrays on a GPU are accepted without a copy to the host."""

    @property
    def exchanged(self) -> Exchanged:
        """``bytes_sent`` and ``bytes_received``."""
        return Exchanged(self.bytes_sent, self.bytes_received)

    @abstractmethod
    def start_all_reduce(
        self, array: Array, op: ReduceOp = "sum", what: str = "an all-reduce"
    ) -> Request:
        """Start to reduce ``array`` over all ranks in place; the result is the array.

        ``op`` is "sum", "max" or "min"; ``what`` names the operation in errors.
        """

    @abstractmethod
    def _start_all_gather(self, array: Array, what: str = "an all-gather") -> Request:
        """Gather a list of the arrays of all ranks, which may differ in length along axis 0."""

    @abstractmethod
    def _start_reduce_scatter(
        self, array: Array, bounds: Sequence[int], what: str = "a reduce-scatter"
    ) -> Request:
        """Sum this rank's part of the flat ``array`` over all ranks in place, and return the part.

        Part k spans ``bounds[k]`` to ``bounds[k + 1]`` on all ranks. The other parts of ``array``
        are undefined afterwards.
        """

    @abstractmethod
    def _start_gather_parts(
        self, array: Array, bounds: Sequence[int], what: str = "a gathering of parts"
    ) -> Request:
        """Fill every part of the flat ``array`` with the values of its rank, and return the array.

        Part k, of rank k, spans ``bounds[k]`` to ``bounds[k + 1]`` on all ranks.
        """

    @abstractmethod
    def _start_broadcast(self, array: Array, root: int = 0, what: str = "a broadcast") -> Request:
        """Copy ``array`` of ``root`` to all ranks, and return it."""

    @abstractmethod
    def _start_send(self, array: Array, to: int, tag: int = 0, what: str = "a send") -> Request:
        """Send ``array``; messages with one ``tag`` from one rank to another arrive in order."""

    @abstractmethod
    def _start_receive(
        self, array: Array, source: int, tag: int = 0, what: str = "a receive"
    ) -> Request:
        """Receive a message of ``source`` into ``array``, and return that."""

    @abstractmethod
    def _start_barrier(self, what: str = "a barrier") -> Request:
        """Start a barrier, which is done when all ranks have started it."""

    @abstractmethod
    def group(self, ranks: Sequence[int]) -> Communicator:
        """Return a communicator of ``ranks``, which include this one and count from 0 in it.

        All ranks call it at the same point, each with its own group; groups do not overlap.
        """

    def _next_message(
        self, sources: Sequence[int], tag: int = 0, wait: bool = True, what: str = "a message"
    ) -> tuple[int, Array] | None:
        """Return the sender and the bytes of the next message with ``tag``, of any length.

        None if there is no message and ``wait`` is False, or if all of ``sources``, the only
        senders with this tag, have ended.
        """
        raise ArgumentError(
            f"{what} by a {type(self).__name__}",
            expected="a communicator that can wait for a message of any rank",
            received=brief(self),
            advice="use parallel.init() on the host, or testing.communicators(n)",
        )

    def _ring(self, to: int) -> None:  # noqa: B027 - most find messages without
        """Wake the rank ``to`` if it waits in `_next_message`: a message is on its way."""

    def all_reduce(self, array: Array, op: ReduceOp = "sum", what: str = "an all-reduce") -> Array:
        """Reduce ``array`` over all ranks in place, and return it.

        ``op`` is "sum", "max" or "min"; ``what`` names the operation in errors.
        """
        reduced: Array = self.start_all_reduce(array, op, what).wait()
        return reduced

    def all_gather(self, array: Array, what: str = "an all-gather") -> list[Array]:
        """Return the arrays of all ranks, which may differ in length along axis 0.

        ``array`` is this rank's; ``what`` names the operation in errors.
        """
        gathered: list[Array] = self._start_all_gather(array, what).wait()
        return gathered

    def _gather_parts(
        self, array: Array, bounds: Sequence[int], what: str = "a gathering of parts"
    ) -> Array:
        """Do `_start_gather_parts` and wait."""
        whole: Array = self._start_gather_parts(array, bounds, what).wait()
        return whole

    def broadcast(self, array: Array, root: int = 0, what: str = "a broadcast") -> Array:
        """Copy ``array`` of ``root`` to all ranks, and return it.

        ``what`` names the operation in errors.
        """
        received: Array = self._start_broadcast(array, root, what).wait()
        return received

    def send(self, array: Array, to: int, tag: int = 0, what: str = "a send") -> None:
        """Send ``array`` to the rank ``to``, and wait.

        Messages with one ``tag``, an int, from one rank to another arrive in order. ``what`` names
        the operation in errors.
        """
        self._start_send(array, to, tag, what).wait()

    def receive(self, array: Array, source: int, tag: int = 0, what: str = "a receive") -> Array:
        """Wait for a message of ``source`` with ``tag``, write it to ``array`` and return that.

        ``what`` names the operation in errors.
        """
        received: Array = self._start_receive(array, source, tag, what).wait()
        return received

    def barrier(self, what: str = "a barrier") -> None:
        """Wait until all ranks have made this call; ``what`` names it in errors."""
        self._start_barrier(what).wait()

    def _count_reduced(self, nbytes: int) -> None:
        """Count an all-reduce of ``nbytes``; each communicator calls this itself."""
        each = 2 * (self.size - 1) * nbytes // self.size
        self.bytes_sent += each
        self.bytes_received += each

    def _count_gathered(self, own: int, total: int) -> None:
        """Count an all-gather of ``total`` bytes, ``own`` of them from this rank."""
        self.bytes_sent += (self.size - 1) * own
        self.bytes_received += total - own

    def _count_scattered(self, own: int, total: int) -> None:
        """Count a reduce-scatter of ``total`` bytes with a part of ``own`` bytes on this rank."""
        self.bytes_sent += total - own
        self.bytes_received += (self.size - 1) * own

    def _count_broadcast(self, root: int, nbytes: int) -> None:
        """Count a broadcast of ``nbytes`` from ``root``."""
        if self.rank == root:
            self.bytes_sent += (self.size - 1) * nbytes
        else:
            self.bytes_received += nbytes

    def __deepcopy__(self, memo: dict[int, Any]) -> Communicator:
        """Return the same object: a copy of a net trains with the same processes."""
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}(rank={self.rank}, size={self.size})"


class Done(Request):
    """A `Request` that is already done."""

    def __init__(self, result: Any = None) -> None:
        self._result = result

    def test(self) -> bool:
        return True

    def wait(self) -> Any:
        return self._result


class Staged(Request):
    """A `Request` of several ``stages``: a generator that yields requests and returns the result.

    The next stage starts when `wait` finds its requests done, or with ``by_test`` also when `test`
    does.
    """

    def __init__(
        self, stages: Generator[Sequence[Request], None, Any], by_test: bool = False
    ) -> None:
        self._stages, self._by_test = stages, by_test
        self._requests: Sequence[Request] = ()
        self._done, self._result = False, None
        self._advance()

    def _advance(self) -> None:
        try:
            self._requests = next(self._stages)
        except StopIteration as end:
            self._done, self._requests, self._result = True, (), end.value

    def test(self) -> bool:
        # All of them, as the call advances a request.
        done = not [request for request in self._requests if not request.test()]
        if done and self._by_test and not self._done:
            self._advance()
            return self._done
        return done

    def wait(self) -> Any:
        while not self._done:
            for request in self._requests:
                request.wait()
            self._advance()
        return self._result


def joint(requests: Sequence[Request], made: Callable[[], Any]) -> Request:
    """Combine ``requests`` into one, whose result is ``made()``, called in its `wait`."""

    def stages() -> Generator[Sequence[Request], None, Any]:
        yield requests
        return made()

    return Staged(stages())


class SingleProcess(Communicator):
    """The communicator of a single process: it sends nothing and loads no MPI."""

    rank, size = 0, 1
    deadline = float("inf")

    def start_all_reduce(
        self, array: Array, op: ReduceOp = "sum", what: str = "an all-reduce"
    ) -> Request:
        return Done(array)

    def _start_all_gather(self, array: Array, what: str = "an all-gather") -> Request:
        return Done([array.copy()])

    def _start_reduce_scatter(
        self, array: Array, bounds: Sequence[int], what: str = "a reduce-scatter"
    ) -> Request:
        return Done(array[slice(*checked_bounds(self, array, bounds))])

    def _start_gather_parts(
        self, array: Array, bounds: Sequence[int], what: str = "a gathering of parts"
    ) -> Request:
        checked_bounds(self, array, bounds)
        return Done(array)

    def _start_broadcast(self, array: Array, root: int = 0, what: str = "a broadcast") -> Request:
        checked_peer("SingleProcess", root, 1)
        return Done(array)

    def _start_send(self, array: Array, to: int, tag: int = 0, what: str = "a send") -> Request:
        """Errors: `ArgumentError`, as there is no other rank."""
        raise _nobody(what)

    def _start_receive(
        self, array: Array, source: int, tag: int = 0, what: str = "a receive"
    ) -> Request:
        """Errors: `ArgumentError`, as there is no other rank."""
        raise _nobody(what)

    def _start_barrier(self, what: str = "a barrier") -> Request:
        return Done()

    def group(self, ranks: Sequence[int]) -> Communicator:
        """Return this communicator."""
        checked_group(self, ranks)
        return self


def checked_array(where: str, array: Any) -> Array:
    """Return ``array``. Errors: `ArgumentError` unless it is a contiguous NumPy array."""
    if not isinstance(array, np.ndarray) or not array.flags.c_contiguous:
        raise ArgumentError(
            where,
            expected="a contiguous NumPy array",
            received="an array with gaps or another order"
            if isinstance(array, np.ndarray)
            else type(array).__name__,
            advice="pass numpy.ascontiguousarray(array), and copy the result back",
        )
    return array


def checked_bounds(comm: Communicator, array: Array, bounds: Sequence[int]) -> tuple[int, int]:
    """Return the start and the end of this rank's part of ``array``.

    Errors: `ArgumentError` unless ``bounds`` divide a flat array into one part per rank.
    """
    ends = list(bounds)
    cuts = len(ends) == comm.size + 1 and ends == sorted(ends)
    if array.ndim != 1 or not cuts or (ends[0], ends[-1]) != (0, array.size):
        raise ArgumentError(
            "comm, the parts of an array",
            expected=f"a flat array, and {comm.size + 1} bounds from 0 to its size",
            received=f"shape {array.shape}, bounds {ends}"[:200],
            advice="pass array.reshape(-1), and the start of each rank's part, then the size",
        )
    return ends[comm.rank], ends[comm.rank + 1]


def checked_peer(where: str, rank: int, size: int) -> int:
    """Return ``rank``. Errors: `ArgumentError` if there is no such rank."""
    if not 0 <= rank < size:
        raise ArgumentError(
            where,
            expected=f"a rank from 0 to {size - 1}",
            received=brief(rank),
            advice="ranks count from 0 to size - 1",
        )
    return rank


def checked_group(comm: Communicator, ranks: Sequence[int]) -> list[int]:
    """Return ``ranks``, sorted. Errors: `ArgumentError` if they repeat, or lack this rank."""
    found = sorted({checked_peer("comm.group", int(rank), comm.size) for rank in ranks})
    if comm.rank not in found or len(found) != len(ranks):
        raise ArgumentError(
            "comm.group",
            expected=f"different ranks, {comm.rank} among them",
            received=str(list(ranks)),
            advice="let each rank pass its own group",
        )
    return found


def late(comm: Communicator, what: str, ranks: str = "the other ranks") -> RankError:
    """Return the error of a wait past the deadline of ``comm``."""
    return RankError(
        f"rank {comm.rank} of {comm.size}, step {comm.step}",
        expected=f"{what}, to which {ranks} contribute, within {comm.deadline:g} s",
        received="no answer",
        advice="look at the other ranks: one may have ended, be stopped, or take fewer steps; "
        "comm.deadline is settable",
    )


def _nobody(what: str) -> ArgumentError:
    return ArgumentError(
        f"{what} of a single process",
        expected="another rank",
        received="a communicator of size 1",
        advice="start several processes: mpirun -n 2 python -m mpi4py script.py",
    )


_MOST = float(np.finfo(np.float16).max)


class Halves:
    """Rounding to float16 that clips large values and counts them in ``overflowed``."""

    def __init__(self) -> None:
        self.overflowed = 0
        self._tags = 0

    def rounded(self, array: Array) -> Array:
        """Return ``array`` in float16; NaN and infinity stay."""
        beyond = (np.abs(array) > _MOST) & np.isfinite(array)
        if beyond.any():
            self.overflowed += int(beyond.sum())
            array = np.where(beyond, np.copysign(_MOST, array), array)
        # An infinity is not counted, as it was in the input.
        return array.astype(np.float16)

    def start_sum(self, comm: Communicator, array: Array, what: str) -> Request:
        """Start the sum of the flat arrays of all ranks, in the dtype of ``array``.

        Each rank sums one part and sends it to the others, all in float16: half of the bytes of an
        all-reduce in float32. The ranks start sums in the same order.
        """
        self._tags += 2
        return Staged(self._sum(comm, array, self._tags % (1 << 14), what), by_test=True)

    def _sum(
        self, comm: Communicator, array: Array, tag: int, what: str
    ) -> Generator[Sequence[Request], None, Array]:
        """Exchange the parts, sum them, and exchange the sums."""
        dtype, own = array.dtype, self.rounded(array)
        bounds = [array.size * k // comm.size for k in range(comm.size + 1)]
        parts = [own[start:stop] for start, stop in pairwise(bounds)]
        mine = parts[comm.rank]
        heard = [mine if rank == comm.rank else np.empty_like(mine) for rank in range(comm.size)]

        def exchange(sent: Sequence[Array], heard: Sequence[Array], tag: int) -> list[Request]:
            return exchanges(
                comm.rank,
                zip(sent, heard, strict=True),
                lambda part, rank: comm._start_send(part, rank, tag, what),
                lambda part, rank: comm._start_receive(part, rank, tag, what),
            )

        yield exchange(parts, heard, tag)
        # Summed in the order of ranks.
        total = heard[0].astype(np.float32)
        for part in heard[1:]:
            total += part
        mine[...] = self.rounded(total)
        heard = []
        yield exchange([mine] * comm.size, parts, tag + 1)
        return own.astype(dtype)


def exchanges(
    own: int,
    arrays: Iterable[tuple[Array, Array]],
    send: Callable[[Array, int], Any],
    receive: Callable[[Array, int], Any],
) -> list[Any]:
    """Start to send each other rank the first of its ``arrays``, and to receive the second.

    Arrays without elements are skipped.
    """
    made = []
    for rank, (sent, heard) in enumerate(arrays):
        if rank != own and heard.size:
            made.append(receive(heard, rank))
        if rank != own and sent.size:
            made.append(send(sent, rank))
    return made
