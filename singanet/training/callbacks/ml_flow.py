"""Runs logged by MLflow."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from singanet.base.arguments import checked_count
from singanet.training.about import about, flat
from singanet.training.callbacks.callback import Callback
from singanet.training.callbacks.packages import package

_LONGEST_NAME, _LONGEST_VALUE = 250, 500
"""What each of MLflow's stores takes."""


class MLflow(Callback):
    """Logs to the MLflow run that is active, or to one of its own that ends with the fit.

    Parameters are ``settings`` and what the fit knows, as far as the run has not got them;
    metrics are an epoch's measures at its number, and with ``every_steps`` the loss of a step as
    ``step/loss``. Where that goes, `mlflow.set_tracking_uri` and `mlflow.set_experiment` say.
    ``run_id`` is the run's. Needs the package mlflow: ``pip install mlflow-skinny``, and
    sqlalchemy and alembic for runs in a local file.
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
        """Begin a run, if none is active, and log the parameters. Errors: MLflow's own."""
        active = self._mlflow.active_run()
        self._own = active is None
        run = self._mlflow.start_run() if active is None else active
        self.run_id = run.info.run_id
        # A parameter of a run never changes: a second fit in it adds what is new.
        known = self._mlflow.get_run(self.run_id).data.params
        given = flat(about(self.session, self.settings), _LONGEST_NAME)
        new = {_named(name): str(value)[:_LONGEST_VALUE] for name, value in given}
        new = {name: value for name, value in new.items() if name not in known}
        self._mlflow.log_params(new, run_id=self.run_id)

    def on_batch_end(self, batch: int, logs: Mapping[str, float]) -> None:
        """Log the loss of a step where it is due."""
        step = self.session.step
        if self.every_steps is not None and step % self.every_steps == 0:
            self._mlflow.log_metrics({"step/loss": logs["loss"]}, step=step, run_id=self.run_id)

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        """Log the measures."""
        values = {_named(name): float(value) for name, value in logs.items()}
        self._mlflow.log_metrics(values, step=epoch, run_id=self.run_id)

    def on_train_end(self) -> None:
        """End the run that was begun here: finished, failed, or killed by an interrupt."""
        if self._own:
            self._own = False
            error = self.session.error
            failed = "FAILED" if isinstance(error, Exception) else "KILLED"
            self._mlflow.end_run("FINISHED" if error is None else failed)


def _named(name: str) -> str:
    """``name`` in characters that MLflow takes."""
    return re.sub(r"[^\w./ -]", "_", name)[:_LONGEST_NAME]
