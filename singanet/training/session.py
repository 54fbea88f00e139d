"""A fit under way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from singanet.net import FeedForwardNet
from singanet.optimizer import Optimizer, Wrapper
from singanet.training.batches import Batches
from singanet.training.compiled import Compiled
from singanet.training.history import History
from singanet.training.measures import Measures
from singanet.training.steps import stepper

if TYPE_CHECKING:
    from singanet.training.callbacks import Callback
    from singanet.types import Array


class StopTraining(Exception):  # noqa: N818 - no error: a callback's way to end a fit at once
    """Raised by a callback to end the fit now, within a step if need be, without an error."""


class Session:
    """What callbacks see of a fit, and what a training checkpoint is made of.

    ``epoch`` of ``epochs`` and ``batch`` count from 0 and name what is in work; once a step is
    done they name the next. ``step`` counts the steps of the whole training, ``inputs`` is the x
    of the one in work. ``names`` are those that an epoch's logs will have.
    """

    def __init__(
        self,
        net: FeedForwardNet,
        compiled: Compiled,
        optimizer: Optimizer | Wrapper,
        data: Batches,
        validation: Batches | None,
        epochs: int,
        callbacks: Sequence[Callback],
    ) -> None:
        self.net = net
        self.compiled = compiled
        self.optimizer = optimizer
        self.train_batch = stepper(net, optimizer, compiled.precision)
        self.data = data
        self.validation = validation
        self.epochs = epochs
        self.callbacks = callbacks
        self.epoch = 0
        self.batch = 0
        self.step = 0
        self.layer = ""
        self.inputs: Any = None
        self.history = History()
        self.measures = Measures(compiled.metrics)
        self.names = self.measures.names()
        if validation is not None:
            self.names += [f"val_{name}" for name in self.names]
        self.resumed = False
        self.stopped: str | None = None
        self.error: BaseException | None = None

    def stop(self, reason: str) -> None:
        """End the training after the step in work; the first reason given stands."""
        self.stopped = self.stopped or reason

    @property
    def rule(self) -> Optimizer:
        """The optimizer inside any wrappers, whose ``lr`` is the learning rate."""
        inner = self.optimizer
        while isinstance(inner, Wrapper):
            inner = inner.optimizer
        return inner

    def state(self) -> dict[str, Array]:
        """All that is needed to go on from here, as arrays by name: see `training_state`.

        A callback that asks for it sets ``runs_last``, so that the others have seen the step.
        """
        from singanet.training.state import training_state

        return training_state(self)
