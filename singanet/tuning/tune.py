"""Tuning of kernels and its report."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from singanet.base.arguments import checked_count
from singanet.errors import BackendError
from singanet.ops import costs
from singanet.ops.costs import ROUTES, Case, Costs
from singanet.ops.onednn.base import OneDnnBase
from singanet.ops.onednn.library import INSTALL
from singanet.program.prediction.compiled import ConstantNet
from singanet.program.programs import programs_of
from singanet.tuning.timing import GAIN, Met, Stopwatch, cases_met

if TYPE_CHECKING:
    from singanet.engine.net import Net
    from singanet.ops.onednn.runtime import Runtime


@dataclass(frozen=True)
class RouteTimes:
    """A convolution kernel that is called ``calls`` times a step, and its seconds by route.

    ``estimate`` is the route taken without measuring, ``chosen`` the route taken now.
    """

    case: Case
    calls: int
    seconds: Mapping[str, float]
    estimate: str
    chosen: str


@dataclass(frozen=True)
class TuningReport:
    """The cases measured with ``threads``; ``known`` ones were measured before.

    ``path`` is the file with the choices.
    """

    rows: tuple[RouteTimes, ...]
    known: int
    threads: int
    path: Path

    @property
    def estimated_seconds(self) -> float:
        """Of all calls of the measured cases, by the routes of the estimates."""
        return sum(row.calls * row.seconds[row.estimate] for row in self.rows)

    @property
    def chosen_seconds(self) -> float:
        """The same by the routes that were chosen."""
        return sum(row.calls * row.seconds[row.chosen] for row in self.rows)

    def __str__(self) -> str:
        """A line a case with milliseconds, those of the chosen route marked, and the sums."""
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
    """See `FeedForwardNet.tune_kernels`."""
    from singanet.engine.backward import ones

    size = checked_count(_WHERE, "batch_size", batch_size, 1)
    if extent is not None:
        extent = checked_count(_WHERE, "extent", extent, 1)
    choices, runtime, path = _tunable(net)
    version, threads = runtime.library.version, runtime.threads
    known = set() if again else set(choices.choices(runtime))
    # That the file can be written is better known before minutes are spent.
    costs.add(path, version, threads, {})
    feed = ones(net._execution_plan(), size, net.device, extent)
    constant: Any = ConstantNet(net, net.device)
    met = cases_met(net, lambda recorder: recorder.rehearsed_step(feed, None))
    # Of an evaluation only what a predictor does otherwise is left.
    met |= cases_met(constant, lambda recorder: constant.record(recorder, feed))
    rows = _measured(net, met, known, threads)
    found = {row.case: row.chosen for row in rows}
    costs.add(path, version, threads, found)
    choices.adopt(found, runtime)
    programs_of(net).clear()
    return TuningReport(tuple(rows), len(met.keys() & known), threads, path)


def _measured(
    net: Net, met: Mapping[Case, Met], known: Collection[Case], threads: int
) -> list[RouteTimes]:
    """Times of the cases that are not ``known`` and that estimates do not settle."""
    rows = []
    stopwatch = None
    for case, each in met.items():
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
            received=f"one on {net.device.name}, where each goes by one, so that none is measured",
            advice="leave it out, or tune after net.to_device(singanet.device.cpu())",
        )
    runtime = ops.runtime() if isinstance(ops, OneDnnBase) else None
    chooser = ops.chooser if isinstance(ops, OneDnnBase) else None
    if runtime is None or not isinstance(chooser, Costs):
        narrow = isinstance(ops, OneDnnBase) and ops.narrow
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
