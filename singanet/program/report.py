"""The report of a program.

The format is the Trace Event Format's "JSON object": complete events ("X") with times in
microseconds, metadata events ("M") that name the lanes, counter events ("C") for the memory, pairs
of nestable ones ("b", "e") for sums over processes. The process of an event is its rank, as in the
trace of a job.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from os import PathLike
from typing import Any, NamedTuple, get_args

import numpy as np

from singanet.base.files import path_of, replacing
from singanet.base.kinds import bytes_text, megabytes, milliseconds, text_table
from singanet.engine.recompute.by_layers import Decisions
from singanet.errors import ArgumentError, CallOrderError
from singanet.optimizer.reducer import Traffic
from singanet.picture.net_picture import coloured
from singanet.program.ir import Buffer, Kernel, Phase
from singanet.program.layout import (
    Layout,
    edges,
    lifetimes,
    merge_in_place,
    rounded_sizes,
    shared_memory,
)
from singanet.program.lowering import Launches

__all__: list[str] = []


@dataclass(frozen=True, repr=False)
class Figures:
    """The figures of a program's report.

    ``seconds`` has the time of each kernel, None if they were not measured; ``notes`` name what
    does not run as kernels; ``kept_bytes`` is the size of the arena without recomputation;
    ``recomputed`` tells which layers are recomputed, and why: its ``str`` is a table; ``traffic``
    is what a run exchanges with other processes, None if it was not measured; ``launches`` is what
    the host asks a device for at a replay, None on the CPU and before the first; ``undo_bytes`` is
    the size of the copy of running state that a refused step goes back to. Sizes within the
    arena are rounded up as in `Layout`, sizes of parameters and constants outside are not. Errors:
    another number of seconds than kernels.
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
                advice="measure every kernel, or leave the seconds out",
            )

    @property
    def outside_bytes(self) -> int:
        """Bytes of the parameters and constants that kernels use, and of the copy of state."""
        used = sum(buffer.nbytes for buffer in self.buffers if not buffer.planned)
        return used + self.undo_bytes

    @property
    def peak_bytes(self) -> int:
        """Bytes of the arena and of what lies outside."""
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
        live = shared_memory(self.kernels, self.buffers).live_bytes(rounded_sizes(self.buffers))
        return tuple(live[1:-1].tolist())

    @property
    def peak_kernel(self) -> int | None:
        """The number of the first kernel at which most bytes are needed; None without kernels."""
        return int(np.argmax(self.live_bytes)) if self.kernels else None

    @cached_property
    def edges(self) -> int:
        """Reasons to wait, those of leaves and of what comes from outside counted in."""
        return len(edges(self.kernels))

    @cached_property
    def leaves(self) -> int:
        """Buffers whose last write nobody reads."""
        return sum(edge.target is None for edge in edges(self.kernels))


PHASES: tuple[str, ...] = get_args(Phase)
OUTSIDE = "(no layer)"
"""Stands for the layer of kernels that belong to none."""


class Share(NamedTuple):
    """Kernels, the bytes in the arena that they are the first to write, and their seconds.

    ``held`` are those of the bytes that are still needed when most is needed.
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


def shares(report: Figures, key: Callable[[Kernel], str]) -> dict[str, Share]:
    """The kernels gathered by ``key``, in the order in which the keys come first."""
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


def by_phase(report: Figures) -> dict[str, Share]:
    """Shares of the phases that there are, in the order of a step."""
    found = shares(report, lambda kernel: kernel.phase)
    return {phase: found[phase] for phase in PHASES if phase in found}


def by_layer(report: Figures) -> dict[str, Share]:
    """Shares of the layers, in the order in which they run forward."""
    return shares(report, lambda kernel: kernel.layer or OUTSIDE)


_WIDTH, _HEIGHT = 920, 460
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 14, 34, 40
_LEAST = 0.25
"""Pixels; a buffer lower than that is not drawn."""

# Fills differ in lightness as well as in hue, and each rectangle names its phase when pointed at.
_LIGHT = {
    "page": "#fff",
    "ink": "#1b2530",
    "faint": "#46535f",
    "input": "#8a97a3",
    "forward": "#9cc7ec",
    "loss": "#5a3b86",
    "recompute": "#4f7fb8",
    "backward": "#d9812e",
    "communication": "#b8377a",
    "update": "#2b7a4b",
}
_DARK = {"page": "#14191f", "ink": "#eef2f5", "faint": "#c3ccd4"}
_RULES = """
.sn-arena .page{fill:var(--page)}
.sn-arena text{fill:var(--faint)}.sn-arena .title{fill:var(--ink);font-weight:600}
.sn-arena .box{stroke:var(--page);stroke-width:.3}
.sn-arena path{fill:none;stroke:var(--ink);stroke-width:1.2}
.sn-arena line{stroke:var(--faint);stroke-opacity:.35}
""" + "".join(f".sn-arena .{phase}{{fill:var(--{phase})}}" for phase in ("input", *PHASES))


def plot_arena(report: Figures, path: str | PathLike[str] | None) -> str:
    """`ProgramReport.plot`."""
    svg = arena_svg(report)
    if path is not None:
        with replacing(path_of(path)) as beside:
            beside.write_text(svg, encoding="utf-8")
    return svg


def arena_svg(report: Figures) -> str:
    """Rectangles from first to last use, at their offsets; a line for the bytes needed."""
    scale = _Scale(max(len(report.kernels), 1), max(report.layout.nbytes, 1))
    title = f"arena of {bytes_text(report.layout.nbytes)}, {len(report.kernels):,} kernels"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="sn-arena" role="img" '
        f'aria-label="{title}" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" font-family="system-ui,sans-serif" font-size="11">'
        f"<style>{coloured(_RULES, _LIGHT, _DARK)}</style>",
        '<rect class="page" width="100%" height="100%"/>',
        f'<text class="title" x="{_LEFT}" y="18">{title}</text>',
        *_axes(scale),
        *_boxes(report, scale),
        _needed(report, scale),
        *_legend(report),
        "</svg>\n",
    ]
    return "\n".join(parts)


class _Scale:
    """Where a kernel and an offset stand; ``kernels`` across, ``nbytes`` up."""

    def __init__(self, kernels: int, nbytes: int) -> None:
        self.kernels, self.nbytes = kernels, nbytes

    def x(self, kernel: float) -> float:
        return _LEFT + kernel / self.kernels * (_WIDTH - _LEFT - _RIGHT)

    def y(self, offset: float) -> float:
        return _HEIGHT - _BOTTOM - offset / self.nbytes * (_HEIGHT - _TOP - _BOTTOM)


def _axes(scale: _Scale) -> Iterator[str]:
    from singanet.picture.line_chart import ticks

    top = scale.nbytes / 10**6
    for tick in (t for t in ticks(0, top) if 0 <= t <= top):
        y = scale.y(tick * 10**6)
        yield f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g} MB</text>'
    for kernel in sorted({0, scale.kernels // 2, scale.kernels}):
        x = scale.x(kernel)
        yield f'<text x="{x:.1f}" y="{_HEIGHT - 22}" text-anchor="middle">{kernel}</text>'
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    yield f'<text x="{middle:.1f}" y="{_HEIGHT - 6}" text-anchor="middle">kernel</text>'


def _boxes(report: Figures, scale: _Scale) -> Iterator[str]:
    lives = lifetimes(report.kernels, report.buffers)
    for number, (buffer, offset) in enumerate(
        zip(report.buffers, report.layout.offsets, strict=True)
    ):
        first, last = int(lives.first[number]), int(lives.last[number])
        if offset is None or first > last:
            continue
        low, high = scale.y(offset), scale.y(offset + buffer.nbytes)
        if low - high < _LEAST:
            continue
        phase, layer = _made_in(report, number, first)
        left, right = scale.x(max(first, 0)), scale.x(min(last + 1, scale.kernels))
        words = escape(
            f"{buffer.label or f'buffer {number}'}, {bytes_text(buffer.nbytes)}, {phase}"
            f"{f' of {layer}' if layer else ''}, kernels {max(first, 0)} to "
            f"{min(last, len(report.kernels) - 1)}"
        )
        yield (
            f'<rect class="box {phase}" x="{left:.2f}" y="{high:.2f}" width="{right - left:.2f}" '
            f'height="{low - high:.2f}"><title>{words}</title></rect>'
        )


def _made_in(report: Figures, number: int, first: int) -> tuple[str, str]:
    """Phase and layer of the kernel that writes the buffer first."""
    if report.buffers[number].kind == "input":
        return "input", ""
    if first >= len(report.kernels):
        return "update", ""
    return report.kernels[first].phase, report.kernels[first].layer


def _needed(report: Figures, scale: _Scale) -> str:
    path = "".join(
        f"{'M' if k == 0 else 'L'}{scale.x(k):.1f},{scale.y(size):.1f}H{scale.x(k + 1):.1f}"
        for k, size in enumerate(report.live_bytes)
    )
    return f'<path d="{path}"><title>bytes needed at each kernel</title></path>' if path else ""


def _legend(report: Figures) -> Iterator[str]:
    shown = {kernel.phase for kernel in report.kernels}
    names: list[str] = [phase for phase in PHASES if phase in shown]
    if any(buffer.kind == "input" for buffer in report.buffers):
        names.insert(0, "input")
    right = float(_WIDTH - _RIGHT)
    for name in reversed(names):
        right -= 7.0 * len(name) + 26
        yield (
            f'<rect class="{name}" x="{right:.1f}" y="9" width="10" height="10"/>'
            f'<text x="{right + 14:.1f}" y="18">{name}</text>'
        )


def memory_lines(report: Figures) -> list[str]:
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


def communication_lines(report: Figures) -> list[str]:
    """The traffic with other processes, and how much of it is beside computing."""
    traffic = report.traffic
    if traffic is None:
        return []
    return [
        f"communication: {traffic.sums} sums of {bytes_text(traffic.nbytes)}, under way "
        f"{milliseconds(traffic.busy)} ms, waited for {milliseconds(traffic.waited)} ms: "
        f"{traffic.hidden:.0%} hidden"
    ]


def share_table(title: str, shares: dict[str, Share]) -> list[str]:
    """A line for each name, with its part of the time where that was measured."""
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


def kernel_table(report: Figures, chosen: Iterable[int]) -> list[str]:
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


def report_html(report: Figures) -> str:
    """The figures of the memory, and a table of the phases."""
    timed = report.seconds is not None
    head = ["phase", "kernels", "MB made", *(["ms"] if timed else [])]
    rows = [
        [name, f"{share.kernels:,}", megabytes(share.nbytes)]
        + ([milliseconds(share.seconds)] if timed else [])
        for name, share in by_phase(report).items()
    ]
    titles = "".join(f"<th>{title}</th>" for title in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    words = "<br>".join(escape(line) for line in memory_lines(report))
    return f"<p>{words}</p><table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>"


def _part(seconds: float | None, whole: float) -> str:
    return f"{100 * (seconds or 0.0) / whole:.1f}" if whole else "0.0"


def _named(report: Figures, number: int) -> str:
    kernel = report.kernels[number]
    layer = f" of layer {kernel.layer!r}" if kernel.layer else ""
    return f" {kernel.name!r}{layer}, {kernel.phase}"


class ProgramReport(Figures):
    """Figures of a program; ``str`` gives them as tables, `as_dict` as data for JSON."""

    def phases(self) -> dict[str, Share]:
        """Kernels, bytes and seconds of forward, loss, backward, communication and update."""
        return by_phase(self)

    def layers(self) -> dict[str, Share]:
        """Kernels, bytes and seconds by layer."""
        return by_layer(self)

    def table(self, level: int = 1) -> str:
        """Text at one of the levels of SINGA's profiling.

        0 is the memory alone; 1 adds the phases, 2 every kernel, 3 the kernels of communication.
        Errors: another level.
        """
        if level not in (0, 1, 2, 3):
            raise ArgumentError(
                "report.table",
                expected="a level from 0 to 3",
                received=repr(level),
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

        ``lanes`` is "phase" or "layer". Returns the text, and writes it to ``path`` where one is
        given. Errors: other lanes, no seconds, `FileAccessError`.
        """
        return write_trace(self, path, lanes)

    def plot(self, path: str | PathLike[str] | None = None) -> str:
        """The arena over time as SVG: a rectangle a buffer, in the colour of its phase.

        Returns the text, and writes it to ``path`` where one is given. Errors: `FileAccessError`.
        """
        return plot_arena(self, path)

    def _repr_html_(self) -> str:
        """The table of phases, for notebooks."""
        return report_html(self)


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
    events = [_trace_export_named("process_name", 0, "program")]
    for name, lane in number.items():
        events.append(_trace_export_named("thread_name", lane, name))
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


def _trace_export_named(what: str, lane: int, name: str) -> dict[str, Any]:
    return _metadata(what, lane, name=name)


def _metadata(what: str, lane: int, **args: str | int) -> dict[str, Any]:
    return {"ph": "M", "name": what, "tid": lane, "args": args}
