"""What convolutions take by each route, in the program of the net where they stand.

By themselves they would find other things in the cache, and differ by more than routes do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.ops.kernel import kernels_by_cost
from singanet.ops.onednn.cases import ROUTES, Case
from singanet.program.array_tree import map_arrays
from singanet.program.compile import Recording, compiled
from singanet.program.layout.arena import ALIGNMENT
from singanet.program.replay.bound_program import Bound
from singanet.program.trace.python_pass import copy_into
from singanet.program.trace.recorder import Recorder, rehearse
from singanet.program.trace.tape import Tape
from singanet.tuning.choosers import OneRoute, OpenRoutes
from singanet.types import Array

if TYPE_CHECKING:
    from singanet.engine.net import Net

Feed = Mapping[str, Any]
Taken = tuple[int, float]
"""How often a net runs a case, and the seconds of one run."""
Record = Callable[[Recorder], None]

_LEAST, _MOST = 3, 9
"""Rounds."""

_SECONDS = 2.0
"""After which there are no more than the least."""

_HOPELESS = 1.5
"""Times the best after the first round from which a route is not run again."""


def open_routes(net: Net, record: Record) -> OpenRoutes:
    """The cases that ask while ``record`` lets a recorder write down."""
    chooser = OpenRoutes()

    def listen(recorder: Recorder) -> None:
        # A copy of the net's kernels, which are left as they are.
        recorder.tape.ops.chooser = chooser
        record(recorder)

    rehearse(net, listen)
    return chooser


def seconds_in_net(
    net: Net, feed: Feed, record: Record, threads: int
) -> Mapping[str, Mapping[Case, Taken]]:
    """For each route the least that a run of each case takes.

    Where a route is not open to a case, it is what the direct one takes. Cases that only a layer's
    Python runs, which is a step of the program as a whole, are not there.
    """
    # A single thread's own time is not disturbed by what else runs on the machine.
    clock = time.thread_time if threads == 1 else time.perf_counter
    runs = [_Run(net, route, record) for route in ROUTES]
    arena = np.empty(max(run.arena_bytes for run in runs), np.uint8)
    start = time.monotonic()
    with net.rehearsal(), np.errstate(all="ignore"):
        for each in range(_MOST):
            for run in runs:
                run.measure(arena, feed, clock)
            if not each:
                _drop_hopeless(runs)
            if each + 1 >= _LEAST and time.monotonic() - start > _SECONDS:
                break
    return {route: run.taken() for route, run in zip(ROUTES, runs, strict=True)}


def _drop_hopeless(runs: Sequence[_Run]) -> None:
    """Leave out from later rounds what is far behind: most of the time went there."""
    taken = [run.taken() for run in runs]
    for run, mine in zip(runs, taken, strict=True):
        behind = {
            case
            for case, (_, seconds) in mine.items()
            if seconds > _HOPELESS * min(other[case][1] for other in taken if case in other)
        }
        run.leave_out(behind)


class _Run:
    """A program whose convolutions go by ``route``, and the least that each call has taken."""

    def __init__(self, net: Net, route: str, record: Record) -> None:
        recorder = rehearse(net, lambda recorder: record(_marking(recorder, route)))
        marks: _Marking = recorder.tape.ops
        self._recording: Recording = compiled(recorder)
        self.arena_bytes: int = self._recording.layout.nbytes + ALIGNMENT
        calls = [call for call in self._recording.calls if call.function is not None]
        self._cases: list[tuple[Case, int] | None] = [marks.case_of(call) for call in calls]
        self._best: list[float] = [float("inf")] * len(calls)
        self._left_out: Collection[Case] = ()
        self._bound: Bound | None = None

    def leave_out(self, cases: Collection[Case]) -> None:
        """Do not run these again."""
        self._left_out = cases

    def measure(self, arena: Array, feed: Feed, clock: Callable[[], float]) -> None:
        """Run it once. What is fed are the inputs, later on zeros for gradients."""
        bound = self._bound = self._bound or Bound(self._recording, arena)
        taken: list[float] = []
        marks = iter(self._cases)
        for segment in bound.segments:
            if segment.name == "feed":
                copy_into(feed, segment.arrays[0])
            else:
                map_arrays(segment.arrays, _clear)
            for call, mark in zip(segment.calls, marks, strict=False):
                start = clock()
                if mark is None or mark[0] not in self._left_out:
                    call()
                    taken.append(clock() - start)
                else:
                    taken.append(float("inf"))
        self._best = list(map(min, self._best, taken))

    def taken(self) -> Mapping[Case, Taken]:
        """By case."""
        sums: dict[Case, float] = {}
        runs: dict[Case, set[int]] = {}
        for mark, taken in zip(self._cases, self._best, strict=True):
            if mark is not None:
                case, run = mark
                sums[case] = sums.get(case, 0.0) + taken
                runs.setdefault(case, set()).add(run)
        return {case: (len(runs[case]), total / len(runs[case])) for case, total in sums.items()}


class _Marking:
    """The kernels ``ops`` of a recording, which remembers what is a call of whose case.

    It is between the start and the end of a kernel that asked ``chooser``.
    """

    def __init__(self, ops: Any, tape: Tape, chooser: OneRoute) -> None:
        self._ops, self._tape, self._chooser = ops, tape, chooser
        ops.chooser = chooser
        self._kernels = frozenset(kernels_by_cost(type(ops)))
        self._cases: dict[int, tuple[Case, int]] = {}
        self._runs = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._ops, name)
        return self._marked(found) if name in self._kernels else found

    def case_of(self, call: object) -> tuple[Case, int] | None:
        """Whose part the call is: the case, and which of all runs of kernels it was."""
        return self._cases.get(id(call))

    def _marked(self, kernel: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            first, self._chooser.case = len(self._tape.calls), None
            made = kernel(*arguments, **options)
            self._runs += 1
            if self._chooser.case is not None:
                for call in self._tape.calls[first:]:
                    self._cases[id(call)] = self._chooser.case, self._runs
            return made

        return run


def _marking(recorder: Recorder, route: str) -> Recorder:
    recorder.tape.ops = _Marking(recorder.tape.ops, recorder.tape, OneRoute(route))
    return recorder


def _clear(array: Array) -> None:
    array.fill(0)
