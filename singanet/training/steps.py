"""Steps of a fit, whole or in micro-batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from singanet.engine.model import Measure, OnLayer
from singanet.engine.net import Net
from singanet.engine.step import Before
from singanet.errors import UnknownNameError, brief, did_you_mean, one_of
from singanet.optimizer import (
    Accumulator,
    ClipByGlobalNorm,
    ClipByLayerNorm,
    ClipByRunningNorm,
    ClipByValue,
    Optimizer,
    Wrapper,
)
from singanet.optimizer.chain import UpdateChain, within_reduction
from singanet.training.batches import cut
from singanet.training.measures import batch_length
from singanet.types import Array

Step: TypeAlias = Callable[[Any, Any, Array | None, OnLayer, Measure], float]
"""``step(x, y, sample_weight, on_layer, measure)`` returns the loss before the update."""

WAYS: dict[str, Callable[[Optimizer | Wrapper, float], Wrapper]] = {
    "layer": ClipByLayerNorm,
    "global": ClipByGlobalNorm,
    "running": ClipByRunningNorm,
    "value": ClipByValue,
}


def wrapped(
    optimizer: Optimizer | Wrapper, clip: float | None, clip_by: str, accumulate: int
) -> Optimizer | Wrapper:
    """Wrap ``optimizer`` in the clip and the accumulation of `fit`'s arguments.

    Micro-batches are accumulated first; their mean is clipped, over all processes if there are
    several. Errors: an unknown ``clip_by``; numbers out of range.
    """
    if clip_by not in WAYS:
        raise UnknownNameError(
            "net.fit, clip_by",
            expected=one_of(WAYS),
            received=brief(clip_by),
            advice=did_you_mean(str(clip_by), WAYS, "choose a listed name"),
        )
    if clip is not None:
        way = WAYS[clip_by]
        optimizer = within_reduction(optimizer, lambda inner: way(inner, clip))
    return optimizer if accumulate == 1 else Accumulator(optimizer, accumulate)


def stepper(net: Net, optimizer: Optimizer | Wrapper) -> Step:
    """Return the step of ``net`` with ``optimizer``. Errors: `ClipByGlobalNorm` in another clip."""
    chain = UpdateChain(optimizer)

    def step(x: Any, y: Any, weight: Array | None, on_layer: OnLayer, measure: Any) -> float:
        return net.step(x, y, optimizer, on_layer, weight, measure)[0]

    def scaled(x: Any, y: Any, weight: Array | None, on_layer: OnLayer, measure: Any) -> float:
        # Loss scaling checks for overflow, so NumPy need not warn.
        with np.errstate(over="ignore", invalid="ignore"):
            return step(x, y, weight, on_layer, measure)

    return step if chain.scaled is None else scaled


def with_empty_batches(step: Step) -> Step:
    """Return ``step`` without callbacks and metrics for batches without samples on this rank."""

    def joining(x: Any, y: Any, weight: Array | None, on_layer: OnLayer, measure: Any) -> float:
        if batch_length(y):
            return step(x, y, weight, on_layer, measure)
        return step(x, y, weight, None, None)

    return joining


class MicroBatches:
    """``step`` on one batch, in parts of at most ``size`` samples.

    Gradients accumulate in ``accumulator``, a stage of its optimizer, weighted by the count of
    their part's loss: the update equals that of the whole batch, up to rounding. On an error before
    the update, the ``net`` and the accumulated gradients are unchanged. With several ranks, each
    with a part of the batch, ``most`` makes the number of parts the same on all.
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
        """Return the loss of the batch before its update, as `Step`."""
        gathered, samples = self._accumulator, batch_length(y)
        count = self._most(-(-samples // self._size))
        if gathered.every != count:
            gathered.every = count
        before = Before(self._net, self._net._execution_plan().settings().state)
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
