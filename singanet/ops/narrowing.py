"""Narrow float32 matrices by compiled functions."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from singanet.base.heap import address, steps
from singanet.ops.casts import has_compiler
from singanet.ops.narrow import PANEL, Bfloat16Matrix, BlockMatrix
from singanet.types import Array

if TYPE_CHECKING:
    from singanet.ops.compiled.engine import CompiledFunction

_LEAST = 1 << 16
"""Numbers from which the function is loaded."""
_PANELS = 32
"""Panels of words that are made at a time."""


def narrowed(values: Array, matrix: Bfloat16Matrix | BlockMatrix) -> bool:
    """Store float32 ``values`` (inputs, outputs) in a new ``matrix``.

    Return whether a function did; otherwise the matrix is as it was.
    """
    fits = values.size >= _LEAST and values.dtype == np.float32
    if not (fits and type(values) is np.ndarray and matrix.xp is np and has_compiler()):
        return False
    # NaN and infinity are for NumPy.
    if not (np.isfinite(values.min()) and np.isfinite(values.max())):
        return False
    if isinstance(matrix, Bfloat16Matrix):
        count, pairs = matrix.words.shape[:2]
        for first in range(0, count, _PANELS):
            panels = min(_PANELS, count - first)
            part = _columns(values, slice(PANEL * first, PANEL * (first + panels)))
            _words().call(address(part), address(matrix.words[first]), *_sizes(part), pairs, panels)
        return True
    function = _blocks(matrix.kind)
    if function is None:
        return False
    for slab, columns in matrix.slabs:
        part, minima = _columns(values, columns), matrix.minima
        beside = matrix.scales if minima is None else minima
        into = (address(array[slab]) for array in (matrix.codes, matrix.scales, beside))
        function.call(address(part), *into, *_sizes(part), matrix.groups, matrix.panels)
    return True


def _columns(values: Array, columns: slice) -> Array:
    part = values[:, columns]
    return part if steps(part)[1] == part.itemsize else np.ascontiguousarray(part)


def _sizes(part: Array) -> tuple[int, int, int]:
    return *part.shape, steps(part)[0]


@cache
def _words() -> CompiledFunction:
    from singanet.ops.compiled import engine, narrowing

    return engine.known(narrowing.to_words)


@cache
def _blocks(kind: str) -> CompiledFunction | None:
    """Return the function of a kind; None if the processor does not make float16."""
    from singanet.ops.compiled import engine, narrowing

    return engine.known(narrowing.to_blocks, kind) if engine.converts_halves() else None
