"""Runs logged by Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any

from singanet.base.arguments import checked_count
from singanet.base.files import path_of
from singanet.training.about import about
from singanet.training.callbacks.callback import Callback
from singanet.training.callbacks.packages import package
from singanet.training.files import check_folder


class WandB(Callback):
    """Logs to the run of Weights & Biases that is active, or to one of its own.

    That is one of ``project``, in the folder ``wandb`` of ``folder``; with ``mode`` "offline"
    nothing leaves this machine until ``wandb sync`` is called. It ends with the fit. Its
    configuration is ``settings`` and what the fit knows. A row has the measures of an epoch, with
    ``epoch`` and ``step``; with ``every_steps`` also the loss of a step, as ``step/loss``. Needs
    the package wandb: ``pip install wandb``.
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
        """Begin a run, if none is active. Errors: a folder that is not writable; wandb's own."""
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
        """Log the loss of a step where it is due."""
        step = self.session.step
        if self.every_steps is not None and step % self.every_steps == 0:
            self._run.log({"step/loss": float(logs["loss"]), "step": step})

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        """Log the measures."""
        self._run.log({"epoch": epoch, "step": self.session.step, **logs})

    def on_train_end(self) -> None:
        """End the run that was begun here, as failed where the fit ends with an error."""
        if self._own and self._run is not None:
            self._run.finish(exit_code=0 if self.session.error is None else 1)
        self._run, self._own = None, False
