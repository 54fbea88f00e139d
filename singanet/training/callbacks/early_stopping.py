"""An end before the last epoch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from singanet.base.arguments import checked_count
from singanet.params.files import keep_params, put_params
from singanet.training.arrays import saved_parameters
from singanet.training.callbacks.callback import Callback
from singanet.training.callbacks.monitor import Monitor
from singanet.types import Array


class EarlyStopping(Callback):
    """Stops when ``monitor`` has not become better for ``patience`` epochs, as Keras' does.

    ``restore_best`` brings back, when the fit ends without an error, the parameters and running
    state of the best epoch, ``best_epoch``. Costs one copy of all parameters. ``monitor``,
    ``mode`` and ``min_delta`` are those of `Monitor`. They come after the averages of an `EMA`,
    which stay in its ``averages``.
    """

    def __init__(
        self,
        monitor: str = "auto",
        patience: int = 5,
        min_delta: float = 0.0,
        mode: str = "auto",
        restore_best: bool = True,
    ) -> None:
        self.monitor = Monitor("EarlyStopping", monitor, mode, min_delta)
        self.patience = checked_count("EarlyStopping", "patience", patience, 0)
        self.restore_best = bool(restore_best)
        self.best_epoch = -1
        self._waited = 0
        self._kept: dict[str, Array] = {}

    def on_train_begin(self) -> None:
        """Forget an earlier fit. Errors: nothing of that name is measured."""
        self.monitor.begin(self.session.names, self.session.compiled.metrics)
        self.best_epoch, self._waited, self._kept = -1, 0, {}

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        """Compare, keep or count."""
        if self.monitor.better(logs[self.monitor.name]):
            self.best_epoch, self._waited = epoch, 0
            if self.restore_best:
                self._keep()
            return
        self._waited += 1
        if self._waited >= self.patience:
            self.session.stop(
                f"{self.monitor.name} has not improved on {self.monitor.best:.6g}, "
                f"of epoch {self.best_epoch + 1}, for {self._waited} epochs"
            )

    def on_train_end(self) -> None:
        """Bring the best parameters back."""
        if self._kept and self.session.error is None:
            params, put = self.session.params(), self.session.net.device.put
            put_params(params, self._kept, put, "EarlyStopping")
        self._kept = {}

    def _keep(self) -> None:
        keep_params(self.session.params(), self._kept)

    def state_dict(self) -> dict[str, Array]:
        """The best so far with its parameters, and how long it has stood."""
        numbers = {
            "best": np.array(self.monitor.best, np.float64),
            "best_epoch": np.array(self.best_epoch, np.int64),
            "waited": np.array(self._waited, np.int64),
        }
        return {**numbers, **{f"kept/{name}": array for name, array in self._kept.items()}}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Go on from there."""
        kept = {key[5:]: array for key, array in state.items() if key.startswith("kept/")}
        if kept:
            changing = [param for param in self.session.params() if not param.is_constant]
            kept = saved_parameters(changing, self.session.net.device, kept, "EarlyStopping")
        self.monitor.best = float(state["best"])
        self.best_epoch, self._waited = int(state["best_epoch"]), int(state["waited"])
        self._kept = kept
