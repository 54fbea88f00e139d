"""Nets in blocks of 8 or 4 bits, and what that cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp
from typing import Any

import numpy as np

from singanet.engine.holding import hold_blocks, is_watched, unwatch, watch
from singanet.engine.net import Net
from singanet.errors import ArgumentError, CallOrderError, DataError
from singanet.loss import SoftmaxCrossEntropy
from singanet.training.arrays import fed
from singanet.training.evaluation import USUAL_BATCH, evaluate, input_batches

_SHOWN = 3


@dataclass(frozen=True)
class Quantization:
    """What `FeedForwardNet.quantize` did.

    ``errors`` tells by parameter how far its blocks are from what it was: the root of the mean
    square of the difference, over that of the values. ``nbytes`` are those of all parameters
    before and after. ``losses`` are the losses before and after on what was given, or None, and
    ``perplexities`` exp of them where the loss is a cross-entropy of classes.
    """

    dtype: str
    errors: dict[str, float]
    nbytes: tuple[int, int]
    losses: tuple[float, float] | None = None
    perplexities: tuple[float, float] | None = None

    def __str__(self) -> str:
        before, after = self.nbytes
        worst = sorted(self.errors, key=lambda name: -self.errors[name])[:_SHOWN]
        told = f"{len(self.errors)} weights in {self.dtype}"
        lines = [
            f"{told}: {before / 1e6:.1f} -> {after / 1e6:.1f} MB",
            *[f"  {name}: off by {self.errors[name]:.2%}" for name in worst],
        ]
        for what, both in (("loss", self.losses), ("perplexity", self.perplexities)):
            if both is not None:
                change = both[1] / both[0] - 1 if both[0] else 0.0
                lines.append(f"{what} {both[0]:.4f} -> {both[1]:.4f} ({change:+.2%})")
        return "\n".join(lines)


_MOMENTS = 1 << 28
"""Bytes in which moments of inputs are summed at a time."""
_FLOATS = ("float16", "float32", "float64")
_ROWS = 4
"""Rows that the net sees at a time."""


def quantize(
    net: Net, dtype: str, x: Any, y: Any, batch_size: int | None, data: Any = None
) -> Quantization:
    """`FeedForwardNet.quantize`."""
    if x is not None and net.loss is None:
        raise CallOrderError(
            "net.quantize, x",
            expected="a net with a loss, to tell what it is before and after",
            received="one without",
            advice="leave x out, or give the net a loss",
        )
    if data is not None and dtype != "int4":
        raise ArgumentError(
            "net.quantize",
            expected='data=None, or "int4": blocks of 8 bits are made of the weights alone',
            received=f"data with {dtype!r}",
            advice='leave data out, or say "int4"',
        )
    before = None if x is None else evaluate(net, x, y, batch_size or USUAL_BATCH).loss
    whole = sum(param.nbytes for param in net.params())
    errors = {} if data is None else _by_rows(net, dtype, data, batch_size)
    errors |= hold_blocks(net, dtype, "net.quantize", of=lambda param: param.name not in errors)
    held = sum(param.storage.nbytes for param in net.params())
    after = None if x is None else evaluate(net, x, y, batch_size or USUAL_BATCH).loss
    if before is None or after is None:
        return Quantization(dtype, errors, (whole, held))
    likely = (exp(before), exp(after)) if isinstance(net.loss, SoftmaxCrossEntropy) else None
    return Quantization(dtype, errors, (whole, held), (before, after), likely)


def _by_rows(net: Net, dtype: str, data: Any, batch_size: int | None) -> dict[str, float]:
    """Hold matrices in 4 bits, some at a time, by what they multiply when the net sees ``data``.

    Errors, before anything is changed: no rows, or numbers that are not finite.
    """
    where, errors = "net.quantize, data", dict[str, float]()
    parts = [*input_batches(data, batch_size or _ROWS, lambda at, x: fed(at, net, x), where)]
    if not parts:
        raise DataError(
            where,
            expected="at least one row",
            received="none",
            advice="leave data out, and blocks are made of the weights alone",
        )
    if not all(map(_is_finite, parts)):
        raise DataError(
            where,
            expected="finite numbers",
            received="NaN or infinity",
            advice="look at numpy.isfinite(data)",
        )
    try:
        while watch(net, "net.quantize", _MOMENTS):
            for part in parts:
                net.forward(False, part)
            errors |= hold_blocks(net, dtype, "net.quantize", of=is_watched)
    finally:
        unwatch(net)
    return errors


def _is_finite(part: Any) -> bool:
    """Whether the floats among what a net is given are numbers."""
    arrays = part.values() if isinstance(part, Mapping) else [part]
    floats = [each for each in arrays if getattr(each, "dtype", None) in _FLOATS]
    return all(bool(np.isfinite(each).all()) for each in floats)
