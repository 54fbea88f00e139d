"""Callbacks for experiment trackers."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Iterator, Mapping
from os import PathLike
from typing import Any

from singanet.base.arguments import checked_count
from singanet.base.described import Configurable
from singanet.base.extras import package
from singanet.base.files import path_of
from singanet.base.version import VERSION
from singanet.errors import ArgumentError, BackendError, ConfigError
from singanet.training.callbacks.callback import Callback
from singanet.training.callbacks.stopping import Monitor
from singanet.training.files import check_folder
from singanet.training.session import Session

_WHERE = "OptunaPruning"


class OptunaPruning(Callback):
    """Reports a measure to Optuna after each epoch, and ends pruned trials.

    The fit then stops as usual: files are closed, folders unlocked, the best weights restored.
    After that `fit` raises `optuna.TrialPruned`, on rank 0 if there are several. Needs the package
    optuna: ``pip install optuna``.

    Args:
        trial: An `optuna.Trial` of a study with one objective, whose direction is the measure's.
        monitor: Name of the measure, such as "val_loss"; "auto" for ``val_loss``, or ``loss``
            without validation.

    Examples:
        >>> net = singanet.FeedForwardNet([singanet.layers.Dense("out", 2)], seed=0)
        >>> net.compile("sgd", "mse")
        >>> def objective(trial):
        ...     pruning = singanet.training.callbacks.OptunaPruning(trial, "loss")
        ...     return net.fit(np.eye(2), np.eye(2), callbacks=[pruning], verbose=False)["loss"][-1]
        >>> optuna.create_study().optimize(objective, n_trials=20)  # doctest: +SKIP
    """

    first_rank_only = True

    def __init__(self, trial: Any, monitor: str = "auto") -> None:
        self._optuna = package(_WHERE, "optuna", "optuna")
        self.trial = trial
        self.monitor = Monitor(_WHERE, monitor, self._mode())
        self._pruned: str | None = None

    def on_train_begin(self) -> None:
        """Check the monitor. Errors: an unknown measure; the study's direction is the opposite."""
        session = self.session
        self._pruned = None
        self.monitor.begin(session.names, added=session.adds)
        by_itself = Monitor(_WHERE, self.monitor.name)
        try:
            by_itself.begin(session.names, session.compiled.metrics, session.adds)
        except ArgumentError:
            return  # only the study defines a direction
        if by_itself.direction != self.monitor.mode:
            better = {"min": "minimize", "max": "maximize"}
            raise ArgumentError(
                f"{_WHERE}, monitor",
                expected=f"a measure to {better[self.monitor.mode]}, as the study does",
                received=f"{self.monitor.name!r}: "
                + ("less" if by_itself.direction == "min" else "more")
                + " is better",
                advice=f"pass direction={better[by_itself.direction]!r} to create_study, or "
                "monitor another measure",
            )

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        """Report the value, and stop if Optuna prunes the trial."""
        value = float(self.monitor.value(logs))
        self.trial.report(value, epoch)
        if self.trial.should_prune():
            self._pruned = f"pruned after epoch {epoch + 1}, at {self.monitor.name} {value:.6g}"
            self.session.stop(self._pruned)

    def on_train_end(self) -> None:
        """Raise `optuna.TrialPruned` if the trial was pruned."""
        if self._pruned is not None:
            raise self._optuna.TrialPruned(self._pruned)

    def _mode(self) -> str:
        """Return the study's direction. Errors: several objectives, which Optuna never prunes."""
        directions = [each.name for each in self.trial.study.directions]
        if len(directions) != 1:
            raise ArgumentError(
                f"{_WHERE}, trial",
                expected="a trial of a study with one objective",
                received=f"a study with {len(directions)} objectives",
                advice="omit the callback: Optuna does not prune trials of several objectives",
            )
        return "max" if directions[0] == "MAXIMIZE" else "min"


_WRITERS = (
    ("tensorboardX", "SummaryWriter"),
    ("tensorboard.summary", "Writer"),
)


class TensorBoard(Callback):
    """Writes every measure of an epoch as a scalar, at the epoch's number.

    Needs the package tensorboardX or tensorboard: ``pip install tensorboardX``.

    Args:
        folder: Path of the folder with the event files.
        every_steps: Positive int, the steps between two losses of a step, ``step/loss``; None for
            none.

    Examples:
        >>> net = singanet.FeedForwardNet([singanet.layers.Dense("out", 2)], seed=0)
        >>> net.compile("sgd", "mse")
        >>> board = singanet.training.callbacks.TensorBoard("runs/first")
        >>> net.fit(np.eye(2), np.eye(2), callbacks=[board])  # doctest: +SKIP
    """

    first_rank_only = True

    def __init__(self, folder: str | PathLike[str], every_steps: int | None = None) -> None:
        self.folder = path_of(folder, "folder")
        self.every_steps = (
            None
            if every_steps is None
            else checked_count("TensorBoard", "every_steps", every_steps, 1)
        )
        self._writer: Any = None

    def on_train_begin(self) -> None:
        """Start an event file. Errors: neither package is installed; the folder is not writable."""
        kind = _writer_class()
        check_folder(self.folder)
        self._writer = kind(str(self.folder))

    def on_batch_end(self, batch: int, logs: Mapping[str, float]) -> None:
        """Write the loss of a step if it is due."""
        if self.every_steps is not None and self.session.step % self.every_steps == 0:
            self._writer.add_scalar("step/loss", logs["loss"], self.session.step)

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        """Write the scalars."""
        for name, value in logs.items():
            self._writer.add_scalar(name, value, epoch)
        self._writer.flush()

    def on_train_end(self) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()
        self._writer = None


def _writer_class() -> Any:
    missing = []
    for module, name in _WRITERS:
        try:
            return getattr(importlib.import_module(module), name)
        except ImportError as error:
            missing.append(str(error))
    raise BackendError(
        "TensorBoard",
        expected="the package tensorboardX or tensorboard",
        received="; ".join(missing),
        advice="run: pip install tensorboardX",
    )


def about(session: Session, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the fit as JSON types, overridden by ``settings``.

    Optimizer and loss are in the form of their `to_config`. Values of other types become their
    `str`.
    """
    rate = session.rule.learning_rate
    known = {
        "singanet": VERSION,
        "epochs": session.epochs,
        "optimizer": _described(session.optimizer),
        "learning_rate": rate if isinstance(rate, (int, float)) else _described(rate),
        "loss": _described(session.net.loss),
        "seed": session.net.seed,
        "mixed_precision": _described(session.compiled.precision),
        "type": str(session.net.dtype),
        "device": session.net.device.name,
    }
    made: dict[str, Any] = as_json(known | dict(settings))
    return made


def as_json(value: Any) -> Any:
    """Return ``value`` in JSON types; floats that are not finite as text."""
    if isinstance(value, Mapping):
        return {str(key): as_json(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def flat(values: Mapping[str, Any], longest: int, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield names and values; nested objects get dotted names of at most ``longest`` characters."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, longest, f"{prefix}{name}."[:longest])
        else:
            yield f"{prefix}{name}"[:longest], value


def _described(thing: Any) -> Any:
    """Return the config of ``thing`` if it is data, or else its class."""
    if not isinstance(thing, Configurable):
        return None if thing is None else type(thing).__name__
    try:
        return thing.to_config()
    except ConfigError:
        return {"class": type(thing).__name__, "arguments": thing.arguments}


_LONGEST_NAME, _LONGEST_VALUE = 250, 500
"""The longest names and values that all of MLflow's stores accept."""


class MLflow(Callback):
    """Logs to the active MLflow run, or to a new run that ends with the fit.

    Parameters are ``settings`` and the settings of the fit, unless the run has them already.
    Metrics are an epoch's measures at its number. `mlflow.set_tracking_uri` and
    `mlflow.set_experiment` select the store. ``run_id`` is the run's. Needs the package mlflow:
    ``pip install mlflow-skinny``, and sqlalchemy and alembic for runs in a local file.

    Args:
        settings: Dict of further parameters of the run, which override the fit's settings of the
            same name; None for none.
        every_steps: Positive int, the steps between two losses of a step, ``step/loss``; None for
            none.

    Examples:
        >>> net = singanet.FeedForwardNet([singanet.layers.Dense("out", 2)], seed=0)
        >>> net.compile("sgd", "mse")
        >>> log = singanet.training.callbacks.MLflow({"dataset": "eye"})  # doctest: +SKIP
        >>> net.fit(np.eye(2), np.eye(2), callbacks=[log])  # doctest: +SKIP
    """

    first_rank_only = True

    def __init__(
        self, settings: Mapping[str, Any] | None = None, every_steps: int | None = None
    ) -> None:
        self.settings = dict(settings or {})
        self.every_steps = (
            None if every_steps is None else checked_count("MLflow", "every_steps", every_steps, 1)
        )
        self.run_id: str | None = None
        self._mlflow = package("MLflow", "mlflow", "mlflow-skinny")
        self._own = False

    def on_train_begin(self) -> None:
        """Start a run, if none is active, and log the parameters. Errors: MLflow's own."""
        active = self._mlflow.active_run()
        self._own = active is None
        run = self._mlflow.start_run() if active is None else active
        self.run_id = run.info.run_id
        # Parameters of a run never change: a second fit only adds new ones.
        known = self._mlflow.get_run(self.run_id).data.params
        given = flat(about(self.session, self.settings), _LONGEST_NAME)
        new = {_named(name): str(value)[:_LONGEST_VALUE] for name, value in given}
        new = {name: value for name, value in new.items() if name not in known}
        self._mlflow.log_params(new, run_id=self.run_id)

    def on_batch_end(self, batch: int, logs: Mapping[str, float]) -> None:
        """Log the loss of a step if it is due."""
        step = self.session.step
        if self.every_steps is not None and step % self.every_steps == 0:
            self._mlflow.log_metrics({"step/loss": logs["loss"]}, step=step, run_id=self.run_id)

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        """Log the measures."""
        values = {_named(name): float(value) for name, value in logs.items()}
        self._mlflow.log_metrics(values, step=epoch, run_id=self.run_id)

    def on_train_end(self) -> None:
        """End a run that this callback started: finished, failed, or killed by an interrupt."""
        if self._own:
            self._own = False
            error = self.session.error
            failed = "FAILED" if isinstance(error, Exception) else "KILLED"
            self._mlflow.end_run("FINISHED" if error is None else failed)


def _named(name: str) -> str:
    """Return ``name`` in the characters that MLflow accepts."""
    return re.sub(r"[^\w./ -]", "_", name)[:_LONGEST_NAME]


class WandB(Callback):
    """Logs to the active run of Weights & Biases, or to a new run that ends with the fit.

    A row has the measures of an epoch, with ``epoch`` and ``step``. Needs the package wandb: ``pip
    install wandb``.

    Args:
        project: Name of the project of a new run; None for wandb's default.
        folder: Path of the folder in which a new run writes its folder ``wandb``; None for wandb's
            default.
        mode: "online", "offline" or "disabled", as in `wandb.init`; with "offline" nothing leaves
            this machine until ``wandb sync`` is called. None for wandb's default.
        settings: Dict of further settings in the run's configuration, which override the fit's
            settings of the same name; None for none.
        every_steps: Positive int, the steps between two losses of a step, ``step/loss``; None for
            none.

    Examples:
        >>> net = singanet.FeedForwardNet([singanet.layers.Dense("out", 2)], seed=0)
        >>> net.compile("sgd", "mse")
        >>> log = singanet.training.callbacks.WandB("tests", mode="offline")  # doctest: +SKIP
        >>> net.fit(np.eye(2), np.eye(2), callbacks=[log])  # doctest: +SKIP
    """

    first_rank_only = True

    def __init__(
        self,
        project: str | None = None,
        folder: str | PathLike[str] | None = None,
        mode: str | None = None,
        settings: Mapping[str, Any] | None = None,
        every_steps: int | None = None,
    ) -> None:
        self.project = project
        self.folder = None if folder is None else path_of(folder, "folder")
        self.mode = mode
        self.settings = dict(settings or {})
        self.every_steps = (
            None if every_steps is None else checked_count("WandB", "every_steps", every_steps, 1)
        )
        self._wandb = package("WandB", "wandb", "wandb")
        self._run: Any = None
        self._own = False

    def on_train_begin(self) -> None:
        """Start a run, if none is active. Errors: a folder that is not writable; wandb's own."""
        known = about(self.session, self.settings)
        self._own = self._wandb.run is None
        if not self._own:
            self._run = self._wandb.run
            self._run.config.update(known, allow_val_change=True)
            return
        if self.folder is not None:
            check_folder(self.folder)
        place = None if self.folder is None else str(self.folder)
        self._run = self._wandb.init(project=self.project, dir=place, mode=self.mode, config=known)

    def on_batch_end(self, batch: int, logs: Mapping[str, float]) -> None:
        """Log the loss of a step if it is due."""
        step = self.session.step
        if self.every_steps is not None and step % self.every_steps == 0:
            self._run.log({"step/loss": float(logs["loss"]), "step": step})

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        """Log the measures."""
        self._run.log({"epoch": epoch, "step": self.session.step, **logs})

    def on_train_end(self) -> None:
        """End a run that this callback started, as failed if the fit ends with an error."""
        if self._own and self._run is not None:
            self._run.finish(exit_code=0 if self.session.error is None else 1)
        self._run, self._own = None, False
