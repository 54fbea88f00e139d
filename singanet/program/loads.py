"""Loads of stored arrays before the calls that use them, and stores afterwards.

All of them are planned during recording: the arrays that stay in memory, the places of the others,
and the order of reads and writes. A thread makes these transfers in parallel with the calls.
"""

from __future__ import annotations

import sys
import threading
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from heapq import heappop, heappush
from itertools import groupby
from math import prod
from typing import Any, NamedTuple, Protocol

import numpy as np

from singanet.engine.timeline import Lifetimes
from singanet.params.storage import SMALL
from singanet.program.ir import Call, Kernel, NotRecordableError, Ref, Token
from singanet.program.join_lanes import moved
from singanet.program.layout import ALIGNMENT, STRATEGIES, smallest
from singanet.types import Array, Shape


class ScratchFile(Protocol):
    """A file of bytes, without a name."""

    def read(self, at: int, out: memoryview) -> None:
        """Fill ``out`` from byte ``at`` on."""

    def write(self, at: int, data: memoryview) -> None:
        """Write ``data`` from byte ``at`` on."""

    def close(self) -> None:
        """Delete the file."""


class ArrayStore(Protocol):
    """A store of arrays by name. A program has at most ``keep`` bytes of them in memory.

    ``loaded`` are the arrays that a program uses now.
    """

    keep: int
    loaded: dict[str, Array]

    def claim(self, program: object, nbytes: int, beside: int) -> Array:
        """Return memory for ``program``, the same as before if no other program had it meanwhile.

        There is room for ``beside`` further bytes.
        """

    def begin(self, run: LoadRun) -> frozenset[str]:
        """Start ``run``; return the names of the arrays that are still in the memory."""

    def end(self, names: frozenset[str]) -> None:
        """End a run; the arrays ``names`` stay in its memory."""

    def rest(self, rests: bool) -> None:
        """Set whether the run ``rests``, so that its caller may use the store."""

    def scratch(self) -> ScratchFile:
        """Return a file for the arrays that a run makes itself."""

    def fill(self, name: str, array: Array) -> None:
        """Read an array."""

    def drain(self, name: str, array: Array) -> None:
        """Write an array."""

    def read(self, name: str) -> Array:
        """Return an array, read-only."""


class LoadedArray(NamedTuple):
    """The memory of an array of ``store``, which is loaded for the calls that use it.

    An array that the calls compute has no name, but a place ``at`` a byte of the run's own file.
    """

    store: ArrayStore
    name: str
    shape: Shape
    strides: Shape
    dtype: np.dtype[Any]
    at: int | None = None

    @property
    def nbytes(self) -> int:
        """The bytes of the array."""
        return prod(self.shape) * self.dtype.itemsize

    def placed(self, memory: int, offset: int) -> Ref:
        """Return the array as a place in the token ``memory``."""
        return Ref(memory, offset, self.shape, self.strides, self.dtype)

    def now(self) -> Array:
        """Return the array, read-only if it is not loaded."""
        loaded = self.store.loaded.get(self.name)
        return self.store.read(self.name) if loaded is None else loaded


class Transfer(NamedTuple):
    """A read or write of ``array`` at ``place``, after ``after`` arrays are released.

    A read array is used until ``until`` arrays are released.
    """

    array: LoadedArray
    place: Ref
    after: int
    writes: bool
    until: int


class Loads:
    """The ``transfers`` of a replay in order, and the ``nbytes`` of their memory.

    Calls have ``beside`` bytes of other arrays; ``uses`` is the number of releases. The first
    transfers read the arrays ``kept``, which stay in memory from one replay to the next.
    """

    def __init__(
        self,
        store: ArrayStore,
        transfers: Sequence[Transfer],
        kept: frozenset[str],
        nbytes: int,
        beside: int,
        uses: int,
    ) -> None:
        self.nbytes, self.transfers, self.kept, self.uses = nbytes, transfers, kept, uses
        self.store, self._beside = store, beside
        self.now: LoadRun | None = None
        self.forget: Callable[[], object] = lambda: None

    def claim(self) -> Array:
        """Return the memory of the arrays."""
        return self.store.claim(self, self.nbytes, self._beside)

    def begin(self, array: Callable[[Ref], Array], after: LoadRun | None = None) -> LoadRun:
        """Start a replay, or continue it ``after`` a run that has ended."""
        self.now = LoadRun(self, [array(each.place) for each in self.transfers], after)
        return self.now

    @contextmanager
    def running(self, array: Callable[[Ref], Array]) -> Iterator[LoadRun]:
        """A block that makes the transfers. Errors: of reads and writes."""
        run = self.begin(array)
        try:
            yield run
            run.finish()
        finally:
            run.stop()

    def load(self, name: str, needed: int, number: int, array: Array) -> None:
        """Make an array available after the first ``needed`` transfers."""
        assert self.now is not None
        self.now.load(name, needed, number, array)

    def release(self, number: int) -> None:
        """Release the ``number``-th array."""
        assert self.now is not None
        self.now.release(number)

    def finish(self) -> None:
        """End the transfers; later users access the store directly."""
        assert self.now is not None
        self.now.finish()


class LoadRun:
    """The transfers of ``loads`` in one replay, or the rest of them ``after`` another run.

    ``released`` counts the arrays that are released. A thread makes the transfers in parallel with
    the calls. At a mark the run ``rests``: the caller may change the arrays that are loaded there,
    use the store, or end the run. Another run then continues.
    """

    def __init__(self, loads: Loads, arrays: Sequence[Array], after: LoadRun | None) -> None:
        self.released: int = 0 if after is None else after.released
        self._scratch: ScratchFile | None = None if after is None else after._scratch
        self._loads, self._store, self._arrays = loads, loads.store, arrays
        self._changed = threading.Condition()
        self._open: dict[int, str] = {}
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None
        self._here = {*loads.store.begin(self)} & loads.kept
        self._go_on()

    @property
    def ended(self) -> bool:
        """Whether the run makes no more transfers."""
        return self._thread is None

    def _go_on(self) -> None:
        """Start all remaining transfers, except reads of arrays in use."""
        self._done, self._stopped = 0, False
        left = [
            number
            for number, each in enumerate(self._loads.transfers, 1)
            if (each.after if each.writes else each.until) > self.released
            and (each.writes or each.until not in self._open)
        ]
        self._thread = threading.Thread(target=self._run, args=(left,), daemon=True)
        self._thread.start()

    def load(self, name: str, needed: int, number: int, array: Array) -> None:
        """Carry out `Loads.load`."""
        if self._done < needed:
            self._wait(needed)
        self._open[number] = name
        if name:
            self._store.loaded[name] = array

    def release(self, number: int) -> None:
        """Carry out `Loads.release`."""
        name = self._open.pop(number, None)
        if name is None:
            return
        if name:
            del self._store.loaded[name]
        with self._changed:
            self.released = number
            self._changed.notify_all()

    @contextmanager
    def at_mark(self) -> Iterator[None]:
        """A block in which the run rests. A walk that its caller abandons there ends it."""
        self._store.rest(True)
        try:
            yield
        except GeneratorExit:
            self.leave()
            raise
        if not self.ended:
            self._store.rest(False)
            if self._stopped:
                self._go_on()

    def pause(self, name: str) -> None:
        """Stop the transfers while the caller changes the array ``name`` in the store."""
        if any(each.array.name == name for each in self._loads.transfers):
            self._halt()
            self._here.discard(name)

    def settle(self, name: str) -> None:
        """Wait for writes of the array ``name``."""
        numbers = [
            number
            for number, each in enumerate(self._loads.transfers, 1)
            if each.writes and each.array.name == name and each.after <= self.released
        ]
        if numbers and not self._stopped:
            self._wait(numbers[-1])

    def leave(self) -> None:
        """End the run at a mark: arrays in use are written as they are now."""
        if self.ended:
            return
        if self._stopped:
            self._go_on()
        for number in sorted(self._open):
            self.release(number)
        self.finish()

    def finish(self) -> None:
        """Make the due writes, and end the run. Errors: of reads and writes."""
        if self.ended:
            return
        self._halt()
        if self._error is not None:
            raise self._error
        self._end(frozenset(self._here))
        if self.released == self._loads.uses:
            self.close()

    def stop(self) -> None:
        """End a run that failed."""
        if not self.ended:
            self.released = -1
            self._halt()
            self._end(frozenset())
            self.close()

    def close(self) -> None:
        """Delete the file with arrays of the calls, if none of them is needed."""
        if self._scratch is not None:
            self._scratch.close()

    def _end(self, kept: frozenset[str]) -> None:
        self._store.end(kept)
        # The next run of the replay takes over the file.
        self._thread, self._arrays, self._loads.now = None, (), None

    def _halt(self) -> None:
        assert self._thread is not None
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        # When Python exits, the thread stands still; arrays that it has not written are in no
        # checkpoint.
        if not sys.is_finalizing():
            self._thread.join()

    def _wait(self, needed: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._done >= needed or self._error is not None)
            if self._error is not None:
                raise self._error

    def _run(self, left: Sequence[int]) -> None:
        try:
            for number in left:
                stored, _, after, writes, _ = self._loads.transfers[number - 1]
                with self._changed:
                    # All transfers before are made, or not needed any more.
                    self._done = number - 1
                    self._changed.notify_all()
                    while self.released < after and not self._stopped:
                        self._changed.wait()
                    if self.released < after:
                        return
                    if self._stopped and not writes:
                        continue
                self._make(stored, self._arrays[number - 1], writes)
            with self._changed:
                self._done = len(self._arrays)
                self._changed.notify_all()
        except Exception as error:  # noqa: BLE001 - raised by the next wait for a transfer
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _make(self, stored: LoadedArray, array: Array, writes: bool) -> None:
        name = stored.name
        if stored.at is not None:
            if self._scratch is None:
                self._scratch = self._store.scratch()
            (self._scratch.write if writes else self._scratch.read)(stored.at, array.data)
        elif writes:
            self._store.drain(name, array)
        elif name not in self._here:
            self._store.fill(name, array)
            if name in self._loads.kept:
                self._here.add(name)


class ArrayUse(NamedTuple):
    """The calls from ``first`` to ``last``, during which the array of ``token`` is loaded.

    It is the ``number``-th to be released. A ``fresh`` array is computed by these calls.
    """

    token: int
    first: int
    last: int
    changes: bool
    nbytes: int
    number: int = 0
    fresh: bool = False


def saved_for_backward(calls: Sequence[Call], tokens: Sequence[Token]) -> list[int]:
    """The large arrays that forward makes and backward reads, by token."""
    # For arrays that kernels fill whole, the directions of their uses; for others an empty set.
    found: dict[int, set[bool]] = {}
    for call in calls:
        back = _is_back(call)
        for token in {*call.reads, *call.writes}:
            ways = found.get(token)
            if ways is None:
                whole = token not in call.partly and token not in call.reads
                made = call.function is not None and not back and whole
                found[token] = {back} if made else set()
            elif ways:
                ways.add(back)
    return [
        token
        for token, ways in found.items()
        if len(ways) == 2
        and tokens[token].held is None
        and tokens[token].written is None
        and tokens[token].nbytes > SMALL
    ]


def with_loads(
    calls: Sequence[Call],
    kernels: Sequence[Kernel],
    tokens: list[Token],
    beside: int,
    interrupted: bool = False,
) -> tuple[list[Call], list[Kernel], Loads | None]:
    """Return ``calls`` and ``kernels`` with loads and releases of stored arrays.

    Calls have ``beside`` bytes of other arrays. In ``interrupted`` programs others may use the
    memory between calls. Raises `NotRecordableError` if there is too little memory for a layer.
    """
    stored = {k: token.held for k, token in enumerate(tokens) if type(token.held) is LoadedArray}
    uses = _uses(calls, stored) if stored else ()
    if not uses:
        return [*calls], [*kernels], None
    store = stored[uses[0].token].store
    made = [use for use in uses if stored[use.token].at is not None]
    # Arrays that calls compute take memory beyond ``keep`` during their uses.
    beside -= _at_a_time(made, {})
    most = store.keep - beside
    kept = _kept(uses, most, {use.token for use in made} if interrupted else set())
    room, starts, offsets, nbytes = most, *_tried(uses, kept, most)
    while nbytes > most:
        # Arrays of different sizes left gaps.
        if room <= 0 and not kept:
            raise NotRecordableError("too little memory for the stored arrays of a layer")
        room, kept = (most, {}) if room <= 0 else (room - max(nbytes - most, most // 50), kept)
        starts, offsets, nbytes = _tried(uses, kept, room)
    memory = len(tokens)
    tokens.append(Token(nbytes))
    places = [stored[u.token].placed(memory, at) for u, at in zip(uses, offsets, strict=True)]
    transfers, needed = _transfers(uses, kept, starts, places, stored)
    named = frozenset(stored[token].name for token in kept if stored[token].at is None)
    loads = Loads(store, transfers, named, nbytes, beside, len(uses))
    before: dict[int, list[Call]] = {}
    after: dict[int, list[Call]] = {}
    moves: list[dict[int, tuple[int, int]]] = [{} for _ in calls]
    for use, place, count in zip(uses, places, needed, strict=True):
        for each in moves[use.first : use.last + 1]:
            each[use.token] = memory, place.offset
        name = stored[use.token].name
        load = _call(calls[use.first], "load", loads.load, name, count, use.number, place)
        before.setdefault(use.first, []).append(load)
    for use in sorted(uses, key=lambda use: use.number):
        release = _call(calls[use.last], "release", loads.release, use.number)
        after.setdefault(use.last, []).append(release)
    final = max(use.last for use in uses)
    after[final].append(_call(calls[final], "finish loads", loads.finish))
    both: list[tuple[Call, Kernel]] = []
    for at, (call, kernel) in enumerate(zip(calls, kernels, strict=True)):
        both += [(each, _kernel(each)) for each in before.get(at, ())]
        both.append((moved(call, moves[at]), kernel))
        both += [(each, _kernel(each)) for each in after.get(at, ())]
    return [call for call, _ in both], [kernel for _, kernel in both], loads


def _call(near: Call, name: str, function: Callable[..., None], *arguments: Any) -> Call:
    layer, phase = near.layer, near.phase
    return Call(function, arguments, {}, (), (), (), (), layer, phase, name, barrier=True)


def _kernel(call: Call) -> Kernel:
    return Kernel(call.name, (), (), call.layer, call.phase, barrier=True)


def _uses(calls: Sequence[Call], stored: Mapping[int, LoadedArray]) -> list[ArrayUse]:
    """The uses of stored arrays by the calls of one layer and direction, by first call."""
    found: dict[int, list[tuple[int, bool]]] = {}
    for at, call in enumerate(calls):
        for token in sorted(stored.keys() & {*call.reads, *call.writes}):
            found.setdefault(token, []).append((at, token in call.writes))

    def way(use: tuple[int, bool]) -> tuple[str, bool]:
        call = calls[use[0]]
        # A computed array is in use throughout a direction.
        return call.layer if stored[token].at is None else "", _is_back(call)

    uses = []
    for token, each in found.items():
        of, ways = stored[token], [[*group] for _, group in groupby(each, way)]
        for k, group in enumerate(ways):
            numbers, changes = zip(*group, strict=True)
            fresh = of.at is not None and not k
            # A computed array is not read after its last use.
            changed = any(changes) and (of.at is None or k < len(ways) - 1)
            use = ArrayUse(token, numbers[0], numbers[-1], changed, of.nbytes, fresh=fresh)
            uses.append(use)
    uses.sort(key=lambda use: use.last)
    uses = [use._replace(number=number) for number, use in enumerate(uses, 1)]
    return sorted(uses, key=lambda use: use.first)


def _is_back(call: Call) -> bool:
    return call.phase in ("backward", "update", "communication")


def _tried(
    uses: Sequence[ArrayUse], kept: Mapping[int, int], room: int
) -> tuple[list[int], list[int], int]:
    """The earliest start of each use within ``room`` bytes, the places, and all bytes."""
    starts = _starts(uses, kept, room)
    return starts, *_placed(uses, kept, starts)


def _kept(uses: Sequence[ArrayUse], most: int, apart: Collection[int]) -> dict[int, int]:
    """The bytes of the arrays that stay in memory, by token: the arrays used most often.

    Arrays ``apart`` are excluded. The rest of the memory is at least twice the arrays in use at a
    time.
    """
    counts: dict[int, list[int]] = {}
    for use in uses:
        counts.setdefault(use.token, []).append(use.nbytes)
    order = sorted(counts.keys() - apart, key=lambda token: (-len(counts[token]), token))

    def over(count: int) -> bool:
        kept = {token: counts[token][0] for token in order[:count]}
        return sum(map(_aligned, kept.values())) + 2 * _at_a_time(uses, kept) > most

    # Each further array increases the sum, and does not increase the arrays in use at a time.
    count = bisect_left(range(1, len(order) + 1), True, key=over)
    return {token: counts[token][0] for token in order[:count]}


def _at_a_time(uses: Sequence[ArrayUse], kept: Mapping[int, int]) -> int:
    """The most bytes in use at a time of arrays that are not ``kept``."""
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
    """For each use the releases before its array has room, or before its first call."""
    free = room - sum(map(_aligned, kept.values()))
    held: list[tuple[int, ArrayUse]] = []
    written: dict[int, int] = {}
    starts, now = [0] * len(uses), 0
    ends = sorted(use.last for use in uses)
    for k, use in enumerate(uses):
        if use.token in kept:
            continue
        now = max(now, written.get(use.token, 0))
        while free < _aligned(use.nbytes) and held and held[0][1].last < use.first:
            number, gone = heappop(held)
            now, free = max(now, number), free + _aligned(gone.nbytes)
        free -= _aligned(use.nbytes)
        heappush(held, (use.number, use))
        starts[k] = bisect_left(ends, use.first) if use.fresh else now
        if use.changes:
            written[use.token] = use.number
    return starts


def _placed(
    uses: Sequence[ArrayUse], kept: Mapping[int, int], starts: Sequence[int]
) -> tuple[list[int], int]:
    """The first byte of the array of each use, and the bytes of all."""
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
    stored: Mapping[int, LoadedArray],
) -> tuple[list[Transfer], list[int]]:
    """The transfers in order, and the number of them that each use needs."""
    first = {use.token: k for k, use in reversed([*enumerate(uses)]) if use.token in kept}
    until = {use.token: 0 for use in uses}
    for use in uses:
        until[use.token] = max(until[use.token], use.number)
    # Ordered by time. A write comes before reads into the same memory.
    jobs = [(-1, 1, k) for k in first.values() if not uses[k].fresh]
    for k, use in enumerate(uses):
        if use.token not in kept and not use.fresh:
            jobs.append((starts[k], 1, k))
        if use.changes and (use.token not in kept or stored[use.token].at is None):
            jobs.append((use.number, 0, k))
    jobs.sort()
    transfers = [
        Transfer(
            stored[uses[k].token],
            places[k],
            max(after, 0),
            not reads,
            until[uses[k].token] if uses[k].token in kept else uses[k].number,
        )
        for after, reads, k in jobs
    ]
    numbers = {(k, reads): number for number, (_, reads, k) in enumerate(jobs, 1)}
    needed, last = [], dict.fromkeys(kept, 0)
    for k, use in enumerate(uses):
        # An earlier write of a resident array may be unfinished.
        needed.append(max(numbers.get((k, 1), 0), last.get(use.token, 0)))
        if use.fresh and use.token not in kept:
            # A write of the memory's previous array may be unfinished.
            needed[-1] = bisect_left(jobs, (starts[k], 1))
        if use.token in kept:
            last[use.token] = max(needed[-1], numbers.get((k, 0), 0))
    return transfers, needed
