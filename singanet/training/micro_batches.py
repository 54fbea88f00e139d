"""A training step in parts, whose gradients are accumulated: one update a batch, less memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from singanet.engine.model import OnLayer
from singanet.engine.script import Before
from singanet.optimizer import Accumulator
from singanet.training.arrays import cut
from singanet.training.measures import batch_length
from singanet.training.steps import Step
from singanet.types import Array


class MicroBatches:
    """``step`` on one batch, in parts of at most ``size`` samples.

    Gradients go through ``accumulator``, a stage of its optimizer, and weigh by what the loss of
    their part is a mean over: the update is that of the whole batch, up to rounding. A step that
    ends with an error before its update leaves the ``net``, and what was gathered, as they were. Of
    several ranks, each with a part of the batch, all have the number of parts that ``most`` makes
    of their own.
    """

    def __init__(
        self,
        net: Any,
        accumulator: Accumulator,
        size: int,
        most: Callable[[int], int],
        step: Step,
    ) -> None:
        self._net, self._accumulator = net, accumulator
        self._size = size
        self._most = most
        self._step = step

    def __call__(
        self, x: Any, y: Any, weight: Array | None, on_layer: OnLayer, measure: Any
    ) -> float:
        """As `Step`: the loss of the batch, from before its update."""
        gathered, samples = self._accumulator, batch_length(y)
        count = self._most(-(-samples // self._size))
        if gathered.every != count:
            gathered.every = count
        before = Before(self._net, self._net.execution_plan().settings().state)
        number = 0
        try:
            total = weights = 0.0
            for number in range(count):
                start = number * self._size
                part = slice(start, start + self._size)
                given = cut(weight, part)
                # If only other ranks have more samples, this rank shows no part.
                heard = (on_layer, measure) if start < samples else (None, None)
                loss = self._step(cut(x, part), cut(y, part), given, *heard)
                total += loss * float(gathered.weight)
                weights += float(gathered.weight)
        except BaseException:
            if gathered.drop() or number < count - 1:
                before.restore()
            raise
        return total / weights if weights else 0.0
