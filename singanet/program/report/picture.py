"""The arena of a program over time, as SVG."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from os import PathLike
from typing import TYPE_CHECKING

from singanet.base.files import path_of, replacing
from singanet.base.sizes import bytes_text
from singanet.picture.colours import coloured
from singanet.program.layout.liveness import lifetimes
from singanet.program.report.shares import PHASES

if TYPE_CHECKING:
    from singanet.program.report.figures import Figures

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
