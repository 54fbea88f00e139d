"""Make calls of C without Python between them, on one thread or shared by several."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.base.heap import address
from singanet.ops.workers import shared
from singanet.types import Array, Work

if TYPE_CHECKING:
    from singanet.ops.compiled.engine import CompiledFunction

_LEAST = 1 << 16
"""Bytes that a call reads, from which threads share it: two microseconds, ten hand-overs."""
_MANY = 4
"""Short calls in a row from which they release Python's lock: a millisecond at most."""
_LINE = 64
"""Bytes that a core's cache reads and writes together."""

Record = tuple[int, int, int, int, int, int]
"""The address of a function of C, the bits of its result that mean a failure, four arguments."""

Stages = Sequence[Sequence[Sequence[Work]]]
"""The parts of stages that follow each other; the parts of one are independent, each some calls."""


class NativeCall(partial[object]):
    """A call of a function of C from Python, and the ``record`` by which C makes it.

    A ``brief`` call does not release Python's lock. ``failed`` raises the error of a result.
    ``given`` are the arguments of the compiled ``function``, which may change between calls. If it
    ``reads`` that many bytes, the last of them are ``ranges`` from 0 on, each of a stage whose
    parts may run side by side. ``stages`` are the calls of a job.
    """

    record: Record
    brief: bool
    function: CompiledFunction
    given: ctypes.Array[ctypes.c_int64]
    reads: int = 0
    ranges: int = 1
    stages: Stages | None = None
    failed: Callable[[int], object] | None = None
    look: Callable[[], object] | None = None

    def divided(self, threads: int) -> Stages:
        """Return the stages of the call for some threads, or the call itself if it reads little."""
        if self.reads < _LEAST:
            return [[[self]]]
        at = len(self.given) - 2 * self.ranges
        stages = shared((*self.given[:at],), self.given[at + 1 :: 2], threads)
        return [
            [[compiled_call(self.function, part, self.brief)] for part in stage] for stage in stages
        ]


class ThreadCount(partial[object]):
    """A call that sets the thread count; ``settled`` notes that C has set it.

    ``look`` is a `LookAround` if there are several threads.
    """

    record: Record
    look: Callable[[], object] | None = None
    settled: Callable[[], object]


class LookAround(partial[object]):
    """A call that looks for other processes on the cores; once in a chain is enough."""

    @property
    def look(self) -> LookAround:
        """Itself."""
        return self


class Divided(partial[object]):
    """A call that hands parts of the call ``whole`` to threads."""

    whole: NativeCall


def compiled_call(
    function: CompiledFunction, given: Sequence[int], brief: bool, reads: int = 0, ranges: int = 1
) -> NativeCall:
    """Return the call of a compiled function with the arguments ``given``, see `NativeCall`."""
    array = (ctypes.c_int64 * len(given))(*given)
    place = ctypes.addressof(array)
    made = NativeCall(function.briefly if brief else function.at_length, ctypes.c_void_p(place))
    made.record, made.brief = (function.bound, 0, place, 0, 0, 0), brief
    # The memory lives as long as the call.
    made.function, made.given = function, array
    made.reads, made.ranges = reads, ranges
    return made


def joined(calls: Iterable[Work], jobs: Jobs | None = None) -> list[Work]:
    """Return ``calls`` with those in a row that C can make as one `Chain`, or as one of ``jobs``.

    In a job, threads share also calls that are too short to hand over one by one. Calls that may
    fail are in no job, which does not tell their results.
    """
    made: list[Work] = []
    row: list[Any] = []
    for call in calls:
        if isinstance(call, Divided) and jobs is not None:
            row.append(call.whole)
        elif isinstance(call, (NativeCall, ThreadCount, LookAround)):
            row.append(call)
        else:
            made += [*_joined(row, jobs), call]
            row = []
    return [*made, *_joined(row, jobs)]


def _joined(row: list[Any], jobs: Jobs | None) -> list[Work]:
    natives = [call for call in row if isinstance(call, NativeCall)]
    may_fail = any(call.failed is not None for call in natives)
    if jobs is not None and not may_fail and not any(isinstance(c, ThreadCount) for c in row):
        stages = [stage for call in natives for stage in _stages(call, jobs.threads)]
        if any(len(stage) > 1 for stage in stages):
            return jobs.share(_merged(stages), _are_brief(natives))
    return row if len(natives) < 2 else [Chain(row)]


def _are_brief(natives: Sequence[NativeCall]) -> bool:
    """Whether the calls keep Python's lock, which other threads would wait for."""
    return len(natives) < _MANY and all(call.brief for call in natives)


def _stages(call: NativeCall, threads: int) -> Stages:
    return call.divided(threads) if call.stages is None else call.stages


def _merged(stages: Stages) -> Stages:
    """Return the stages; those of one part that follow each other become one."""
    made: list[Sequence[Sequence[Work]]] = []
    for alone, group in groupby(stages, key=lambda stage: len(stage) == 1):
        some = [*group]
        made += [[[call for (part,) in some for call in part]]] if alone else some
    return made


class Chain:
    """Calls that C makes one after the other."""

    def __init__(self, row: Sequence[Any]) -> None:
        # Kept alive.
        self._row = row
        first = next(k for k, call in enumerate(row) if isinstance(call, NativeCall))
        looks = [call.look for call in row if call.look is not None][:1]
        counts = [call for call in row[:first] if isinstance(call, ThreadCount)]
        self._before = [*looks, *counts]
        rest = [call for call in row[first:] if not isinstance(call, LookAround)]
        self._records = _records(rest)
        self._failed = np.zeros(1, np.int64)
        self._settled = [call.settled for call in rest if isinstance(call, ThreadCount)][-1:]
        natives = [call for call in rest if isinstance(call, NativeCall)]
        self._raise = next((call.failed for call in natives if call.failed is not None), None)
        given = address(self._records), address(self._failed), len(rest)
        self._call = compiled_call(function_of("calls"), given, _are_brief(natives))

    def __call__(self) -> None:
        """Make the calls. Errors: the error of the last one that failed."""
        for call in self._before:
            call()
        self._call()
        for settled in self._settled:
            settled()
        if self._raise is not None and self._failed[0]:
            status, self._failed[0] = int(self._failed[0]), 0
            self._raise(status)


def _records(calls: Iterable[Any]) -> Array:
    return np.array([call.record for call in calls], np.int64).reshape(-1, 6)


class Jobs:
    """The maker of jobs, which ``threads`` threads share without Python.

    ``start`` is the address of a function that runs another on all threads, such as GNU's
    ``GOMP_parallel``, ``number`` that of a function that returns the calling thread's number.
    ``busy`` has one number, not 0 while other processes use the cores: a job then runs on the
    calling thread. ``look`` keeps it up to date. ``pool`` is the memory of the library's threads.
    """

    def __init__(
        self,
        threads: int,
        start: int,
        number: int,
        busy: Array,
        look: Callable[[], None] | None,
        pool: Array | None = None,
    ) -> None:
        self.threads, self._start, self._number = threads, start, number
        self._busy, self._pool = busy, pool
        self.look = None if look is None else LookAround(look)

    def is_busy(self) -> bool:
        """Return whether other processes used the cores at the last look; while so, look again."""
        if self._busy.item() and self.look is not None:
            self.look()
        return bool(self._busy.item())

    def share(self, stages: Stages, brief: bool) -> list[Work]:
        """Return the calls that run ``stages``; all parts of a stage end before the next begins."""
        from singanet.ops.compiled.chain import HEADER, LINE

        counts = [len(stage) for stage in stages]
        records = [_records(part) for stage in stages for part in stage]
        table = np.array([(address(each), len(each)) for each in records], np.int64)
        flags = aligned(LINE * sum(1 + count for count in counts))
        job = aligned(8 * len(HEADER) + 24 * len(stages))
        header = {
            "stages": len(stages),
            "threads": self.threads,
            "share": self._start,
            "number": self._number,
            "body": function_of("body").address,
            "enter": function_of("enter").address,
            "busy": address(self._busy),
            "rest": _rest(),
            "pool": 0 if self._pool is None else address(self._pool),
        }
        job[: len(HEADER)] = [header.get(name, 0) for name in HEADER]
        parts = lines = 0
        rows = job[len(HEADER) :].reshape(-1, 3)
        for row, count in zip(rows, counts, strict=False):
            row[:] = count, address(table) + 16 * parts, address(flags) + LINE * lines
            parts, lines = parts + count, lines + 1 + count
        share = function_of("share")
        made = compiled_call(share, (address(job),), brief)
        made.stages = stages
        made.__dict__["kept"] = records, table, flags, job, self._busy, self._pool
        return [made] if self.look is None else [self.look, made]


def aligned(nbytes: int) -> Array:
    """Return zeros whose memory starts with a line of the cache."""
    raw = np.zeros(-(-nbytes // 8) + _LINE // 8, np.int64)
    start = -address(raw) % _LINE // 8
    return raw[start : start + -(-nbytes // 8)]


@cache
def _rest() -> int:
    """Return the address of the function that gives up the rest of a core's time."""
    return ctypes.cast(ctypes.CDLL(None).sched_yield, ctypes.c_void_p).value or 0


@cache
def function_of(name: str) -> CompiledFunction:
    """Return a function of `singanet.ops.compiled.chain`."""
    from singanet.ops.compiled import chain, engine

    return engine.known(getattr(chain, name))
