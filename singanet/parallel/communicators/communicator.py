"""Communicators of ranks, and sums in half precision."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np

from singanet.errors import ArgumentError, RankError
from singanet.types import Array

ReduceOp: TypeAlias = Literal["sum", "max", "min"]
"""What ranks make of their numbers, element by element."""


class Exchanged(NamedTuple):
    """Bytes that a rank has sent to others and received from them, without headers.

    They are counted as of a direct exchange, in which each rank sends every other rank its share:
    an all-reduce of n bytes over p ranks sends 2 (p − 1) / p · n, an all-gather (p − 1) times the
    rank's own bytes, a reduce-scatter all but these. Rings send as much in all.
    """

    sent: int
    received: int

    def since(self, before: Exchanged) -> Exchanged:
        """The growth since ``before``."""
        return Exchanged(self.sent - before.sent, self.received - before.received)


class Request(Protocol):
    """An operation under way. The arrays it was given are its own until `wait` returns."""

    def test(self) -> bool:
        """Whether it is done; asking carries it on, as nothing else does while Python computes."""

    def wait(self) -> Any:
        """Its result, once it is done; again the same. Errors: `RankError` past the deadline."""


class Communicator(ABC):
    """``rank`` of ``size`` processes, and what each of them can do with the others.

    Arrays are NumPy's, contiguous, and changed in place. All ranks start the same collective
    operations in the same order, with arrays of the same type and size. ``start_...`` returns a
    `Request`; the method without it waits. An operation that is waited for longer than
    ``deadline`` seconds raises a `RankError` with this rank, the ``step`` that its user counts,
    and ``what`` was waited for. What was said so far is in ``bytes_sent`` and ``bytes_received``.
    """

    rank: int
    size: int
    deadline: float
    step: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    _on_device: bool = False
    """Whether arrays of a GPU may be given as they are, and not copied to the host before."""

    @property
    def exchanged(self) -> Exchanged:
        """``bytes_sent`` and ``bytes_received``."""
        return Exchanged(self.bytes_sent, self.bytes_received)

    @abstractmethod
    def start_all_reduce(
        self, array: Array, op: ReduceOp = "sum", what: str = "an all-reduce"
    ) -> Request:
        """``array`` becomes the sum, maximum or minimum of those of all ranks; the result."""

    @abstractmethod
    def _start_all_gather(self, array: Array, what: str = "an all-gather") -> Request:
        """A list of the arrays of all ranks, which may differ in length along axis 0."""

    @abstractmethod
    def _start_reduce_scatter(
        self, array: Array, bounds: Sequence[int], what: str = "a reduce-scatter"
    ) -> Request:
        """The part of the flat ``array`` that is this rank's becomes the sum of all; that part.

        Part k lies from ``bounds[k]`` to ``bounds[k + 1]``, on all ranks. What is in the others
        then is nobody's.
        """

    @abstractmethod
    def _start_gather_parts(
        self, array: Array, bounds: Sequence[int], what: str = "a gathering of parts"
    ) -> Request:
        """Every part of the flat ``array`` becomes what its rank has there; the array.

        Part k, of rank k, lies from ``bounds[k]`` to ``bounds[k + 1]``, on all ranks.
        """

    @abstractmethod
    def _start_broadcast(self, array: Array, root: int = 0, what: str = "a broadcast") -> Request:
        """``array`` becomes that of ``root``; the result."""

    @abstractmethod
    def _start_send(self, array: Array, to: int, tag: int = 0, what: str = "a send") -> Request:
        """Send ``array``; the ``tag``-ged ones from one rank to another arrive in order."""

    @abstractmethod
    def _start_receive(
        self, array: Array, source: int, tag: int = 0, what: str = "a receive"
    ) -> Request:
        """``array`` becomes what ``source`` sent; the result."""

    @abstractmethod
    def _start_barrier(self, what: str = "a barrier") -> Request:
        """Done once all ranks have started it."""

    @abstractmethod
    def group(self, ranks: Sequence[int]) -> Communicator:
        """A communicator of these ``ranks``, among them this one, which count from 0 there.

        All ranks call it at the same point, each with a group of its own; groups do not overlap.
        """

    def _next_message(
        self, sources: Sequence[int], tag: int = 0, wait: bool = True, what: str = "a message"
    ) -> tuple[int, Array] | None:
        """The rank that has sent, and the bytes of, the next message by ``tag``, of any length.

        None if there is no message and it does not ``wait``, or if all of ``sources``, the only
        senders by this tag, have ended.
        """
        raise ArgumentError(
            f"{what} by a {type(self).__name__}",
            expected="a communicator whose ranks can wait for any of the others",
            received=repr(self),
            advice="use that of parallel.init() on the host, or one of testing.communicators(n)",
        )

    def _ring(self, to: int) -> None:  # noqa: B027 - most find messages without
        """Wake the rank ``to``, where it waits for the `_next_message`: one is on its way."""

    def all_reduce(self, array: Array, op: ReduceOp = "sum", what: str = "an all-reduce") -> Array:
        """As `start_all_reduce`, waited for."""
        reduced: Array = self.start_all_reduce(array, op, what).wait()
        return reduced

    def all_gather(self, array: Array, what: str = "an all-gather") -> list[Array]:
        """As `_start_all_gather`, waited for."""
        gathered: list[Array] = self._start_all_gather(array, what).wait()
        return gathered

    def _gather_parts(
        self, array: Array, bounds: Sequence[int], what: str = "a gathering of parts"
    ) -> Array:
        """As `_start_gather_parts`, waited for."""
        whole: Array = self._start_gather_parts(array, bounds, what).wait()
        return whole

    def broadcast(self, array: Array, root: int = 0, what: str = "a broadcast") -> Array:
        """As `_start_broadcast`, waited for."""
        received: Array = self._start_broadcast(array, root, what).wait()
        return received

    def send(self, array: Array, to: int, tag: int = 0, what: str = "a send") -> None:
        """As `_start_send`, waited for."""
        self._start_send(array, to, tag, what).wait()

    def receive(self, array: Array, source: int, tag: int = 0, what: str = "a receive") -> Array:
        """As `_start_receive`, waited for."""
        received: Array = self._start_receive(array, source, tag, what).wait()
        return received

    def barrier(self, what: str = "a barrier") -> None:
        """As `_start_barrier`, waited for."""
        self._start_barrier(what).wait()

    def _count_reduced(self, nbytes: int) -> None:
        """Count an all-reduce of ``nbytes``; communicators do so by themselves."""
        each = 2 * (self.size - 1) * nbytes // self.size
        self.bytes_sent += each
        self.bytes_received += each

    def _count_gathered(self, own: int, total: int) -> None:
        """Count an all-gather to which this rank has given ``own`` of ``total`` bytes."""
        self.bytes_sent += (self.size - 1) * own
        self.bytes_received += total - own

    def _count_scattered(self, own: int, total: int) -> None:
        """Count a reduce-scatter of ``total`` bytes, of which ``own`` are this rank's part."""
        self.bytes_sent += total - own
        self.bytes_received += (self.size - 1) * own

    def _count_broadcast(self, root: int, nbytes: int) -> None:
        """Count a broadcast of ``nbytes`` from ``root``."""
        if self.rank == root:
            self.bytes_sent += (self.size - 1) * nbytes
        else:
            self.bytes_received += nbytes

    def __deepcopy__(self, memo: dict[int, Any]) -> Communicator:
        """Itself: a copy of a net trains with the same processes."""
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}(rank={self.rank}, size={self.size})"


class Done(Request):
    """A `Request` that was done when it was made."""

    def __init__(self, result: Any = None) -> None:
        self._result = result

    def test(self) -> bool:
        return True

    def wait(self) -> Any:
        return self._result


class Staged(Request):
    """A `Request` of ``stages``, which yield the requests they wait for, and return the result.

    A stage begins where the one before is waited for, or with ``by_test`` also where it is seen to
    be done.
    """

    def __init__(
        self, stages: Generator[Sequence[Request], None, Any], by_test: bool = False
    ) -> None:
        self._stages, self._by_test = stages, by_test
        self._requests: Sequence[Request] = ()
        self._done, self._result = False, None
        self._go_on()

    def _go_on(self) -> None:
        try:
            self._requests = next(self._stages)
        except StopIteration as end:
            self._done, self._requests, self._result = True, (), end.value

    def test(self) -> bool:
        # Each is carried on by being asked.
        done = not [request for request in self._requests if not request.test()]
        if done and self._by_test and not self._done:
            self._go_on()
            return self._done
        return done

    def wait(self) -> Any:
        while not self._done:
            for request in self._requests:
                request.wait()
            self._go_on()
        return self._result


def joint(requests: Sequence[Request], made: Callable[[], Any]) -> Request:
    """The ``requests`` as one, whose result is ``made`` once it is waited for."""

    def stages() -> Generator[Sequence[Request], None, Any]:
        yield requests
        return made()

    return Staged(stages())


class Alone(Communicator):
    """The one process there is: nothing is sent, and no MPI is loaded."""

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
        checked_peer("Alone", root, 1)
        return Done(array)

    def _start_send(self, array: Array, to: int, tag: int = 0, what: str = "a send") -> Request:
        """As `Communicator`. Errors: there is nobody to send to."""
        raise _nobody(what)

    def _start_receive(
        self, array: Array, source: int, tag: int = 0, what: str = "a receive"
    ) -> Request:
        """As `Communicator`. Errors: there is nobody to receive from."""
        raise _nobody(what)

    def _start_barrier(self, what: str = "a barrier") -> Request:
        return Done()

    def group(self, ranks: Sequence[int]) -> Communicator:
        """As `Communicator`: itself."""
        checked_group(self, ranks)
        return self


def checked_array(where: str, array: Any) -> Array:
    """``array``. Errors: it is not NumPy's, or does not lie in one piece."""
    if not isinstance(array, np.ndarray) or not array.flags.c_contiguous:
        raise ArgumentError(
            where,
            expected="a contiguous array of NumPy's",
            received="one with gaps or another order"
            if isinstance(array, np.ndarray)
            else type(array).__name__,
            advice="pass numpy.ascontiguousarray(array), and copy the result back",
        )
    return array


def checked_bounds(comm: Communicator, array: Array, bounds: Sequence[int]) -> tuple[int, int]:
    """Where this rank's part of ``array`` lies.

    Errors: ``bounds`` that do not cut a flat array into as many parts as there are ranks.
    """
    ends = list(bounds)
    cuts = len(ends) == comm.size + 1 and ends == sorted(ends)
    if array.ndim != 1 or not cuts or (ends[0], ends[-1]) != (0, array.size):
        raise ArgumentError(
            "comm, the parts of an array",
            expected=f"a flat array, and {comm.size + 1} bounds from 0 to its size",
            received=f"shape {array.shape}, bounds {ends}"[:200],
            advice="pass array.reshape(-1), and where each rank's part begins, then the size",
        )
    return ends[comm.rank], ends[comm.rank + 1]


def checked_peer(where: str, rank: int, size: int) -> int:
    """``rank``. Errors: there is no such rank."""
    if not 0 <= rank < size:
        raise ArgumentError(
            where,
            expected=f"a rank from 0 to {size - 1}",
            received=repr(rank),
            advice="ranks count from 0 to size - 1",
        )
    return rank


def checked_group(comm: Communicator, ranks: Sequence[int]) -> list[int]:
    """``ranks``, ascending. Errors: one that is not there, or twice, or this one not among them."""
    found = sorted({checked_peer("comm.group", int(rank), comm.size) for rank in ranks})
    if comm.rank not in found or len(found) != len(ranks):
        raise ArgumentError(
            "comm.group",
            expected=f"different ranks, of which {comm.rank} is one",
            received=str(list(ranks)),
            advice="let each rank name the group that it belongs to",
        )
    return found


def late(comm: Communicator, what: str, ranks: str = "the other ranks") -> RankError:
    """The error of a wait past the deadline of ``comm``."""
    return RankError(
        f"rank {comm.rank} of {comm.size}, step {comm.step}",
        expected=f"{what}, to which {ranks} contribute, within {comm.deadline:g} s",
        received="no answer",
        advice="look at what the others do: one may have ended, be stopped, or take fewer steps; "
        "comm.deadline is settable",
    )


def _nobody(what: str) -> ArgumentError:
    return ArgumentError(
        f"{what} of a lone process",
        expected="another rank",
        received="a communicator of size 1",
        advice="start several processes: mpirun -n 2 python -m mpi4py script.py",
    )


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
        return Staged(self._sum(comm, array, self._tags % (1 << 14), what), by_test=True)

    def _sum(
        self, comm: Communicator, array: Array, tag: int, what: str
    ) -> Generator[Sequence[Request], None, Array]:
        """The parts are exchanged, added, and exchanged again."""
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
        # In the order of ranks.
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
    """Begin to send each other rank the first of its ``arrays``, and to receive the second.

    Arrays without elements stay.
    """
    made = []
    for rank, (sent, heard) in enumerate(arrays):
        if rank != own and heard.size:
            made.append(receive(heard, rank))
        if rank != own and sent.size:
            made.append(send(sent, rank))
    return made
