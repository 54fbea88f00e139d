"""The curves of a training as one picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from singanet.picture.chart_style import LIGHT, RULES
from singanet.picture.line_chart import HEIGHT, WIDTH, line_chart


def curves(epochs: Sequence[int], measures: Mapping[str, Sequence[float]]) -> str:
    """An SVG with a chart a quantity beside the other, training and validation in one.

    Stands alone, dark on white. Epochs are counted from 1, as progress is shown.
    """
    charts: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for name, values in measures.items():
        points = [(epoch + 1.0, value) for epoch, value in zip(epochs, values, strict=True)]
        charts.setdefault(name.removeprefix("val_"), {})[name] = points
    drawn = "".join(
        f'<g transform="translate({k * WIDTH},0)">{line_chart(title, "epoch", lines)}</g>'
        for k, (title, lines) in enumerate(charts.items())
    )
    width = max(len(charts), 1) * WIDTH
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" '
        f'width="{width}" height="{HEIGHT}"><style>.singanet-chart{{{LIGHT}}}{RULES}</style>'
        f'<rect width="100%" height="100%" fill="#fff"/>{drawn}</svg>\n'
    )
