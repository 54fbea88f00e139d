"""A drawing as PNG, through Pillow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from singanet.errors import BackendError
from singanet.picture.drawing import LINE_HEIGHT, NAME_SIZE, PADDING, TEXT_SIZE, Box, Drawing, Line
from singanet.picture.layout import Point

_SCALE = 2
_LARGEST = 30_000
_FILLS = {"plain": "#f3f5f7", "trained": "#dcebf9", "input": "#e4f2e4"}
_PAGE, _INK, _FAINT, _LINE, _EDGE = "#fff", "#1b2530", "#46535f", "#71808e", "#9aa6b1"
_PIECES = 10


def write_png(drawing: Drawing, path: Path) -> None:
    """Write the picture, two pixels a unit, fewer where it were larger than 30,000.

    Errors: `BackendError` without Pillow.
    """
    try:
        from PIL import Image, ImageDraw
    except ImportError as error:
        raise BackendError(
            f"net.plot, {str(path)!r}",
            expected="Pillow, which writes PNG",
            received="no module PIL",
            advice="pip install pillow, or plot to a .svg file",
        ) from error
    scale = min(_SCALE, _LARGEST / max(drawing.width, drawing.height))
    size = (round(drawing.width * scale), round(drawing.height * scale))
    image = Image.new("RGB", size, _PAGE)
    pen = _Pen(ImageDraw.Draw(image), scale)
    for line in drawing.lines:
        pen.line(line)
    for box in drawing.boxes:
        pen.box(box)
    image.save(path, format="PNG")


class _Pen:
    """Draws in units of the drawing."""

    def __init__(self, canvas: Any, scale: float) -> None:
        from PIL import ImageFont

        self.canvas = canvas
        self.scale = scale
        self.name_font = ImageFont.load_default(NAME_SIZE * scale)
        self.font = ImageFont.load_default(TEXT_SIZE * scale)

    def line(self, line: Line) -> None:
        points = [line.points[0]]
        for start, end in zip(line.points, line.points[1:], strict=False):
            points += _curve(start, end)
        self.canvas.line(self._all(points), fill=_LINE, width=round(1.4 * self.scale))
        x, y = line.points[-1]
        self.canvas.polygon(self._all([(x, y), (x - 4, y - 7), (x + 4, y - 7)]), fill=_LINE)
        if line.label:
            self._text((x + 13, y - 8), line.label, self.font, _FAINT)

    def box(self, box: Box) -> None:
        (x, y), (width, height) = box.corner, box.size
        self.canvas.rounded_rectangle(
            self._all([(x, y), (x + width, y + height)]),
            radius=6 * self.scale,
            fill=_FILLS[box.style],
            outline=_INK if box.shared else _EDGE,
            width=round(1.2 * self.scale),
        )
        for k, text in enumerate(box.lines):
            middle = (x + width / 2, y + 0.6 * PADDING + LINE_HEIGHT * (k + 0.5))
            font, ink = (self.name_font, _INK) if k == 0 else (self.font, _FAINT)
            self._text(middle, text, font, ink)

    def _text(self, middle: Point, text: str, font: Any, ink: str) -> None:
        self.canvas.text(self._all([middle])[0], text, fill=ink, font=font, anchor="mm")

    def _all(self, points: list[Point]) -> list[Point]:
        return [(x * self.scale, y * self.scale) for x, y in points]


def _curve(start: Point, end: Point) -> list[Point]:
    """Points of the Bézier curve that leaves and arrives upright, without ``start``."""
    (a, b), (c, d) = start, end
    middle = (b + d) / 2
    points = []
    for k in range(1, _PIECES + 1):
        t = k / _PIECES
        s = 1 - t
        share = 3 * s * t * t + t**3
        y = s**3 * b + 3 * s * s * t * middle + 3 * s * t * t * middle + t**3 * d
        points.append((a + (c - a) * share, y))
    return points
