"""HTML pages of a run, during and after it."""

from __future__ import annotations

import base64
import hashlib
import heapq
import math
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from singanet.base.charts import (
    MOST_NUMBERED,
    SCHEMES,
    LineChart,
    confusion_chart,
    data_of,
    heat_map,
    line_charts,
    line_rules,
    themed,
    write_chart,
)
from singanet.base.extras import REPORT, package
from singanet.base.files import expect_inside, expect_suffix, is_held, path_of, replacing
from singanet.base.kinds import bytes_text
from singanet.base.notebooks import Shown
from singanet.base.tracebacks import users_level
from singanet.errors import ArgumentError, SingaNetError
from singanet.report.reading import HISTORY, Run, best_epoch, read_run
from singanet.report.reading import REPORT as PAGE
from singanet.saving.objects import config_to_text, is_entry
from singanet.training.callbacks import Callback
from singanet.training.callbacks.trackers import flat
from singanet.training.display import History, curves
from singanet.training.files import check_folder

_WHERE = "report"


class Red(str):
    """Text that the page shows in red."""

    __slots__ = ()
    red = True


class Grid(NamedTuple):
    """Rows of cells, the first of each its name, with optional titles."""

    rows: Sequence[Sequence[str]]
    head: Sequence[str] = ()


class Image(NamedTuple):
    """A picture as SVG, with its description ``alt`` and a ``note`` below."""

    svg: str
    alt: str
    note: str = ""


class Details(NamedTuple):
    """Parts that the reader can unfold."""

    summary: str
    parts: Sequence[Part]


class RunCell(NamedTuple):
    """A cell of a table of runs; ``value`` is for sorting if ``text`` is not."""

    text: str
    value: float | str = ""


class RunRow(NamedTuple):
    """A run: its place in the charts, its name, the address of its page if it has one.

    ``slot`` is the look of its curves, None if they are not shown; ``best`` marks the best run.
    """

    run: int
    name: str
    link: str
    slot: int | None
    best: bool
    cells: Sequence[RunCell]


class RunTable(NamedTuple):
    """A table of runs in which the reader chooses; ``order`` is the one of the column ``by``."""

    titles: Sequence[str]
    entries: Sequence[RunRow]
    by: str
    order: str


class Curves(NamedTuple):
    """A chart of `selectable` lines, in the page itself, with a ``note`` below."""

    title: str
    lines: str
    note: str


Part = str | Grid | list[Image] | list[Curves] | Details | RunTable
"""Text keeps its line breaks; a list is a row of pictures."""


class Section(NamedTuple):
    """A card with a heading; without ``parts`` it shows the text ``nothing``."""

    title: str
    parts: Sequence[Part]
    nothing: str = "not recorded in this run"


@cache
def _template() -> Any:
    jinja2 = package(_WHERE, "jinja2", REPORT)
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return made.get_template("page.html")


def document(
    title: str, sections: Iterable[Section], every_seconds: int | None = None, script: str = ""
) -> str:
    """Return the HTML text of a page, in light or dark as the reader prefers.

    A browser reloads it ``every_seconds``, without a script and at the same scroll position. The
    page's policy allows ``script``, by its checksum, and no other.
    """
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    if script:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        policy += f"; script-src 'sha256-{digest}'"
    page: str = _template().render(
        title=title,
        sections=sections,
        every_seconds=every_seconds,
        policy=policy,
        script=script,
        styles=SCHEMES + line_rules() * bool(script),
        data=data_of,
    )
    return page


def write_page(path: Path, html: str) -> None:
    """Write ``html`` to ``path`` atomically. Errors: `FileAccessError`; another suffix."""
    expect_suffix("report", path, (".html", ".htm"))
    with replacing(path) as beside:
        # A JSON text may contain lone surrogates, which UTF-8 does not encode.
        beside.write_bytes(html.encode("utf-8", errors="replace"))


_SHOWN_PAIRS = 25
_MOST_CLASSES = 200
_MOST_ROWS = 1000
"""The most epochs and settings in a table; foreign files may have hundreds of thousands."""
LONGEST = 300
"""Characters of a name; names of nested objects would grow with each level."""
_MB = 10**6


def facts(values: Mapping[str, Any]) -> Grid:
    """Return names and values as a grid; nested objects get dotted names."""
    return Grid([(name, text(value)) for name, value in flat(values, LONGEST)])


def text(value: Any) -> str:
    """Format ``value`` for reading: floats to six digits, large integers with commas.

    Numbers that are not finite are red; JSON files have them as text.
    """
    if isinstance(value, float):
        return f"{value:.6g}" if math.isfinite(value) else Red(_NOT_FINITE[repr(value)])
    if isinstance(value, str) and value in _NOT_FINITE:
        return Red(_NOT_FINITE[value])
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(text, value))
    return "–" if value is None else str(value)


_NOT_FINITE = {"nan": "NaN", "inf": "∞", "-inf": "−∞"}


def duration(seconds: Any) -> str:
    """Format ``seconds`` in the two largest units; all of them if they are no duration."""
    if not isinstance(seconds, (int, float)) or not 0 <= seconds < 1e9:
        return text(seconds)
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60:,} h {minutes % 60} min"


def settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``config`` with the objects in it as a user writes them."""
    return {
        name: config_to_text(value)
        if is_entry(value)
        else settings(value)
        if isinstance(value, Mapping)
        else value
        for name, value in config.items()
    }


def expect_labels(where: str, labels: Sequence[str], classes: int) -> None:
    """Errors: `ArgumentError` unless there is one label per class."""
    if len(labels) != classes:
        raise ArgumentError(
            f"{where}, labels",
            expected=f"{classes} names, one per class",
            received=f"{len(labels)}",
            advice="omit labels to number the classes",
        )


def plot_confusion(
    counts: Any, path: str | PathLike[str] | None = None, labels: Sequence[str] = ()
) -> Shown:
    """Draw a confusion matrix, and return the SVG text.

    The colour of a cell is its share of its row; the share of correct predictions is next to each
    row. Errors: `ArgumentError` for counts that are not a square of numbers >= 0, for more than 200
    classes, for another number of labels, for another suffix; `FileAccessError`; `BackendError`
    without the extra ``report``.

    Args:
        counts: Array (C, C), the result of the metric `ConfusionMatrix`, with true classes as rows.
        path: Path of a .svg or .png file to write as well; None for none.
        labels: The names of the classes; () to number them.
    """
    where, matrix = "plot_confusion", np.asarray(counts)
    square = matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1]
    good = square and matrix.dtype.kind in "iuf" and np.isfinite(matrix).all() and matrix.size
    if not good or (matrix < 0).any() or len(matrix) > _MOST_CLASSES:
        raise ArgumentError(
            f"{where}, counts",
            expected=f"finite numbers >= 0 of shape (C, C), at most {_MOST_CLASSES} classes",
            received=f"{matrix.dtype} of shape {matrix.shape}",
            advice="pass the result of the metric ConfusionMatrix",
        )
    names = [str(label) for label in labels] or [str(k) for k in range(len(matrix))]
    expect_labels(where, names, len(matrix))
    return write_chart(lambda: confusion_chart(where, matrix, names), where, path)


def write_report(run_folder: str | PathLike[str], path: str | PathLike[str] | None = None) -> Path:
    """Write the page of a run folder, and return its path.

    The page shows the existing files of `recorders`, in light or dark as the reader prefers. It
    loads nothing, runs nothing, and forbids both. Errors: as `read_run`; `FileAccessError` if the
    page cannot be written; `BackendError` without the extra ``report``.

    Args:
        run_folder: Path of the folder.
        path: Path of the page, a .html file; None for ``report.html`` in the folder.
    """
    run = read_run(run_folder)
    target = path_of(run_folder, "run_folder") / PAGE if path is None else path_of(path)
    if path is None:
        expect_inside(run.folder, target)
    write_page(target, page(run))
    return target


def page(run: Run, before: Section | None = None, every_seconds: int | None = None) -> str:
    """Return the HTML text, with a section ``before`` the others; `document` has the details."""
    sections = [
        *([before] if before else []),
        Section("Result", _result(run)),
        # Only of language models.
        *([Section("Samples", [facts(run.samples)])] if run.samples else []),
        Section("Curves", _curves(run)),
        Section("Gradient norms by parameter", _gradients(run)),
        Section("Memory", _memory(run)),
        Section("Confusion matrix", _confusion(run)),
        Section("Net", _net(run)),
        Section("Configuration", [_configuration(run.config)] if run.config else []),
    ]
    return document(f"Run {run.name}", sections, every_seconds)


def _result(run: Run) -> list[Part]:
    """Return the figures, the reason of the end, and the best and the last epoch."""
    history = run.history
    parts: list[Part] = [_figures(run.figures)] if run.figures else []
    if history or run.outcome:
        parts.append(ending(run))
    if history:
        rows = {"last": len(history.epochs) - 1}
        best = best_row(run)
        if best is not None:
            rows = {f"best by {best[0]}": best[1], **rows}
        lines = [
            (what, f"{history.epochs[k] + 1:,}", *measures(history, k)) for what, k in rows.items()
        ]
        parts.append(Grid(lines, ("", "epoch", *history)))
    took = seconds_of(run)
    about = run.machine if took is None else {"duration": duration(took), **run.machine}
    return [*parts, facts(about)] if about else parts


def _figures(figures: Mapping[str, Any]) -> Grid:
    """Return the figures of a run by words, with units if their names have them."""
    rows = []
    for name, value in flat(figures, LONGEST):
        number = isinstance(value, (int, float)) and 0 <= value < 1e300
        if number and name.endswith("_bytes"):
            name, said = f"{name.removesuffix('_bytes')} memory", bytes_text(round(value))
        elif number and name.endswith("_per_second"):
            name = f"{name.removesuffix('_per_second')} a second"
            said = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
        elif name == "seconds":
            name, said = "training time", duration(value)
        else:
            said = text(value)
        rows.append((name.replace("_", " "), said))
    return Grid(rows)


def measures(history: History, index: int) -> list[str]:
    """Format the values of an epoch, in the order of ``history``."""
    absent = history._absent
    row = history.row(index).items()
    return [text(None if (name, index) in absent else value) for name, value in row]


def _configuration(config: Mapping[str, Any]) -> Grid:
    """Return the settings without those that are None."""
    given = dict(flat(settings(config), LONGEST))
    return facts({name: value for name, value in given.items() if value is not None})


def seconds_of(run: Run) -> Any:
    """Return the duration of the run so far; None if it was not recorded."""
    last = run.memory[-1]["seconds"] if run.memory else None
    return run.outcome.get("seconds", last)


def best_row(run: Run) -> tuple[str, int] | None:
    """Return the monitor of the best epoch, and the epoch's index in the history; or None."""
    history = run.history
    if not history:
        return None
    found = run.outcome if run.outcome.get("monitor") in history else best_epoch(history)
    at = {epoch: k for k, epoch in enumerate(history.epochs)}
    if found.get("best_epoch") not in at:
        return None
    return str(found["monitor"]), at[found["best_epoch"]]


def ending(run: Run) -> str:
    """Return the number of epochs and the reason of the end; red if the run failed."""
    done, outcome = len(run.history.epochs), run.outcome
    epochs = f"{done:,} epoch" if done == 1 else f"{done:,} epochs"
    why = outcome.get("error") or outcome.get("stopped")
    if why is not None:
        said = "ended with an error" if outcome.get("error") else "stopped"
        epochs += f" of {text(outcome.get('of'))}"
    lost = _lost(run.history)
    epochs += f", with {lost}" if lost else ""
    if why is not None:
        epochs = f"{epochs}; {said}: {why}"[:600]
    elif not outcome:
        epochs += "; the training is running, or was killed"
    elif not lost:
        epochs += ", as requested"
    return Red(epochs) if lost or outcome.get("error") else epochs


def _lost(history: History) -> str:
    """Return which loss is not finite and when; "" if all are."""
    for name, values in history.items():
        if name != "loss" and not name.endswith("_loss"):
            continue  # some metrics are NaN if a class is missing
        lost = [
            k
            for k, value in enumerate(values)
            if not math.isfinite(value) and (name, k) not in history._absent
        ]
        if lost:
            what = "a loss" if name == "loss" else f"a {name}"
            first = f"epoch {history.epochs[lost[0]] + 1:,}"
            if len(lost) == len(values) - lost[0]:
                return f"{what} that is not finite from {first} on"
            return f"{what} that is not finite in {len(lost):,} epochs, the first {first}"
    return ""


def _chart(chart: LineChart, note: str = "") -> Image:
    svg = themed(line_charts(_WHERE, [chart]))
    return Image(svg, f"{chart.title} by {chart.across}", note)


def _curves(run: Run) -> list[Part]:
    history = run.history
    if not history.epochs:
        return []
    count = len(history.epochs)
    step = -(-count // _MOST_ROWS)
    shown = sorted({*range(0, count, step), count - 1})
    rows = [(text(history.epochs[k] + 1), *measures(history, k)) for k in shown]
    name = "numbers" if step == 1 else f"numbers of every {step} epochs; {HISTORY} has all"
    numbers = Details(name, [Grid(rows, ("epoch", *history))])
    return [[_chart(chart) for chart in curves(history)], numbers]


def _gradients(run: Run) -> list[Part]:
    names = dict.fromkeys(name for line in run.layers for name in line["parameters"])
    if not names:
        return []
    norms = {name: [_norm(line["parameters"].get(name)) for line in run.layers] for name in names}
    epochs = [f"epoch {line['epoch'] + 1}" for line in run.layers]
    last = run.layers[-1]["parameters"]
    keys = ("gradient_norm", "gradient_norm_max", "weight_norm")
    rows = [(name, *(text(last[name].get(key)) for key in keys)) for name in last]
    head = ("last epoch", "mean norm", "largest norm", "norm of weights")
    return [
        "Mean norm of the gradients in each epoch. Red is not finite, empty is zero.",
        [Image(themed(heat_map(_WHERE, epochs, norms)), "norms of gradients by epoch")],
        Details("numbers", [Grid(rows, head)]),
    ]


def _norm(figures: object) -> float:
    value = figures.get("gradient_norm") if isinstance(figures, dict) else 0.0
    return math.nan if value is None else float(value)


def _memory(run: Run) -> list[Part]:
    charts = {
        "process memory, MB": ("resident", "peak"),
        "gradients at one time, MB": ("gradients",),
    }
    drawn = []
    for title, keys in charts.items():
        lines = {
            key: [(m["seconds"], m[key] / _MB) for m in run.memory if m.get(key) is not None]
            for key in keys
        }
        if any(lines.values()):
            drawn.append(_chart(LineChart(title, "seconds", lines)))
    return [drawn] if drawn else []


def _confusion(run: Run) -> list[Part]:
    """Return the whole matrix, or for many classes the pairs most often confused."""
    labels, counts = run.labels, run.confusion
    if not counts:
        return []
    count = sum(map(sum, counts))
    samples = f"Of the validation data, {count:,} labels."
    if len(labels) > MOST_NUMBERED:
        found = heapq.nlargest(
            _SHOWN_PAIRS,
            (
                (count, labels[i], labels[j])
                for i, row in enumerate(counts)
                for j, count in enumerate(row)
                if i != j and count
            ),
        )
        rows = [(true, taken, f"{count:,}") for count, true, taken in found]
        return [samples, Grid(rows, ("true class", "predicted class", "times"))]
    drawn = Image(themed(confusion_chart(_WHERE, np.array(counts), labels)), "confusion matrix")
    numbers = Grid(
        [(name, *map(text, row)) for name, row in zip(labels, counts, strict=True)], ("", *labels)
    )
    return [
        f"{samples} Rows: true classes; columns: predicted classes; last: share of correct"
        " predictions.",
        [drawn],
        Details("numbers", [numbers]),
    ]


def _net(run: Run) -> list[Part]:
    parts: list[Part] = [run.summary] if run.summary else []
    if run.picture:
        # As an image, which runs no code of a foreign file.
        parts.append(Details("picture", [[Image(run.picture, "graph of the net")]]))
    return parts


_SECONDS = 3
"""Seconds between two pages, and between two reloads."""
_SHARE = 0.05
"""The largest share of time for pages: those of a long run take longer, and come less often."""


class StepCurve:
    """Losses of steps, averaged in groups so that there are fewer than `MOST` ``points``."""

    MOST = 400

    def __init__(self) -> None:
        self.points: list[tuple[float, float]] = []
        self._each, self._sum, self._count = 1, 0.0, 0

    def add(self, step: int, loss: float) -> None:
        """Add the loss of ``step``, the latest step."""
        self._sum += loss
        self._count += 1
        if self._count < self._each:
            return
        self.points.append((float(step), self._sum / self._count))
        self._sum, self._count = 0.0, 0
        if len(self.points) == self.MOST:
            pairs = zip(self.points[::2], self.points[1::2], strict=True)
            self.points = [(late[0], (early[1] + late[1]) / 2) for early, late in pairs]
            self._each *= 2


class LivePage(Callback):
    """A callback that updates ``report.html`` during a run; browsers reload it.

    The page shows the files of the other `recorders`, and the loss by step. It is written
    atomically, at most every three seconds, and takes at most a twentieth of the time. An error
    during training ends the updates with a warning, but not the training. Errors: `BackendError`
    without the extra ``report``.

    Args:
        folder: Path of the run folder.
        ends: Whether the run ends with the fit; otherwise it continues until `finish` is called.
    """

    _runs_last = True
    first_rank_only = True

    def __init__(self, folder: str | PathLike[str], ends: bool = True) -> None:
        for name in ("matplotlib.figure", "jinja2"):
            package("LivePage", name, REPORT)
        self.folder = path_of(folder, "folder")
        self.ends = ends
        self._curve = StepCurve()
        self._start = self._due = 0.0
        self._has_started = self._failed = False

    def on_train_begin(self) -> None:
        """Check that the page can be written, inside the folder. Errors: `FileAccessError`."""
        check_folder(self.folder)
        expect_inside(self.folder, self.folder / PAGE)
        self._curve, self._failed, self._has_started = StepCurve(), False, True
        self._start, self._due = time.perf_counter(), 0.0

    def on_batch_end(self, batch: int, logs: Mapping[str, float]) -> None:
        """Add the loss, and write the page if it is due."""
        self._curve.add(self.session.step, logs["loss"])
        self._write_if_due()

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        """Write the page if it is due."""
        self._write_if_due()

    def on_train_end(self) -> None:
        """Write the final page, or another live one."""
        if self.ends:
            self.finish()
        elif self._has_started and not self._failed:
            self._try(self._write)

    def finish(self) -> None:
        """Write the page of the whole run, without reloads, if a run has started."""
        if self._has_started:
            self._try(lambda: write_report(self.folder))
        self._has_started = False

    def _write_if_due(self) -> None:
        began = time.perf_counter()
        if self._failed or began < self._due:
            return
        self._try(self._write)
        now = time.perf_counter()
        self._due = now + max(_SECONDS, (now - began) / _SHARE)

    def _write(self) -> None:
        write_page(self.folder / PAGE, page(read_run(self.folder), self._progress(), _SECONDS))

    def _progress(self) -> Section:
        session, steps = self.session, self.session.data.expected
        # An epoch may be longer than the previous one, from which its length was taken.
        known = steps is not None and session.batch <= steps
        said = {
            "epoch": f"{min(session.epoch + 1, session.epochs):,} of {session.epochs:,}",
            "steps of it": f"{session.batch:,}" + (f" of {steps:,}" if known else ""),
            "steps in all": session.step,
            "seconds": round(time.perf_counter() - self._start, 1),
        }
        chart = _chart(LineChart("loss", "step", {"loss": self._curve.points}))
        return _under_way(said, [chart])

    def _try(self, write: Callable[[], object]) -> None:
        try:
            write()
        except SingaNetError as error:
            self._failed = True
            warnings.warn(f"the page of the run: {error}", RuntimeWarning, stacklevel=users_level())


def follow(run_folder: str | PathLike[str], path: str | PathLike[str] | None = None) -> Path:
    """Repeat `write_report` while a process trains in ``run_folder``; browsers reload the page.

    Returns the page's path when the training has ended. After an interrupt the page does not reload
    any more. Errors: the errors of `write_report`.

    Args:
        run_folder: Path of the folder.
        path: Path of the page, a .html file; None for ``report.html`` in the folder.
    """
    target = path_of(run_folder, "run_folder") / PAGE if path is None else path_of(path)
    try:
        while is_held(path_of(run_folder, "run_folder")):
            run = read_run(run_folder)
            if path is None:
                expect_inside(run.folder, target)
            write_page(target, page(run, _under_way({}), _SECONDS))
            time.sleep(_SECONDS)
    finally:
        write_report(run_folder, path)
    return target


def _under_way(said: Mapping[str, object], *charts: list[Image]) -> Section:
    written = time.strftime("%Y-%m-%d %H:%M:%S")
    note = f"Reloaded every {_SECONDS} seconds; if the time stays the same, the process has ended."
    return Section("Under way", [facts({**said, "page written": written}), note, *charts])
