"""Several runs on one page: their curves laid over each other, and what differs between them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from os import PathLike
from pathlib import Path
from statistics import median_low
from typing import Any

from singanet.base.files import path_of, paths_of
from singanet.errors import ArgumentError
from singanet.picture.line_chart import MOST_LINES, line_chart, line_mark
from singanet.report.page import best_row, ending
from singanet.report.run_files import COMPARISON
from singanet.report.run_reader import Run, read_run
from singanet.report.sheet import document, section, write_page
from singanet.report.tables import LONGEST, table, text
from singanet.training.about import flat

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
            *_curves(names, runs),
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


def _curves(names: Sequence[str], runs: Sequence[Run]) -> Iterator[str]:
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
