"""Clipping of the gradients of a layer together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from singanet.optimizer.checks import Grad
from singanet.optimizer.global_norm import squares_of
from singanet.optimizer.hyper import at, checked
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.scale import Scale, module_of, within
from singanet.optimizer.wrapper import Handed, Wrapper
from singanet.types import Array


class ClipByLayerNorm(Wrapper):
    """The gradients of one `update` call are scaled so that their joint norm is ≤ ``max_norm``.

    With the streaming backward that is one layer. Costs a reading of the gradients, no memory.
    """

    by_parts = True

    def __init__(self, optimizer: Optimizer | Wrapper, max_norm: float) -> None:
        super().__init__(optimizer)
        self.max_norm = at(checked("ClipByLayerNorm", "max_norm", max_norm), 0)

    def take(
        self,
        names: Sequence[str],
        values: Sequence[Array],
        grads: Sequence[Grad],
        scale: Scale,
    ) -> Iterator[Handed]:
        """As `Wrapper.take`; the norm is that of ``scale`` · gradients."""
        xp = module_of(values)
        norm = abs(scale) * xp.sqrt(self.joined(squares_of(grads)))
        yield names, values, grads, scale * within(xp, norm, self.max_norm)
