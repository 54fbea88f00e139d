"""A program's kernels as a file for chrome://tracing and Perfetto.

The format is the Trace Event Format's "JSON object": complete events ("X") with times in
microseconds, metadata events ("M") that name the lanes, counter events ("C") for the memory, pairs
of nestable ones ("b", "e") for sums over processes. The process of an event is its rank, as in the
trace of a job.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from os import PathLike
from typing import TYPE_CHECKING, Any

from singanet.base.files import path_of, replacing
from singanet.errors import ArgumentError, CallOrderError
from singanet.program.ir import Kernel
from singanet.program.report.shares import OUTSIDE, PHASES, made_bytes

if TYPE_CHECKING:
    from singanet.program.report.figures import Figures

_LANES: dict[str, Callable[[Kernel], str]] = {
    "phase": lambda kernel: kernel.phase,
    "layer": lambda kernel: kernel.layer or OUTSIDE,
}


def write_trace(report: Figures, path: str | PathLike[str] | None, lanes: str) -> str:
    """`ProgramReport.trace`."""
    text = json.dumps({"traceEvents": trace_events(report, lanes), "displayTimeUnit": "ms"})
    if path is not None:
        with replacing(path_of(path)) as beside:
            beside.write_text(text, encoding="utf-8")
    return text


def trace_events(report: Figures, lanes: str = "phase") -> list[dict[str, Any]]:
    """The events: kernels one after the other, each in its lane, and the bytes needed with it."""
    if lanes not in _LANES:
        raise ArgumentError(
            "report.trace",
            expected="lanes='phase' or lanes='layer'",
            received=repr(lanes),
            advice="choose one of them",
        )
    if report.seconds is None:
        raise CallOrderError(
            "report.trace",
            expected="seconds for every kernel",
            received="a report without times",
            advice="measure the program first",
        )
    lane_of = _LANES[lanes]
    names = dict.fromkeys(map(lane_of, report.kernels))
    ordered = [phase for phase in PHASES if phase in names] if lanes == "phase" else list(names)
    number = {name: k for k, name in enumerate(ordered, 1)}
    events = [_named("process_name", 0, "program")]
    for name, lane in number.items():
        events.append(_named("thread_name", lane, name))
        events.append(_metadata("thread_sort_index", lane, sort_index=lane))
    made, start = made_bytes(report.kernels, report.buffers), 0.0
    under_way: deque[dict[str, Any]] = deque()
    for k, kernel in enumerate(report.kernels):
        taken = 1e6 * float(report.seconds[k])
        live = {"live": report.live_bytes[k]}
        events.append({"ph": "C", "name": "bytes", "ts": start, "args": live})
        events.append(
            {
                "ph": "X",
                "name": kernel.name,
                "cat": kernel.phase,
                "ts": start,
                "dur": taken,
                "tid": number[lane_of(kernel)],
                "args": {"kernel": k, "layer": kernel.layer, "bytes made": made[k]},
            }
        )
        start += taken
        if kernel.phase == "communication" and kernel.name == "start":
            # Several are under way at once, which no row could show.
            name = f"sum of {kernel.layer or 'small parameters'}"
            event = {"cat": "sums", "name": name, "id": f"{report.rank}.{k}", "tid": 0}
            under_way.append(event)
            events.append({"ph": "b", "ts": start, **event})
        elif kernel.phase == "communication" and kernel.name == "finish" and under_way:
            events.append({"ph": "e", "ts": start, **under_way.popleft()})
    return [{**event, "pid": report.rank} for event in events]


def _named(what: str, lane: int, name: str) -> dict[str, Any]:
    return _metadata(what, lane, name=name)


def _metadata(what: str, lane: int, **args: str | int) -> dict[str, Any]:
    return {"ph": "M", "name": what, "tid": lane, "args": args}
