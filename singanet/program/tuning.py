"""Routes of convolutions chosen by measuring.

Between two runs other data go through the cores' caches, as the rest of a net's kernels would.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.base.arguments import checked_count
from singanet.base.elsewhere import names_of
from singanet.base.progress import progress
from singanet.engine.backward import arrays_in
from singanet.errors import BackendError
from singanet.ops import costs
from singanet.ops.costs import ROUTES, Case, Costs, cache_size, direct
from singanet.ops.kernel import cheapest, kernels_by_cost
from singanet.ops.onednn.base import OneDnnBase
from singanet.ops.onednn.library import INSTALL
from singanet.program.compile import compile_tape
from singanet.program.ir import Call, map_arrays
from singanet.program.layout import ALIGNMENT
from singanet.program.lower_sweeps import Ready
from singanet.program.prediction.compiled import ConstantNet
from singanet.program.programs import programs_of
from singanet.program.replay.replay import Bound
from singanet.program.trace.abstract import hollow
from singanet.program.trace.kernels import recording_kernels
from singanet.program.trace.recorder import Recorder, rehearse
from singanet.program.trace.tape import Tape, recording_on
from singanet.types import Array

if TYPE_CHECKING:
    from singanet.engine.net import Net
    from singanet.ops.onednn.runtime import Runtime

__all__ = ["RouteTimes", "TuningReport", "tune_kernels"]

if not TYPE_CHECKING:  # else type checkers accept any name
    __getattr__, __dir__ = names_of(__name__, __all__)


class DirectRoutes:
    """Notes the routes open to each case; all calls use the direct route, which calls no other.

    ``case`` is the case of the last question.
    """

    version = 0

    def __init__(self) -> None:
        self.estimates: dict[Case, Mapping[str, float]] = {}
        self.case: Case | None = None

    def choose(self, ops: Any, case: Case, estimates: Mapping[str, float]) -> str:
        self.case = case
        self.estimates.setdefault(case, estimates)
        return direct(estimates)


class FixedRoute:
    """Selects ``route`` if it is open to ``case``; inner kernels use the cheapest by estimate."""

    version = 0

    def __init__(self, case: Case | None, route: str) -> None:
        self._case, self._route = case, route

    def choose(self, ops: Any, case: Case, estimates: Mapping[str, float]) -> str:
        mine = case == self._case and self._route in estimates
        return self._route if mine else cheapest(estimates)


Record = Callable[[Recorder], None]

_WORTH = 1.3
"""Routes are measured up to this multiple of the best estimate; estimates are better than that."""

_BEHIND = 1.3
"""Routes above this multiple of the best time of the first round are not run again."""

_LONG = 0.005
"""Kernels of more seconds need no warm-up run: the cold part is small."""

GAIN = 1.05
"""The minimum gain of another route than the estimate's: times vary by a few percent."""

_LEAST, _SECONDS = 2, 0.02
"""The minimum rounds, and the seconds for more."""


@dataclass(frozen=True)
class CaseKernel:
    """A kernel that a net calls ``calls`` times for one case, its operands, and its routes."""

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


def recorded_cases(net: Net, record: Record) -> dict[Case, CaseKernel]:
    """The cases of a recorded program, which ``record`` records.

    Kernels that only a layer's own Python runs, as one step of the program, are not included.
    """
    chooser = DirectRoutes()
    found: list[_CaseRecorder] = []

    def listen(recorder: Recorder) -> None:
        found.append(_CaseRecorder(recorder.tape.ops, recorder.tape, chooser))
        recorder.tape.ops = found[-1]
        record(recorder)

    tape = rehearse(net, listen).tape
    return found[-1].kernels(tape.calls)


class _CaseRecorder:
    """The kernels ``ops`` of a recording, which note the case of each call.

    A call has a case if it is made by a kernel that asked ``chooser``.
    """

    def __init__(self, ops: Any, tape: Tape, chooser: DirectRoutes) -> None:
        self._ops, self._tape, self._chooser = ops, tape, chooser
        ops.chooser = chooser
        self._kernels = frozenset(kernels_by_cost(type(ops)))
        self._runs: dict[int, tuple[Case, int]] = {}
        self._given: dict[Case, tuple[str, tuple[Any, ...]]] = {}

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._ops, name)
        return self._marked(name, found) if name in self._kernels else found

    def kernels(self, calls: Collection[Call]) -> dict[Case, CaseKernel]:
        """By case, the kernels with a call among ``calls``."""
        runs: dict[Case, set[int]] = {}
        for call in calls:
            if id(call) in self._runs:
                case, run = self._runs[id(call)]
                runs.setdefault(case, set()).add(run)
        estimates = self._chooser.estimates
        return {
            case: CaseKernel(*self._given[case], len(runs[case]), estimates[case]) for case in runs
        }

    def _marked(self, name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            first, self._chooser.case = len(self._tape.calls), None
            made = kernel(*arguments, **options)
            case = self._chooser.case
            if case is not None:
                if case not in self._given:
                    self._given[case] = name, map_arrays((arguments, options), hollow)
                for call in self._tape.calls[first:]:
                    self._runs[id(call)] = case, first
            return made

        return run


class Stopwatch:
    """Measures seconds of the kernels ``ops`` with a number of ``threads``."""

    def __init__(self, ops: Any, threads: int) -> None:
        self._ops = ops
        # A single thread's own time does not include other processes.
        self._clock = time.thread_time if threads == 1 else time.perf_counter
        self._arenas: dict[str, Array] = {}
        others = [np.empty(threads * cache_size() // 4, np.float32) for _ in range(2)]
        given = ("add", others, others[0].shape)
        self._sweep = _SingleKernel(ops, "combine", (given, {}), None, "", self._arena)

    def seconds(self, case: Case, met: CaseKernel) -> dict[str, float]:
        """The least of a few runs by each route; a slow route runs only once."""
        given = self._ops, met.name, met.operands, case
        runs = {route: _SingleKernel(*given, route, self._arena) for route in met.routes}
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
            # A route slower than the estimate's will hardly reach the minimum gain.
            others = min(most, GAIN * best[estimate])
            runs = {r: runs[r] for r in runs if best[r] <= (most if r == estimate else others)}
        return best

    def _arena(self, route: str, nbytes: int) -> Array:
        """Memory for a kernel by ``route`` whose pages are resident."""
        if route not in self._arenas or self._arenas[route].nbytes < nbytes:
            self._arenas[route] = np.full(nbytes, 0, np.uint8)
        return self._arenas[route]

    def _timed(self, run: Callable[[], object]) -> float:
        self._sweep()
        start = self._clock()
        run()
        return self._clock() - start


class _SingleKernel:
    """A kernel by ``route``, recorded by itself, in ``memory(route, bytes)``.

    Calls that read only a constant weight run once at construction, as in a predictor.
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
        tape = Tape()
        kernels: Any = recording_kernels(ops, tape)
        tape.ops = kernels
        kernels.chooser = FixedRoute(case, route)

        with recording_on(tape), np.errstate(all="ignore"):
            arguments, options = map_arrays(operands, tape.like)
            given = arrays_in((arguments, options))
            self._mark(tape, "feed", given, given)
            constant = {tape.ref(given[1]).token} if case and case.kernel == "constant" else set()
            made = getattr(kernels, name)(*arguments, **options)
            self._mark(tape, "outputs", [*given, made], [])
        recording = compile_tape(tape)
        # The memory has to stay alive: oneDNN's calls have only its addresses.
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


@dataclass(frozen=True)
class RouteTimes:
    """The measured ``seconds`` by route of a kernel for ``case``, called ``calls`` times a step.

    ``estimate`` is the route chosen without measuring, ``chosen`` the route used now.
    """

    case: Case
    calls: int
    seconds: Mapping[str, float]
    estimate: str
    chosen: str


@dataclass(frozen=True)
class TuningReport:
    """The kernels measured with ``threads``, as ``rows``; ``known`` ones were measured before.

    ``path`` is the file with the choices.
    """

    rows: tuple[RouteTimes, ...] = field(repr=False)
    known: int
    threads: int
    path: Path

    @property
    def estimated_seconds(self) -> float:
        """Seconds of all calls of the measured cases, by the estimates' routes."""
        return sum(row.calls * row.seconds[row.estimate] for row in self.rows)

    @property
    def chosen_seconds(self) -> float:
        """Seconds of the same calls by the chosen routes."""
        return sum(row.calls * row.seconds[row.chosen] for row in self.rows)

    def __str__(self) -> str:
        """Return a line per case with milliseconds, the chosen route marked, and the sums."""
        from singanet.base.kinds import text_table

        head = ["kernel", "images", "weight", "stride", "groups", "calls", *ROUTES, "estimate"]
        lines = text_table(head, [_cells(row) for row in self.rows], names=3) if self.rows else []
        changed = sum(row.chosen != row.estimate for row in self.rows)
        return "\n".join(
            [
                *lines,
                f"{len(self.rows)} convolution kernels measured with {self.threads} threads, "
                f"{self.known} known before; {changed} go another way than estimated",
                f"a step of them: {1e3 * self.estimated_seconds:.2f} ms as estimated, "
                f"{1e3 * self.chosen_seconds:.2f} ms as chosen; kept in {self.path}",
            ]
        )


def _cells(row: RouteTimes) -> list[str]:
    case = row.case
    times = []
    for route in ROUTES:
        taken = row.seconds.get(route)
        mark = "*" if route == row.chosen else ""
        times.append("" if taken is None else f"{mark}{1e3 * taken:.3f}")
    shapes = ["x".join(map(str, shape)) for shape in (case.x, case.weight, case.window.stride)]
    return [case.kernel, *shapes, str(case.window.groups), str(row.calls), *times, row.estimate]


_WHERE = "net.tune_kernels"


def tune_kernels(net: Net, batch_size: int, extent: int | None, again: bool) -> TuningReport:
    """Measure the kernels of convolutions, as `FeedForwardNet.tune_kernels` does.

    Args:
        net: The net.
        batch_size: Number of samples, a positive int.
        extent: Length of axes of any extent, or None.
        again: Whether to measure cases in the stored file, too.
    """
    from singanet.engine.backward import ones

    size = checked_count(_WHERE, "batch_size", batch_size, 1)
    if extent is not None:
        extent = checked_count(_WHERE, "extent", extent, 1)
    choices, runtime, path = _tunable(net)
    known = set() if again else set(choices.choices(runtime))
    # Check that the file can be written before spending minutes.
    costs.keep(runtime.library.version)
    feed = ones(net._execution_plan(), size, net.device, extent)
    constant: Any = ConstantNet(net, net.device)
    met = recorded_cases(net, lambda recorder: recorder.rehearsed_step(feed, None))
    # This adds the kernels that only a predictor calls.
    met |= recorded_cases(constant, lambda recorder: constant.record(recorder, feed))
    rows = _measured(net, met, known, runtime.threads)
    found = {row.case: row.chosen for row in rows}
    choices.adopt(found, runtime)
    programs_of(net).clear()
    return TuningReport(tuple(rows), len(met.keys() & known), runtime.threads, path)


def _measured(
    net: Net, met: Mapping[Case, CaseKernel], known: Collection[Case], threads: int
) -> list[RouteTimes]:
    """Times of the cases that are not ``known`` and that estimates do not settle."""
    rows = []
    stopwatch = None
    for case, each in progress(met.items(), "tune"):
        estimate, *others = each.routes
        if case in known or not others:
            continue
        stopwatch = stopwatch or Stopwatch(net.device.ops, threads)
        seconds = stopwatch.seconds(case, each)
        best = min(seconds, key=seconds.__getitem__)
        chosen = best if seconds[estimate] > GAIN * seconds[best] else estimate
        rows.append(RouteTimes(case, each.calls, seconds, estimate, chosen))
    return rows


def _tunable(net: Net) -> tuple[Costs, Runtime, Path]:
    """The choices of the net's kernels, their runtime, and the file. Errors: `BackendError`."""
    ops = net.device.ops
    if not ops.on_host:
        raise BackendError(
            _WHERE,
            expected="a net on the CPU, whose convolutions go by several routes",
            received=f"a net on {net.device.name}, where each convolution has one route",
            advice="do not tune there, or tune after net.to_device(singanet.device.cpu())",
        )
    runtime = ops.runtime() if isinstance(ops, OneDnnBase) else None
    chooser = ops.chooser if isinstance(ops, OneDnnBase) else None
    narrow = isinstance(ops, OneDnnBase) and ops.narrow
    if runtime is None or narrow or not isinstance(chooser, Costs):
        kernels = f"the kernels {ops.name!r} on {net.device.name}"
        raise BackendError(
            _WHERE,
            expected="oneDNN's kernels, whose convolutions of float32 go by several routes",
            received=f"{kernels}, that multiply bfloat16" if narrow else kernels,
            advice='its routes are as estimated; tune after net.as_type("float32")'
            if narrow
            else f"{INSTALL}; see singanet devices",
        )
    path = costs.path_of(runtime.library.version)
    if path is None:
        raise BackendError(
            _WHERE,
            expected="measured routes to be in use",
            received=costs.why_none(),
            advice=f"let {costs.VARIABLE} name the file to keep them in",
        )
    return chooser, runtime, path
