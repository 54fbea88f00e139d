"""Loads of stored arrays before the calls that use them, and stores afterwards.

All of them are planned when a step is recorded: which arrays stay in memory, where the others lie,
and when each is read and written. A thread makes these transfers beside the calls.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from heapq import heappop, heappush
from itertools import groupby
from math import prod
from typing import Any, NamedTuple, Protocol

import numpy as np

from singanet.engine.timeline import Lifetimes
from singanet.program.ir import Call, Kernel, NotRecordableError, Ref, Token
from singanet.program.join_lanes import moved
from singanet.program.layout import ALIGNMENT, STRATEGIES, smallest
from singanet.types import Array, Shape


class ArrayStore(Protocol):
    """A store of arrays by name. A program has ``keep`` bytes of them in memory at most.

    ``loaded`` are the arrays that a program uses now.
    """

    keep: int
    loaded: dict[str, Array]

    def claim(self, program: object, nbytes: int) -> Array:
        """Return memory for ``program``, the same as before if nobody else had it meanwhile."""

    def begin(self) -> frozenset[str]:
        """Begin a replay; return the names of the arrays that the memory still holds."""

    def end(self, names: frozenset[str]) -> None:
        """End a replay, whose memory holds the arrays ``names`` from now on."""

    def fill(self, name: str, array: Array) -> None:
        """Read an array."""

    def drain(self, name: str, array: Array) -> None:
        """Write an array."""

    def read(self, name: str) -> Array:
        """Return an array, read-only."""


class LoadedArray(NamedTuple):
    """The memory of an array of ``store``, which is loaded for the calls that use it."""

    store: ArrayStore
    name: str
    shape: Shape
    strides: Shape
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """The bytes of the array."""
        return prod(self.shape) * self.dtype.itemsize

    def at(self, memory: int, offset: int) -> Ref:
        """Return the array as a place in the token ``memory``."""
        return Ref(memory, offset, self.shape, self.strides, self.dtype)

    def now(self) -> Array:
        """Return the array, read-only if it is not loaded."""
        loaded = self.store.loaded.get(self.name)
        return self.store.read(self.name) if loaded is None else loaded


class Transfer(NamedTuple):
    """A read or write of the array ``name`` at ``place``, once ``after`` arrays are released."""

    name: str
    place: Ref
    after: int
    writes: bool


class Loads:
    """The ``transfers`` of a replay in their order, and the ``nbytes`` of memory that they use.

    The first ones read the arrays ``kept``, which stay in memory from one replay to the next.
    """

    def __init__(
        self, store: ArrayStore, transfers: Sequence[Transfer], kept: frozenset[str], nbytes: int
    ) -> None:
        self.nbytes, self.transfers = nbytes, transfers
        self._store, self._kept = store, kept
        self._changed = threading.Condition()
        self._done = self._released = 0
        self._stopped = False
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None
        self.forget: Callable[[], object] = lambda: None

    def claim(self) -> Array:
        """Return the memory of the arrays."""
        return self._store.claim(self, self.nbytes)

    @contextmanager
    def running(self, array: Callable[[Ref], Array]) -> Iterator[None]:
        """A block in which the transfers are made, up to the call of `finish`.

        Errors: those of reads and writes.
        """
        self._done = self._released = 0
        self._stopped, self._error = False, None
        arrays = [array(transfer.place) for transfer in self.transfers]
        there = self._store.begin()
        self._thread = threading.Thread(target=self._run, args=(arrays, there), daemon=True)
        self._thread.start()
        try:
            yield
        finally:
            self._end(frozenset())

    def finish(self) -> None:
        """Wait for all transfers; whoever comes later uses the store by itself."""
        self._wait(len(self.transfers))
        self._end(self._kept)

    def _end(self, kept: frozenset[str]) -> None:
        if self._thread is None:
            return
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._thread.join()
        self._store.end(kept)
        self._thread = None

    def load(self, name: str, needed: int, array: Array) -> None:
        """Have an array in memory, which the first ``needed`` transfers bring."""
        if self._done < needed:
            self._wait(needed)
        self._store.loaded[name] = array

    def release(self, name: str, number: int) -> None:
        """Let go of an array, as call ``number`` of all that do."""
        del self._store.loaded[name]
        with self._changed:
            self._released = number
            self._changed.notify_all()

    def _wait(self, needed: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._done >= needed or self._error is not None)
            if self._error is not None:
                raise self._error

    def _run(self, arrays: Sequence[Array], there: frozenset[str]) -> None:
        try:
            for number, (transfer, array) in enumerate(zip(self.transfers, arrays, strict=True), 1):
                name, after = transfer.name, transfer.after
                with self._changed:
                    while self._released < after and not self._stopped:
                        self._changed.wait()
                    if self._stopped:
                        return
                if transfer.writes:
                    self._store.drain(name, array)
                elif number > len(self._kept) or name not in there:
                    self._store.fill(name, array)
                with self._changed:
                    self._done = number
                    self._changed.notify_all()
        except Exception as error:  # noqa: BLE001 - raised by whoever waits for a transfer
            with self._changed:
                self._error = error
                self._changed.notify_all()


class ArrayUse(NamedTuple):
    """The calls from ``first`` to ``last``, during which the array of ``token`` is loaded.

    It is the ``number``-th that is released.
    """

    token: int
    first: int
    last: int
    changes: bool
    nbytes: int
    number: int = 0


def with_loads(
    calls: Sequence[Call], kernels: Sequence[Kernel], tokens: list[Token], beside: int
) -> tuple[list[Call], list[Kernel], Loads | None]:
    """Return ``calls`` and ``kernels`` with those that load and release what is stored.

    Calls have arrays of ``beside`` bytes of their own. Raises `NotRecordableError` if there is too
    little memory for a layer.
    """
    stored = {k: token.held for k, token in enumerate(tokens) if type(token.held) is LoadedArray}
    uses = _uses(calls, stored)
    if not uses:
        return [*calls], [*kernels], None
    store = stored[uses[0].token].store
    most = store.keep - beside
    kept = _kept(uses, most)
    starts = _starts(uses, kept, most)
    offsets, nbytes = _placed(uses, kept, starts)
    room = most
    while nbytes > most:
        # Some arrays of unlike sizes found no place between the others.
        room -= max(nbytes - most, most // 50)
        starts = _starts(uses, kept, room)
        offsets, nbytes = _placed(uses, kept, starts)
        if room <= 0 and nbytes > most:
            raise NotRecordableError("too little memory for the stored arrays of a layer")
    memory = len(tokens)
    tokens.append(Token(nbytes))
    places = [stored[u.token].at(memory, at) for u, at in zip(uses, offsets, strict=True)]
    names = {token: each.name for token, each in stored.items()}
    transfers, needed = _transfers(uses, kept, starts, places, names)
    loads = Loads(store, transfers, frozenset(names[token] for token in kept), nbytes)
    before: dict[int, list[Call]] = {}
    after: dict[int, list[Call]] = {}
    moves: list[dict[int, tuple[int, int]]] = [{} for _ in calls]
    for use, place, count in zip(uses, places, needed, strict=True):
        for each in moves[use.first : use.last + 1]:
            each[use.token] = memory, place.offset
        load = _call(calls[use.first], "load", loads.load, names[use.token], count, place)
        before.setdefault(use.first, []).append(load)
    for use in sorted(uses, key=lambda use: use.number):
        name = names[use.token]
        release = _call(calls[use.last], "release", loads.release, name, use.number)
        after.setdefault(use.last, []).append(release)
    final = max(use.last for use in uses)
    after[final].append(_call(calls[final], "finish loads", loads.finish))
    made: list[tuple[Call, Kernel]] = []
    for at, (call, kernel) in enumerate(zip(calls, kernels, strict=True)):
        made += [(each, _kernel(each)) for each in before.get(at, ())]
        made.append((moved(call, moves[at]), kernel))
        made += [(each, _kernel(each)) for each in after.get(at, ())]
    return [call for call, _ in made], [kernel for _, kernel in made], loads


def _call(near: Call, name: str, function: Callable[..., None], *arguments: Any) -> Call:
    layer, phase = near.layer, near.phase
    return Call(function, arguments, {}, (), (), (), (), layer, phase, name, barrier=True)


def _kernel(call: Call) -> Kernel:
    return Kernel(call.name, (), (), call.layer, call.phase, barrier=True)


def _uses(calls: Sequence[Call], stored: Mapping[int, LoadedArray]) -> list[ArrayUse]:
    """The uses of what is stored, by their first calls: by the calls of one layer one way."""
    found: dict[int, list[tuple[int, bool]]] = {}
    for at, call in enumerate(calls):
        for token in sorted(stored.keys() & {*call.reads, *call.writes}):
            found.setdefault(token, []).append((at, token in call.writes))

    def way(use: tuple[int, bool]) -> tuple[str, bool]:
        call = calls[use[0]]
        return call.layer, call.phase in ("backward", "update", "communication")

    uses = []
    for token, each in found.items():
        for _, group in groupby(each, way):
            numbers, changes = zip(*group, strict=True)
            nbytes = stored[token].nbytes
            uses.append(ArrayUse(token, numbers[0], numbers[-1], any(changes), nbytes))
    uses.sort(key=lambda use: use.last)
    uses = [use._replace(number=number) for number, use in enumerate(uses, 1)]
    return sorted(uses, key=lambda use: use.first)


def _kept(uses: Sequence[ArrayUse], most: int) -> dict[int, int]:
    """The bytes of the arrays that stay in memory, by token: of those that are used most often.

    Beside them there is twice the room of the arrays that are used at a time.
    """
    counts: dict[int, list[int]] = {}
    for use in uses:
        counts.setdefault(use.token, []).append(use.nbytes)
    order = sorted(counts, key=lambda token: -len(counts[token]))

    def over(count: int) -> bool:
        kept = {token: counts[token][0] for token in order[:count]}
        return sum(map(_aligned, kept.values())) + 2 * _at_a_time(uses, kept) > most

    # Each of them makes what is used at a time no larger, and the sum larger.
    count = bisect_left(range(1, len(order) + 1), True, key=over)
    return {token: counts[token][0] for token in order[:count]}


def _at_a_time(uses: Sequence[ArrayUse], kept: Mapping[int, int]) -> int:
    """The most bytes of arrays that are used at a time and not ``kept``."""
    changes = []
    for use in uses:
        if use.token not in kept:
            changes += [(use.first, use.nbytes), (use.last + 1, -use.nbytes)]
    now = most = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


def _starts(uses: Sequence[ArrayUse], kept: Mapping[int, int], room: int) -> list[int]:
    """For each use after how many releases there is room for its array, or its first call comes."""
    free = room - sum(map(_aligned, kept.values()))
    held: list[tuple[int, ArrayUse]] = []
    written: dict[int, int] = {}
    starts, now = [0] * len(uses), 0
    for k, use in enumerate(uses):
        if use.token in kept:
            continue
        now = max(now, written.get(use.token, 0))
        while free < _aligned(use.nbytes) and held and held[0][1].last < use.first:
            number, gone = heappop(held)
            now, free = max(now, number), free + _aligned(gone.nbytes)
        free -= _aligned(use.nbytes)
        heappush(held, (use.number, use))
        starts[k] = now
        if use.changes:
            written[use.token] = use.number
    return starts


def _placed(
    uses: Sequence[ArrayUse], kept: Mapping[int, int], starts: Sequence[int]
) -> tuple[list[int], int]:
    """The byte at which the array of each use begins, and the bytes of all."""
    place: dict[int, int] = {}
    end = 0
    for token, nbytes in kept.items():
        place[token] = end
        end += _aligned(nbytes)
    rest = [k for k, use in enumerate(uses) if use.token not in kept]
    lives = [(starts[k] + 1, uses[k].number, _aligned(uses[k].nbytes)) for k in rest]
    first, last, size = np.array(lives, np.int64).reshape(-1, 3).T
    found, nbytes, _ = smallest(Lifetimes(first, last, size), 0, STRATEGIES)
    offsets = [place.get(use.token, 0) for use in uses]
    for k, offset in zip(rest, found.tolist(), strict=True):
        offsets[k] = end + offset
    return offsets, end + nbytes


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _transfers(
    uses: Sequence[ArrayUse],
    kept: Mapping[int, int],
    starts: Sequence[int],
    places: Sequence[Ref],
    names: Mapping[int, str],
) -> tuple[list[Transfer], list[int]]:
    """The transfers in their order, and how many of them each use needs."""
    first = {use.token: k for k, use in reversed([*enumerate(uses)]) if use.token in kept}
    # By when they are made. A write comes before the reads into the memory that it leaves.
    jobs = [(-1, 1, k) for k in first.values()]
    jobs += [(starts[k], 1, k) for k, use in enumerate(uses) if use.token not in kept]
    jobs += [(use.number, 0, k) for k, use in enumerate(uses) if use.changes]
    jobs.sort()
    transfers = [
        Transfer(names[uses[k].token], places[k], max(after, 0), not reads)
        for after, reads, k in jobs
    ]
    numbers = {(k, reads): number for number, (_, reads, k) in enumerate(jobs, 1)}
    needed, last = [], dict.fromkeys(kept, 0)
    for k, use in enumerate(uses):
        # What stays in memory may still be on its way to the store.
        needed.append(max(numbers.get((k, 1), 0), last.get(use.token, 0)))
        if use.token in kept:
            last[use.token] = max(needed[-1], numbers.get((k, 0), 0))
    return transfers, needed
