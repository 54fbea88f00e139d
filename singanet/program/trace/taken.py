"""Whether a recorded step in mixed precision is taken."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from singanet.optimizer.mixed_precision import NotFiniteError
from singanet.optimizer.stages import agreed
from singanet.types import Array


class Taken:
    """Looks at the gradients of ``scaled`` at each replay, and undoes what a step has done so far.

    That is the running ``state``. Raises `NotFiniteError` where a gradient is not finite, here or
    on another process.
    """

    def __init__(self, scaled: Any, state: Iterable[Array]) -> None:
        self._scaled = scaled
        self._state = [(value, value.copy()) for value in state]

    def remember(self) -> None:
        """What is undone is as it is now."""
        for value, copy in self._state:
            copy[...] = value

    def look(self, layer: str, finite: Array) -> None:
        """At the gradients of ``layer``."""
        if not finite:
            agreed(self._scaled, layer)
            self._give_up(layer)

    def agree(self) -> None:
        """Hear from other processes, whose gradients may not be finite."""
        refused = agreed(self._scaled, None)
        if refused is not None:
            self._give_up(refused)

    def _give_up(self, layer: str) -> None:
        for value, copy in self._state:
            value[...] = copy
        self._scaled.precision.failed(layer)
        raise NotFiniteError(layer)
