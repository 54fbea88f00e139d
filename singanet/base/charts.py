"""Charts by matplotlib, of the extra ``report``, as standalone SVG or within a page."""

from __future__ import annotations

import base64
import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from io import StringIO
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from singanet.base.extras import REPORT, package
from singanet.base.files import expect_suffix, path_of, replacing
from singanet.base.notebooks import Shown

LIGHT = {
    "page": "#ffffff",
    "card": "#f6f8fa",
    "ink": "#18212b",
    "faint": "#47535f",
    "rule": "#d5dbe1",
    "s0": "#0b5fa5",
    "s1": "#b3430c",
    "s2": "#1d7044",
    "s3": "#7a3fa8",
    "bad": "#b42318",
}
_DARK = {
    "page": "#11161c",
    "card": "#1a2129",
    "ink": "#eef2f6",
    "faint": "#b9c4ce",
    "rule": "#39444f",
    "s0": "#6db8f7",
    "s1": "#f5a368",
    "s2": "#6fd09b",
    "s3": "#cfa3f2",
    "bad": "#ff8a7d",
}
_RULES = [";".join(f"--{name}:{value}" for name, value in each.items()) for each in (LIGHT, _DARK)]
SCHEMES = (
    f":root{{color-scheme:light dark;{_RULES[0]}}}"
    f"@media (prefers-color-scheme:dark){{:root{{{_RULES[1]}}}}}"
)
"""CSS variables of the colours, for light and dark pages.

Text has a contrast of 7 : 1 or more against its ground, lines of 3 : 1 or more.
"""


def dark_rules(light: Mapping[str, str], dark: Mapping[str, str], within: str = "") -> str:
    """Return CSS that exchanges the colours of elements for readers who prefer dark pages.

    The elements have their ``light`` colours as literal styles, "fill: #0b5fa5": programs other
    than browsers show these, as they know no variables and ignore the media query.
    """
    rules = "".join(
        f'{within}[style*="{what}: {colour}"]{{{what}:{dark[name]}!important}}'
        for name, colour in light.items()
        for what in ("fill", "stroke")
    )
    return f"<style>@media (prefers-color-scheme:dark){{{rules}}}</style>"


PIXELS = 96
"""The pixels of an inch, as in CSS."""
_STYLE = {
    "axes.axisbelow": True,
    "axes.edgecolor": LIGHT["rule"],
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.labelcolor": LIGHT["faint"],
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": LIGHT["ink"],
    "axes.titlelocation": "left",
    "axes.titlesize": 9.75,
    "axes.titleweight": "bold",
    "axes.titley": 1.0,
    "figure.dpi": PIXELS,
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8.25,
    "grid.color": LIGHT["rule"],
    "legend.frameon": False,
    "legend.labelcolor": LIGHT["faint"],
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "singanet",  # and the same chart the same bytes
    "text.color": LIGHT["faint"],
    "text.parse_math": False,
    "text.usetex": False,
    "xtick.color": LIGHT["faint"],
    "ytick.color": LIGHT["faint"],
}
_COLOURS = [LIGHT[f"s{k}"] for k in range(4)]
_DASHES: list[Any] = ["-", (0, (3.5, 2)), (0, (1, 1.5)), (0, (4.5, 1.5, 1, 1.5))]
MOST_LINES = len(_COLOURS) * len(_DASHES)
"""The most distinguishable lines: dashes differ too, so that no reader needs colours."""
_WIDTH, _HEIGHT = 460.0, 250.0
_MOST_POINTS = 24
"""The most points of a line that get markers."""
_THINNED = (100, 400)
"""The most points of a line: the second number if there are few lines, the first if many."""
_LARGEST = 1e100
"""The largest number that is drawn: distances between larger ones may not be finite."""
_FAR, _BY_POWERS = 10.0, 1e6
"""Multiples of the usual size: values above the first are far off, and above the second, or below
its inverse, not shown even on a logarithmic axis."""
_LONGEST = 44
_LETTER = 6.6

Points = Sequence[tuple[float, float]]


class LineChart(NamedTuple):
    """Lines by name; ``across`` is the label of the x axis, with integer ticks if every x is whole.

    ``by_powers`` makes the x axis logarithmic; every x must be above 0. Up to `MOST_LINES` lines
    look different. Long lines are `thinned`. If values are far off, the y axis is logarithmic, or
    ends before them, as `_Scale` describes; red marks show where lines leave the axis, and where
    they stop being finite, and the label of the x axis explains the marks. Without ``legend`` the
    points have no markers either: `selectable` styles the lines.
    """

    title: str
    across: str
    lines: Mapping[str, Points]
    by_powers: bool = False
    legend: bool = True


@contextmanager
def sheet(where: str, width: float, height: float) -> Iterator[Any]:
    """Yield a figure of ``width`` by ``height`` pixels; write it within the block.

    The block sets the style. Errors: `BackendError` without the extra.
    """
    figure = package(where, "matplotlib.figure", REPORT)
    with package(where, "matplotlib", REPORT).rc_context(_STYLE), warnings.catch_warnings():
        # The viewer of the SVG uses its own fonts.
        warnings.filterwarnings("ignore", "Glyph")
        yield figure.Figure((width / PIXELS, height / PIXELS))


def svg_of(figure: Any) -> str:
    """Return the SVG text of a `sheet`, from its first tag, for a page."""
    written = StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(written, format="svg", metadata=nothing)
    found = written.getvalue()
    return found[found.index("<svg") :]


def themed(svg: str) -> str:
    """Return ``svg`` for an image in a page, in the reader's preferred colour scheme."""
    # The background is the page's.
    svg = svg.replace(f"fill: {LIGHT['page']}", "fill: none", 1)
    at = svg.index(">") + 1
    return f"{svg[:at]}{dark_rules(LIGHT, _DARK)}{svg[at:]}"


def write_chart(draw: Callable[[], str], where: str, path: str | PathLike[str] | None) -> Shown:
    """Return the SVG from ``draw``, and write it to ``path``, a .svg or .png file, if given.

    Errors: `ArgumentError` for another suffix, before drawing; `FileAccessError`; `BackendError`
    for .png without the extra.
    """
    if path is not None:
        target = path_of(path)
        expect_suffix(f"{where},", target, (".svg", ".png"))
    svg = draw()
    if path is not None:
        png = target.suffix.lower() == ".png"
        data = _png_of(svg, where) if png else svg.encode()
        with replacing(target) as beside:
            beside.write_bytes(data)
    width, height = _size_of(svg)
    return Shown(svg, f"SVG picture of {width:.0f} × {height:.0f} pixels", svg=svg)


_ZOOM, _MOST_PIXELS = 2.0, 30_000
"""Pixels of a .png file: for each of the picture's, and at most along an axis."""


def _png_of(svg: str, where: str) -> bytes:
    """Render ``svg``. Matplotlib brings the font, so a machine without any writes the text too."""
    fonts = Path(package(where, "matplotlib", REPORT).get_data_path()) / "fonts" / "ttf"
    families = {f"{kind}family": "DejaVu Sans" for kind in ("font_", "sans_serif_")}
    zoom = min(_ZOOM, _MOST_PIXELS / max(_size_of(svg)))
    rendered: bytes = package(where, "resvg_py", REPORT).svg_to_bytes(
        svg, dpi=PIXELS, zoom=zoom, font_dirs=[str(fonts)], **families
    )
    return rendered


def _size_of(svg: str) -> tuple[float, float]:
    """Return width and height in pixels, of the first tag; matplotlib writes points."""
    found = re.findall(r'\b(?:width|height)="([\d.]+)(pt)?"', svg[: svg.index(">")])
    width, height = (float(size) * (PIXELS / 72 if unit else 1.0) for size, unit in found)
    return width, height


def data_of(svg: str) -> str:
    """Return ``svg`` as a data URL of an image, in which scripts cannot run."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


def in_notebook(alt: str, draw: Callable[[], str]) -> str | None:
    """Return the result of ``draw`` as HTML; None without the extra, so notebooks show text."""
    if find_spec("matplotlib") is None:
        return None
    return f'<img alt="{alt}" src="{data_of(draw())}">'


def label(name: str) -> str:
    """Return ``name`` for a chart: printable, and only the informative end of a long one."""
    said = "".join(letter if letter.isprintable() else "\ufffd" for letter in name)
    return said if len(said) <= _LONGEST else "…" + said[1 - _LONGEST :]


def line_charts(where: str, charts: Sequence[LineChart]) -> str:
    """Draw ``charts`` side by side. Errors: `BackendError` without the extra."""
    count = max(len(charts), 1)
    with sheet(where, count * _WIDTH, _HEIGHT) as figure:
        for k, chart in enumerate(charts):
            place = ((k + 0.12) / count, 0.17, 0.85 / count, 0.7)
            _draw(figure.add_axes(place), chart, package(where, "matplotlib.ticker", REPORT))
        return svg_of(figure)


_LINE = re.compile(r'<g id="line (\d+)">\s*<path d="([^"]*)" (clip-path="[^"]*")[^>]*/>')


def selectable(svg: str, slots: Mapping[int, int]) -> str:
    """Return a `themed` chart for use within a page, which shows the lines that it selects.

    The lines, and their marks, are elements with their name, a number, as ``data-run``. The ones in
    ``slots`` are shown: they have the number of their look as ``data-slot``.
    """

    def data(run: str) -> str:
        slot = slots.get(int(run))
        return f'data-run="{run}"' + ("" if slot is None else f' data-slot="{slot}"')

    def line(found: re.Match[str]) -> str:
        run, path, clip = found.groups()
        path = re.sub(r"(\.\d)\d+", r"\1", path)
        # A line of one point is a dot.
        path = path if "L" in path else f"{path.strip()} h 0"
        return f'<g {data(run)}><path class="line" d="{path}" {clip}/>'

    svg = _LINE.sub(line, svg)
    svg = re.sub(r'<g id="mark (\d+)">', lambda found: f"<g {data(found[1])}>", svg)
    # Several charts of a page have the same names of other groups.
    return re.sub(r'<g id="[^"]*"(/?)>', r"<g\1>", svg)


def line_rules() -> str:
    """Return CSS rules for the lines of `selectable` charts and their keys."""
    rules = ["[data-run]:not([data-slot]){display:none}"]
    rules.append(".line{fill:none;stroke-width:1.5;stroke-linecap:round}")
    for k in range(MOST_LINES):
        dashes = _line_style(k)["linestyle"]
        pattern = "none" if dashes == "-" else ",".join(f"{1.5 * length:g}" for length in dashes[1])
        look = f"stroke:var(--s{k % len(_COLOURS)});stroke-dasharray:{pattern}"
        rules.append(f'[data-slot="{k}"] .line{{{look}}}')
    return "".join(rules)


def thinned(points: Points, most: int) -> Points:
    """Return at most ``most`` points: the ends, and each range's smallest and largest value."""
    if len(points) <= most:
        return points
    edges = np.linspace(1, len(points) - 1, most // 2).astype(int)
    kept = {0, len(points) - 1}
    for start, end in pairwise(edges):
        sizes = [y for _, y in points[start:end]]
        kept |= {start + sizes.index(min(sizes)), start + sizes.index(max(sizes))}
    return [points[k] for k in sorted(kept)]


def _middle(values: Iterable[float]) -> float:
    """The lower median; ``statistics`` imports decimal numbers and fractions."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]


class _Scale:
    """The y axis for ``lines`` of values.

    The usual size is the median over lines of a line's median. Values are far off if they are more
    than `_FAR` times as large. If most lines with such values grew to them, as losses that diverge,
    the axis ends before them, so that they do not flatten the others. Otherwise, as for a loss that
    falls by powers of ten, it is logarithmic, unless values are negative.
    """

    def __init__(self, lines: Sequence[Sequence[float]]) -> None:
        sizes = [[abs(y) for y in line if math.isfinite(y)] for line in lines]
        usual = _middle([_middle(s) for s in sizes if s] or [0.0])
        far = [line for line in sizes if line and usual and max(line) > _FAR * usual]
        grown = sum(max(line) > _FAR * line[0] for line in far)
        largest = max((max(line) for line in sizes if line), default=0.0)
        smallest = min((y for line in lines for y in line if math.isfinite(y)), default=0.0)
        levels = bool(far) and grown <= len(far) / 2
        self.by_powers = levels and smallest >= 0 and largest <= _BY_POWERS * usual
        self.lowest, self.highest = -_LARGEST, _LARGEST
        """The smallest and largest values within the axis."""
        if self.by_powers:
            self.lowest = usual / _BY_POWERS
        elif far:
            self.lowest, self.highest = -_FAR * usual, _FAR * usual
        shown = [y for line in lines for y in line if self.lowest <= y <= self.highest]
        low, high = (min(shown), max(shown)) if shown else (0.0, 1.0)
        self.ends = (low, high, high - low or abs(high) or 1.0)

    def clipped(self, y: float) -> float:
        """Return ``y``, or if it is beyond the axis a value a little beyond."""
        low, high, span = self.ends
        if y > self.highest:
            return high + span
        return y if y >= self.lowest else self.lowest if self.by_powers else low - span


def _draw(axes: Any, chart: LineChart, ticker: Any) -> None:
    scale = _Scale([[y for _, y in points] for points in chart.lines.values()])
    most = _THINNED[len(chart.lines) <= MOST_LINES]
    drawn = {}
    for k, (name, points) in enumerate(chart.lines.items()):
        near = [(x, scale.clipped(y)) for x, y in points if abs(x) < _LARGEST and math.isfinite(y)]
        shown = thinned(near, most)
        marked = chart.legend and len(shown) <= _MOST_POINTS
        marks = {"marker": "o", "markersize": 3} if marked else {}
        xs, ys = [x for x, _ in shown], [y for _, y in shown]
        drawn[name] = axes.plot(xs, ys, **_line_style(k), **marks, gid=f"line {label(name)}")[0]
    if scale.by_powers:
        axes.set_yscale("log")
        axes.yaxis.set_minor_formatter("")
    elif scale.highest < _LARGEST:
        low, high, span = scale.ends
        axes.set_ylim(low - 0.05 * span, high + 0.05 * span)
    axes.yaxis.set_major_formatter("{x:.10g}")
    every = [x for points in chart.lines.values() for x, _ in points if abs(x) < _LARGEST]
    axes.update_datalim([(x, 0.0) for x in every], updatey=False)
    if not any(len(line.get_xdata()) for line in drawn.values()):
        axes.set_yticks([])
    axes.set_title(label(chart.title))
    axes.set_xlabel(f"{chart.across}{_mark_all(axes, chart, scale)}")
    if chart.by_powers:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter("")
    elif all(float(x).is_integer() for x in every):
        whole = ticker.MaxNLocator(steps=[1, 2, 5, 10], integer=True, min_n_ticks=1)
        axes.xaxis.set_major_locator(whole)
    if chart.legend and list(drawn) != [chart.title]:
        names = [f" {label(name)}" for name in drawn]
        fits = len(chart.title) + sum(map(len, names)) <= _LONGEST - 4 * len(names)
        beside = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "ncols": max(len(names), 1)}
        within = {"loc": "best", "labelspacing": 0.2}
        axes.legend(
            drawn.values(), names, borderaxespad=0.2, columnspacing=1.2, handlelength=2.6,
            **(beside if fits else within),
        )  # fmt: skip


def _mark_all(axes: Any, chart: LineChart, scale: _Scale) -> str:
    """Mark in red where a line leaves the axis or stops being finite; explain it for the label."""
    kinds: dict[str, Callable[[float], bool]] = {
        "x": lambda y: not math.isfinite(y),
        "^": lambda y: scale.highest < y < math.inf,
        "v": lambda y: -math.inf < y < scale.lowest,
    }
    found = set()
    for name, points in chart.lines.items():
        for mark, holds in kinds.items():
            states = [holds(y) for _, y in points]
            begins = [now and not before for before, now in pairwise([False, *states])]
            xs = [x for (x, _), begin in zip(points, begins, strict=True) if begin]
            xs = [x for x in xs if abs(x) < _LARGEST][:_MOST_POINTS]
            if xs:
                found.add(mark)
                axes.plot(
                    xs, [0.03 if mark == "v" else 0.97] * len(xs), mark, color=LIGHT["bad"],
                    markersize=5, transform=axes.get_xaxis_transform(), gid=f"mark {label(name)}",
                )  # fmt: skip
    said = {
        "x": "\u00d7 not finite",
        "^": f"\u25b2 above {scale.highest:.3g}",
        "v": f"\u25bc below {scale.lowest:.3g}",
    }
    return "".join(f" · {said[mark]}" for mark in kinds if mark in found)


def _line_style(k: int) -> dict[str, Any]:
    """Return colour and dashes of the ``k``-th line: the first four differ in both."""
    return {"color": _COLOURS[k % 4], "linestyle": _DASHES[(k + k // 4) % 4], "linewidth": 1.5}


_MOST_COLUMNS = 640


def heat_map(where: str, columns: Sequence[str], rows: Mapping[str, Sequence[float]]) -> str:
    """Draw cells by row name and column, on a logarithmic scale.

    Numbers that are not finite are red; zero is empty. A cell of many columns is their largest
    value, or red.
    """
    values = np.array(list(rows.values()), np.float64)
    together = -(-values.shape[1] // _MOST_COLUMNS)  # with more columns, their largest values
    values = np.maximum.reduceat(values, range(0, values.shape[1], together), axis=1)
    in_range = values[(values > 1 / _LARGEST) & (values < _LARGEST)]
    low, high = (in_range.min(), in_range.max()) if in_range.size else (1.0, 1.0)
    left = 12 + _LETTER * max(len(label(name)) for name in rows)
    wide = max(150.0, min(26.0 * len(columns), 640.0))
    each = max(1, len(rows) // 400)  # with more rows only some get their name
    high_px = 16.0 * len(rows) / each
    width, height = left + wide + 90, high_px + 50
    with sheet(where, width, height) as figure:
        colours = package(where, "matplotlib.colors", REPORT)
        ends = low, high if high > low else 10 * low
        scale = package(where, "matplotlib.cm", REPORT).ScalarMappable(
            colours.LogNorm(*ends), "viridis"
        )
        cells = scale.to_rgba(np.clip(values, low, high), bytes=True)
        cells[values == 0] = 0
        cells[~np.isfinite(values)] = [255 * part for part in colours.to_rgba(LIGHT["bad"])]
        axes = figure.add_axes((left / width, 34 / height, wide / width, high_px / height))
        _show_cells(axes, cells)
        axes.grid(visible=False)
        names = [label(name) for name in rows]
        axes.set_yticks(range(0, len(rows), each), names[::each])
        ticks = {0: columns[0], values.shape[1] - 1: columns[-1]}
        axes.set_xticks(list(ticks), [label(name) for name in ticks.values()])
        beside = figure.add_axes(
            ((left + wide + 12) / width, 34 / height, 12 / width, high_px / height)
        )
        # The usual ticks between powers of ten have labels in TeX.
        powers = np.geomspace(*ends, int(np.clip(high_px / 30, 2, 6)))
        figure.colorbar(scale, cax=beside, ticks=powers, format="{x:.3g}").minorticks_off()
        return svg_of(figure)


_CELL_PIXELS = 768


def _show_cells(axes: Any, cells: Any) -> None:
    """Draw ``cells``, (rows, columns, 4), centred on whole numbers.

    Many viewers smooth an image of few pixels, so that a cell gets several.
    """
    rows, columns = cells.shape[:2]
    each = max(1, _CELL_PIXELS // max(rows, columns))
    fine = cells.repeat(each, axis=0).repeat(each, axis=1)
    extent = (-0.5, columns - 0.5, rows - 0.5, -0.5)
    axes.imshow(fine, aspect="auto", interpolation="none", extent=extent)


MOST_NUMBERED = 32
"""The most classes for which each cell has its number: with more it is unreadable."""


def confusion_chart(where: str, counts: Any, names: Sequence[str]) -> str:
    """Draw counts (C, C), rows the true classes; the colour of a cell is its share of its row."""
    classes, shown = len(names), [label(name) for name in names]
    said = [[f"{value:,.6g}" for value in row] for row in counts.tolist()]
    numbered = classes <= MOST_NUMBERED
    widest = max(len(cell) for row in said for cell in row)
    side = max(26.0, 12 + _LETTER * widest) if numbered else 12.0
    room = _LETTER * max(map(len, shown))
    left, top, edge = 30 + room, 40 + 0.72 * room, side * classes
    width, height = left + edge + 60 + 0.72 * room, top + edge + 14
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1e-300)
    with sheet(where, width, height) as figure:
        place = (left / width, 14 / height, edge / width, edge / height)
        axes = figure.add_axes(place)
        cells = np.empty((classes, classes, 4))
        cells[:] = package(where, "matplotlib.colors", REPORT).to_rgba(LIGHT["s0"])
        # The limit leaves the number a contrast of 4.5 : 1.
        cells[..., 3] = 0.03 + (0.45 if numbered else 0.97) * shares
        _show_cells(axes, cells)
        axes.grid(visible=False)
        axes.set_ylabel("true class")
        axes.set_xlabel("taken for")
        axes.xaxis.set_label_position("top")
        axes.xaxis.tick_top()
        axes.set_yticks(range(classes), shown)
        axes.set_xticks(range(classes), shown, rotation=45, ha="left", rotation_mode="anchor")
        for k, row in enumerate(said):
            right = f"{100 * shares[k, k]:.1f} %"
            axes.text(classes - 0.3, k, right, va="center", gid=f"right {k}")
            for j, cell in enumerate(row if numbered else ()):
                strong = {"color": LIGHT["ink"], "weight": "bold" if j == k else "normal"}
                axes.text(j, k, cell, ha="center", va="center", gid=f"count {k} {j}", **strong)
        return svg_of(figure)
