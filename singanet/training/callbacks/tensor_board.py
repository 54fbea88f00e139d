"""Event files for TensorBoard."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from os import PathLike
from typing import Any

from singanet.base.arguments import checked_count
from singanet.base.files import path_of
from singanet.errors import BackendError
from singanet.training.callbacks.callback import Callback
from singanet.training.files import check_folder

_WRITERS = (
    ("tensorboardX", "SummaryWriter"),
    ("tensorboard.summary", "Writer"),
)


class TensorBoard(Callback):
    """Writes every measure of an epoch as a scalar under ``folder``, at the epoch's number.

    With ``every_steps`` the loss of a step as well, as ``step/loss``. Needs the package
    tensorboardX or tensorboard: ``pip install tensorboardX``.
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
        """Begin an event file. Errors: neither package is there; the folder is not writable."""
        kind = _writer_class()
        check_folder(self.folder)
        self._writer = kind(str(self.folder))

    def on_batch_end(self, batch: int, logs: Mapping[str, float]) -> None:
        """Write the loss of a step where it is due."""
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
