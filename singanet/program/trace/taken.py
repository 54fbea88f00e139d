"""Whether a recorded step in mixed precision is taken."""

from __future__ import annotations

from collections.abc import Iterable

from singanet.optimizer.chain import UpdateChain
from singanet.optimizer.mixed_precision import NotFiniteError
from singanet.types import Array


class Taken:
    """Looks at all gradients before ``chain`` takes them, and undoes what a step has done so far.

    That is the running ``state``. Raises `NotFiniteError` where a gradient is not finite, here or
    on another process.
    """

    def __init__(self, chain: UpdateChain, state: Iterable[Array]) -> None:
        self._chain = chain
        self._state = [(value, value.copy()) for value in state]

    def remember(self) -> None:
        """What is undone is as it is now."""
        for value, copy in self._state:
            copy[...] = value

    def look(self, layer: str, finite: Array) -> None:
        """At the gradients of ``layer``."""
        if not finite:
            self._chain.agree(layer)
            self._give_up(layer)

    def agree(self) -> None:
        """Hear from other processes, whose gradients may not be finite."""
        refused = self._chain.agree(None)
        if refused is not None:
            self._give_up(refused)

    def succeeded(self) -> None:
        """The step is taken."""
        self._chain.conclude(None)

    def _give_up(self, layer: str) -> None:
        for value, copy in self._state:
            value[...] = copy
        self._chain.conclude(layer)
        raise NotFiniteError(layer)
