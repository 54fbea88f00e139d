"""Routes of a net's convolutions by measuring."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from singanet.base.arguments import checked_count
from singanet.errors import BackendError
from singanet.ops.onednn import route_file
from singanet.ops.onednn.base import OneDnnBase
from singanet.ops.onednn.cases import Case
from singanet.ops.onednn.choices import Measured
from singanet.ops.onednn.library import INSTALL
from singanet.program.prediction.net import ConstantNet
from singanet.program.programs import programs_of
from singanet.tuning.report import RouteTimes, TuningReport
from singanet.tuning.timing import GAIN, Met, Stopwatch, cases_met

if TYPE_CHECKING:
    from pathlib import Path

    from singanet.engine.net import Net
    from singanet.ops.onednn.runtime import Runtime

_WHERE = "net.tune_kernels"


def tune_kernels(net: Net, batch_size: int, extent: int | None, again: bool) -> TuningReport:
    """See `FeedForwardNet.tune_kernels`."""
    from singanet.engine.ones import ones

    size = checked_count(_WHERE, "batch_size", batch_size, 1)
    if extent is not None:
        extent = checked_count(_WHERE, "extent", extent, 1)
    choices, runtime, path = _tunable(net)
    version, threads = runtime.library.version, runtime.threads
    known = set() if again else set(choices.choices(runtime))
    # That the file can be written is better known before minutes are spent.
    route_file.add(path, version, threads, {})
    feed = ones(net.execution_plan(), size, net.device, extent)
    constant: Any = ConstantNet(net, net.device)
    met = cases_met(net, lambda recorder: recorder.rehearsed_step(feed, None))
    # Of an evaluation only what a predictor does otherwise is left.
    met |= cases_met(constant, lambda recorder: constant.record(recorder, feed))
    rows = _measured(net, met, known, threads)
    found = {row.case: row.chosen for row in rows}
    route_file.add(path, version, threads, found)
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


def _tunable(net: Net) -> tuple[Measured, Runtime, Path]:
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
    if runtime is None or not isinstance(chooser, Measured):
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
    path = route_file.path_of(runtime.library.version)
    if path is None:
        raise BackendError(
            _WHERE,
            expected="measured routes to be in use",
            received=route_file.why_none(),
            advice=f"let {route_file.VARIABLE} name the file to keep them in",
        )
    return chooser, runtime, path
