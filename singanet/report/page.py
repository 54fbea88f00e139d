"""A run as one page that needs nothing but itself."""

from __future__ import annotations

import base64
import math
from html import escape
from os import PathLike
from pathlib import Path

from singanet.base.files import expect_inside, replacing
from singanet.picture.line_chart import LIGHT, RULES, line_chart
from singanet.report.heat_map import heat_map
from singanet.report.run_files import REPORT
from singanet.report.run_notes import best_epoch
from singanet.report.run_reader import Run, read_run
from singanet.report.tables import confusion_table, facts, table, text
from singanet.training.history import History

_MB = 10**6
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def write_report(run_folder: str | PathLike[str], path: str | PathLike[str] | None = None) -> Path:
    """Write the page of a run folder and return its path, ``report.html`` in it by default.

    Shows what `recorders` wrote, as far as it is there, in light or dark as the reader prefers.
    The page loads nothing, runs nothing, and forbids both. Errors: those of `read_run`;
    `FileAccessError` where it cannot be written.
    """
    run = read_run(run_folder)
    target = Path(path or Path(run_folder) / REPORT)
    if path is None:
        expect_inside(run.folder, target)
    with replacing(target) as beside:
        # A JSON text may hold halves of pairs, which UTF-8 does not.
        beside.write_bytes(page(run).encode("utf-8", errors="replace"))
    return target


def page(run: Run) -> str:
    """The HTML text."""
    title = escape(run.folder.resolve().name or str(run.folder))
    sections = [
        _section("Result", _result(run)),
        # Of language models alone.
        *([_section("Samples", facts(run.samples))] if run.samples else []),
        _section("Curves", _curves(run.history)),
        _section("Gradient norms by parameter", _gradients(run)),
        _section("Memory", _memory(run)),
        _section(
            "Confusion matrix",
            confusion_table(run.labels, run.confusion) if run.confusion else "",
        ),
        _section("Net", _net(run)),
        _section("Configuration", facts(run.config) if run.config else ""),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>Run {title}</title><style>{STYLE}</style></head>\n"
        f"<body><main><h1>Run {title}</h1>\n" + "\n".join(sections) + "\n</main></body></html>\n"
    )


def _section(title: str, content: str) -> str:
    return (
        f"<section><h2>{escape(title)}</h2>"
        f"{content or '<p class=none>not recorded in this run</p>'}</section>"
    )


def _result(run: Run) -> str:
    """The figures, how it ended, the best epoch and the last."""
    history = run.history
    parts = [facts(run.figures)] if run.figures else []
    if history:
        found = run.outcome if run.outcome.get("monitor") else best_epoch(history)
        at = {epoch: k for k, epoch in enumerate(history.epochs)}
        rows = {"last": len(history.epochs) - 1}
        if found.get("best_epoch") in at:
            rows = {f"best by {found['monitor']}": at[found["best_epoch"]], **rows}
        lines = [
            (what, f"{history.epochs[k] + 1:,}", *map(text, history.row(k).values()))
            for what, k in rows.items()
        ]
        parts += [f"<p>{escape(_ending(run))}</p>", table(("", "epoch", *history), lines)]
    return "".join(parts)


def _ending(run: Run) -> str:
    done, outcome = len(run.history.epochs), run.outcome
    if not outcome:
        return f"{done:,} epochs; the training is under way, or was killed"
    why = outcome.get("error") or outcome.get("stopped")
    if why is None:
        return f"{done:,} epochs, as asked for"
    said = "ended with an error" if outcome.get("error") else "stopped"
    return f"{done:,} epochs of {text(outcome.get('of'))}; {said}: {why}"[:600]


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
    return f'<div class="charts">{drawn}</div>{_details("numbers", numbers)}'


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
        f'<div class="scroll">{drawn}</div>{_details("numbers", numbers)}'
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
        parts.append(_details("picture", f'<div class="scroll">{image}</div>'))
    return "".join(parts)


def _details(title: str, content: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


# Text has a contrast of 7 : 1 or more against its ground in both schemes, lines of 3 : 1 or more;
# lines differ in dashes and cells have numbers or names, so that nothing rests on hue.
_COLOURS = f":root{{color-scheme:light dark;{LIGHT}}}"
_SHEET = """
@media (prefers-color-scheme:dark){:root{--page:#11161c;--card:#1a2129;--ink:#eef2f6;
--faint:#b9c4ce;--rule:#39444f;--s0:#6db8f7;--s1:#f5a368;--s2:#6fd09b;--s3:#cfa3f2;--bad:#ff8a7d}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:1080px;margin:0 auto;padding:24px}
h1{font-size:1.6em;margin:.2em 0}h2{font-size:1.2em;margin:0 0 .6em}
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
p{margin:.3em 0}p.none,summary,caption{color:var(--faint)}caption{text-align:left}
details{margin-top:10px}summary{cursor:pointer}
img{max-width:100%;border-radius:6px}
"""
STYLE = _COLOURS + _SHEET + RULES
