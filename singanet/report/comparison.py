"""An HTML page of several runs: a table to sort, and the curves of the chosen ones."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any
from urllib.parse import quote

from singanet.base.charts import MOST_LINES, LineChart, Points, line_charts, selectable, themed
from singanet.base.files import expect_inside, is_held, path_of, paths_of
from singanet.base.progress import progress
from singanet.errors import ArgumentError, SingaNetError
from singanet.report.pages import (
    LONGEST,
    Curves,
    Red,
    RunCell,
    RunRow,
    RunTable,
    Section,
    best_row,
    document,
    duration,
    ending,
    seconds_of,
    settings,
    text,
    write_page,
    write_report,
)
from singanet.report.reading import COMPARISON, REPORT, WRITTEN, Run, is_run, read_results, runs_in
from singanet.training.callbacks.trackers import flat
from singanet.training.display import curves

Column = tuple[str, list[RunCell]]
"""The title, and a cell for each run."""

_WHERE = "report"
_CHOSEN = 8
"""The number of best runs whose curves are shown at first, if there are many runs."""
_MOST_COLUMNS, _MOST_CHARTS, _MOST_NAMES = 60, 40, 8
"""The most settings and figures, charts, and names in a note; foreign files may have more."""


def write_comparison(
    run_folders: Iterable[str | PathLike[str]] | str | PathLike[str],
    path: str | PathLike[str] | None = None,
    pages: bool = True,
) -> Path:
    """Write one page of any number of runs, and return its path.

    A table has the results and the settings that differ, with the best run marked; a click on a
    title sorts it. Each measure has a chart with the curves of the runs that are checked in the
    table. A run with a damaged file has a row with the error. The page loads nothing, and runs one
    script, its own. Errors: `ArgumentError` for no folder or a repeated one; `FileAccessError` for
    a folder without runs, or if the page cannot be written; `BackendError` without the extra
    ``report``.

    Args:
        run_folders: Paths of run folders, or of folders of run folders at any depth.
        path: Path of the page, a .html file; None for ``comparison.html`` in a single folder of
            runs, otherwise in the current one.
        pages: Whether every run gets the page of `write_report` too, unless it has one that is
            newer than its files. Its name in the table is a link.
    """
    given = paths_of(run_folders, "run_folders")
    folders = [run for folder in given for run in runs_in(folder)]
    times = Counter(folder.resolve() for folder in folders)
    twice = [folder for folder in folders if times[folder.resolve()] > 1]
    if not folders or twice:
        raise ArgumentError(
            "comparison of runs",
            expected="run folders, or folders of them, each once",
            received=f"{str(twice[0])!r} twice" if twice else "none",
            advice="pass other folders",
        )
    target = path_of(COMPARISON if path is None else path)
    if path is None and len(given) == 1 and not is_run(given[0]):
        target = given[0] / COMPARISON
        expect_inside(given[0], target)
    read = [_read(folder) for folder in folders]
    late = [run.folder for run, _ in read if pages and _needs_page(run.folder)]
    links = {folder for folder in folders if folder in late or (folder / REPORT).is_file()}

    def write() -> None:
        write_page(target, comparison(read, {each: _address(each, target) for each in links}))

    write()
    failed = set()
    for folder in progress(late, "pages of runs"):
        try:
            write_report(folder)
        except SingaNetError:
            failed.add(folder)
    if failed:
        links -= failed
        write()
    return target


def _read(folder: Path) -> tuple[Run, str]:
    """Return the run, and how it ended; an empty run and the error if a file is damaged."""
    try:
        run = read_results(folder)
    except SingaNetError as error:
        return Run(folder), Red(error)
    return run, ending(run)


def _needs_page(folder: Path) -> bool:
    """Return whether a run has no page, or an older one than its files."""
    page = folder / REPORT
    if not page.is_file():
        return os.access(folder, os.W_OK)
    files = [folder / name for name in WRITTEN if (folder / name).is_file()]
    old = page.stat().st_mtime < max(file.stat().st_mtime for file in files)
    # A training may update its page itself.
    return old and os.access(folder, os.W_OK) and not is_held(folder)


def _address(folder: Path, target: Path) -> str:
    """Return the relative address of a run's page for a link in ``target``."""
    page = (folder / REPORT).resolve()
    try:
        relative = os.path.relpath(page, target.resolve().parent)
    except ValueError:  # on another drive
        return page.as_uri()
    return quote(Path(relative).as_posix())


def comparison(read: Sequence[tuple[Run, str]], links: Mapping[Path, str]) -> str:
    """Return the HTML text of the runs and their ends; ``links`` are addresses of pages."""
    runs = [run for run, _ in read]
    names = names_of([run.folder for run in runs])
    aim, less = _aim(runs)
    scores = [None if less is None else _score(run, aim, less) for run in runs]
    order = sorted(range(len(runs)), key=lambda k: _rank(scores[k], bool(less)))
    most = _CHOSEN if len(runs) > MOST_LINES else MOST_LINES
    chosen = [k for k in order if runs[k].history][:most]
    slots = {run: slot for slot, run in enumerate(chosen)}
    measures = sorted(_measures(runs), key=lambda name: name != aim)
    differ, said = _settings(names, runs)
    columns = [
        ("ended", [RunCell(end) for _, end in read]),
        *_results(runs, measures, aim),
        *differ,
        *_circumstances(runs),
    ]
    columns = [column for column in columns if any(cell.text != "–" for cell in column[1])]
    titles = ["run", *(title for title, _ in columns)]
    rows = [
        RunRow(
            k,
            names[k],
            links.get(runs[k].folder, ""),
            slots.get(k),
            len(runs) > 1 and k == order[0] and scores[k] is not None,
            [cells[k] for _, cells in columns],
        )
        for k in order
    ]
    by = "" if less is None else f"{aim}, best epoch"
    way = "ascending" if less else "descending"
    if any(row.best for row in rows):
        said = f"★ is the best run by {aim}. {said}"
    points = [
        {name: line for chart in curves(run.history) for name, line in chart.lines.items()}
        for run in runs
    ]
    drawn = [_chart(measure, names, points, slots) for measure in measures[:_MOST_CHARTS]]
    return document(
        f"{len(runs):,} runs" if len(runs) > 1 else "1 run",
        [
            Section("Runs", [RunTable(titles, rows, by, way), said]),
            Section("Curves", [drawn] if drawn else [], "no run has recorded any epoch"),
        ],
        script=Path(__file__).with_name("comparison.js").read_text("utf-8"),
    )


def names_of(folders: Iterable[Path]) -> list[str]:
    """Return the paths without their common parent."""
    whole = [folder.resolve() for folder in folders]
    above = os.path.commonpath([folder.parent for folder in whole])
    return [str(folder.relative_to(above)) for folder in whole]


def _measures(runs: Sequence[Run]) -> list[str]:
    """Return the names of all measures, in the order of their first run."""
    return list(dict.fromkeys(name for run in runs for name in run.history))


def _aim(runs: Sequence[Run]) -> tuple[str, bool | None]:
    """Return the measure by which most runs have a best epoch, and whether less is better.

    The latter is None if no run tells: an older one does by the value of its best epoch.
    """
    found = [(run, *row) for run in runs if (row := best_row(run)) is not None]
    if not found:
        return "", None
    aim = Counter(name for _, name, _ in found).most_common(1)[0][0]
    votes = 0
    for run, name, k in found:
        if name != aim:
            continue
        better = run.outcome.get("better")
        if better not in ("min", "max"):
            better = "min" if name == "loss" or name.endswith("_loss") else None
        if better is None:
            values = [value for value in run.history[name] if math.isfinite(value)]
            below = sum(value < run.history[name][k] for value in values)
            above = sum(value > run.history[name][k] for value in values)
            votes += (above > below) - (above < below)
        else:
            votes += 1 if better == "min" else -1
    return aim, None if votes == 0 else votes > 0


def _score(run: Run, aim: str, less: bool) -> float | None:
    """Return the best value of ``aim``; None if the run has none."""
    finite = [value for value in run.history.get(aim, ()) if math.isfinite(value)]
    if not finite:
        return None
    row = best_row(run)
    value = math.nan if row is None or row[0] != aim else run.history[aim][row[1]]
    return value if math.isfinite(value) else (min if less else max)(finite)


def _rank(score: float | None, less: bool) -> tuple[bool, float]:
    return score is None, 0.0 if score is None else score if less else -score


def _cell(value: Any) -> RunCell:
    """Return a cell of at most `LONGEST` characters, sorted by all digits of a number."""
    said = text(value)
    said = said if len(said) <= LONGEST else f"{said[:LONGEST]}…"
    return RunCell(said, value if isinstance(value, float) and math.isfinite(value) else "")


def _results(runs: Sequence[Run], measures: Sequence[str], aim: str) -> list[Column]:
    """Return the measures at the best and the last epoch, and the figures."""
    best = [best_row(run) for run in runs]
    columns = [("best epoch", [_epoch(run, row, aim) for run, row in zip(runs, best, strict=True)])]
    for measure in measures[:_MOST_COLUMNS]:
        at_best = [_at(run, measure, row and row[1]) for run, row in zip(runs, best, strict=True)]
        at_last = [_at(run, measure, len(run.history.epochs) - 1) for run in runs]
        columns += [(f"{measure}, best epoch", at_best), (f"{measure}, last epoch", at_last)]
    figures = [dict(flat(run.figures, LONGEST)) for run in runs]
    known = dict.fromkeys(name for each in figures for name in each)
    for name in list(known)[:_MOST_COLUMNS]:
        columns.append((name, [_cell(each.get(name)) for each in figures]))
    return columns


def _epoch(run: Run, row: tuple[str, int] | None, aim: str) -> RunCell:
    """Return the number of the best epoch, with its measure if most runs have another."""
    if row is None:
        return _cell(None)
    number = run.history.epochs[row[1]] + 1
    return RunCell(f"{number:,}" if row[0] == aim else f"{number:,}, by {row[0]}"[:LONGEST], number)


def _at(run: Run, measure: str, index: int | None) -> RunCell:
    """Return the value of an epoch; empty if it was not measured or there is no epoch."""
    if index is None or measure not in run.history or (measure, index) in run.history._absent:
        return _cell(None)
    return _cell(run.history[measure][index])


def _settings(names: Sequence[str], runs: Sequence[Run]) -> tuple[list[Column], str]:
    """Return the settings that differ between runs, and a sentence about the others."""
    configs = [dict(flat(settings(run.config), LONGEST)) for run in runs]
    known = list(dict.fromkeys(name for config in configs for name in config))
    columns = {name: _shown(name, configs) for name in known}
    none = {k for k, config in enumerate(configs) if not config}
    differ = [
        (name, cells)
        for name, cells in columns.items()
        if len({cell for k, cell in enumerate(cells) if k not in none}) > 1
    ]
    same = len(known) - len(differ)
    others = "1 other setting is" if same == 1 else f"{same:,} other settings are"
    said = [f"{others} the same."]
    if not differ:
        said = [f"All {same:,} settings are the same." if known else "No settings were recorded."]
    if none and known:
        said.append(f"No settings were recorded by {_list([names[k] for k in sorted(none)])}.")
    if len(differ) > _MOST_COLUMNS:
        said.append(f"The first {_MOST_COLUMNS} of {len(differ):,} that differ are shown.")
    return differ[:_MOST_COLUMNS], " ".join(filter(None, said))


def _shown(name: str, configs: Sequence[Mapping[str, Any]]) -> list[RunCell]:
    """Format a setting for reading, with all digits if fewer do not distinguish its values."""
    short, exact = [], []
    for config in configs:
        none = "not set" if config else "–"
        short.append(_cell(config[name]) if name in config else RunCell(none))
        exact.append(repr(config[name]) if name in config else none)
    enough = len({cell.text for cell in short}) == len({*exact})
    return short if enough else [RunCell(each[:LONGEST]) for each in exact]


def _circumstances(runs: Sequence[Run]) -> list[Column]:
    """Return date and duration of the runs, and the machines if these differ."""
    columns = [
        ("started", [_cell(run.machine.get("started")) for run in runs]),
        ("duration", [_duration(seconds_of(run)) for run in runs]),
    ]
    machines = [_cell(run.machine.get("machine")) for run in runs]
    return [*columns, ("machine", machines)] if len({*machines}) > 1 else columns


def _duration(seconds: Any) -> RunCell:
    return RunCell(duration(seconds), "" if seconds is None else seconds)


def _chart(
    measure: str,
    names: Sequence[str],
    points: Sequence[Mapping[str, Points]],
    slots: Mapping[int, int],
) -> Curves:
    """Draw the curves of a measure from the ``points`` of each run by measure.

    The page shows the ones in ``slots`` at first.
    """
    lines = {str(k): each[measure] for k, each in enumerate(points) if measure in each}
    chart = LineChart(measure, "epoch", lines, legend=False)
    svg = selectable(themed(line_charts(_WHERE, [chart])), slots)
    missing = [n for n, each in zip(names, points, strict=True) if each and measure not in each]
    return Curves(measure, svg, f"not measured by {_list(missing)}" if missing else "")


def _list(names: Sequence[str]) -> str:
    """Join at most `_MOST_NAMES` names, with the number of the others."""
    more = len(names) - _MOST_NAMES
    said = ", ".join(names[:_MOST_NAMES])
    return said if more <= 0 else f"{said} and {more:,} more"
