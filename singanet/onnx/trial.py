"""Whether layers give what the operators do that they stand for: both are run on drawn numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from singanet.layers.context import Context
from singanet.layers.symbol import Symbol
from singanet.onnx.values import STEPS
from singanet.ops import numpy_ops
from singanet.types import Array, Shape

SAMPLES = 3


def extents(shape: Shape) -> Shape:
    """``shape`` with a number for an axis of any extent, whichever."""
    return tuple(STEPS[0] if size == -1 else size for size in shape)


class Trial:
    """A few samples of numbers, drawn, for ``starts``: what a part of the net makes of them.

    ``yes_or_no`` are those starts that hold truth values, and false alone in the first sample.
    ``known`` has the arrays of parameters by their ids, which these do not have before the net is
    made.
    """

    def __init__(
        self, starts: Sequence[Symbol], yes_or_no: Sequence[Symbol], known: Mapping[int, Array]
    ) -> None:
        rng = np.random.default_rng(0)
        self._known = known
        self._made: dict[int, list[Array]] = {}
        for symbol in starts:
            drawn: Any = rng.standard_normal((SAMPLES, *extents(symbol.shape)))
            if any(symbol is each for each in yes_or_no):
                drawn = drawn > 0
                drawn[0] = False
                drawn[1, ..., : drawn.shape[-1] // 2] = False
            outputs = self._made.setdefault(symbol.call.born, [])
            outputs += [drawn] * (symbol.index + 1 - len(outputs))
            outputs[symbol.index] = drawn

    def of(self, symbol: Symbol) -> Array:
        """What ``symbol`` is of these samples, in float64."""
        stack = [symbol]
        while stack:
            needed = stack[-1]
            missing = [each for each in needed.call.inputs if each.call.born not in self._made]
            if needed.call.born in self._made:
                stack.pop()
            elif missing:
                stack += missing
            else:
                self._made[needed.call.born] = self._run(stack.pop())
        return self._made[symbol.call.born][symbol.index]

    def _run(self, symbol: Symbol) -> list[Array]:
        layer: Any = symbol.call.layer
        if not symbol.call.inputs:
            # An input, which says here no more than how many samples there are.
            return [np.zeros((SAMPLES, *extents(symbol.shape)))]
        params = {
            suffix: np.asarray(self._known[id(param)], np.float64).reshape(param.shape)
            for suffix, param in layer.params.items()
        }
        ctx = Context(numpy_ops, np.random.default_rng(0), params, False, dtype=np.dtype("f8"))
        given = [self._made[each.call.born][each.index] for each in symbol.call.inputs]
        with np.errstate(all="ignore"):
            made = layer.forward(ctx, given[0] if len(given) == 1 else given)
        return list(made) if isinstance(made, (list, tuple)) else [made]


def agree(one: Array, other: Array) -> bool:
    """Whether both are the same but for rounding, where the first is a number at all."""
    there = np.isfinite(one)
    most = float(np.abs(one[there]).max(initial=1.0))
    same = one.shape == other.shape
    return same and bool(np.all(np.abs(one[there] - other[there]) <= 1e-6 * most))


def numbers_in(symbols: Sequence[Symbol]) -> int:
    """How many numbers the samples of all these are."""
    return SAMPLES * sum(prod(extents(symbol.shape)) for symbol in symbols)
