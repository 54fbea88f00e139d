"""Clipping by the exact norm of all gradients of a step, in a training loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np

from singanet.errors import ArgumentError, CallOrderError
from singanet.ops import ops_for
from singanet.optimizer.chain import UpdateChain
from singanet.optimizer.checks import Grad
from singanet.optimizer.global_norm import norm_of
from singanet.optimizer.hyper import at, checked
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.scale import Scale, within
from singanet.optimizer.wrapper import Handed, Wrapper
from singanet.types import Array


class ClipByGlobalNorm(Wrapper):
    """The gradients of a whole step are scaled so that their joint norm is ≤ ``max_norm``.

    The norm has to be known before the first layer is updated: say it with `knowing`. `net.step`
    and all above it find it by running forward and backward once before, each layer's gradients
    dropped once they are read. A norm that is not finite clips nothing, so that it is seen.
    """

    needs_norm = True
    by_parts = True

    def __init__(self, optimizer: Optimizer | Wrapper, max_norm: float) -> None:
        super().__init__(optimizer)
        self.max_norm = at(checked("ClipByGlobalNorm", "max_norm", max_norm), 0)
        self._factor: Scale | None = None

    @property
    def knows(self) -> bool:
        """Whether the norm of the step in work was said."""
        return self._factor is not None

    def case(self) -> Hashable:
        """Whether the norm of the next step was said."""
        return self.knows

    @contextmanager
    def knowing(self, norm: Scale) -> Iterator[None]:
        """Within the block, ``norm`` is that of all gradients that `update` is given."""
        xp = np if isinstance(norm, (int, float)) else ops_for(norm).xp
        self._factor = within(xp, xp.where(xp.isfinite(norm), norm, 0.0), self.max_norm)
        try:
            yield
        finally:
            self._factor = None

    def take(
        self,
        names: Sequence[str],
        values: Sequence[Array],
        grads: Sequence[Grad],
        scale: Scale,
    ) -> Iterator[Handed]:
        """As `Wrapper.take`. Errors: `CallOrderError` outside of `knowing`."""
        if self._factor is None:
            raise CallOrderError(
                "ClipByGlobalNorm",
                expected="the norm of all gradients before the first update of a step",
                received="an update without it",
                advice="use net.step, net.fit(clip_by='global'), or: with clip.knowing(norm): ...",
            )
        yield names, values, grads, scale * self._factor


def clip_by_global_norm(
    optimizer: Any,
    max_norm: float,
    passes: Callable[[], Iterable[Any]],
    scale: float = 1.0,
    rehearsal: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> float:
    """Update so that the norm of all gradients together is ≤ ``max_norm``; returns the norm.

    ``passes()`` runs forward and loss and returns ``net.backward(dy)``; it is called twice, once
    for the norm and once for the update, so that never more than one layer's gradients exist.
    It must give the same gradients both times: pass ``rehearsal=net.rehearsal``, and random layers
    draw the same numbers and running statistics move once. Costs a second forward and backward;
    clipping the list of all gradients costs their memory instead.
    """
    chain = UpdateChain(optimizer)
    limit = at(checked("clip_by_global_norm", "max_norm", max_norm), 0)
    with rehearsal():
        items = passes()
        joined: Any = None
        for stage in chain.reducers:
            items, joined = stage.previewed(items), stage.joined
        norm = abs(scale) * float(norm_of(items) if joined is None else norm_of(items, joined))
    if not math.isfinite(norm):
        raise ArgumentError(
            "clip_by_global_norm",
            expected="gradients with a finite norm",
            received=f"a norm of {norm}",
            advice="skip this batch, or lower the learning rate",
        )
    if norm > limit:
        scale *= limit / norm
    chain.apply(passes(), scale=scale)
    return norm
