"""Messages of workers and servers: one piece of bytes, numbers first, then arrays."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from singanet.errors import ArgumentError, RankError
from singanet.parallel.communicators.communicator import Communicator, Request
from singanet.types import Array

ASK, ANSWER = 1, 2
"""Tags of messages to servers, and of those from them."""

_HEAD = 6
_ALIGNED = 16
_KEPT = 1 << 18
"""Bytes of messages after which it is seen which of them are still on their way."""

_DTYPES = ("float32", "float64", "float16", "int64", "int32", "uint8", "bool")


class MessageKind(IntEnum):
    """The kind of a message: a request or an answer."""

    DONE = 0
    FAILED = 1
    OPEN = 2
    PUT = 3
    STEP = 4
    FINISH = 5
    LEAVE = 6
    PULL = 7
    PUSH = 8
    PUSH_PULL = 9
    NEWER = 10
    STATE = 11
    LOAD = 12
    SNAPSHOT = 13
    LOADS = 14
    SET = 15
    WRITE = 16


class Message(NamedTuple):
    """``subject`` is a shard by its number; ``need`` how many steps what is read has to have had.

    ``number`` is the worker's own, by which it knows the answer; ``service`` whose shards.
    """

    kind: MessageKind
    number: int = 0
    service: int = 0
    subject: int = 0
    need: int = 0
    arrays: Sequence[Array] = ()


def packed(message: Message) -> Array:
    """The bytes of ``message``; arrays are copied."""
    head = [*message[:5], len(message.arrays)]
    for array in message.arrays:
        head += [_DTYPES.index(array.dtype.name), array.ndim, *array.shape]
    start = np.array([len(head), *head], np.int64)
    places, end = [], start.nbytes
    for array in message.arrays:
        end += -end % _ALIGNED
        places.append(end)
        end += array.nbytes
    made = np.empty(end, np.uint8)
    made[: start.nbytes] = start.view(np.uint8)
    for place, array in zip(places, message.arrays, strict=True):
        part = made[place : place + array.nbytes].view(array.dtype).reshape(array.shape)
        part[...] = array
    return made


def parsed(data: Array) -> Message:
    """The message of the bytes ``data``, which its arrays lie in."""
    length = int(data[:8].view(np.int64)[0])
    head = data[8 : 8 + 8 * length].view(np.int64).tolist()
    at, end, arrays = _HEAD, 8 + 8 * length, []
    for _ in range(head[_HEAD - 1]):
        code, ndim = head[at : at + 2]
        shape, at = head[at + 2 : at + 2 + ndim], at + 2 + ndim
        dtype = np.dtype(_DTYPES[code])
        end += -end % _ALIGNED
        stop = end + int(np.prod(shape)) * dtype.itemsize
        arrays.append(data[end:stop].view(dtype).reshape(shape))
        end = stop
    kind, number, service, subject, need = head[: _HEAD - 1]
    return Message(MessageKind(kind), number, service, subject, need, arrays)


def pickled(value: Any) -> Array:
    """``value`` as an array of bytes."""
    return np.frombuffer(pickle.dumps(value), np.uint8)


def unpickled(array: Array) -> Any:
    """The object that another rank of the same job gave to `pickled`."""
    return pickle.loads(array.tobytes())


class Post:
    """Sends messages by one tag; what MPI has not taken yet is kept until it has."""

    def __init__(self, world: Communicator, tag: int) -> None:
        self._world, self._tag = world, tag
        self._sent: list[Request] = []
        self._kept = 0

    def send(self, message: Message, to: int, what: str) -> int:
        """Send it to the rank ``to``; its bytes."""
        data = packed(message)
        # A look at each after each message would take longer than the messages.
        self._kept += data.nbytes
        if self._kept > _KEPT:
            self._sent = [request for request in self._sent if not request.test()]
            self._kept = 0
        self._sent.append(self._world.start_send(data, to, self._tag, what))
        return data.nbytes

    def flush(self) -> None:
        """Wait until all is taken."""
        for request in self._sent:
            request.wait()
        self._sent = []


class ServerRanks:
    """The ``ranks`` of ``world`` that serve; the others, in their order, are the workers."""

    def __init__(self, world: Communicator, ranks: Sequence[int]) -> None:
        self.world, self.ranks = world, tuple(ranks)
        self.workers = tuple(rank for rank in range(world.size) if rank not in self.ranks)
        self.services = 0
        self._post = Post(world, ASK)
        self._asked = 0
        self._answers: dict[int, Message] = {}

    def expect_workers(self, where: str, comm: Communicator) -> None:
        """Errors: `ArgumentError` where ``comm`` are not all of the workers."""
        if comm.size != len(self.workers):
            raise ArgumentError(
                f"{where}(comm=)",
                expected=f"all of the {len(self.workers)} workers that are served",
                received=f"{comm.size} of them",
                advice="sum the gradients of some of the ranks, as of a pipeline, by AllReduce",
            )

    def ask(self, server: int, message: Message, what: str) -> Answer:
        """Send ``message`` to the server of this number; its answer, some time."""
        self._asked += 1
        self._post.send(message._replace(number=self._asked), self.ranks[server], what)
        return Answer(self, self._asked, what)

    def collect(self, number: int, wait: bool, what: str) -> Message | None:
        """The answer ``number``, None where it is not there. Errors: the servers have ended."""
        while number not in self._answers:
            came = self.world.next_message(self.ranks, ANSWER, wait, what)
            if came is None:
                if not wait:
                    return None
                raise RankError(
                    f"rank {self.world.rank}, {what}",
                    expected="an answer of a server",
                    received="the servers have ended",
                    advice="look at what they wrote, and begin anew from their last snapshots",
                )
            answer = parsed(came[1])
            self._answers[answer.number] = answer
        return self._answers.pop(number)


class Answer(Request):
    """A `Request` for the arrays of an answer."""

    def __init__(self, ranks: ServerRanks, number: int, what: str) -> None:
        self._ranks, self._number, self._what = ranks, number, what
        self._message: Message | None = None

    def test(self) -> bool:
        if self._message is None:
            self._message = self._ranks.collect(self._number, False, self._what)
        return self._message is not None

    def wait(self) -> Any:
        """As `Request`. Errors: `RankError` with what the server has refused."""
        if self._message is None:
            self._message = self._ranks.collect(self._number, True, self._what)
        assert self._message is not None
        if self._message.kind is MessageKind.FAILED:
            raise RankError(
                self._what,
                expected="a server that can do it",
                received=str(unpickled(self._message.arrays[0]))[:400],
                advice="mend what the server says",
            )
        return self._message.arrays
