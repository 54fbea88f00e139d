"""Clipping and accumulation, by argument."""

from __future__ import annotations

from collections.abc import Callable

from singanet.errors import UnknownNameError, did_you_mean, one_of
from singanet.optimizer import (
    Accumulator,
    ClipByGlobalNorm,
    ClipByLayerNorm,
    ClipByRunningNorm,
    ClipByValue,
    Optimizer,
    Wrapper,
)

WAYS: dict[str, Callable[[Optimizer | Wrapper, float], Wrapper]] = {
    "layer": ClipByLayerNorm,
    "global": ClipByGlobalNorm,
    "running": ClipByRunningNorm,
    "value": ClipByValue,
}


def wrapped(
    optimizer: Optimizer | Wrapper, clip: float | None, clip_by: str, accumulate: int
) -> Optimizer | Wrapper:
    """``optimizer`` behind what the arguments of `fit` ask for.

    Micro-batches are gathered first; it is their mean that is clipped. Errors: an unknown
    ``clip_by``, numbers out of range.
    """
    if clip_by not in WAYS:
        raise UnknownNameError(
            "net.fit, clip_by",
            expected=f"one of {one_of(WAYS)}",
            received=repr(clip_by),
            advice=did_you_mean(str(clip_by), WAYS, "choose one of these"),
        )
    if clip is not None:
        optimizer = WAYS[clip_by](optimizer, clip)
    return optimizer if accumulate == 1 else Accumulator(optimizer, accumulate)
