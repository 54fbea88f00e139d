"""Few rows times matrices that are held in fewer bits, which are widened in registers.

The time goes into reading the matrix once, in the order in which it lies.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version

import numpy as np

from singanet.base.addresses import address
from singanet.ops.held import GROUP, PANEL, Bfloat16Matrix, BlockMatrix, HeldMatrix
from singanet.ops.interface import Ops
from singanet.ops.kernel import Route
from singanet.ops.workers import cuts
from singanet.types import Array

_FEW = 4
"""Rows up to which the sums of a panel stay in registers."""
_SHARED = 1 << 21
"""Bytes from which two threads read: some 0.2 ms alone, a multiple of what waking one takes."""


def _fits(ops: Ops, x: Array, held: HeldMatrix, *, out: Array | None = None) -> bool:
    return (
        0 < len(x) <= _FEW
        and ops.xp is np
        and isinstance(held, (Bfloat16Matrix, BlockMatrix))
        and not held.turned
        and x.dtype == np.float32
        and has_compiler()
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
        _by_words(ops, x, held, y)
    else:
        _by_blocks(ops, x, held, y)
    if y is out:
        return y
    if out is None:
        return y if width == held.outputs else np.ascontiguousarray(y[:, : held.outputs])
    out[...] = y[:, : held.outputs]
    return out


few_rows = Route("compiled", _multiply, _fits)


def _by_words(ops: Ops, x: Array, held: Bfloat16Matrix, y: Array) -> None:
    words, x = held.words, _padded(x, 2 * held.words.shape[1])
    panels, pairs = words.shape[:2]
    places = address(words), address(x), address(y)
    _share(ops, partial(_words(len(x)), *places, pairs, panels), panels, words.nbytes)


def _by_blocks(ops: Ops, x: Array, held: BlockMatrix, y: Array) -> None:
    codes, x = held.codes, _padded(x, held.groups * GROUP)
    minima = held.scales if held.minima is None else held.minima
    places = address(codes), address(held.scales), address(minima), address(x), address(y)
    sizes = len(codes), held.groups, held.panels
    _share(ops, partial(_blocks(held.kind, len(x)), *places, *sizes), held.panels, codes.nbytes)


def _padded(x: Array, inputs: int) -> Array:
    if x.shape[1] != inputs:
        return np.pad(x, ((0, 0), (0, inputs - x.shape[1])))
    return np.ascontiguousarray(x)


def _share(ops: Ops, make: Callable[[int, int], None], panels: int, size: int) -> None:
    """``make`` the panels from the first to one past the last, by threads if they are many bytes.

    The caller has what pointers point to.
    """
    if size < _SHARED:
        make(0, panels)
        return
    threads, side_by_side = ops.team()
    side_by_side([[partial(make, *cut)] for cut in cuts(panels, threads)])


@cache
def has_compiler() -> bool:
    """Whether there is LLVM, of which older releases know other names."""
    try:
        release = [int(part) for part in version("llvmlite").split(".")[:2]]
    except (PackageNotFoundError, ValueError):
        return False
    return release >= [0, 45]


@cache
def _words(rows: int) -> Callable[..., None]:
    # Imported when it is first compiled: LLVM takes a tenth of a second.
    from singanet.ops.compiled import engine, words

    return engine.known(words.product, rows).call


@cache
def _blocks(kind: str, rows: int) -> Callable[..., None]:
    from singanet.ops.compiled import blocks, engine

    return engine.known(blocks.product, kind, rows).call
