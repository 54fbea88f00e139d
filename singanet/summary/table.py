"""The table that describes a net, as text and as HTML."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from singanet.engine.peak_memory import PeakMemory
from singanet.summary.footprint import Footprint, measure
from singanet.summary.rows import Row, layer_rows

if TYPE_CHECKING:
    from singanet.engine.net import Net

_RIGHT = ("parameters", "kept bytes", "multiply-adds")


def summary_table(
    net: Net, batch_size: int | None = None, extent: int | None = None, planned: object = None
) -> str:
    """One line a layer, then totals; `FeedForwardNet.summary` describes the arguments.

    ``planned`` tells the memory of a recorded step, where there is one.
    """
    rows, footprint = _look_at(net, batch_size, extent)
    table = [list(columns(footprint)), *cells(rows, footprint)]
    widths = [max(len(line[k]) for line in table) for k in range(len(table[0]))]
    lines = [
        "  ".join(
            cell.rjust(width) if title in _RIGHT else cell.ljust(width)
            for cell, width, title in zip(line, widths, table[0], strict=True)
        ).rstrip()
        for line in table
    ]
    lines.insert(1, "-" * max(map(len, lines)))
    return "\n".join([*lines, *totals(net, rows, footprint, batch_size, planned)])


def summary_html(net: Net) -> str:
    """The same as an HTML table; names are escaped."""
    rows, _ = _look_at(net, None, None)
    head = "".join(f"<th>{escape(title)}</th>" for title in columns(None))
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>"
        for line in cells(rows, None)
    )
    foot = "<br>".join(escape(line) for line in totals(net, rows, None, None, None))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{foot}</p>"


def _look_at(
    net: Net, batch_size: int | None, extent: int | None
) -> tuple[list[Row], Footprint | None]:
    if batch_size is None:
        return layer_rows(net), None
    footprint = measure(net, extent)
    return layer_rows(net, footprint.shapes), footprint


def columns(footprint: Footprint | None) -> tuple[str, ...]:
    """The titles."""
    kept = () if footprint is None else ("kept bytes",)
    return ("name", "layer", "output shape", "parameters", *kept, "multiply-adds", "from")


def cells(rows: list[Row], footprint: Footprint | None) -> list[list[str]]:
    """The cells under the `columns`."""
    return [
        [
            row.name,
            row.kind if row.shared_with is None else f"{row.kind} (shares {row.shared_with})",
            row.output_shape,
            f"{row.parameters:,}",
            *([] if footprint is None else [f"{footprint.kept(row.name):,}"]),
            "?" if row.multiply_adds is None else f"{row.multiply_adds:,}",
            ", ".join(row.sources),
        ]
        for row in rows
    ]


def totals(
    net: Net,
    rows: list[Row],
    footprint: Footprint | None,
    batch_size: int | None,
    planned: object,
) -> list[str]:
    """The lines below the table."""
    parameters, trained = sum(row.parameters for row in rows), sum(row.trained for row in rows)
    known = [row.multiply_adds for row in rows if row.multiply_adds is not None]
    at_least = "" if len(known) == len(rows) else "at least "
    lines = [
        f"{parameters:,} parameters, {trained:,} trained, {parameters - trained:,} not",
        f"{at_least}{sum(known):,} multiply-adds a sample",
    ]
    if footprint is not None and batch_size is not None:
        beside, layer = footprint.peak(batch_size)
        memory = PeakMemory(
            {
                "parameters": sum(param.nbytes for param in net.params()),
                "inputs": footprint.fed(batch_size),
                "activations and gradients": beside,
            }
        )
        lines += [
            f"{footprint.all_kept():,} bytes a sample kept for backward",
            f"a training step of {batch_size:,} samples, at its peak at layer {layer!r}: {memory}",
        ]
        if planned is not None:
            lines.append(f"recorded, as steps are from the second on: {planned}")
        lines.append(
            "the optimizer's state comes on top, and scratch of the kernels to a step by the layers"
        )
    return lines
