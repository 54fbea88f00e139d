"""HTML pages of a run, during and after it, and of several runs."""

from __future__ import annotations

import heapq
import math
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from os import PathLike
from pathlib import Path
from statistics import median_low
from typing import Any, NamedTuple

import numpy as np

from singanet.base.charts import (
    MOST_LINES,
    MOST_NUMBERED,
    SCHEMES,
    LineChart,
    confusion_chart,
    data_of,
    heat_map,
    legend,
    line_charts,
    themed,
    write_chart,
)
from singanet.base.extras import REPORT, package
from singanet.base.files import expect_inside, expect_suffix, is_held, path_of, paths_of, replacing
from singanet.base.notebooks import Shown
from singanet.base.tracebacks import users_level
from singanet.errors import ArgumentError, SingaNetError
from singanet.report.reading import COMPARISON, HISTORY, Run, best_epoch, read_run
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


Part = str | Grid | list[Image] | Details
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


def document(title: str, sections: Iterable[Section], every_seconds: int | None = None) -> str:
    """Return the HTML text of a page, in light or dark as the reader prefers.

    A browser reloads it ``every_seconds``, without a script and at the same scroll position.
    """
    page: str = _template().render(
        title=title, sections=sections, every_seconds=every_seconds, schemes=SCHEMES, data=data_of
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
        Section("Configuration", [facts(settings(run.config))] if run.config else []),
    ]
    return document(f"Run {run.name}", sections, every_seconds)


def _result(run: Run) -> list[Part]:
    """Return the figures, the reason of the end, and the best and the last epoch."""
    history = run.history
    parts: list[Part] = [facts(run.figures)] if run.figures else []
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


def measures(history: History, index: int) -> list[str]:
    """Format the values of an epoch, in the order of ``history``."""
    absent = history._absent
    row = history.row(index).items()
    return [text(None if (name, index) in absent else value) for name, value in row]


def seconds_of(run: Run) -> Any:
    """Return the duration of the run so far; None if it was not recorded."""
    last = run.memory[-1]["seconds"] if run.memory else None
    return run.outcome.get("seconds", last)


def best_row(run: Run) -> tuple[str, int] | None:
    """Return the monitor of the best epoch, and the epoch's index in the history; or None."""
    history = run.history
    if not history:
        return None
    found = run.outcome if run.outcome.get("monitor") else best_epoch(history)
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
        return [Grid(rows, ("true class", "predicted class", "times"))]
    drawn = Image(themed(confusion_chart(_WHERE, np.array(counts), labels)), "confusion matrix")
    numbers = Grid(
        [(name, *map(text, row)) for name, row in zip(labels, counts, strict=True)], ("", *labels)
    )
    return [
        "Rows: true classes; columns: predicted classes; last: share of correct predictions.",
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


_TIMES = 10.0
"""The largest number drawn of a run, in multiples of the median of the runs' largest numbers."""


def write_comparison(
    run_folders: Iterable[str | PathLike[str]], path: str | PathLike[str] = COMPARISON
) -> Path:
    """Write one page of several run folders, and return its path.

    A chart for each measure has a line for each run; tables have the settings and results. For more
    than 16 runs, each 16 have their own charts. The page is like the page of `write_report`.
    Errors: as `read_run` for every folder; `ArgumentError` for fewer than two folders, or a
    repeated one; `FileAccessError` if the page cannot be written.

    Args:
        run_folders: Paths of the folders, two or more.
        path: Path of the page, a .html file.
    """
    folders = paths_of(run_folders, "run_folders")
    twice = [f for k, f in enumerate(folders) if f.resolve() in {o.resolve() for o in folders[:k]}]
    if len(folders) < 2 or twice:
        raise ArgumentError(
            "comparison of runs",
            expected="two run folders or more, each once",
            received=f"{str(twice[0])!r} twice" if twice else f"{len(folders)}",
            advice="pass other folders",
        )
    target = path_of(path)
    write_page(target, comparison([read_run(folder) for folder in folders]))
    return target


def comparison(runs: Sequence[Run]) -> str:
    """Return the HTML text."""
    names = names_of([run.folder for run in runs])
    ends = [(name, ending(run)) for name, run in zip(names, runs, strict=True)]
    return document(
        f"{len(runs)} runs",
        [
            Section("Runs", [Grid(ends)]),
            *_curves_of_runs(names, runs),
            Section("Settings that differ", _settings(names, runs)),
            Section("Results", _results(names, runs), "no run has recorded any"),
        ],
    )


def names_of(folders: Iterable[Path]) -> list[str]:
    """Return the paths without their common parent."""
    whole = [folder.resolve() for folder in folders]
    above = os.path.commonpath([folder.parent for folder in whole])
    return [str(folder.relative_to(above)) for folder in whole]


def _measures(runs: Sequence[Run]) -> list[str]:
    """Return the names of all measures, in the order of their first run."""
    return list(dict.fromkeys(name for run in runs for name in run.history))


def _curves_of_runs(names: Sequence[str], runs: Sequence[Run]) -> Iterator[Section]:
    """Yield sections of charts with a legend, each for as many runs as a chart can distinguish."""
    for start in range(0, len(runs), MOST_LINES):
        some = slice(start, start + MOST_LINES)
        own, title = names[some], "Curves"
        if len(runs) > MOST_LINES:
            title = f"Curves of {own[0]}" + (f" to {own[-1]}" if len(own) > 1 else "")
        drawn = [_of_runs(measure, own, runs[some]) for measure in _measures(runs[some])]
        marks = Image(themed(legend(_WHERE, own)), f"lines: {', '.join(own)}")
        parts: list[Part] = [[marks], drawn] if drawn else []
        yield Section(title, parts, "no run has recorded any epoch")


def _of_runs(measure: str, names: Sequence[str], runs: Sequence[Run]) -> Image:
    """Draw a line for each run; runs without the measure keep their style for the other charts."""
    found = {name: run.history.get(measure, []) for name, run in zip(names, runs, strict=True)}
    most = _most(found.values())
    lines = {
        name: [
            (epoch + 1.0, value)
            for epoch, value in zip(run.history.epochs, found[name], strict=False)
            if abs(value) <= most
        ]
        for name, run in zip(names, runs, strict=True)
    }
    beyond = [name for name, values in found.items() if any(abs(v) > most for v in values)]
    notes = {
        "not measured by": [name for name in names if not found[name]],
        f"beyond {most:.3g}, and not drawn there:": beyond,
    }
    said = "; ".join(f"{note} {', '.join(which)}" for note, which in notes.items() if which)
    return _chart(LineChart(measure, "epoch", lines, legend=False), said)


def _most(lines: Iterable[Sequence[float]]) -> float:
    """Return the largest number to draw: a diverging line would flatten the others."""
    finite = [[abs(value) for value in line if math.isfinite(value)] for line in lines]
    highest = [max(line) for line in finite if line]
    return _TIMES * median_low(highest) if highest else 0.0


def _settings(names: Sequence[str], runs: Sequence[Run]) -> list[Part]:
    """Return a row for each setting that differs between runs."""
    configs = [dict(flat(settings(run.config), LONGEST)) for run in runs]
    known = list(dict.fromkeys(name for config in configs for name in config))
    rows = {name: _shown([(name in c, c.get(name)) for c in configs]) for name in known}
    differ = [(name, *cells) for name, cells in rows.items() if len(set(cells)) > 1]
    same = len(known) - len(differ)
    missing = [name for name, config in zip(names, configs, strict=True) if not config]
    said = [f"{same:,} other settings are the same." if differ else ""]
    if not differ:
        said = [f"All {same:,} settings are the same." if known else "No run has recorded any."]
    if missing and known:
        said.append(f"No settings were recorded by {', '.join(missing)}.")
    if len(differ) > _MOST_ROWS:
        said.append(f"The first {_MOST_ROWS:,} of {len(differ):,} are shown.")
    tables: list[Part] = [Grid(differ[:_MOST_ROWS], ("setting", *names))] if differ else []
    return [*tables, " ".join(filter(None, said))]


def _shown(values: Sequence[tuple[bool, Any]]) -> list[str]:
    """Format the values for reading, with all digits if fewer do not distinguish them."""
    short = [text(value) if there else "not set" for there, value in values]
    exact = [repr(value) if there else "not set" for there, value in values]
    return short if len(set(short)) == len(set(exact)) else exact


def _results(names: Sequence[str], runs: Sequence[Run]) -> list[Part]:
    """Return the measures at the best and the last epoch, and the figures."""
    best = [best_row(run) for run in runs]
    rows = list[tuple[str, ...]]()
    if any(run.history.epochs for run in runs):
        found = [
            "–" if at is None else f"{run.history.epochs[at[1]] + 1:,}, by {at[0]}"
            for run, at in zip(runs, best, strict=True)
        ]
        rows.append(("best epoch", *found))
    for measure in _measures(runs):
        for when, places in (
            ("best epoch", [None if at is None else at[1] for at in best]),
            ("last epoch", [-1] * len(runs)),
        ):
            values = [
                None if k is None or not run.history.get(measure) else run.history[measure][k]
                for run, k in zip(runs, places, strict=True)
            ]
            rows.append((f"{measure}, {when}", *map(text, values)))
    figures = [dict(flat(run.figures, LONGEST)) for run in runs]
    for name in list(dict.fromkeys(name for each in figures for name in each))[:_MOST_ROWS]:
        rows.append((name, *(text(each.get(name)) for each in figures)))
    return [Grid(rows, ("", *names))] if rows else []
