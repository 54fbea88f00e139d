"""Values of symbols for given arrays: their layers run on NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from singanet.layers.context import Context
from singanet.layers.symbol import Symbol
from singanet.ops import numpy_ops
from singanet.types import Array


class SymbolValues:
    """Runs each layer once, in floats of ``dtype``.

    ``known`` has the arrays of parameters by their ids, which these do not have before the net is
    made.
    """

    def __init__(self, known: Mapping[int, Array], dtype: Any) -> None:
        self._known, self._dtype = known, np.dtype(dtype)
        self._made: dict[int, list[Array]] = {}

    def put(self, symbol: Symbol, array: Array) -> None:
        """Let ``symbol`` be ``array``, with samples in front."""
        outputs = self._made.setdefault(symbol.call.born, [])
        outputs += [array] * (symbol.index + 1 - len(outputs))
        outputs[symbol.index] = array

    def of(self, symbol: Symbol) -> Array:
        """The value of ``symbol``, with the axis of samples in front."""
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
        params = {
            suffix: np.asarray(self._known[id(param)], self._dtype).reshape(param.shape)
            for suffix, param in layer.params.items()
        }
        ctx = Context(numpy_ops, np.random.default_rng(0), params, False, dtype=self._dtype)
        given = [self._made[each.call.born][each.index] for each in symbol.call.inputs]
        with np.errstate(all="ignore"):  # as in the graph, where nobody is told
            made = layer.forward(ctx, given[0] if len(given) == 1 else given)
        return list(made) if isinstance(made, (list, tuple)) else [made]
