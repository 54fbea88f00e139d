"""Functions that recorded calls name: what Python's brackets, and functions that fill nothing, do.

Each fills an array that is given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from singanet.ops import Ops
from singanet.ops.held import HalvesMatrix, HeldMatrix
from singanet.types import Array

__all__ = ["filled_by", "gather", "multiplied", "picked", "scatter", "store", "take_rows"]


def gather(array: Array, index: Any, out: Array) -> None:
    """Copy what ``index`` selects."""
    out[...] = array[index]


def scatter(array: Array, index: Any, value: Any) -> None:
    """Assign to what ``index`` selects."""
    array[index] = value


def take_rows(table: Array, indices: Array, out: Array) -> None:
    """Copy the rows of ``table`` at ``indices``, which were checked."""
    table.take(indices, 0, out, "clip")


def store(out: Array, func: Any, args: Any, kwargs: Any) -> None:
    """Keep what ``func`` returns; for functions that cannot fill an array."""
    np.copyto(out, func(*args, **kwargs))


def filled_by(function: Callable[..., None], ops: Ops, count: int, *arrays: Any) -> None:
    """Call ``function`` with so many arrays to fill, memory to work in, and what it reads."""
    function(ops, arrays[count], *arrays[:count], *arrays[count + 1 :])


def multiplied(ops: Ops, x: Array, held: HeldMatrix, out: Array) -> None:
    """The product of ``x`` and a matrix that is held in fewer bits."""
    ops.multiply_held(x, held, out=out)


def multiplied_halves(ops: Ops, turned: bool, x: Array, values: Array, out: Array) -> None:
    """The product of ``x`` and the float16 ``values``, or their transpose."""
    held = HalvesMatrix(values)
    ops.multiply_held(x, held.T if turned else held, out=out)


def picked(ops: Any, table: HeldMatrix, indices: Array, out: Array) -> None:
    """Rows of a table that is held in fewer bits."""
    out[...] = ops.gather_rows(table, indices)
