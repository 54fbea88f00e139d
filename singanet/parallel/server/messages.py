"""Messages between workers and servers, packed together with one head."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from math import prod
from struct import Struct
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from singanet.base.terms import WORKERS
from singanet.errors import ArgumentError, RankError
from singanet.parallel.communicators.communicator import Communicator, Request
from singanet.types import Array

ASK, ANSWER = 1, 2
"""Tags of messages to servers and from servers."""

_LENGTH = Struct("=q")
"""The length of the layout, at the start of a packed message."""

_ALIGNED = 16
_LAYOUTS = 1024
"""Size of the cache of layouts: a step repeats its layouts, except for numbers of rows."""

_KEPT = 1 << 18
"""Bytes of delayed messages that force a send, and of sent ones before a check of their requests.
"""

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
    NEWER = 9
    STATE = 10
    LOAD = 11
    LOADS = 12
    SET = 13
    WRITE = 14


_KINDS = tuple(MessageKind)
"""The kinds by number, from 0."""


class Message(NamedTuple):
    """A message about the shard ``subject``; ``need`` is the step that a read must wait for.

    ``number`` is the worker's number of the request, which the answer repeats; ``service`` is the
    number of the service.
    """

    kind: MessageKind
    number: int = 0
    service: int = 0
    subject: int = 0
    need: int = 0
    arrays: Sequence[Array] = ()


_Form: TypeAlias = tuple[MessageKind, int, tuple[tuple[np.dtype[Any], tuple[int, ...]], ...]]
"""The kind and the subject of a message, and the dtypes and shapes of its arrays."""


class _Layout(NamedTuple):
    """The layout of the arrays of messages that share one head.

    The ``head`` has the length of ``encoded``, this layout as bytes, then ``encoded``, then the
    ``numbers`` of each message: number, service, need. ``nbytes`` is the total size.
    """

    encoded: bytes
    head: Struct
    numbers: Struct
    kinds: tuple[tuple[MessageKind, int], ...]
    views: tuple[tuple[tuple[tuple[int, ...], np.dtype[Any], int], ...], ...]
    nbytes: int


@lru_cache(_LAYOUTS)
def _layout_of(forms: tuple[_Form, ...]) -> _Layout:
    """Return the layout of messages of ``forms``."""
    encoded: list[int] = []
    for kind, subject, arrays in forms:
        encoded += [kind, subject, len(arrays)]
        for dtype, shape in arrays:
            encoded += [_DTYPES.index(dtype.name), len(shape), *shape]
    raw, numbers = np.array(encoded, np.int64).tobytes(), 3 * len(forms)
    head = Struct(f"=q{len(raw)}s{numbers}q")
    end, views = head.size, []
    for *_, arrays in forms:
        own = []
        for dtype, shape in arrays:
            end += -end % _ALIGNED
            own.append((shape, dtype, end))
            end += prod(shape) * dtype.itemsize
        views.append(tuple(own))
    kinds = tuple([(kind, subject) for kind, subject, _ in forms])
    return _Layout(raw, head, Struct(f"={numbers}q"), kinds, tuple(views), end)


@lru_cache(_LAYOUTS)
def _decoded_layout(encoded: bytes) -> _Layout:
    """Decode the layout that another rank has sent."""
    numbers, forms = iter(np.frombuffer(encoded, np.int64).tolist()), []
    for kind in numbers:
        subject, count, arrays = next(numbers), next(numbers), []
        for _ in range(count):
            dtype, ndim = np.dtype(_DTYPES[next(numbers)]), next(numbers)
            arrays.append((dtype, tuple([next(numbers) for _ in range(ndim)])))
        forms.append((_KINDS[kind], subject, tuple(arrays)))
    return _layout_of(tuple(forms))


def packed(messages: Sequence[Message]) -> Array:
    """Return the bytes of ``messages``, with one head; arrays are copied."""
    forms: list[_Form] = []
    numbers: list[int] = []
    for kind, number, service, subject, need, arrays in messages:
        forms.append((kind, subject, tuple([(array.dtype, array.shape) for array in arrays])))
        numbers += (number, service, need)
    layout = _layout_of(tuple(forms))
    made: Array = np.empty(layout.nbytes, np.uint8)
    raw = made.data
    layout.head.pack_into(raw, 0, len(layout.encoded), layout.encoded, *numbers)
    for message, views in zip(messages, layout.views, strict=True):
        for array, (shape, dtype, place) in zip(message.arrays, views, strict=True):
            np.ndarray(shape, dtype, raw, place)[...] = array
    return made


def parsed(data: Array) -> list[Message]:
    """Return the messages in the bytes ``data``; their arrays are views of it."""
    raw = data.data
    start = _LENGTH.size + _LENGTH.unpack_from(raw)[0]
    layout = _decoded_layout(bytes(raw[_LENGTH.size : start]))
    numbers = iter(layout.numbers.unpack_from(raw, start))
    found = []
    for (kind, subject), views in zip(layout.kinds, layout.views, strict=True):
        arrays = [np.ndarray(shape, dtype, raw, place) for shape, dtype, place in views]
        number, service, need = next(numbers), next(numbers), next(numbers)
        found.append(Message(kind, number, service, subject, need, arrays))
    return found


def pickled(value: Any) -> Array:
    """Return ``value``, pickled, as an array of bytes."""
    return np.frombuffer(pickle.dumps(value), np.uint8)


def unpickled(array: Array) -> Any:
    """Return the object from the bytes of `pickled`, sent by another rank of the job."""
    return pickle.loads(array.tobytes())


class Post:
    """Sends messages with one tag, small ones together; it owns messages that MPI has not sent.

    Messages to one rank arrive in the order of `give`.
    """

    def __init__(self, world: Communicator, tag: int) -> None:
        self._world, self._tag = world, tag
        self._waiting: dict[int, list[Message]] = {}
        self._waiting_bytes = 0
        self._sent: list[Request] = []
        self._untested = 0

    @property
    def waits(self) -> bool:
        """True if a message has not been sent."""
        return bool(self._waiting)

    def give(self, message: Message, to: int, what: str) -> None:
        """Send ``message`` to the rank ``to`` with the next `send`; many bytes are sent at once."""
        self._waiting.setdefault(to, []).append(message)
        for array in message.arrays:
            self._waiting_bytes += array.nbytes
        if self._waiting_bytes > _KEPT:
            self.send(what)

    def send(self, what: str) -> None:
        """Send the delayed messages, one packed message per rank."""
        waiting, self._waiting, self._waiting_bytes = self._waiting, {}, 0
        for to, messages in waiting.items():
            data = packed(messages)
            # A test of each request after each message would take longer than the messages.
            self._untested += data.nbytes
            if self._untested > _KEPT:
                self._sent = [request for request in self._sent if not request.test()]
                self._untested = 0
            self._sent.append(self._world._start_send(data, to, self._tag, what))
            self._world._ring(to)

    def flush(self) -> None:
        """Wait until MPI has sent all messages."""
        for request in self._sent:
            request.wait()
        self._sent = []


class ServerRanks:
    """The server ``ranks`` of ``world``; the other ranks, in order, are the workers."""

    def __init__(self, world: Communicator, ranks: Sequence[int]) -> None:
        self.world, self.ranks = world, tuple(ranks)
        self.workers = tuple(rank for rank in range(world.size) if rank not in self.ranks)
        self.services = 0
        self._post = Post(world, ASK)
        self._asked = 0
        self._answers: dict[int, Message] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> ServerRanks:
        """Return the same object: the same processes serve a copy of an optimizer."""
        return self

    def expect_workers(self, where: str, comm: Communicator) -> None:
        """Errors: `ArgumentError` unless ``comm`` has all of the workers."""
        if comm.size != len(self.workers):
            raise ArgumentError(
                f"{where}(comm=)",
                expected=WORKERS,
                received=f"{comm.size} of {len(self.workers)}",
                advice="use AllReduce for a group of ranks, such as a pipeline's",
            )

    def ask(self, server: int, message: Message, what: str, later: bool = False) -> Answer:
        """Send ``message`` to the server of this number, and return a request for the answer.

        ``later`` delays it to the next message without ``later``, or to the wait for an answer: the
        requests of a step are one message then.
        """
        self._asked += 1
        kind, _, service, subject, need, arrays = message
        numbered = Message(kind, self._asked, service, subject, need, arrays)
        self._post.give(numbered, self.ranks[server], what)
        if not later:
            self._post.send(what)
        return Answer(self, self._asked, what)

    @property
    def holds_back(self) -> bool:
        """True if a request has not been sent."""
        return self._post.waits

    def collect(self, number: int, wait: bool, what: str) -> Message | None:
        """Return the answer ``number``, None if it has not come. Errors: the servers have ended."""
        if number not in self._answers:
            self._post.send(what)
        while number not in self._answers:
            came = self.world._next_message(self.ranks, ANSWER, wait, what)
            if came is None:
                if not wait:
                    return None
                raise RankError(
                    f"rank {self.world.rank}, {what}",
                    expected="an answer of a server",
                    received="the servers have ended",
                    advice="read their output, and restart from their last snapshots",
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
        """Wait and return the arrays. Errors: `RankError` with the server's error."""
        if self._message is None:
            self._message = self._ranks.collect(self._number, True, self._what)
        assert self._message is not None
        if self._message.kind is MessageKind.FAILED:
            raise RankError(
                self._what,
                expected="a server without errors",
                received=str(unpickled(self._message.arrays[0]))[:400],
                advice="correct the cause that the server names",
            )
        return self._message.arrays
