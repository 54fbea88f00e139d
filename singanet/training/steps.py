"""One step of a training, as the optimizer in use needs it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from singanet.errors import ArgumentError
from singanet.execution import LayerGradients
from singanet.net import FeedForwardNet
from singanet.optimizer import Accumulator, ClipByGlobalNorm, Optimizer, Wrapper
from singanet.optimizer.global_norm import global_norm
from singanet.training.loss_gradient import loss_gradient
from singanet.types import Array

OnLayer: TypeAlias = Callable[[LayerGradients], None] | None
Step: TypeAlias = Callable[[Any, Any, Array | None, OnLayer, Callable[[Any, Any], None]], float]
"""``step(x, y, sample_weight, on_layer, measure)``: the loss from before the update."""


def stepper(net: FeedForwardNet, optimizer: Optimizer | Wrapper) -> Step:
    """The step for ``optimizer``: one pass, or two where a norm has to be known before.

    Errors: `ClipByGlobalNorm` inside of other clipping, where its norm would not be that.
    """

    def one_pass(x: Any, y: Any, weight: Array | None, on_layer: Any, measure: Any) -> float:
        return net.step(x, y, optimizer, on_layer, weight, measure)[0]

    gathering, clip = global_clip(optimizer)
    if clip is None:
        return one_pass

    def two_passes(x: Any, y: Any, weight: Array | None, on_layer: Any, measure: Any) -> float:
        if not all(each.fills_next() for each in gathering):
            return one_pass(x, y, weight, on_layer, measure)
        with net.rehearsal():
            items = net.backward(loss_gradient(net, x, y, weight)[0])
            norm = norm_handed_on(gathering, items)
        with clip.knowing(norm):
            return one_pass(x, y, weight, on_layer, measure)

    return two_passes


def global_clip(
    optimizer: Optimizer | Wrapper,
) -> tuple[list[Accumulator], ClipByGlobalNorm | None]:
    """The `ClipByGlobalNorm` in ``optimizer``, if any, and the accumulators around it."""
    around: list[Wrapper] = []
    inner = optimizer
    while isinstance(inner, Wrapper) and not isinstance(inner, ClipByGlobalNorm):
        around.append(inner)
        inner = inner.optimizer
    if not isinstance(inner, ClipByGlobalNorm):
        return [], None
    gathering = [each for each in around if isinstance(each, Accumulator)]
    for each in around:
        if each not in gathering:
            raise ArgumentError(
                "net.fit",
                expected="ClipByGlobalNorm around other clipping",
                received=f"{type(each).__name__} around it",
                advice=f"write ClipByGlobalNorm({type(each).__name__}(...), max_norm)",
            )
    return gathering, inner


def norm_handed_on(gathering: Iterable[Accumulator], items: Iterable[Any]) -> float:
    """The norm of what the accumulators would hand on of ``items``, a layer at a time."""
    for accumulator in gathering:
        items = _previewed(accumulator, items)
    norm = global_norm(items)
    return norm if math.isfinite(norm) else math.inf


def _previewed(accumulator: Accumulator, items: Iterable[Any]) -> Iterator[Any]:
    for names, values, grads in items:
        yield names, values, accumulator.preview(names, values, grads)
        # As the generator below: one layer's gradients are let go before the next one's exist.
        del names, values, grads
