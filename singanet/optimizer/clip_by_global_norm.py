"""Clipping by the exact norm of all gradients of a step, in a training loop."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from singanet.errors import CallOrderError
from singanet.optimizer.checks import Grad
from singanet.optimizer.hyper import at, checked
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.wrapper import Wrapper
from singanet.types import Array


class ClipByGlobalNorm(Wrapper):
    """The gradients of a whole step are scaled so that their joint norm is ≤ ``max_norm``.

    The norm has to be known before the first layer is updated: say it with `knowing`. `fit` and
    `train_on_batch` find it by running forward and backward once before, each layer's gradients
    dropped once they are read. A norm that is not finite clips nothing, so that it is seen.
    """

    def __init__(self, optimizer: Optimizer | Wrapper, max_norm: float) -> None:
        super().__init__(optimizer)
        self.max_norm = at(checked("ClipByGlobalNorm", "max_norm", max_norm), 0)
        self._factor: float | None = None

    @property
    def knows(self) -> bool:
        """Whether the norm of the step in work was said."""
        return self._factor is not None

    @contextmanager
    def knowing(self, norm: float) -> Iterator[None]:
        """Within the block, ``norm`` is that of all gradients that `update` is given."""
        clips = math.isfinite(norm) and norm > self.max_norm
        self._factor = self.max_norm / norm if clips else 1.0
        try:
            yield
        finally:
            self._factor = None

    def update(
        self,
        names: Sequence[str],
        values: Sequence[Array],
        grads: Sequence[Grad],
        scale: float = 1.0,
    ) -> None:
        """As `Optimizer.update`. Errors: `CallOrderError` outside of `knowing`."""
        if self._factor is None:
            raise CallOrderError(
                "ClipByGlobalNorm",
                expected="the norm of all gradients before the first update of a step",
                received="an update without it",
                advice="use net.fit(clip_by='global'), or: with clip.knowing(norm): ...",
            )
        self.optimizer.update(names, values, grads, scale * self._factor)
