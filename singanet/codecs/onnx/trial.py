"""Whether layers give what the operators do that they stand for: both are run on drawn numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from singanet.codecs.onnx.symbol_values import SymbolValues
from singanet.codecs.onnx.values import STEPS
from singanet.layers.symbol import Symbol
from singanet.types import Array, Shape

SAMPLES = 3


def extents(shape: Shape) -> Shape:
    """``shape`` with a number for an axis of any extent, whichever."""
    return tuple(STEPS[0] if size == -1 else size for size in shape)


class TrialValues(SymbolValues):
    """A few samples of numbers, drawn, for ``starts``: what a part of the net makes of them.

    ``yes_or_no`` are those starts that hold truth values, and false alone in the first sample.
    ``known`` is as for `SymbolValues`.
    """

    def __init__(
        self, starts: Sequence[Symbol], yes_or_no: Sequence[Symbol], known: Mapping[int, Array]
    ) -> None:
        super().__init__(known, np.float64)
        rng = np.random.default_rng(0)
        for symbol in starts:
            drawn: Any = rng.standard_normal((SAMPLES, *extents(symbol.shape)))
            if any(symbol is each for each in yes_or_no):
                drawn = drawn > 0
                drawn[0] = False
                drawn[1, ..., : drawn.shape[-1] // 2] = False
            self.put(symbol, drawn)

    def _run(self, symbol: Symbol) -> list[Array]:
        if not symbol.call.inputs:
            # An input, which says here no more than how many samples there are.
            return [np.zeros((SAMPLES, *extents(symbol.shape)))]
        return super()._run(symbol)


def agree(one: Array, other: Array) -> bool:
    """Whether both are the same but for rounding, where the first is a number at all."""
    there = np.isfinite(one)
    most = float(np.abs(one[there]).max(initial=1.0))
    same = one.shape == other.shape
    return same and bool(np.all(np.abs(one[there] - other[there]) <= 1e-6 * most))


def numbers_in(symbols: Sequence[Symbol]) -> int:
    """How many numbers the samples of all these are."""
    return SAMPLES * sum(prod(extents(symbol.shape)) for symbol in symbols)
