"""A confusion matrix as a picture that stands alone."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from os import PathLike
from typing import Any

import numpy as np

from singanet.errors import ArgumentError
from singanet.picture.colours import LIGHT, coloured
from singanet.picture.line_chart import RULES, write_chart

_MOST_CLASSES = 200
_MOST_NUMBERED = 32
"""Classes up to which each cell has its number: beyond, one could not read it."""
_LETTER = 6.6
_RULES = RULES + ".singanet-chart .count{fill:var(--ink)}"


def plot_confusion(
    counts: Any, path: str | PathLike[str] | None = None, labels: Sequence[str] = ()
) -> str:
    """An SVG picture of ``counts`` (C, C), what `ConfusionMatrix` gives: rows the true classes.

    Each cell is as strong as its share of its row. Returns the text, and writes it to ``path``,
    a .svg file, where one is given; ``labels`` name the classes, which are numbered else. Errors:
    `ArgumentError` for counts that are no square of numbers >= 0, for more than 200 classes, for
    another number of labels, for another suffix; `FileAccessError`.
    """
    matrix = np.asarray(counts)
    _expect_counts(matrix)
    names = [str(label) for label in labels] or [str(k) for k in range(len(matrix))]
    if len(names) != len(matrix):
        raise ArgumentError(
            "plot_confusion, labels",
            expected=f"{len(matrix)} names, one a class",
            received=f"{len(names)}",
            advice="leave labels out to number the classes",
        )
    return write_chart(_drawn(matrix, names), "plot_confusion,", path)


def _expect_counts(matrix: Any) -> None:
    square = matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1]
    good = square and matrix.dtype.kind in "iuf" and np.isfinite(matrix).all() and matrix.size
    if not good or (matrix < 0).any() or len(matrix) > _MOST_CLASSES:
        raise ArgumentError(
            "plot_confusion, counts",
            expected=f"finite numbers >= 0 of shape (C, C), at most {_MOST_CLASSES} classes",
            received=f"{matrix.dtype} of shape {matrix.shape}",
            advice="pass what the metric ConfusionMatrix gives",
        )


def _drawn(matrix: Any, names: Sequence[str]) -> str:
    classes, longest = len(names), max(map(len, names))
    numbered = classes <= _MOST_NUMBERED
    said = [[f"{value:,.6g}" for value in row] for row in matrix.tolist()]
    widest = max(len(cell) for row in said for cell in row)
    side = max(26.0, 12 + _LETTER * widest) if numbered else 12.0
    left, top = 46 + _LETTER * longest, 40 + 0.72 * _LETTER * longest
    edge = side * classes
    width, height = left + edge + 16 + 0.72 * _LETTER * longest, top + edge + 14
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="singanet-chart" role="img" '
        f'aria-label="confusion matrix" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}"><style>{coloured(_RULES, LIGHT)}</style>'
        '<rect width="100%" height="100%" '
        f'fill="#fff"/><text class="title" x="{left:.0f}" y="16">taken for</text>'
        f'<text class="title" text-anchor="end" x="{left - 6:.0f}" y="{top - 8:.0f}">class</text>'
    ]
    totals = np.maximum(matrix.sum(axis=1), 1e-300)
    for k, (name, row) in enumerate(zip(names, said, strict=True)):
        middle, along = top + side * (k + 0.5), left + side * (k + 0.5)
        parts.append(
            f'<text x="{left - 6:.1f}" y="{middle + 4:.1f}" text-anchor="end">{escape(name)}</text>'
            f'<text transform="translate({along:.1f},{top - 6:.1f}) rotate(-45)">'
            f"{escape(name)}</text>"
        )
        for j, cell in enumerate(row):
            x, share = left + side * j, matrix[k, j] / totals[k]
            # At most so strong that the number on it has a contrast of 4.5 : 1 to it.
            parts.append(
                f'<rect class="heat" x="{x:.1f}" y="{middle - side / 2:.1f}" '
                f'width="{side - 1:.1f}" height="{side - 1:.1f}" '
                f'fill-opacity="{0.03 + (0.45 if numbered else 0.97) * share:.3f}">'
                f"<title>{escape(name)} taken for {escape(names[j])}: {cell}</title></rect>"
            )
            if numbered:
                parts.append(
                    f'<text class="count" x="{x + side / 2:.1f}" y="{middle + 4:.1f}" '
                    f'text-anchor="middle">{cell}</text>'
                )
    return "".join([*parts, "</svg>\n"])
