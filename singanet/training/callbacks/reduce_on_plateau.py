"""A learning rate that falls when learning stands still."""

from __future__ import annotations

from functools import partial

from singanet.errors import ArgumentError
from singanet.optimizer.schedules import Plateau
from singanet.training.callbacks.callback import Callback
from singanet.training.callbacks.monitor import Monitor


class ReduceOnPlateau(Callback):
    """Shows ``monitor`` to a `Plateau` schedule after every epoch.

    It stands in the optimizer, so that its state is saved with it: where the optimizer's rate is
    a number, one is made of it with the other arguments, which are those of `Plateau`.
    """

    def __init__(
        self,
        monitor: str = "auto",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        lowest: float = 0.0,
        mode: str = "auto",
        cooldown: int = 0,
        absolute: bool = False,
    ) -> None:
        self.monitor = Monitor("ReduceOnPlateau", monitor, mode)
        self._made = partial(
            Plateau,
            factor=factor,
            patience=patience,
            threshold=threshold,
            lowest=lowest,
            cooldown=cooldown,
            absolute=absolute,
        )
        # Made once to have the arguments checked now.
        self._made(1.0)

    def on_train_begin(self) -> None:
        """Put the schedule into the optimizer. Errors: its rate follows another schedule."""
        self.monitor.begin(self.session.names, self.session.compiled.metrics)
        rule = self.session.rule
        if isinstance(rule.lr, (int, float)):
            rule.lr = self._made(float(rule.lr), mode=self.monitor.direction)
        if not isinstance(rule.lr, Plateau):
            raise ArgumentError(
                "ReduceOnPlateau",
                expected="an optimizer whose lr is a number or a Plateau",
                received=f"lr={type(rule.lr).__name__}",
                advice="construct the optimizer with lr=0.1, for example",
            )
        if rule.lr.mode != self.monitor.direction:
            raise ArgumentError(
                "ReduceOnPlateau, mode",
                expected=f"{self.monitor.direction!r} of the optimizer's Plateau, by which"
                f" {self.monitor.name!r} gets better",
                received=repr(rule.lr.mode),
                advice=f"construct it with Plateau(..., mode={self.monitor.direction!r})",
            )

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        """Let the schedule see how the epoch went."""
        plateau = self.session.rule.lr
        if isinstance(plateau, Plateau):
            plateau.observe(logs[self.monitor.name])
