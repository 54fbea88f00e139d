"""The page of a run while it goes on: one file that a browser loads anew every few seconds."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path

from singanet.base.files import expect_inside, path_of
from singanet.base.lock import is_held
from singanet.errors import SingaNetError
from singanet.picture.line_chart import line_chart
from singanet.report.page import page, write_report
from singanet.report.run_files import REPORT
from singanet.report.run_reader import read_run
from singanet.report.sheet import section, write_page
from singanet.report.tables import facts
from singanet.training.callbacks import Callback
from singanet.training.files import check_folder

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
