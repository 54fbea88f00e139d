"""A run as one page that needs nothing but itself."""

from __future__ import annotations

import base64
import math
from html import escape
from os import PathLike
from pathlib import Path

from singanet.base.files import expect_inside, path_of
from singanet.picture.line_chart import line_chart
from singanet.report.heat_map import heat_map
from singanet.report.run_files import REPORT
from singanet.report.run_notes import best_epoch
from singanet.report.run_reader import Run, read_run
from singanet.report.sheet import details, document, section, write_page
from singanet.report.tables import confusion_table, facts, table, text
from singanet.training.history import History

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
