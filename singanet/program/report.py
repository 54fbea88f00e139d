"""The report of a program.

The format is the Trace Event Format's "JSON object": complete events ("X") with times in
microseconds, metadata events ("M") that name the lanes, counter events ("C") for the memory, pairs
of nestable ones ("b", "e") for sums over processes. The process of an event is its rank, as in the
trace of a job.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from os import PathLike
from typing import Any, NamedTuple, get_args

import numpy as np

from singanet.base.charts import label, sheet, svg_of, write_chart
from singanet.base.extras import REPORT, package
from singanet.base.files import path_of, replacing
from singanet.base.kinds import bytes_text, megabytes, milliseconds, text_table
from singanet.base.notebooks import Shown
from singanet.engine.recompute.by_layers import Decisions
from singanet.errors import ArgumentError, CallOrderError, brief
from singanet.optimizer.reducer import Traffic
from singanet.program.ir import Buffer, Kernel, Phase
from singanet.program.layout import (
    Layout,
    edges,
    lifetimes,
    merge_in_place,
    shared_memory,
)
from singanet.program.lowering import Launches

__all__: list[str] = []


@dataclass(frozen=True, repr=False)
class ProgramReport:
    """Figures of a program; ``str`` gives them as tables, `as_dict` as data for JSON.

    ``kernels`` and ``buffers`` are the program's, ``layout`` has the offsets of buffers in the
    arena, and ``rank`` is the rank that made the report. ``seconds`` has the time of each kernel,
    None if they were not measured; ``notes`` name steps that do not run as kernels; ``kept_bytes``
    is the size of the arena without recomputation; ``recomputed`` has the recomputed layers, with
    reasons: its ``str`` is a table; ``traffic`` is the exchange of a run with other processes, None
    if it was not measured; ``launches`` are the host's requests to a device at a replay, None on
    the CPU and before the first; ``undo_bytes`` is the size of the copy of running state that a
    refused step restores. Sizes within the arena are rounded up as in `Layout`, sizes of parameters
    and constants outside are not. Errors: another number of seconds than kernels.
    """

    kernels: Sequence[Kernel]
    buffers: Sequence[Buffer]
    layout: Layout
    seconds: Sequence[float] | None = None
    notes: Sequence[str] = ()
    kept_bytes: int = 0
    recomputed: Decisions = field(default_factory=Decisions)
    traffic: Traffic | None = None
    rank: int = 0
    launches: Launches | None = None
    undo_bytes: int = 0

    def __post_init__(self) -> None:
        if self.seconds is not None and len(self.seconds) != len(self.kernels):
            raise ArgumentError(
                "ProgramReport",
                expected=f"seconds of each of {len(self.kernels)} kernels",
                received=f"{len(self.seconds)} of them",
                advice="measure every kernel, or pass no seconds",
            )

    @property
    def outside_bytes(self) -> int:
        """Bytes of the parameters and constants that kernels use, and of the copy of state."""
        used = sum(buffer.nbytes for buffer in self.buffers if not buffer.planned)
        return used + self.undo_bytes

    @property
    def peak_bytes(self) -> int:
        """Bytes of the arena and of the arrays outside."""
        return self.layout.nbytes + self.outside_bytes

    @property
    def recomputed_kernels(self) -> int:
        """Kernels that run again for the backward pass."""
        return sum(kernel.phase == "recompute" for kernel in self.kernels)

    @property
    def saved(self) -> float:
        """The part of the bytes before planning that the arena does without."""
        before = self.layout.unplanned_bytes
        return 1 - self.layout.nbytes / before if before else 0.0

    @cached_property
    def live_bytes(self) -> tuple[int, ...]:
        """Bytes needed at each kernel, results in place counted once."""
        lives = shared_memory(self.kernels, self.buffers).lives
        return tuple(lives.live(len(self.kernels) + 2, -1)[1:-1].tolist())

    @property
    def peak_kernel(self) -> int | None:
        """The number of the first kernel with the most live bytes; None without kernels."""
        return int(np.argmax(self.live_bytes)) if self.kernels else None

    @cached_property
    def edges(self) -> int:
        """The number of dependencies, with leaves and contents from outside."""
        return len(edges(self.kernels))

    @cached_property
    def leaves(self) -> int:
        """The number of buffers whose last write no kernel reads."""
        return sum(edge.target is None for edge in edges(self.kernels))

    def phases(self) -> dict[str, Share]:
        """Kernels, bytes and seconds of forward, loss, backward, communication and update."""
        found = shares(self, lambda kernel: kernel.phase)
        return {phase: found[phase] for phase in PHASES if phase in found}

    def layers(self) -> dict[str, Share]:
        """Kernels, bytes and seconds by layer."""
        return shares(self, lambda kernel: kernel.layer or OUTSIDE)

    def table(self, level: int = 1) -> str:
        """Return the report as text at one of the levels of SINGA's profiling.

        ``level`` 0 is the memory alone; 1 adds the phases, 2 every kernel, 3 the kernels of
        communication. Errors: another level.
        """
        if level not in (0, 1, 2, 3):
            raise ArgumentError(
                "report.table",
                expected="a level from 0 to 3",
                received=brief(level),
                advice="0 shows memory, 1 phases, 2 every kernel, 3 communication",
            )
        lines = memory_lines(self)
        if level == 1:
            lines += ["", *share_table("phase", self.phases())]
        elif level:
            chosen = [
                number
                for number, kernel in enumerate(self.kernels)
                if level == 2 or kernel.phase == "communication"
            ]
            lines += ["", *kernel_table(self, chosen)]
        return "\n".join(lines)

    def __repr__(self) -> str:
        arena = bytes_text(self.layout.nbytes)
        return f"<ProgramReport: {len(self.kernels):,} kernels, arena {arena}>"

    def __str__(self) -> str:
        return "\n".join([self.table(1), "", *share_table("layer", self.layers())])

    def as_dict(self) -> dict[str, Any]:
        """All figures as numbers, strings, lists and dicts."""
        made = made_bytes(self.kernels, self.buffers)
        again = self.recomputed_kernels
        return {
            "kernels": len(self.kernels),
            "buffers": len(self.buffers),
            "edges": self.edges,
            "leaves": self.leaves,
            "bytes": {
                "before planning": self.layout.unplanned_bytes,
                "arena": self.layout.nbytes,
                "least possible": self.layout.lower_bound,
                "outside": self.outside_bytes,
                "peak": self.peak_bytes,
            },
            "recomputed": {
                "kernels": again,
                "bytes saved": self.kept_bytes - self.layout.nbytes if again else 0,
                "layers": self.recomputed.as_dicts(),
            },
            "in place": len(self.layout.in_place),
            "strategy": self.layout.strategy,
            "seconds": None if self.seconds is None else float(sum(self.seconds)),
            "phases": {name: share.as_dict() for name, share in self.phases().items()},
            "layers": {name: share.as_dict() for name, share in self.layers().items()},
            "calls": [
                {
                    "name": kernel.name,
                    "layer": kernel.layer,
                    "phase": kernel.phase,
                    "bytes": made[k],
                    "live bytes": self.live_bytes[k],
                    "seconds": None if self.seconds is None else float(self.seconds[k]),
                }
                for k, kernel in enumerate(self.kernels)
            ],
            "communication": None if self.traffic is None else self.traffic.as_dict(),
            "launches": None if self.launches is None else self.launches._asdict(),
            "notes": list(self.notes),
        }

    def trace(self, path: str | PathLike[str] | None = None, lanes: str = "phase") -> str:
        """The kernels on a line of time, as JSON for chrome://tracing and Perfetto.

        ``lanes`` is "phase" or "layer". Returns the text, and writes it to ``path`` if given.
        Errors: other lanes, no seconds, `FileAccessError`.
        """
        events = trace_events(self, lanes)
        text = json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})
        if path is not None:
            with replacing(path_of(path)) as beside:
                beside.write_text(text, encoding="utf-8")
        return text

    def plot(self, path: str | PathLike[str] | None = None) -> Shown:
        """The arena over time as SVG: a rectangle a buffer, in the colour of its phase.

        Returns the text, and writes it to ``path``, a .svg or .png file, if given. Errors:
        `ArgumentError` for another suffix; `FileAccessError`; `BackendError` without the extra
        ``report``.
        """
        return write_chart(lambda: arena_svg(self), "report.plot", path)

    def _repr_html_(self) -> str:
        """The table of phases, for notebooks."""
        return f"<pre>{escape(self.table(1))}</pre>"


PHASES: tuple[str, ...] = get_args(Phase)
OUTSIDE = "(no layer)"
"""The name for the layer of kernels outside layers."""


class Share(NamedTuple):
    """Kernels, the bytes in the arena that they are the first to write, and their seconds.

    ``held`` is the part of the bytes that is live at the peak.
    """

    kernels: int
    nbytes: int
    held: int
    seconds: float | None

    def as_dict(self) -> dict[str, float | int | None]:
        """The fields by name."""
        return {
            "kernels": self.kernels,
            "bytes": self.nbytes,
            "held at the peak": self.held,
            "seconds": self.seconds,
        }


def made_bytes(
    kernels: Sequence[Kernel], buffers: Sequence[Buffer], at: int | None = None
) -> list[int]:
    """For each kernel the bytes of the planned buffers that it is the first to write.

    With ``at`` only buffers count that are needed at that kernel; of two that share their memory
    there, the read one.
    """
    counted = [buffer.planned for buffer in buffers]
    if at is not None:
        lives = lifetimes(kernels, buffers)
        _, pairs = merge_in_place(kernels, buffers, lives)
        here = (lives.first <= at) & (at <= lives.last)
        for read, written in pairs:
            here[written] &= not here[read]
        counted = [planned and bool(now) for planned, now in zip(counted, here, strict=True)]
    seen: set[int] = set()
    made = []
    for kernel in kernels:
        fresh = [n for n in dict.fromkeys(kernel.writes) if n not in seen]
        seen.update(fresh)
        made.append(sum(buffers[n].nbytes for n in fresh if counted[n]))
    return made


def shares(report: ProgramReport, key: Callable[[Kernel], str]) -> dict[str, Share]:
    """The kernels grouped by ``key``, in order of first use of the keys."""
    kernels, buffers, seconds = report.kernels, report.buffers, report.seconds
    members: dict[str, list[int]] = {}
    for number, kernel in enumerate(kernels):
        members.setdefault(key(kernel), []).append(number)
    made, held = made_bytes(kernels, buffers), made_bytes(kernels, buffers, report.peak_kernel)
    return {
        name: Share(
            kernels=len(numbers),
            nbytes=sum(made[n] for n in numbers),
            held=sum(held[n] for n in numbers),
            seconds=None if seconds is None else float(sum(seconds[n] for n in numbers)),
        )
        for name, numbers in members.items()
    }


_WIDTH, _HEIGHT = 920.0, 460.0
# Fills differ in lightness as well as in hue.
_FILLS = {
    "input": "#8a97a3",
    "forward": "#9cc7ec",
    "loss": "#5a3b86",
    "recompute": "#4f7fb8",
    "backward": "#d9812e",
    "communication": "#b8377a",
    "update": "#2b7a4b",
}
_LINE, _LETTER = 0.03, 0.006
"""The fractions of the picture's height for a name, and of its width for a letter."""


def arena_svg(report: ProgramReport) -> str:
    """Rectangles from first to last use, at their offsets; a line for the bytes needed."""
    where, kernels = "report.plot", len(report.kernels)
    size = report.layout.nbytes
    with sheet(where, _WIDTH, _HEIGHT) as figure:
        shape = package(where, "matplotlib.patches", REPORT).Rectangle
        axes = figure.add_axes((0.08, 0.1, 0.9, 0.82))
        axes.set(xlim=(0, max(kernels, 1)), ylim=(0, 1.02 * max(size, 1) / 10**6))
        axes.set(xlabel="kernel", ylabel="MB")
        axes.set_title(f"arena of {bytes_text(size)}, {kernels:,} kernels")
        lives = lifetimes(report.kernels, report.buffers)
        shown: set[str] = {kernel.phase for kernel in report.kernels}
        for number, (buffer, offset) in enumerate(
            zip(report.buffers, report.layout.offsets, strict=True)
        ):
            first, last = int(lives.first[number]), int(lives.last[number])
            if offset is None or first > last:
                continue
            left, right = max(first, 0), min(last + 1, kernels)
            phase, layer = _made_in(report, number, first)
            shown.add(phase)
            box = shape(
                (left, offset / 10**6), right - left, buffer.nbytes / 10**6,
                fc=_FILLS[phase], ec="white", lw=0.3, gid=f"{phase} {number} {label(buffer.label)}",
            )  # fmt: skip
            axes.add_patch(box)
            name = buffer.label or layer or phase
            wide = (right - left) / kernels if kernels else 1.0
            if buffer.nbytes > _LINE * size and wide > _LETTER * len(name):
                middle = ((left + right) / 2, (offset + buffer.nbytes / 2) / 10**6)
                dark = phase in ("loss", "recompute", "communication", "update")
                axes.text(
                    *middle, label(name), ha="center", va="center", clip_on=True, size=6.75,
                    color="white" if dark else "black",
                )  # fmt: skip
        if kernels:
            axes.stairs(
                [each / 10**6 for each in report.live_bytes],
                color="black",
                lw=0.9,
                gid="needed bytes",
            )
        phases = [phase for phase in _FILLS if phase in shown]
        axes.legend(
            [shape((0, 0), 1, 1, fc=_FILLS[phase]) for phase in phases], phases,
            loc="lower right", bbox_to_anchor=(1, 1), ncols=max(len(phases), 1), borderaxespad=0.2,
        )  # fmt: skip
        return svg_of(figure)


def _made_in(report: ProgramReport, number: int, first: int) -> tuple[str, str]:
    """Phase and layer of the kernel that writes the buffer first."""
    if report.buffers[number].kind == "input":
        return "input", ""
    if first >= len(report.kernels):
        return "update", ""
    return report.kernels[first].phase, report.kernels[first].layer


def memory_lines(report: ProgramReport) -> list[str]:
    """The kernels and the memory of a program, as lines."""
    layout, kernel = report.layout, report.peak_kernel
    over = layout.nbytes / layout.lower_bound - 1 if layout.lower_bound else 0.0
    where = "" if kernel is None else f", most at kernel {kernel}{_named(report, kernel)}"
    again = []
    if report.recomputed_kernels:
        part = 1 - layout.nbytes / report.kept_bytes
        again = [
            f"recomputed by {report.recomputed_kernels:,} kernels; without, "
            f"the arena takes {bytes_text(report.kept_bytes)}: {part:.0%} saved"
        ]
    return [
        f"{len(report.kernels):,} kernels, {len(report.buffers):,} buffers, "
        f"{report.edges:,} edges, {report.leaves:,} leaves",
        f"arena {bytes_text(layout.nbytes)}, {over:.1%} above the least possible{where}",
        f"before planning {bytes_text(layout.unplanned_bytes)}: {report.saved:.0%} saved; "
        f"results in place: {len(layout.in_place):,}",
        f"peak {bytes_text(report.peak_bytes)} = {bytes_text(layout.nbytes)} arena "
        f"+ {bytes_text(report.outside_bytes)} parameters and constants",
        *again,
        *([] if report.launches is None else [f"a replay: {report.launches}"]),
        *communication_lines(report),
        *(f"note: {note}" for note in report.notes),
    ]


def communication_lines(report: ProgramReport) -> list[str]:
    """The traffic with other processes, and how much of it overlaps with computing."""
    traffic = report.traffic
    if traffic is None:
        return []
    return [
        f"communication: {traffic.sums} sums of {bytes_text(traffic.nbytes)}, under way "
        f"{milliseconds(traffic.busy)} ms, waited for {milliseconds(traffic.waited)} ms: "
        f"{traffic.hidden:.0%} hidden"
    ]


def share_table(title: str, shares: dict[str, Share]) -> list[str]:
    """A line for each name, with its part of the time if measured."""
    timed = any(share.seconds is not None for share in shares.values())
    whole = sum(share.seconds or 0.0 for share in shares.values())
    rows = [
        [
            name,
            f"{share.kernels:,}",
            megabytes(share.nbytes),
            megabytes(share.held),
            *([milliseconds(share.seconds), _part(share.seconds, whole)] if timed else []),
        ]
        for name, share in shares.items()
    ]
    head = [title, "kernels", "MB made", "at peak", *(["ms", "%"] if timed else [])]
    return text_table(head, rows)


def kernel_table(report: ProgramReport, chosen: Iterable[int]) -> list[str]:
    """A line for each of the kernels ``chosen``."""
    made, seconds = made_bytes(report.kernels, report.buffers), report.seconds
    rows = []
    for number in chosen:
        kernel = report.kernels[number]
        time = [] if seconds is None else [milliseconds(seconds[number])]
        names = [str(number), kernel.name, kernel.layer or OUTSIDE, kernel.phase]
        rows.append([*names, megabytes(made[number]), *time])
    head = ["kernel", "name", "layer", "phase", "MB made", *([] if seconds is None else ["ms"])]
    return text_table(head, rows, names=4)


def _part(seconds: float | None, whole: float) -> str:
    return f"{100 * (seconds or 0.0) / whole:.1f}" if whole else "0.0"


def _named(report: ProgramReport, number: int) -> str:
    kernel = report.kernels[number]
    layer = f" of layer {kernel.layer!r}" if kernel.layer else ""
    return f" {kernel.name!r}{layer}, {kernel.phase}"


_LANES: dict[str, Callable[[Kernel], str]] = {
    "phase": lambda kernel: kernel.phase,
    "layer": lambda kernel: kernel.layer or OUTSIDE,
}


def trace_events(report: ProgramReport, lanes: str = "phase") -> list[dict[str, Any]]:
    """The events: kernels one after the other, each in its lane, and the bytes needed with it."""
    if lanes not in _LANES:
        raise ArgumentError(
            "report.trace",
            expected="lanes='phase' or lanes='layer'",
            received=brief(lanes),
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
    events = [_metadata("process_name", 0, name="program")]
    for name, lane in number.items():
        events.append(_metadata("thread_name", lane, name=name))
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
            # Several sums may overlap, so each has an event of its own.
            name = f"sum of {kernel.layer or 'small parameters'}"
            event = {"cat": "sums", "name": name, "id": f"{report.rank}.{k}", "tid": 0}
            under_way.append(event)
            events.append({"ph": "b", "ts": start, **event})
        elif kernel.phase == "communication" and kernel.name == "finish" and under_way:
            events.append({"ph": "e", "ts": start, **under_way.popleft()})
    return [{**event, "pid": report.rank} for event in events]


def _metadata(what: str, lane: int, **args: str | int) -> dict[str, Any]:
    return {"ph": "M", "name": what, "tid": lane, "args": args}
