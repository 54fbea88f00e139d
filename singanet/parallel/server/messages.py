"""Messages of workers and servers: pieces of bytes, of one or more; numbers first, then arrays."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from math import prod
from struct import Struct
from typing import Any, NamedTuple

import numpy as np

from singanet.errors import ArgumentError, RankError
from singanet.parallel.communicators.communicator import Communicator, Request
from singanet.types import Array

ASK, ANSWER = 1, 2
"""Tags of messages to servers, and of those from them."""

_HEAD = Struct("=6q")
"""Bytes of the layout, then kind, number, service, subject, and need."""

_ALIGNED = 16
_LAYOUTS = 1024
"""Layouts that are known: those of a step repeat, but for the numbers of rows."""

_KEPT = 1 << 18
"""Bytes of messages that wait at most, and after which it is seen which are still on their way."""

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


class _Layout(NamedTuple):
    """Where arrays lie behind a head: how it tells of them, and the bytes of the whole message."""

    told: bytes
    views: tuple[tuple[tuple[int, ...], np.dtype[Any], int], ...]
    nbytes: int


@lru_cache(_LAYOUTS)
def _layout_of(forms: tuple[tuple[np.dtype[Any], tuple[int, ...]], ...]) -> _Layout:
    """The layout of arrays of these types and shapes."""
    told: list[int] = []
    for dtype, shape in forms:
        told += [_DTYPES.index(dtype.name), len(shape), *shape]
    end, views = _HEAD.size + 8 * len(told), []
    for dtype, shape in forms:
        end += -end % _ALIGNED
        views.append((shape, dtype, end))
        end += prod(shape) * dtype.itemsize
    return _Layout(np.array(told, np.int64).tobytes(), tuple(views), end + -end % _ALIGNED)


@lru_cache(_LAYOUTS)
def _layout_told(told: bytes) -> _Layout:
    """The layout that another rank has told."""
    numbers, at, forms = np.frombuffer(told, np.int64).tolist(), 0, []
    while at < len(numbers):
        code, ndim = numbers[at : at + 2]
        forms.append((np.dtype(_DTYPES[code]), tuple(numbers[at + 2 : at + 2 + ndim])))
        at += 2 + ndim
    return _layout_of(tuple(forms))


def packed(messages: Sequence[Message]) -> Array:
    """The bytes of ``messages``, one after the other; arrays are copied."""
    layouts = [_layout_of(tuple([(a.dtype, a.shape) for a in each.arrays])) for each in messages]
    made, at = np.empty(sum(layout.nbytes for layout in layouts), np.uint8), 0
    raw = made.data
    for message, (told, views, nbytes) in zip(messages, layouts, strict=True):
        _HEAD.pack_into(raw, at, len(told), *message[:5])
        raw[at + _HEAD.size : at + _HEAD.size + len(told)] = told
        for array, (shape, dtype, place) in zip(message.arrays, views, strict=True):
            np.ndarray(shape, dtype, raw, at + place)[...] = array
        at += nbytes
    return made


def parsed(data: Array) -> list[Message]:
    """The messages of the bytes ``data``, which their arrays lie in."""
    raw, at, found = data.data, 0, []
    while at < len(data):
        length, kind, number, service, subject, need = _HEAD.unpack_from(raw, at)
        _, views, nbytes = _layout_told(bytes(raw[at + _HEAD.size : at + _HEAD.size + length]))
        arrays = [np.ndarray(shape, dtype, raw, at + place) for shape, dtype, place in views]
        found.append(Message(MessageKind(kind), number, service, subject, need, arrays))
        at += nbytes
    return found


def pickled(value: Any) -> Array:
    """``value`` as an array of bytes."""
    return np.frombuffer(pickle.dumps(value), np.uint8)


def unpickled(array: Array) -> Any:
    """The object that another rank of the same job gave to `pickled`."""
    return pickle.loads(array.tobytes())


class Post:
    """Sends messages by one tag, those that may wait with the next; what MPI has not taken stays.

    Messages to one rank come in the order in which they were given.
    """

    def __init__(self, world: Communicator, tag: int) -> None:
        self._world, self._tag = world, tag
        self._waiting: dict[int, list[Message]] = {}
        self._waiting_bytes = 0
        self._sent: list[Request] = []
        self._kept = 0

    @property
    def waits(self) -> bool:
        """Whether a message was given that is not on its way."""
        return bool(self._waiting)

    def give(self, message: Message, to: int, what: str) -> None:
        """Send it to the rank ``to`` with the next `send`; large ones need not wait for that."""
        self._waiting.setdefault(to, []).append(message)
        self._waiting_bytes += sum([array.nbytes for array in message.arrays])
        if self._waiting_bytes > _KEPT:
            self.send(what)

    def send(self, what: str) -> None:
        """Send what was given, to each rank as one."""
        waiting, self._waiting, self._waiting_bytes = self._waiting, {}, 0
        for to, messages in waiting.items():
            data = packed(messages)
            # A look at each after each message would take longer than the messages.
            self._kept += data.nbytes
            if self._kept > _KEPT:
                self._sent = [request for request in self._sent if not request.test()]
                self._kept = 0
            self._sent.append(self._world.start_send(data, to, self._tag, what))
            self._world.ring(to)

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

    def ask(self, server: int, message: Message, what: str, later: bool = False) -> Answer:
        """Send ``message`` to the server of this number; its answer, some time.

        ``later`` lets it go with the next message that does not wait, or when an answer is waited
        for: what a step asks is one message then.
        """
        self._asked += 1
        self._post.give(message._replace(number=self._asked), self.ranks[server], what)
        if not later:
            self._post.send(what)
        return Answer(self, self._asked, what)

    @property
    def holds_back(self) -> bool:
        """Whether something was asked that is not on its way."""
        return self._post.waits

    def collect(self, number: int, wait: bool, what: str) -> Message | None:
        """The answer ``number``, None where it is not there. Errors: the servers have ended."""
        if number not in self._answers:
            self._post.send(what)
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
            self._answers.update({answer.number: answer for answer in parsed(came[1])})
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
