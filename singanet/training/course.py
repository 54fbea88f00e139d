"""The course of a fit: its net, optimizer and data, and the position in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from singanet.engine.model import Model
from singanet.optimizer import Optimizer, Wrapper
from singanet.optimizer.chain import UpdateChain
from singanet.training.batches import Batches
from singanet.training.compiled import Compiled
from singanet.training.history import History
from singanet.training.options import FitOptions
from singanet.types import Array


class Stateful(Protocol):
    """The part of a callback that a training checkpoint keeps."""

    def state_dict(self) -> dict[str, Array]:
        """Arrays by name."""

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Go on from what `state_dict` gave."""


class StopTraining(Exception):  # noqa: N818 - no error: a callback's way to end a fit at once
    """Raised by a callback to end the fit now, within a step if need be, without an error."""


class Course:
    """The net, the optimizer and the data of a fit, with its position in them.

    ``epoch`` of ``epochs`` and ``batch`` count from 0 and name what is in work; once a step is
    done they name the next. ``step`` counts the steps of the whole training, ``inputs`` is the x
    of the one in work. ``phase`` is "step" while a step or a validation is under way, "told" while
    callbacks hear of it, and else "whole". ``stopped`` is why it ends early, ``warned`` whether the
    user knows of a loss that is not finite.
    """

    phase: Literal["whole", "step", "told"] = "whole"

    def __init__(
        self,
        net: Model,
        compiled: Compiled,
        optimizer: Optimizer | Wrapper,
        data: Batches,
        validation: Batches | None,
        options: FitOptions,
    ) -> None:
        self.net = net
        self.compiled = compiled
        self.optimizer = optimizer
        self.data = data
        self.validation = validation
        self.epochs = options.epochs
        self.callbacks: Sequence[Stateful] = [*options.callbacks]
        self.epoch, self.batch, self.step = options.initial_epoch, 0, 0
        self.layer = ""
        self.inputs: Any = None
        self.history = History()
        self.measures = compiled.measures(net.loss)
        self.resumed = False
        self.warned = False
        self.stopped: str | None = None
        self.error: BaseException | None = None
        self._position: Mapping[str, int] | None = None

    def is_whole(self) -> None:
        """What is here goes together: every callback has heard of the last step."""
        # A batch that is drawn next and not trained on is drawn once more.
        self._position = self.data.state_dict()
        self.phase = "whole"

    def position(self) -> Mapping[str, int]:
        """The position of the data after the last step."""
        if self.phase == "whole" and self._position is not None:
            return self._position
        return self.data.state_dict()

    @property
    def rule(self) -> Optimizer:
        """The optimizer inside any wrappers, whose ``lr`` is the learning rate."""
        rule: Optimizer = UpdateChain(self.optimizer).rule
        return rule
