"""Continuous batching: the texts of all clients advance together, token by token."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from singanet.commands.runs.published import StopFilter
from singanet.commands.serving.waiting import WaitingQueue
from singanet.data import Tokenizer
from singanet.decoding import Decoder, Processors, Sampling
from singanet.decoding.prefix_cache import Scored, scored
from singanet.engine.net import Net

_CHUNK = 64
"""The most tokens of prompts that are read between two tokens of the other texts."""


class Piece(NamedTuple):
    """A part of an answer: new ``text``; at the end the reason ``ended``, or an ``error``."""

    text: str = ""
    ended: str = ""
    error: Exception | None = None


@dataclass(eq=False)
class TextRequest:
    """A text to write: ``send`` gets its `Piece` objects, in a thread of the scheduler.

    ``length`` is the most new tokens, ``ends`` are ids that end the text, ``stops`` texts before
    which it ends. It ends early if ``cancelled`` is set, or at the time ``deadline`` of
    `time.monotonic`.
    """

    prompt: Sequence[int]
    length: int
    sampling: Sampling
    send: Callable[[Piece], None]
    processors: Processors = field(default_factory=Processors)
    seed: int | None = None
    ends: Collection[int] = ()
    stops: Sequence[str] = ()
    deadline: float = float("inf")
    cancelled: bool = False
    written: int = 0

    @property
    def is_over(self) -> bool:
        """Whether the client is gone or the time is over."""
        return self.cancelled or time.monotonic() > self.deadline

    def give_up(self) -> None:
        """End the text before its end."""
        self.send(Piece(ended="cancelled" if self.cancelled else "timeout"))


class _Row:
    """The state of one text that is read or written."""

    def __init__(self, request: TextRequest, tokenizer: Tokenizer, turn: int) -> None:
        self.request, self.turn = request, turn
        self.ids = [*request.prompt]
        self.rng = np.random.default_rng(request.seed)
        self._stream, self._filter = tokenizer.stream(), StopFilter(request.stops)

    def take(self, scores: Scored) -> bool:
        """Draw the next token and send its text; return whether the text has ended."""
        request = self.request
        weights = scores.probabilities[None]
        if not request.processors._are_none:
            made = request.processors._weights(self.ids, len(request.prompt), scores.logits)
            weights = made[None]
        new = int(request.sampling.chosen(weights, self.rng.random(1))[0])
        request.written += 1
        self.ids.append(new)
        if new in request.ends:
            self._finish("stop")
            return True
        text = self._filter.push(self._stream.push(new))
        if self._filter.is_over:
            request.send(Piece(text, "stop"))
            return True
        if request.written == request.length:
            self._finish("length", text)
            return True
        if text:
            request.send(Piece(text))
        return False

    def _finish(self, why: str, text: str = "") -> None:
        text += self._filter.push(self._stream.close())
        why = "stop" if self._filter.is_over else why
        self.request.send(Piece(text + self._filter.close(), why))


class Scheduler:
    """A thread that writes the texts of a language model for all clients.

    Each text is what `FeedForwardNet.generate` writes with its seed, up to rounding. Prompts are
    read in parts between the tokens of other texts, the shortest rest first.

    Args:
        net: A net of next-token probabilities.
        tokenizer: Its `Tokenizer`.
        most_active: The most texts that are written together.
        most_waiting: The most texts that wait; `submit` refuses more.
    """

    def __init__(
        self, net: Net, tokenizer: Tokenizer, most_active: int = 16, most_waiting: int = 64
    ) -> None:
        self._tokenizer = tokenizer
        self._most_active = most_active
        self._begin = Decoder(net)
        self._begin._linked = False
        self._net = net
        self._queue = WaitingQueue[TextRequest](most_waiting)
        self._reading: list[tuple[_Row, Decoder]] = []
        self._rows: list[_Row] = []
        self._decoder: Decoder | None = None
        self._turns = 0
        self.tokens = 0
        self._queue.start(self._run)

    @property
    def limit(self) -> int | None:
        """The most tokens of prompt and answer, None for any number."""
        return self._begin.limit

    @property
    def waiting(self) -> int:
        """The number of texts that wait."""
        return len(self._queue.items)

    @property
    def active(self) -> int:
        """The number of texts that are read or written."""
        return len(self._rows) + len(self._reading)

    def submit(self, request: TextRequest) -> None:
        """Add a text. Errors: `QueueFullError`."""
        self._queue.add(request)

    def close(self) -> None:
        """Finish all texts, and end."""
        self._queue.close()

    def _run(self) -> None:
        queue = self._queue
        while True:
            with queue.changed:
                while not (queue.items or self.active or queue.is_closed):
                    queue.changed.wait()
                if queue.is_closed and not (queue.items or self.active):
                    return
                while queue.items and self.active < self._most_active:
                    row = _Row(queue.items.popleft(), self._tokenizer, self._turns)
                    self._reading.append((row, self._begin.fork()))
            self._drop_those_over()
            if self._reading:
                self._read_some()
            if self._rows:
                self._write_one()

    def _drop_those_over(self) -> None:
        waiting = self._queue.items
        with self._queue.changed:
            late = [request for request in waiting if request.is_over]
            for request in late:
                waiting.remove(request)
        for request in late:
            request.give_up()
        for row, decoder in [pair for pair in self._reading if pair[0].request.is_over]:
            self._reading.remove((row, decoder))
            row.request.give_up()
        over = [row.request.is_over for row in self._rows]
        for row, gone in zip(self._rows, over, strict=True):
            if gone:
                row.request.give_up()
        self._keep([not gone for gone in over])

    def _read_some(self) -> None:
        """Read a part of prompts in one batch; write the first tokens after those that end."""
        waiting = sorted(self._reading, key=_turn)
        read, steps = waiting[0][1].steps, min(_left(waiting[0]), _CHUNK)
        alike = [pair for pair in waiting if pair[1].steps == read and _left(pair) >= steps]
        together = alike[: _CHUNK // steps]
        self._reading = [pair for pair in waiting if pair not in together]
        self._turns += 1
        rows, decoders = zip(*together, strict=True)
        try:
            decoder = _side_by_side(decoders) if read else decoders[0]
            last = decoder.read([np.array(row.ids[read : read + steps]) for row in rows])
            ends = [k for k, row in enumerate(rows) if len(row.ids) == decoder.steps]
            scores = _rows_of(self._net, last[ends]) if ends else []
            stay = [
                k for k, each in zip(ends, scores, strict=True) if not self._took(rows[k], each)
            ]
            more = [(rows[k], _part(decoder, [k])) for k in range(len(rows)) if k not in ends]
            if stay:
                both = [] if self._decoder is None else [self._decoder]
                self._decoder = _side_by_side([*both, _part(decoder, stay)])
                self._rows = [*self._rows, *(rows[k] for k in stay)]
            self._reading += more
        except Exception as error:  # noqa: BLE001 - the others go on
            _fail(rows, error)

    def _write_one(self) -> None:
        """Write one token of each text."""
        assert self._decoder is not None
        try:
            last = self._decoder.read([np.array(row.ids[-1:]) for row in self._rows])
            scores = _rows_of(self._net, last)
        except Exception as error:  # noqa: BLE001 - the others go on
            _fail(self._rows, error)
            self._rows, self._decoder = [], None
            return
        ended = [self._took(row, each) for row, each in zip(self._rows, scores, strict=True)]
        self._keep([not end for end in ended])

    def _took(self, row: _Row, scores: Scored) -> bool:
        """Draw a token of ``row``; return whether its text has ended, by an error too."""
        self.tokens += 1
        try:
            return row.take(scores)
        except Exception as error:  # noqa: BLE001 - the others go on
            _fail([row], error)
            return True

    def _keep(self, stay: Sequence[bool]) -> None:
        if all(stay):
            return
        places = [k for k, kept in enumerate(stay) if kept]
        self._rows = [self._rows[k] for k in places]
        assert self._decoder is not None
        self._decoder = self._decoder.fork(places) if places else None


def _left(pair: tuple[_Row, Decoder]) -> int:
    """Return the number of tokens of a prompt that are not read."""
    return len(pair[0].ids) - pair[1].steps


def _turn(pair: tuple[_Row, Decoder]) -> int:
    """Return the order of reading: short prompts first, but long ones before many later ones."""
    return _left(pair) + _CHUNK * pair[0].turn


def _part(decoder: Decoder, places: Sequence[int]) -> Decoder:
    return decoder if len(places) == decoder.samples else decoder.fork(places)


def _side_by_side(decoders: Sequence[Decoder]) -> Decoder:
    return decoders[0] if len(decoders) == 1 else Decoder.joined(decoders)


def _rows_of(net: Net, outputs: Any) -> list[Scored]:
    both = scored(net, outputs, 2)
    raw = both.raw
    chances = enumerate(both.probabilities)
    return [Scored(row, None if raw is None else raw[n]) for n, row in chances]


def _fail(rows: Sequence[_Row], error: Exception) -> None:
    for row in rows:
        row.request.send(Piece(ended="error", error=error))
