"""Clipping of every element of a gradient."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from singanet.ops import ops_for
from singanet.optimizer.checks import Grad
from singanet.optimizer.hyper import at, checked
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.scale import Scale, in_type, is_one
from singanet.optimizer.wrapper import Handed, Wrapper
from singanet.params.served import served_by
from singanet.types import Array, RowSparse


class ClipByValue(Wrapper):
    """Every element of a gradient is brought into [−limit, limit].

    Costs a clipped copy of the gradients of one layer, for as long as the update lasts.
    """

    by_element = True

    def __init__(self, optimizer: Optimizer | Wrapper, limit: float) -> None:
        super().__init__(optimizer)
        self.limit = at(checked("ClipByValue", "limit", limit), 0)

    def take(
        self,
        names: Sequence[str],
        values: Sequence[Array],
        grads: Sequence[Grad],
        scale: Scale,
    ) -> Iterator[Handed]:
        """As `Wrapper.take`; the limit is on ``scale`` · gradient.

        Rows of a table that sums those of all processes first are clipped there.
        """
        jobs = [*zip(names, values, grads, strict=True)]
        there = [job for job in jobs if _is_clipped_elsewhere(job[1])]
        if there:
            yield [n for n, _, _ in there], [v for _, v, _ in there], [g for *_, g in there], scale
            jobs = [job for job in jobs if not _is_clipped_elsewhere(job[1])]
            if not jobs:
                return
            names, values = [n for n, _, _ in jobs], [v for _, v, _ in jobs]
            grads = [g for *_, g in jobs]
        yield names, values, [self._clipped(grad, scale) for grad in grads], 1.0

    def _clipped(self, grad: Grad, scale: Scale) -> Grad:
        if grad is None:
            return None
        if isinstance(grad, tuple):
            indices, rows = grad
            return RowSparse(indices, self._clip(rows, scale))
        return self._clip(grad, scale)

    def _clip(self, array: Array, scale: Scale) -> Array:
        xp = ops_for(array).xp
        if not is_one(scale):
            array = array * in_type(xp, scale, array.dtype)
        return xp.clip(array, -self.limit, self.limit)


def _is_clipped_elsewhere(value: Array) -> bool:
    table = served_by(value)
    return table is not None and table.sums_first
