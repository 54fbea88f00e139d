"""Pages of a run, while it runs and after it, and of several runs."""

from __future__ import annotations

import base64
import heapq
import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from os import PathLike
from pathlib import Path
from statistics import median_low
from typing import Any

from singanet.base.files import expect_inside, expect_suffix, is_held, path_of, paths_of, replacing
from singanet.errors import ArgumentError, SingaNetError
from singanet.picture.line_chart import MOST_LINES, RULES, line_chart, line_mark
from singanet.picture.net_picture import DARK, LIGHT, variables
from singanet.report.reading import COMPARISON, REPORT, Run, best_epoch, read_run
from singanet.training.callbacks import Callback
from singanet.training.callbacks.trackers import flat
from singanet.training.display import History
from singanet.training.files import check_folder

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def document(title: str, sections: Iterable[str], every_seconds: int | None = None) -> str:
    """The HTML text of a page, in light or dark as the reader prefers.

    A browser loads it anew ``every_seconds``, without a script and without losing the place.
    """
    said = escape(title)
    anew = f'<meta http-equiv="refresh" content="{every_seconds}">' if every_seconds else ""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f'{anew}<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{said}</title><style>{STYLE}</style></head>\n"
        f"<body><main><h1>{said}</h1>\n" + "\n".join(sections) + "\n</main></body></html>\n"
    )


def write_page(path: Path, html: str) -> None:
    """Put ``html`` at ``path`` in one piece. Errors: `FileAccessError`; another suffix."""
    expect_suffix("report", path, (".html", ".htm"))
    with replacing(path) as beside:
        # A JSON text may hold halves of pairs, which UTF-8 does not.
        beside.write_bytes(html.encode("utf-8", errors="replace"))


def section(title: str, content: str, nothing: str = "not recorded in this run") -> str:
    """A card under a heading; where there is no ``content`` it says ``nothing``."""
    return (
        f"<section><h2>{escape(title)}</h2>"
        f"{content or f'<p class=none>{escape(nothing)}</p>'}</section>"
    )


def details(title: str, content: str) -> str:
    """What is shown when the reader asks for it."""
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


# Text has a contrast of 7 : 1 or more against its ground in both schemes, lines of 3 : 1 or more;
# lines differ in dashes and cells have numbers or names, so that nothing rests on hue.
_COLOURS = (
    f":root{{color-scheme:light dark;{variables(LIGHT)}}}"
    f"@media (prefers-color-scheme:dark){{:root{{{variables(DARK)}}}}}"
)
_SHEET = """
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:1080px;margin:0 auto;padding:24px}
h1{font-size:1.6em;margin:.2em 0}h2{font-size:1.2em;margin:0 0 .6em}
h1,h2,p,figcaption{overflow-wrap:anywhere}
section{background:var(--card);border:1px solid var(--rule);border-radius:8px;
padding:16px;margin:16px 0}
.scroll{overflow:auto;max-height:44em}
.charts{display:flex;flex-wrap:wrap;gap:12px}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:3px 9px;text-align:right;border-bottom:1px solid var(--rule)}
th:first-child,td:first-child,.facts td{text-align:left}th{color:var(--faint);font-weight:600}
.matrix td{border:1px solid var(--rule);text-align:center;
background:color-mix(in srgb,var(--s0) calc(var(--p)*40%),var(--card))}
.matrix td.hit{font-weight:700;outline:2px solid var(--s0);outline-offset:-2px}
pre{margin:0;font:12.5px/1.45 ui-monospace,monospace}
figure{margin:0}figcaption{max-width:460px}
p{margin:.3em 0}p.none,summary,caption,figcaption{color:var(--faint)}caption{text-align:left}
details{margin-top:10px}summary{cursor:pointer}
img{max-width:100%;border-radius:6px}
.singanet-chart{max-width:100%;height:auto}
"""
STYLE = _COLOURS + _SHEET + RULES


_MOST_CLASSES = 32
_SHOWN_PAIRS = 25
LONGEST = 300
"""Characters of a name, which in objects within objects would grow from level to level."""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in a frame that scrolls; every cell is escaped, the first of a row its name."""
    titles = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        + "</tr>"
        for name, *cells in rows
    )
    shown = f"<thead><tr>{titles}</tr></thead>" if head else ""
    kind = "" if head else ' class="facts"'
    return f'<div class="scroll"><table{kind}>{shown}<tbody>{body}</tbody></table></div>'


def facts(values: Mapping[str, Any]) -> str:
    """Names and values; objects in objects get names with dots."""
    return table((), [(name, text(value)) for name, value in flat(values, LONGEST)])


def text(value: Any) -> str:
    """``value`` for reading: floats to six digits, large integers with commas."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(text, value))
    return "–" if value is None else str(value)


def confusion_table(labels: Sequence[str], counts: Sequence[Sequence[int]]) -> str:
    """The whole matrix, or of many classes the pairs most often confused."""
    if len(labels) > _MOST_CLASSES:
        return _pairs(labels, counts)
    head = "".join(f'<th scope="col">{escape(label)}</th>' for label in labels)
    body = ""
    for k, (label, row) in enumerate(zip(labels, counts, strict=True)):
        total = max(sum(row), 1)
        cells = "".join(
            f'<td{" class=hit" if j == k else ""} style="--p:{count / total:.3f}">{count:,}</td>'
            for j, count in enumerate(row)
        )
        right = f"{100 * row[k] / total:.1f} %"
        body += f'<tr><th scope="row">{escape(label)}</th>{cells}<th>{right}</th></tr>'
    return (
        '<div class="scroll"><table class="matrix"><caption>rows: true classes; columns: classes '
        "taken; last: share taken rightly</caption>"
        f"<thead><tr><td></td>{head}<td></td></tr></thead><tbody>{body}</tbody></table></div>"
    )


def _pairs(labels: Sequence[str], counts: Sequence[Sequence[int]]) -> str:
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
    return table(("true class", "taken for", "times"), rows)


_LONGEST = 44


def heat_map(title: str, columns: Sequence[str], rows: Mapping[str, Sequence[float]]) -> str:
    """Cells by row name and column, stronger for larger values, on a logarithmic scale.

    What is not finite is crossed out; zero is empty.
    """
    logs = [math.log10(v) for line in rows.values() for v in line if v > 0 and math.isfinite(v)]
    low, high = min(logs, default=0.0), max(logs, default=0.0)
    left = 12 + 6.6 * max((len(_short(name)) for name in rows), default=0)
    size = max(4.0, min(26.0, 640 / max(len(columns), 1)))
    width, height = left + size * len(columns) + 12, 16 * len(rows) + 24
    parts = [
        f'<svg class="singanet-chart" role="img" aria-label="{escape(title)}" '
        f'viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" height="{height}">'
    ]
    for k, (name, line) in enumerate(rows.items()):
        y = 16 * k
        parts.append(
            f'<text x="{left - 6:.1f}" y="{y + 12}" text-anchor="end">{escape(_short(name))}</text>'
        )
        for column, (label, value) in enumerate(zip(columns, line, strict=True)):
            x = left + size * column
            tip = f"<title>{escape(name)}, {escape(label)}: {value:.4g}</title>"
            box = f'x="{x:.1f}" y="{y + 1}" width="{size - 1:.1f}" height="14"'
            if not math.isfinite(value):
                parts.append(
                    f'<g>{tip}<rect class="bad" {box}/>'
                    f'<path class="cross" d="M{x:.1f},{y + 1}l{size - 1:.1f},14"/></g>'
                )
            elif value > 0:
                share = (math.log10(value) - low) / (high - low) if high > low else 1.0
                fill = f'fill-opacity="{0.08 + 0.92 * share:.3f}"'
                parts.append(f'<rect class="heat" {box} {fill}>{tip}</rect>')
    for column in {0, len(columns) - 1} if columns else ():
        x = left + size * (column + (column > 0))
        end = "end" if column else "start"
        if column or size * len(columns) > 130 or len(columns) == 1:
            label = f'<text x="{x:.1f}" y="{height - 8}" text-anchor="{end}">'
            parts.append(f"{label}{escape(columns[column])}</text>")
    return "".join([*parts, "</svg>"])


def _short(name: str) -> str:
    """The end of a long ``name``, which says more: the cells say it whole when pointed at."""
    return name if len(name) <= _LONGEST else "…" + name[1 - _LONGEST :]


_MB = 10**6


def write_report(run_folder: str | PathLike[str], path: str | PathLike[str] | None = None) -> Path:
    """Write the page of a run folder and return its path, ``report.html`` in it by default.

    Shows what `recorders` wrote, as far as it is there, in light or dark as the reader prefers.
    The page loads nothing, runs nothing, and forbids both. Errors: those of `read_run`;
    `FileAccessError` where it cannot be written.
    """
    run = read_run(run_folder)
    target = path_of(run_folder, "run_folder") / REPORT if path is None else path_of(path)
    if path is None:
        expect_inside(run.folder, target)
    write_page(target, page(run))
    return target


def page(run: Run, before: str = "", every_seconds: int | None = None) -> str:
    """The HTML text, with a section ``before`` the others; see `document`."""
    sections = [
        *([before] if before else []),
        section("Result", _result(run)),
        # Of language models alone.
        *([section("Samples", facts(run.samples))] if run.samples else []),
        section("Curves", _curves(run.history)),
        section("Gradient norms by parameter", _gradients(run)),
        section("Memory", _memory(run)),
        section(
            "Confusion matrix",
            confusion_table(run.labels, run.confusion) if run.confusion else "",
        ),
        section("Net", _net(run)),
        section("Configuration", facts(run.config) if run.config else ""),
    ]
    return document(f"Run {run.name}", sections, every_seconds)


def _result(run: Run) -> str:
    """The figures, how it ended, the best epoch and the last."""
    history = run.history
    parts = [facts(run.figures)] if run.figures else []
    if history:
        rows = {"last": len(history.epochs) - 1}
        best = best_row(run)
        if best is not None:
            rows = {f"best by {best[0]}": best[1], **rows}
        lines = [
            (what, f"{history.epochs[k] + 1:,}", *map(text, history.row(k).values()))
            for what, k in rows.items()
        ]
        parts += [f"<p>{escape(ending(run))}</p>", table(("", "epoch", *history), lines)]
    return "".join(parts)


def best_row(run: Run) -> tuple[str, int] | None:
    """What the best epoch was found by, and its place in the history; None where nobody knows."""
    history = run.history
    if not history:
        return None
    found = run.outcome if run.outcome.get("monitor") else best_epoch(history)
    at = {epoch: k for k, epoch in enumerate(history.epochs)}
    if found.get("best_epoch") not in at:
        return None
    return str(found["monitor"]), at[found["best_epoch"]]


def ending(run: Run) -> str:
    """How many epochs there are, and why no more."""
    done, outcome = len(run.history.epochs), run.outcome
    epochs = f"{done:,} epoch" if done == 1 else f"{done:,} epochs"
    if not outcome:
        return f"{epochs}; the training is under way, or was killed"
    why = outcome.get("error") or outcome.get("stopped")
    if why is not None:
        said = "ended with an error" if outcome.get("error") else "stopped"
        return f"{epochs} of {text(outcome.get('of'))}; {said}: {why}"[:600]
    losses = zip(run.history.epochs, run.history.get("loss", ()), strict=False)
    lost = next((epoch for epoch, loss in losses if not math.isfinite(loss)), None)
    if lost is not None:
        return f"{epochs}, of which the loss is no finite number from epoch {lost + 1:,} on"
    return f"{epochs}, as asked for"


def _curves(history: History) -> str:
    if not history.epochs:
        return ""
    epochs = [epoch + 1.0 for epoch in history.epochs]
    charts: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for name, values in history.items():
        points = list(zip(epochs, values, strict=True))
        charts.setdefault(name.removeprefix("val_"), {})[name] = points
    drawn = "".join(line_chart(title, "epoch", lines) for title, lines in charts.items())
    rows = [
        (text(int(epoch)), *(text(value) for value in history.row(k).values()))
        for k, epoch in enumerate(epochs)
    ]
    numbers = table(("epoch", *history), rows)
    return f'<div class="charts">{drawn}</div>{details("numbers", numbers)}'


def _gradients(run: Run) -> str:
    if not run.layers:
        return ""
    names = dict.fromkeys(name for line in run.layers for name in line["parameters"])
    norms = {name: [_norm(line["parameters"].get(name)) for line in run.layers] for name in names}
    epochs = [f"epoch {line['epoch'] + 1}" for line in run.layers]
    drawn = heat_map("mean gradient norm by parameter and epoch", epochs, norms)
    last = run.layers[-1]["parameters"]
    keys = ("gradient_norm", "gradient_norm_max", "weight_norm")
    rows = [(name, *(text(last[name].get(key)) for key in keys)) for name in last]
    numbers = table(("last epoch", "mean norm", "largest norm", "norm of weights"), rows)
    return (
        "<p>Mean norm of the gradients in each epoch, stronger for larger, by powers of ten.</p>"
        f'<div class="scroll">{drawn}</div>{details("numbers", numbers)}'
    )


def _norm(figures: object) -> float:
    value = figures.get("gradient_norm") if isinstance(figures, dict) else 0.0
    return math.nan if value is None else float(value)


def _memory(run: Run) -> str:
    lines: dict[str, dict[str, list[tuple[float, float]]]] = {
        "memory of the process, MB": {},
        "gradients held together, MB": {},
    }
    wanted = (("resident", 0), ("peak", 0), ("gradients", 1))
    for key, chart in wanted:
        points = [
            (float(line["seconds"]), line[key] / _MB)
            for line in run.memory
            if line.get(key) is not None
        ]
        if points:
            list(lines.values())[chart][key] = points
    drawn = "".join(line_chart(title, "seconds", each) for title, each in lines.items() if each)
    return f'<div class="charts">{drawn}</div>' if drawn else ""


def _net(run: Run) -> str:
    parts = []
    if run.summary:
        parts.append(f'<div class="scroll"><pre>{escape(run.summary)}</pre></div>')
    if run.picture:
        # As an image, in which nothing of a foreign file can act.
        data = base64.b64encode(run.picture.encode()).decode()
        image = f'<img alt="graph of the net" src="data:image/svg+xml;base64,{data}">'
        parts.append(details("picture", f'<div class="scroll">{image}</div>'))
    return "".join(parts)


_SECONDS = 3
"""Between two pages, and between two readings of one."""
_SHARE = 0.05
"""Of the time at most goes into pages: a long run's take longer, and come more rarely."""


class StepCurve:
    """Losses of steps as means of so many, so that ``points`` stay fewer than `MOST`."""

    MOST = 400

    def __init__(self) -> None:
        self.points: list[tuple[float, float]] = []
        self._each, self._sum, self._count = 1, 0.0, 0

    def add(self, step: int, loss: float) -> None:
        """Take the loss of ``step``, the last of all so far."""
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
    """Keeps ``report.html`` in ``folder`` as the run goes on, and loading itself anew until then.

    It shows what the other `recorders` have written, and the loss by step. It is written in one
    piece, no more often than every three seconds, and takes at most a twentieth of the time. What
    stands in its way while the net trains ends the page, with a warning, and not the training.
    Without ``ends`` the run goes on behind the fit, until `finish` is called.
    """

    runs_last = True
    first_rank_only = True

    def __init__(self, folder: str | PathLike[str], ends: bool = True) -> None:
        self.folder = path_of(folder, "folder")
        self.ends = ends
        self._curve = StepCurve()
        self._start = self._due = 0.0
        self._begun = self._failed = False

    def on_train_begin(self) -> None:
        """See that the page can be written, and nowhere else. Errors: `FileAccessError`."""
        check_folder(self.folder)
        expect_inside(self.folder, self.folder / REPORT)
        self._curve, self._failed, self._begun = StepCurve(), False, True
        self._start, self._due = time.perf_counter(), 0.0

    def on_batch_end(self, batch: int, logs: Mapping[str, float]) -> None:
        """Take the loss; write where a page is due."""
        self._curve.add(self.session.step, logs["loss"])
        self._write_if_due()

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        """Write where a page is due."""
        self._write_if_due()

    def on_train_end(self) -> None:
        """Write the page that stays, or one more."""
        if self.ends:
            self.finish()
        elif self._begun and not self._failed:
            self._try(self._write)

    def finish(self) -> None:
        """Write the page of the whole run, which no longer loads itself anew; if any was begun."""
        if self._begun:
            self._try(lambda: write_report(self.folder))
        self._begun = False

    def _write_if_due(self) -> None:
        began = time.perf_counter()
        if self._failed or began < self._due:
            return
        self._try(self._write)
        now = time.perf_counter()
        self._due = now + max(_SECONDS, (now - began) / _SHARE)

    def _write(self) -> None:
        write_page(self.folder / REPORT, page(read_run(self.folder), self._progress(), _SECONDS))

    def _progress(self) -> str:
        session, steps = self.session, self.session.data.expected
        # An epoch may have more than the one before, from which its length was told.
        known = steps is not None and session.batch <= steps
        said = {
            "epoch": f"{min(session.epoch + 1, session.epochs):,} of {session.epochs:,}",
            "steps of it": f"{session.batch:,}" + (f" of {steps:,}" if known else ""),
            "steps in all": session.step,
            "seconds": round(time.perf_counter() - self._start, 1),
        }
        chart = line_chart("loss", "step", {"loss": self._curve.points})
        return section("Under way", _told(said) + f'<div class="charts">{chart}</div>')

    def _try(self, write: Callable[[], object]) -> None:
        try:
            write()
        except SingaNetError as error:
            self._failed = True
            warnings.warn(f"the page of the run: {error}", RuntimeWarning, stacklevel=2)


def follow(run_folder: str | PathLike[str], path: str | PathLike[str] | None = None) -> Path:
    """`write_report` again and again as long as a process trains in ``run_folder``.

    It comes back when that has ended; a page is loaded anew until then. An interrupt leaves a page
    that is not. Errors: those of `write_report`.
    """
    target = path_of(run_folder, "run_folder") / REPORT if path is None else path_of(path)
    try:
        while is_held(path_of(run_folder, "run_folder")):
            run = read_run(run_folder)
            if path is None:
                expect_inside(run.folder, target)
            write_page(target, page(run, section("Under way", _told({})), _SECONDS))
            time.sleep(_SECONDS)
    finally:
        write_report(run_folder, path)
    return target


def _told(said: Mapping[str, object]) -> str:
    written = time.strftime("%Y-%m-%d %H:%M:%S")
    note = f"Loaded anew every {_SECONDS} seconds; where this stays the same, the process is gone."
    return facts({**said, "page written": written}) + f"<p>{note}</p>"


_TIMES = 10.0
"""What is drawn of a run, in the largest numbers of a run in the middle."""
_MOST_ROWS = 1000
"""Settings that are shown; of strangers there may be hundreds of thousands."""


def write_comparison(
    run_folders: Iterable[str | PathLike[str]], path: str | PathLike[str] = COMPARISON
) -> Path:
    """Write one page of several run folders to ``path``, and return it.

    A chart for each measure has a line for each run, whose settings and results stand in tables;
    of more than 16 runs each 16 have charts of their own. The page is as `write_report` makes it.
    Errors: those of `read_run` for every folder; `ArgumentError` for fewer than two, or for one
    twice; `FileAccessError` where it cannot be written.
    """
    folders = paths_of(run_folders, "run_folders")
    twice = [f for k, f in enumerate(folders) if f.resolve() in {o.resolve() for o in folders[:k]}]
    if len(folders) < 2 or twice:
        raise ArgumentError(
            "comparison of runs",
            expected="two run folders or more, each once",
            received=f"{str(twice[0])!r} twice" if twice else f"{len(folders)}",
            advice="name others",
        )
    target = path_of(path)
    write_page(target, comparison([read_run(folder) for folder in folders]))
    return target


def comparison(runs: Sequence[Run]) -> str:
    """The HTML text."""
    names = names_of([run.folder for run in runs])
    return document(
        f"{len(runs)} runs",
        [
            section("Runs", _runs(names, runs)),
            *_curves_of_runs(names, runs),
            section("Settings that differ", _settings(names, runs)),
            section("Results", _results(names, runs), "no run has recorded any"),
        ],
    )


def names_of(folders: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that tell them apart."""
    parts = [folder.resolve().parts for folder in folders]
    names = list[str]()
    for own in parts:
        others = [each for each in parts if each != own]
        count = next(
            (n for n in range(1, len(own)) if all(own[-n:] != each[-n:] for each in others)),
            len(own),
        )
        names.append(str(Path(*own[-count:])))
    return names


def _runs(names: Sequence[str], runs: Sequence[Run]) -> str:
    """The legend of all charts, with how each run ended."""
    lines = "".join(
        f'<tr><td>{line_mark(k % MOST_LINES)}</td><th scope="row">{escape(name)}</th>'
        f"<td>{escape(ending(run))}</td></tr>"
        for k, (name, run) in enumerate(zip(names, runs, strict=True))
    )
    return f'<div class="scroll"><table class="facts"><tbody>{lines}</tbody></table></div>'


def _measures(runs: Sequence[Run]) -> list[str]:
    """What any of the runs has measured, in the order of the first that has."""
    return list(dict.fromkeys(name for run in runs for name in run.history))


def _curves_of_runs(names: Sequence[str], runs: Sequence[Run]) -> Iterator[str]:
    """A section of charts for every so many runs as can be told apart."""
    for start in range(0, len(runs), MOST_LINES):
        some = slice(start, start + MOST_LINES)
        own, title = names[some], "Curves"
        if len(runs) > MOST_LINES:
            title = f"Curves of {own[0]}" + (f" to {own[-1]}" if len(own) > 1 else "")
        drawn = [_chart(measure, own, runs[some]) for measure in _measures(runs[some])]
        content = f'<div class="charts">{"".join(drawn)}</div>' if drawn else ""
        yield section(title, content, "no run has recorded any epoch")


def _chart(measure: str, names: Sequence[str], runs: Sequence[Run]) -> str:
    """A line for each run; those without the measure keep their look for the other charts."""
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
    drawn = line_chart(measure, "epoch", lines, with_legend=False)
    beyond = [name for name, values in found.items() if any(abs(v) > most for v in values)]
    notes = {
        "not measured by": [name for name in names if not found[name]],
        f"beyond {most:.3g}, and not drawn there:": beyond,
    }
    said = "; ".join(f"{note} {', '.join(which)}" for note, which in notes.items() if which)
    caption = f"<figcaption>{escape(said)}</figcaption>" if said else ""
    return f"<figure>{drawn}{caption}</figure>"


def _most(lines: Iterable[Sequence[float]]) -> float:
    """The largest number to draw: beside one that has left its range the others were flat."""
    finite = [[abs(value) for value in line if math.isfinite(value)] for line in lines]
    highest = [max(line) for line in finite if line]
    return _TIMES * median_low(highest) if highest else 0.0


def _settings(names: Sequence[str], runs: Sequence[Run]) -> str:
    """A row for each setting that is not the same everywhere."""
    configs = [dict(flat(run.config, LONGEST)) for run in runs]
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
    shown = table(("setting", *names), differ[:_MOST_ROWS]) if differ else ""
    return f"{shown}<p>{escape(' '.join(filter(None, said)))}</p>"


def _shown(values: Sequence[tuple[bool, Any]]) -> list[str]:
    """The values for reading, all digits of them where fewer would not tell them apart."""
    short = [text(value) if there else "not set" for there, value in values]
    exact = [repr(value) if there else "not set" for there, value in values]
    return short if len(set(short)) == len(set(exact)) else exact


def _results(names: Sequence[str], runs: Sequence[Run]) -> str:
    """Measures at the best and the last epoch, and the figures."""
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
    return table(("", *names), rows) if rows else ""
