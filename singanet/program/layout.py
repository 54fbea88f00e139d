"""The arena: lifetimes of arrays, results in place, and addresses."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from singanet.engine.timeline import Ints, Lifetimes
from singanet.errors import ArgumentError
from singanet.program.ir import Buffer, Kernel

__all__: list[str] = []


EdgeKind = Literal["read", "overwrite after read", "overwrite after write"]


class Edge(NamedTuple):
    """``target`` waits for ``source`` because of ``buffer``.

    ``source`` is None if a buffer is read that no kernel wrote before. ``target`` is None for a
    leaf: a buffer that no kernel reads after the write.
    """

    buffer: int
    source: int | None
    target: int | None
    kind: EdgeKind


def edges(kernels: Sequence[Kernel]) -> list[Edge]:
    """All dependencies, each once, in the order of the kernels.

    A read waits for the last write. A write waits for every read of the overwritten contents, or,
    without such reads, for the write before it. A kernel without any buffer reads and owns all
    leaves. Counted as by SINGA's scheduler, with one difference: a write also waits for reads of
    contents from outside, as an update does for the forward pass that read the parameter.
    """
    found: list[Edge] = []
    writer: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    for number, kernel in enumerate(kernels):
        reads: Sequence[int] = tuple(dict.fromkeys(kernel.reads))
        writes: Sequence[int] = tuple(dict.fromkeys(kernel.writes))
        if not (reads or writes):
            reads = writes = [buffer for buffer in writer if not readers.get(buffer)]
        for buffer in reads:
            found.append(Edge(buffer, writer.get(buffer), number, "read"))
            readers.setdefault(buffer, []).append(number)
        for buffer in writes:
            before = readers.get(buffer, [])
            found += [
                Edge(buffer, reader, number, "overwrite after read")
                for reader in before
                if reader != number
            ]
            if not before and buffer in writer:
                found.append(Edge(buffer, writer[buffer], number, "overwrite after write"))
            writer[buffer], readers[buffer] = number, []
    leaves = ((buffer, last) for buffer, last in writer.items() if not readers[buffer])
    return found + [Edge(buffer, last, None, "read") for buffer, last in leaves]


def is_barrier(kernel: Kernel) -> bool:
    """Whether no kernel moves across it: it is a barrier or has no buffers."""
    return kernel.barrier or not (kernel.reads or kernel.writes)


def successors(kernels: Sequence[Kernel]) -> list[list[int]]:
    """For each kernel the kernels that wait for it, each once; barriers are not included."""
    after: list[dict[int, None]] = [{} for _ in kernels]
    for edge in edges(kernels):
        if edge.source is not None and edge.target is not None:
            after[edge.source][edge.target] = None
    return [list(targets) for targets in after]


def dependency_order(kernels: Sequence[Kernel]) -> list[int]:
    """The numbers of the kernels breadth first.

    ready kernels, then the kernels that these free, ...

    Every barrier stays between the kernels before and after it.
    """
    after = successors(kernels)
    order: list[int] = []
    for stretch in _stretches(kernels):
        order += _breadth_first(stretch, after)
    return order


def _stretches(kernels: Sequence[Kernel]) -> Iterator[range]:
    """Barriers alone, and the kernels between two of them together."""
    start = 0
    for number, kernel in enumerate(kernels):
        if is_barrier(kernel):
            yield range(start, number)
            yield range(number, number + 1)
            start = number + 1
    yield range(start, len(kernels))


def _breadth_first(stretch: range, after: Sequence[Sequence[int]]) -> list[int]:
    waits_for = dict.fromkeys(stretch, 0)
    for number in stretch:
        for target in after[number]:
            if target in stretch:
                waits_for[target] += 1
    ready = deque(number for number in stretch if not waits_for[number])
    order = []
    while ready:
        number = ready.popleft()
        order.append(number)
        for target in after[number]:
            if target in stretch:
                waits_for[target] -= 1
                if not waits_for[target]:
                    ready.append(target)
    return order


def lifetimes(kernels: Sequence[Kernel], buffers: Sequence[Buffer]) -> Lifetimes:
    """The kernels between which each of ``buffers`` is needed, and its bytes in the arena.

    An input is needed from -1 on, before the first kernel; an output up to the number of kernels,
    after the last. An unused buffer has ``first`` above ``last``. Buffers outside the arena have no
    bytes there. Errors: a number without a buffer; a temporary or output that is read before it is
    written.
    """
    count, end = len(buffers), len(kernels)
    first, last = [end] * count, [-1] * count
    for at, kernel in enumerate(kernels):
        for buffer in kernel.reads:
            if not 0 <= buffer < count:
                raise _unknown(at, kernel, buffer, count)
            last[buffer] = at
            if first[buffer] == end:
                if buffers[buffer].kind in ("temporary", "output"):
                    raise _unwritten(at, kernel, buffer, buffers[buffer])
                first[buffer] = at
        for buffer in kernel.writes:
            if not 0 <= buffer < count:
                raise _unknown(at, kernel, buffer, count)
            last[buffer] = at
            if first[buffer] == end:
                first[buffer] = at
    for number, what in enumerate(buffers):
        if what.kind == "input":
            first[number] = -1
        elif what.kind == "output":
            last[number] = end
    return Lifetimes(np.array(first, np.int64), np.array(last, np.int64), rounded_sizes(buffers))


def _unknown(at: int, kernel: Kernel, buffer: int, count: int) -> ArgumentError:
    return ArgumentError(
        f"program, kernel {at} {kernel.name!r}",
        expected=f"numbers of buffers from 0 to {count - 1}",
        received=str(buffer),
        advice="list every buffer before the kernels that use it",
    )


def _unwritten(at: int, kernel: Kernel, buffer: int, what: Buffer) -> ArgumentError:
    label = f" {what.label!r}" if what.label else ""
    return ArgumentError(
        f"program, kernel {at} {kernel.name!r}",
        expected=f"buffer {buffer}{label} written before it is read",
        received=f"a read while this {what.kind} is empty",
        advice="record the kernel that writes it, or make the buffer an input or a constant",
    )


Pair = tuple[int, int]


def merge_in_place(
    kernels: Sequence[Kernel], buffers: Sequence[Buffer], lives: Lifetimes
) -> tuple[list[int], list[Pair]]:
    """For each buffer the one whose memory it uses, mostly itself; and the pairs in place.

    A kernel's pair (read, written) is used if the read buffer is a temporary without later readers,
    the written one is in the arena and starts there, and both are of equal size. Each memory goes
    to one output only, the first that its kernel lists.
    """
    holder = list(range(len(buffers)))
    taken: list[Pair] = []
    first, last = lives.first.tolist(), lives.last.tolist()
    for at, kernel in enumerate(kernels):
        given: set[int] = set()
        for read, written in kernel.in_place:
            old, new = buffers[read], buffers[written]
            if (
                old.kind == "temporary"
                and new.kind in ("temporary", "output")
                and old.nbytes == new.nbytes
                and last[read] == at == first[written]
                and first[read] < at
                and not given & {read, written}
            ):
                holder[written] = holder[read]
                given |= {read, written}
                taken.append((read, written))
    return holder, taken


class SharedMemory(NamedTuple):
    """The memory of buffers, some of which share it.

    A ``holder``, the buffer that provides the memory, is live while any sharing buffer is; in
    ``lives`` the others have no bytes. ``pairs`` are from `merge_in_place`.
    """

    lives: Lifetimes
    holder: Ints
    pairs: list[Pair]


def shared_memory(kernels: Sequence[Kernel], buffers: Sequence[Buffer]) -> SharedMemory:
    """The memory of ``buffers`` when ``kernels`` run in this order.

    Errors: as `lifetimes`.
    """
    lives = lifetimes(kernels, buffers)
    found, pairs = merge_in_place(kernels, buffers, lives)
    first, last, holder = lives.first.copy(), lives.last.copy(), np.array(found, np.int64)
    np.minimum.at(first, holder, lives.first)
    np.maximum.at(last, holder, lives.last)
    own = holder == np.arange(len(holder))
    return SharedMemory(Lifetimes(first, last, np.where(own, lives.size, 0)), holder, pairs)


_FEW = 1000
"""Up to this number of intervals a Python loop is faster than NumPy: nine times for fifty."""


def place(intervals: Lifetimes, order: npt.NDArray[Any]) -> Ints:
    """Offsets of ``intervals``, placed one after the other in ``order``.

    Each goes to the lowest gap among the placed intervals of overlapping lifetimes, or on top of
    them.
    """
    return (place_many if len(order) > _FEW else place_few)(intervals, order)


def place_few(intervals: Lifetimes, order: npt.NDArray[Any]) -> Ints:
    """`place`, by a loop over the placed intervals, up to the gap."""
    first, last = intervals.first.tolist(), intervals.last.tolist()
    sizes = intervals.size.tolist()
    offsets = [0] * len(sizes)
    placed: list[tuple[int, int, int, int]] = []
    for which in order.tolist():
        start, end, size, floor = first[which], last[which], sizes[which], 0
        for offset, top, begins, ends in placed:
            if begins <= end and start <= ends:
                if offset - floor >= size:
                    break
                if top > floor:
                    floor = top
        offsets[which] = floor
        insort(placed, (floor, floor + size, start, end))
    return np.array(offsets, np.int64)


def place_many(intervals: Lifetimes, order: npt.NDArray[Any]) -> Ints:
    """`place`, by a few NumPy calls per interval."""
    count = len(order)
    offsets = np.zeros(count, np.int64)
    # Rows: first, last, offset, end; sorted by offset. The first is empty and always live, so that
    # gaps have a floor.
    placed = np.empty((4, count + 1), np.int64)
    placed[:, 0] = (-2, np.iinfo(np.int64).max, 0, 0)
    first, last = intervals.first.tolist(), intervals.last.tolist()
    sizes = intervals.size.tolist()
    for number, which in enumerate(order.tolist(), 1):
        start, end, size = first[which], last[which], sizes[which]
        meets = ((placed[0, :number] <= end) & (placed[1, :number] >= start)).nonzero()[0]
        floors = np.maximum.accumulate(placed[3].take(meets))
        offset = _gap(placed[2].take(meets), floors, size)
        offsets[which] = offset
        at = int(placed[2, :number].searchsorted(offset, "right"))
        placed[:, at + 1 : number + 1] = placed[:, at:number]
        placed[:, at] = (start, end, offset, offset + size)
    return offsets


def _gap(lows: Ints, floors: Ints, size: int) -> int:
    fits = lows[1:] - floors[:-1] >= size
    lowest = int(fits.argmax()) if len(fits) else 0
    return int(floors[lowest if len(fits) and fits[lowest] else -1])


def pressure(intervals: Lifetimes) -> Ints:
    """For each interval the most bytes that are live at one kernel of its lifetime."""
    first, last = intervals.first - intervals.first.min(), intervals.last - intervals.first.min()
    # most[k] is the largest among the 2 ** level kernels from k on; two such cover a lifetime.
    most, level = Lifetimes(first, last, intervals.size).live(int(last.max()) + 1), 0
    levels = np.frexp(last - first + 1)[1] - 1
    found = np.empty(len(first), np.int64)
    while True:
        here = levels == level
        found[here] = np.maximum(most[first[here]], most[last[here] + 1 - (1 << level)])
        if level >= levels.max():
            return found
        most = np.maximum(most[: -(1 << level)], most[1 << level :])
        level += 1


def events(intervals: Lifetimes) -> tuple[list[int], list[int]]:
    """The numbers of intervals by start, larger ones first, and by end."""
    comes = np.lexsort((-intervals.size, intervals.first))
    goes = np.argsort(intervals.last, kind="stable")
    return comes.tolist(), goes.tolist()


def walk_best_fit(intervals: Lifetimes) -> Ints:
    """Give each interval the smallest free piece that fits; freed pieces join their neighbours."""
    first, last, sizes = intervals.first.tolist(), intervals.last.tolist(), intervals.size.tolist()
    offsets = [0] * len(sizes)
    free = _FreePieces()
    comes, goes = events(intervals)
    gone = 0
    for which in comes:
        while last[goes[gone]] < first[which]:
            free.give(offsets[goes[gone]], sizes[goes[gone]])
            gone += 1
        offsets[which] = free.take(sizes[which])
    return np.array(offsets, np.int64)


def walk_backwards(intervals: Lifetimes) -> Ints:
    """`walk_best_fit` from the last kernel to the first."""
    return walk_best_fit(Lifetimes(-intervals.last, -intervals.first, intervals.size))


class _FreePieces:
    """Free pieces of an arena that grows at its end."""

    def __init__(self) -> None:
        self._by_size: list[tuple[int, int]] = []  # bytes, start
        self._end_of: dict[int, int] = {}
        self._start_of: dict[int, int] = {}
        self._end = 0

    def take(self, size: int) -> int:
        k = bisect_left(self._by_size, (size, -1))
        if k < len(self._by_size):
            length, start = self._by_size[k]
            self._drop(start, start + length)
            if length > size:
                self._keep(start + size, start + length)
            return start
        start = self._start_of.get(self._end, self._end)
        if start < self._end:
            self._drop(start, self._end)
        self._end = start + size
        return start

    def give(self, start: int, size: int) -> None:
        end = start + size
        if end in self._end_of:
            further = self._end_of[end]
            self._drop(end, further)
            end = further
        if start in self._start_of:
            before = self._start_of[start]
            self._drop(before, start)
            start = before
        self._keep(start, end)

    def _keep(self, start: int, end: int) -> None:
        insort(self._by_size, (end - start, start))
        self._end_of[start], self._start_of[end] = end, start

    def _drop(self, start: int, end: int) -> None:
        del self._by_size[bisect_left(self._by_size, (end - start, start))]
        del self._end_of[start], self._start_of[end]


ALIGNMENT = 64
"""Bytes: a line of the cache, and the widest vector of a CPU."""

_NEAR = ((1 << 12, 1.0), (1 << 14, 1.005), (math.inf, 1.15))
"""Pairs (maximum number of buffers, ratio to the bound at which a layout is good enough).

Placing buffer by buffer takes time quadratic in their number. Above 16,384 buffers an allocator's
layout is also only some thousandths above the bound.
"""

Strategy = Callable[[Lifetimes], Ints]


class Layout(NamedTuple):
    """The offset of each buffer in an arena of ``nbytes``; sizes are rounded up to `ALIGNMENT`.

    ``offsets`` has None for buffers outside: parameters and constants. ``lower_bound`` is the most
    bytes live at one kernel, the minimum of any arena; ``unplanned_bytes`` is the size without
    sharing. ``in_place`` lists the pairs (read, written) that share their memory; ``strategy`` is
    the name of the strategy.
    """

    offsets: tuple[int | None, ...]
    nbytes: int
    lower_bound: int
    unplanned_bytes: int
    in_place: tuple[Pair, ...]
    strategy: str


def plan_arena(
    kernels: Sequence[Kernel],
    buffers: Sequence[Buffer],
    tried: Mapping[str, Strategy] | None = None,
) -> Layout:
    """The smallest layout that some strategies find for ``kernels`` in this order.

    ``tried`` are strategies by name instead of `STRATEGIES`. Errors: a kernel with an unknown
    buffer, or a read before any write.
    """
    lives, holder, pairs = shared_memory(kernels, buffers)
    lower_bound = int(lives.live(len(kernels) + 2, -1).max(initial=0))
    chosen = ((lives.first <= lives.last) & (lives.size > 0)).nonzero()[0]
    intervals = Lifetimes(*(part[chosen] for part in lives))
    found, nbytes, strategy = smallest(intervals, lower_bound, tried or STRATEGIES)
    offsets = np.zeros(len(buffers), np.int64)
    offsets[chosen] = found
    by_holder = offsets[holder].tolist()
    return Layout(
        offsets=tuple(
            offset if buffer.planned else None
            for offset, buffer in zip(by_holder, buffers, strict=True)
        ),
        nbytes=nbytes,
        lower_bound=lower_bound,
        # Buffers that share memory have the holder's size.
        unplanned_bytes=int(lives.size[holder].sum()),
        in_place=tuple(pairs),
        strategy=strategy,
    )


def rounded_sizes(buffers: Sequence[Buffer]) -> Ints:
    """The bytes of each buffer in an arena, 0 for buffers outside."""
    sizes = np.array([buffer.nbytes if buffer.planned else 0 for buffer in buffers], np.int64)
    return -(-sizes // ALIGNMENT) * ALIGNMENT


def smallest(
    intervals: Lifetimes, lower_bound: int, tried: Mapping[str, Strategy]
) -> tuple[Ints, int, str]:
    """Offsets, bytes of the arena, name of the strategy; stops at a result near the bound."""
    best, least, name = np.zeros(0, np.int64), 0, "nothing to place"
    if not len(intervals.size):
        return best, least, name
    near = next(part for most, part in _NEAR if len(intervals.size) <= most)
    for title, strategy in tried.items():
        enough = 1.0 if strategy in _QUICK else near
        if len(best) and least <= enough * lower_bound:
            break
        offsets = strategy(intervals)
        top = int((offsets + intervals.size).max())
        if not len(best) or top < least:
            best, least, name = offsets, top, title
    return best, least, name


def most_contested(intervals: Lifetimes) -> Ints:
    """Place the intervals live at the fullest kernels first, the longest first among them."""
    return place(intervals, np.lexsort((-_lengths(intervals), -pressure(intervals))))


def largest(intervals: Lifetimes) -> Ints:
    """Place the largest intervals first."""
    return place(intervals, np.argsort(-intervals.size, kind="stable"))


_QUICK = (walk_best_fit, walk_backwards)

STRATEGIES: Mapping[str, Strategy] = {
    "best fit, forwards": walk_best_fit,
    "best fit, backwards": walk_backwards,
    "most contested first": most_contested,
    "largest first": largest,
}
"""Quick strategies first."""


def _lengths(intervals: Lifetimes) -> Ints:
    return intervals.last - intervals.first + 1
