"""A program's report as tables of text."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

from singanet.base.sizes import bytes_text
from singanet.base.text import megabytes, milliseconds, text_table
from singanet.program.report.shares import OUTSIDE, Share, by_phase, made_bytes

if TYPE_CHECKING:
    from singanet.program.report.figures import Figures


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
