"""Times of kernels.

Between two runs other data go through the cores' caches, as the rest of a net's kernels would.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.engine.backward import arrays_in
from singanet.ops.costs import Case, cache_size, direct
from singanet.ops.kernel import cheapest, kernels_by_cost
from singanet.program.compile import compile_tape
from singanet.program.ir import Call, map_arrays
from singanet.program.layout import ALIGNMENT
from singanet.program.lower_sweeps import Ready
from singanet.program.replay.replay import Bound
from singanet.program.trace.evaluator import AbstractEvaluator
from singanet.program.trace.kernels import recording_kernels
from singanet.program.trace.recorder import Recorder, rehearse
from singanet.program.trace.tape import Tape, recording_on
from singanet.program.trace.traced import Traced, plain
from singanet.types import Array

if TYPE_CHECKING:
    from singanet.engine.net import Net


class OpenRoutes:
    """Notes what is open to each case; all go the direct way, which calls no other kernel.

    ``case`` is the last that has asked.
    """

    version = 0

    def __init__(self) -> None:
        self.estimates: dict[Case, Mapping[str, float]] = {}
        self.case: Case | None = None

    def choose(self, ops: Any, case: Case, estimates: Mapping[str, float]) -> str:
        self.case = case
        self.estimates.setdefault(case, estimates)
        return direct(estimates)


class OneRoute:
    """Takes ``route`` where it is open to ``case``; what a kernel calls in turn is as estimated."""

    version = 0

    def __init__(self, case: Case | None, route: str) -> None:
        self._case, self._route = case, route

    def choose(self, ops: Any, case: Case, estimates: Mapping[str, float]) -> str:
        mine = case == self._case and self._route in estimates
        return self._route if mine else cheapest(estimates)


Record = Callable[[Recorder], None]

_WORTH = 1.3
"""Times the best estimate up to which a route is measured: estimates are better than that."""

_BEHIND = 1.3
"""Times the best of the first round from which a route is not run again."""

_LONG = 0.005
"""Seconds from which a kernel needs no run to warm up: what is cold at first is little then."""

GAIN = 1.05
"""How much faster another route than the estimate's has to be: times differ by a few percent."""

_LEAST, _SECONDS = 2, 0.02
"""Rounds, and as many more as fit."""


@dataclass(frozen=True)
class Met:
    """A kernel that a net calls ``calls`` times for one case, what it is given, and its routes."""

    name: str
    operands: tuple[Any, ...]
    calls: int
    estimates: Mapping[str, float]

    @property
    def routes(self) -> list[str]:
        """The routes worth measuring, the cheapest by estimate first."""
        most = _WORTH * min(self.estimates.values())
        worth = [route for route, cost in self.estimates.items() if cost <= most]
        return sorted(worth, key=self.estimates.__getitem__)


def cases_met(net: Net, record: Record) -> dict[Case, Met]:
    """The cases of which a program asks while ``record`` lets a recorder write it down.

    Those that only a layer's Python runs, which is a step of the program as a whole, are not there.
    """
    chooser = OpenRoutes()
    found: list[_Marking] = []

    def listen(recorder: Recorder) -> None:
        found.append(_Marking(recorder.tape.ops, recorder.tape, chooser))
        recorder.tape.ops = found[-1]
        record(recorder)

    tape = rehearse(net, listen).tape
    return found[-1].met(tape.calls)


class _Marking:
    """The kernels ``ops`` of a recording, which remembers what is a call of whose case.

    It is between the start and the end of a kernel that asked ``chooser``.
    """

    def __init__(self, ops: Any, tape: Tape, chooser: OpenRoutes) -> None:
        self._ops, self._tape, self._chooser = ops, tape, chooser
        ops.chooser = chooser
        self._kernels = frozenset(kernels_by_cost(type(ops)))
        self._runs: dict[int, tuple[Case, int]] = {}
        self._given: dict[Case, tuple[str, tuple[Any, ...]]] = {}

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._ops, name)
        return self._marked(name, found) if name in self._kernels else found

    def met(self, calls: Collection[Call]) -> dict[Case, Met]:
        """By case, of what is among the ``calls``."""
        runs: dict[Case, set[int]] = {}
        for call in calls:
            if id(call) in self._runs:
                case, run = self._runs[id(call)]
                runs.setdefault(case, set()).add(run)
        estimates = self._chooser.estimates
        return {case: Met(*self._given[case], len(runs[case]), estimates[case]) for case in runs}

    def _marked(self, name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            first, self._chooser.case = len(self._tape.calls), None
            made = kernel(*arguments, **options)
            case = self._chooser.case
            if case is not None:
                if case not in self._given:
                    self._given[case] = name, map_arrays((arguments, options), _room_for)
                for call in self._tape.calls[first:]:
                    self._runs[id(call)] = case, first
            return made

        return run


class Stopwatch:
    """Seconds of the kernels ``ops`` with so many ``threads``."""

    def __init__(self, ops: Any, threads: int) -> None:
        self._ops = ops
        # A single thread's own time is not disturbed by what else runs on the machine.
        self._clock = time.thread_time if threads == 1 else time.perf_counter
        self._arenas: dict[str, Array] = {}
        others = [np.empty(threads * cache_size() // 4, np.float32) for _ in range(2)]
        given = ("add", others, others[0].shape)
        self._sweep = _Alone(ops, "combine", (given, {}), None, "", self._arena)

    def seconds(self, case: Case, met: Met) -> dict[str, float]:
        """The least of a few runs by each route; what is far behind is run but once."""
        given = self._ops, met.name, met.operands, case
        runs = {route: _Alone(*given, route, self._arena) for route in met.routes}
        estimate, best = met.routes[0], dict.fromkeys(runs, float("inf"))
        spent, rounds = 0.0, 0
        while len(runs) > 1 and (rounds < _LEAST or spent < _SECONDS):
            taken = {route: self._timed(run) for route, run in runs.items()}
            first, spent = not spent, spent + sum(taken.values())
            if first and min(taken.values()) < _LONG:
                continue
            rounds += 1
            best |= {route: min(best[route], seconds) for route, seconds in taken.items()}
            most = _BEHIND * min(best.values())
            # What is slower than the estimate's will hardly be as much faster as it has to be.
            others = min(most, GAIN * best[estimate])
            runs = {r: runs[r] for r in runs if best[r] <= (most if r == estimate else others)}
        return best

    def _arena(self, route: str, nbytes: int) -> Array:
        """Memory for a kernel by ``route``, which was written before and is there."""
        if route not in self._arenas or self._arenas[route].nbytes < nbytes:
            self._arenas[route] = np.full(nbytes, 0, np.uint8)
        return self._arenas[route]

    def _timed(self, run: Callable[[], object]) -> float:
        self._sweep()
        start = self._clock()
        run()
        return self._clock() - start


class _Alone:
    """A kernel by ``route``, recorded by itself, in ``memory(route, bytes)``.

    What reads a constant weight alone, as a predictor does once, is done when it is made.
    """

    def __init__(
        self,
        ops: Any,
        name: str,
        operands: tuple[Any, ...],
        case: Case | None,
        route: str,
        memory: Callable[[str, int], Array],
    ) -> None:
        tape = Tape(AbstractEvaluator())
        kernels: Any = recording_kernels(ops, tape)
        tape.ops = kernels
        kernels.chooser = OneRoute(case, route)

        def entered(array: Array) -> Array:
            made = _room_for(array)
            tape.adopt(made)
            return made.view(Traced)

        with recording_on(tape), np.errstate(all="ignore"):
            arguments, options = map_arrays(operands, entered)
            given = arrays_in((arguments, options))
            self._mark(tape, "feed", given, given)
            constant = {tape.ref(given[1]).token} if case and case.kernel == "constant" else set()
            made = getattr(kernels, name)(*arguments, **options)
            self._mark(tape, "outputs", [*given, made], [])
        recording = compile_tape(tape)
        # The memory has to stay, of which oneDNN's calls know the addresses alone.
        arena = memory(route, recording.layout.nbytes + ALIGNMENT)
        bound = self._bound = Bound(recording, arena)
        for array in bound.feed.arrays:
            # No zeros, which some processors multiply faster.
            array.fill(1)
        self._calls: list[Ready] = []
        between = [call for call in recording.calls if call.function is not None]
        for call, run in zip(between, bound.feed.calls, strict=True):
            if call.reads and constant.issuperset(call.reads):
                constant.update(call.writes)
                run()
            else:
                self._calls.append(run)

    @staticmethod
    def _mark(tape: Tape, name: Any, read: list[Any], filled: list[Array]) -> None:
        call = tape.add(len, (read,), {}, filled, "hidden", name=name)
        call.function, call.arguments = None, tuple(map_arrays(filled, tape.ref))
        call.barrier = True

    def __call__(self) -> None:
        for call in self._calls:
            call()


def _room_for(array: Array) -> Array:
    """An array that lies as this does."""
    made: Array = np.empty_like(plain(array), subok=False)
    return made
