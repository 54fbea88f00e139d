"""Clipping by the norm of all gradients, which must be known before the first update."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from singanet.errors import ArgumentError
from singanet.optimizer import Accumulator, ClipByGlobalNorm, Optimizer, Wrapper
from singanet.optimizer.global_norm import global_norm


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
