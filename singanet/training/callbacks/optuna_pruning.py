"""Trials of Optuna that are given up early."""

from __future__ import annotations

from typing import Any

from singanet.errors import ArgumentError
from singanet.training.callbacks.callback import Callback
from singanet.training.callbacks.monitor import Monitor
from singanet.training.callbacks.packages import package

_WHERE = "OptunaPruning"


class OptunaPruning(Callback):
    """Reports ``monitor`` to Optuna's ``trial`` after each epoch, and ends what it would prune.

    The fit then stops as any other: files are closed, folders let go of, the best weights brought
    back. Only then `optuna.TrialPruned` is raised, by `fit`, on rank 0 of several. ``monitor``
    "auto" is ``val_loss``, or ``loss`` without validation. Needs the package optuna:
    ``pip install optuna``.
    """

    first_rank_only = True

    def __init__(self, trial: Any, monitor: str = "auto") -> None:
        self._optuna = package(_WHERE, "optuna", "optuna")
        self.trial = trial
        self.monitor = Monitor(_WHERE, monitor, self._mode())
        self._pruned: str | None = None

    def on_train_begin(self) -> None:
        """Errors: nothing of that name is measured; the study looks for the opposite."""
        session = self.session
        self._pruned = None
        self.monitor.begin(session.names)
        by_itself = Monitor(_WHERE, self.monitor.name)
        try:
            by_itself.begin(session.names, session.compiled.metrics)
        except ArgumentError:
            return  # nobody but the study knows
        if by_itself.direction != self.monitor.mode:
            better = {"min": "minimize", "max": "maximize"}
            raise ArgumentError(
                f"{_WHERE}, monitor",
                expected=f"a measure to {better[self.monitor.mode]}, as the study does",
                received=f"{self.monitor.name!r}, of which "
                + ("less" if by_itself.direction == "min" else "more")
                + " is better",
                advice=f"pass direction={better[by_itself.direction]!r} to create_study, or "
                "monitor another measure",
            )

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        """Report, and ask."""
        value = float(logs[self.monitor.name])
        self.trial.report(value, epoch)
        if self.trial.should_prune():
            self._pruned = f"pruned after epoch {epoch + 1}, at {self.monitor.name} {value:.6g}"
            self.session.stop(self._pruned)

    def on_train_end(self) -> None:
        """Errors: `optuna.TrialPruned`, which Optuna waits for, where the trial is given up."""
        if self._pruned is not None:
            raise self._optuna.TrialPruned(self._pruned)

    def _mode(self) -> str:
        """What the study looks for. Errors: several objectives, where Optuna prunes nothing."""
        directions = [each.name for each in self.trial.study.directions]
        if len(directions) != 1:
            raise ArgumentError(
                f"{_WHERE}, trial",
                expected="a trial of a study with one objective",
                received=f"one with {len(directions)}",
                advice="leave the callback out: Optuna prunes no trial of several objectives",
            )
        return "max" if directions[0] == "MAXIMIZE" else "min"
