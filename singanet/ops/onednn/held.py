"""Products with matrices that are held in fewer bits: of words as they lie, or of what is widened.

Words of bfloat16 are multiplied by rows that are rounded to it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from singanet.ops.held import Bfloat16Matrix, BlockMatrix, HeldMatrix
from singanet.ops.kernel import Route, in_order
from singanet.ops.narrow_products import any_rows, few_rows, prepared
from singanet.ops.numpy import held as by_numpy
from singanet.ops.onednn.base import OneDnnBase
from singanet.ops.onednn.binding import BF16, Arg, Query, Tag
from singanet.ops.onednn.builder import Builder
from singanet.ops.onednn.widened import by_widened, rounds
from singanet.types import Array

_FEW_ROUNDED = 32
"""Rows up to which words are read as they lie even where products of float32 are faster."""


def _multiply(
    ops: OneDnnBase, x: Array, held: HeldMatrix, *, out: Array | None = None
) -> Array | None:
    if not (out is None or out.flags.c_contiguous) or not len(x):
        return None
    if not isinstance(held, (Bfloat16Matrix, BlockMatrix)):
        return None
    made = None
    if isinstance(held, Bfloat16Matrix) and not held.turned:
        made = _by_words(ops, x, held, out)
    if made is None and _widens(ops, x, held):
        made = by_widened(ops, x, held, out)
    return made


def _widens(ops: OneDnnBase, x: Array, held: HeldMatrix) -> bool:
    return rounds(ops) and (held.turned or len(x) > by_numpy.FEW)


multiply_held = in_order(
    few_rows,
    Route("onednn", _multiply, lambda ops, x, held, out=None: ops.serves(1, x)),
    any_rows,
    last=by_numpy.multiply_widened,
)


def prepared_held(ops: OneDnnBase, x: Array, held: HeldMatrix) -> Callable[..., None] | None:
    """See `Ops`."""
    if not few_rows.fits(ops, x, held) and ops.serves(1, x):
        by_words = isinstance(held, Bfloat16Matrix) and not held.turned and _rounds(ops, len(x))
        if by_words or _widens(ops, x, held):
            return None
    return prepared(ops, x, held)


def _rounds(ops: OneDnnBase, rows: int) -> bool:
    library = ops.library()
    return bool(library and library.bfloat16 and (rows <= _FEW_ROUNDED or rounds(ops)))


def _by_words(ops: OneDnnBase, x: Array, held: Bfloat16Matrix, out: Array | None) -> Array | None:
    """By rows that are rounded, where they are few or that is faster."""
    (m, k), n = x.shape, held.outputs
    if not _rounds(ops, m):
        return None
    x, passes = ops.ordered(x), ops.passes(k)
    if m == 1:
        # AMX's kernel takes twice as long for one row as for two.
        x, made = np.repeat(x, 2, 0), np.empty((2, n), np.float32)
        if not ops.runs(_words, (2, k, n), made, x, held.words, passes=passes):
            return None
        y: Array = made[:1] if out is None else out
        y[...] = made[:1]
        return y
    y = np.empty((m, n), np.float32) if out is None else out
    return y if ops.runs(_words, (m, k, n), y, x, held.words, passes=passes) else None


def _words(build: Builder, m: int, k: int, n: int) -> None:
    """Operands: the products, the rows, the words in panels."""
    a, y = build.rows((m, k), BF16), build.rows((m, n))
    b = build.tagged((k, n), BF16, Tag.PANELS_OF_PAIRS)
    desc = build.primitive_desc("matmul", a, b, None, y)
    memories = {
        Arg.DST: build.operand(0, y),
        Arg.SRC: build.packed_input(1, build.rows((m, k)), build.layout(desc, Query.SRC)),
        Arg.WEIGHTS: build.operand(2, b),
    }
    build.stage(desc, memories)
