"""Clipping of the gradients of a layer together."""

from __future__ import annotations

import math
from collections.abc import Sequence

from singanet.optimizer.checks import Grad
from singanet.optimizer.global_norm import squares_of
from singanet.optimizer.hyper import at, checked
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.wrapper import Wrapper
from singanet.types import Array


class ClipByLayerNorm(Wrapper):
    """The gradients of one `update` call are scaled so that their joint norm is ≤ ``max_norm``.

    With the streaming backward that is one layer. Costs a reading of the gradients, no memory.
    """

    def __init__(self, optimizer: Optimizer | Wrapper, max_norm: float) -> None:
        super().__init__(optimizer)
        self.max_norm = at(checked("ClipByLayerNorm", "max_norm", max_norm), 0)

    def update(
        self,
        names: Sequence[str],
        values: Sequence[Array],
        grads: Sequence[Grad],
        scale: float = 1.0,
    ) -> None:
        """As `Optimizer.update`; the norm is that of ``scale`` · gradients."""
        norm = abs(scale) * math.sqrt(squares_of(grads))
        if norm > self.max_norm:
            scale *= self.max_norm / norm
        self.optimizer.update(names, values, grads, scale)
