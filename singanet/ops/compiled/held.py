"""Few rows times matrices that are held in fewer bits, which are widened in registers.

The time goes into reading the matrix once, in the order in which it lies.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import addressof, c_char
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from typing import Any

import numpy as np

from singanet.ops.held import GROUP, PANEL, Bfloat16Matrix, BlockMatrix, HeldMatrix
from singanet.ops.interface import Ops
from singanet.ops.kernel import Route
from singanet.types import Array

_FEW = 4
"""Rows up to which the sums of a panel stay in registers."""
_SHARED = 1 << 21
"""Bytes from which two threads read: some 0.2 ms alone, a multiple of what waking one takes."""

Part = Callable[[int, int], None]
"""Makes the products of the panels from the first to one past the last."""


def _fits(ops: Ops, x: Array, held: HeldMatrix, *, out: Array | None = None) -> bool:
    return (
        0 < len(x) <= _FEW
        and isinstance(held, (Bfloat16Matrix, BlockMatrix))
        and not held.turned
        and x.dtype == np.float32
        and _found()
    )


def _multiply(
    ops: Ops, x: Array, held: Bfloat16Matrix | BlockMatrix, *, out: Array | None = None
) -> Array:
    rows, width = len(x), -(-held.outputs // PANEL) * PANEL
    if isinstance(held, BlockMatrix):
        width = held.panels * len(held.codes) * PANEL
    fits = out is not None and width == held.outputs and out.flags.c_contiguous
    y = out if out is not None and fits else np.empty((rows, width), np.float32)
    if isinstance(held, Bfloat16Matrix):
        panels, part = _of_words(x, held, y)
    else:
        panels, part = _of_blocks(x, held, y)
    _share(ops, part, panels, held.arrays[0].nbytes)
    if y is out:
        return y
    found = y[:, : held.outputs]
    if out is None:
        return np.ascontiguousarray(found)
    out[...] = found
    return out


few_rows = Route("compiled", _multiply, _fits)


def _of_words(x: Array, held: Bfloat16Matrix, y: Array) -> tuple[int, Part]:
    panels, pairs = held.words.shape[:2]
    x = _padded(x, 2 * pairs)
    return panels, _part(_words(len(x)), (held.words, x, y), (pairs, panels))


def _of_blocks(x: Array, held: BlockMatrix, y: Array) -> tuple[int, Part]:
    x = _padded(x, held.groups * GROUP)
    minima = held.scales if held.minima is None else held.minima
    arrays = held.codes, held.scales, minima, x, y
    sizes = len(held.codes), held.groups, held.panels
    return held.panels, _part(_blocks(held.kind, len(x)), arrays, sizes)


def _part(function: Callable[..., None], arrays: tuple[Array, ...], sizes: tuple[int, ...]) -> Part:
    places = [_address(array) for array in arrays]

    # The arrays live for as long as what they are pointed to by.
    def part(first: int, last: int, _: tuple[Array, ...] = arrays) -> None:
        function(*places, *sizes, first, last)

    return part


def _address(array: Any) -> int:
    if array.flags.writeable:
        # A third of what NumPy's own way takes.
        return addressof(c_char.from_buffer(array))
    found: int = array.ctypes.data
    return found


def _padded(x: Array, inputs: int) -> Array:
    if x.shape[1] != inputs:
        return np.pad(x, ((0, 0), (0, inputs - x.shape[1])))
    return np.ascontiguousarray(x)


def _share(ops: Ops, part: Part, panels: int, size: int) -> None:
    """Have the threads of ``ops`` do the panels, where they are that many bytes."""
    if size < _SHARED:
        part(0, panels)
        return
    threads, side_by_side = ops.team()
    cuts = [k * panels // threads for k in range(threads + 1)]
    side_by_side([[partial(part, *cut)] for cut in pairwise(cuts) if cut[0] < cut[1]])


@cache
def _found() -> bool:
    """Whether there is LLVM, of which older releases know other names."""
    try:
        found = [int(part) for part in version("llvmlite").split(".")[:2]]
    except (PackageNotFoundError, ValueError):
        return False
    return found >= [0, 45]


@cache
def _words(rows: int) -> Callable[..., None]:
    # Imported when it is first compiled: LLVM takes a tenth of a second.
    from singanet.ops.compiled import engine, words

    return engine.compiled(words.product(rows))


@cache
def _blocks(kind: str, rows: int) -> Callable[..., None]:
    from singanet.ops.compiled import blocks, engine

    return engine.compiled(blocks.product(kind, rows))
