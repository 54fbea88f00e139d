"""A net as boxes with lines of text, and the lines between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from singanet.picture.layout import Point, place
from singanet.summary.rows import Row, layer_rows, shape_text

if TYPE_CHECKING:
    from singanet.engine.net import Net
    from singanet.graph.nodes import Node

PADDING = 10.0
NAME_SIZE, TEXT_SIZE = 13.0, 11.0
LINE_HEIGHT = 15.0
_NAME_CHAR, _TEXT_CHAR = 7.8, 6.3
_LONGEST = 44


@dataclass(frozen=True)
class Box:
    """A layer: ``lines`` of text, the name first; ``style`` is input, trained or plain."""

    corner: Point
    size: tuple[float, float]
    lines: list[str]
    style: str
    shared: bool


@dataclass(frozen=True)
class Line:
    """An edge through ``points``; ``label`` says which of several outputs it takes."""

    points: list[Point]
    label: str = ""


@dataclass(frozen=True)
class Drawing:
    """All there is to draw, in pixels."""

    width: float
    height: float
    boxes: list[Box]
    lines: list[Line]


def draw(net: Net) -> Drawing:
    """The drawing of ``net``."""
    rows = layer_rows(net)
    nodes = {node.name: node for node in net.nodes()}
    lenders = {row.shared_with for row in rows}
    texts = [_text(row, nodes[row.name], row.name in lenders) for row in rows]
    sizes = [_size(lines) for lines in texts]
    number = {row.name: k for k, row in enumerate(rows)}
    edges, labels = [], []
    for row in rows:
        for source, index in nodes[row.name].inputs:
            edges.append((number[source.name], number[row.name]))
            labels.append(f"[{index}]" if len(source.output_shapes()) > 1 else "")
    layout = place(sizes, edges)
    boxes = [
        Box(corner, size, lines, _style(row), row.shared_with is not None or row.name in lenders)
        for corner, size, lines, row in zip(layout.corners, sizes, texts, rows, strict=True)
    ]
    lines = [Line(route, label) for route, label in zip(layout.routes, labels, strict=True)]
    return Drawing(layout.width, layout.height, boxes, lines)


def _text(row: Row, node: Node, lends: bool) -> list[str]:
    shapes = row.output_shape
    if not row.sources and row.kind == "Dummy":
        return [row.name, f"input {shapes}"]
    if not row.sources and isinstance(node.layer.in_shapes, tuple):
        shapes = f"{shape_text(node.layer.in_shapes)} → {shapes}"
    lines = [row.name, f"{row.kind} {shapes}"]
    if row.parameters:
        notes = (", shared" if lends else "") + (", not trained" if not row.trained else "")
        lines.append(f"{row.parameters:,} parameters{notes}")
    if row.shared_with is not None:
        lines.append(f"shares parameters of {row.shared_with}")
    return [line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…" for line in lines]


def _style(row: Row) -> str:
    if not row.sources:
        return "input"
    return "trained" if row.trained or row.shared_with is not None else "plain"


def _size(lines: list[str]) -> tuple[float, float]:
    name, *rest = lines
    width = max([len(name) * _NAME_CHAR, *(len(line) * _TEXT_CHAR for line in rest)])
    return width + 2 * PADDING, LINE_HEIGHT * len(lines) + 1.2 * PADDING
