"""Products of few rows with matrices that are held in fewer bits, as they lie.

Words of bfloat16 are multiplied by rows that are rounded to it. Blocks of whole numbers are
multiplied by rows of whole numbers, as by llama.cpp: each 32 of a row have a scale. What is
positive and what is negative of them are two rows of 0 to 255, as oneDNN's quickest products of
small integers are of unsigned by signed ones; two blocks are summed in one product, each with zeros
in the place of the other.
"""

from __future__ import annotations

import numpy as np

from singanet.ops.held import BLOCK, GROUP, PANEL, Bfloat16Matrix, BlockMatrix, HeldMatrix
from singanet.ops.kernel import Route, in_order
from singanet.ops.numpy import held as by_numpy
from singanet.ops.onednn.base import OneDnnBase
from singanet.ops.onednn.binding import BF16, S8, U8, Arg, Query, Tag
from singanet.ops.onednn.builder import Builder
from singanet.ops.onednn.runtime import Runtime
from singanet.ops.onednn.widened import (
    by_widened,
    room_of_codes,
    rounds,
    wide,
)
from singanet.types import Array

_FEW_ROUNDED = 32
"""Rows up to which words are read as they lie even where products of float32 are faster."""
_PART = np.float32(1 / 255)
_TINY = np.finfo(np.float32).tiny


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
    elif isinstance(held, BlockMatrix) and not held.turned and len(x) <= by_numpy.FEW:
        made = _by_blocks(ops, x, held, out)
    if made is None and (held.turned or len(x) > by_numpy.FEW):
        made = by_widened(ops, x, held, out)
    return made


multiply_held = in_order(
    Route("onednn", _multiply, lambda ops, x, held, out=None: ops.serves(1, x)),
    last=by_numpy.multiply_held,
)


def _by_words(ops: OneDnnBase, x: Array, held: Bfloat16Matrix, out: Array | None) -> Array | None:
    """By rows that are rounded, where they are few or that is faster."""
    library, (m, k), n = ops.library(), x.shape, held.outputs
    if library is None or not library.bfloat16 or not (m <= _FEW_ROUNDED or rounds(ops)):
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


def _by_blocks(ops: OneDnnBase, x: Array, held: BlockMatrix, out: Array | None) -> Array | None:
    runtime = ops.runtime()
    if runtime is None:
        return None
    rows, groups, width = len(x), held.groups, held.panels * PANEL
    whole, steps, sums = _whole_rows(runtime, x, held)
    y = np.empty((rows, len(held.codes) * width), np.float32)
    made = runtime.working("sums", (groups, rows, 2, 2, width))
    one = runtime.working("factors", (groups, 2, width))
    factors = one.reshape(2 * groups, width)
    room = room_of_codes(runtime, held, groups)
    for slab, _ in held.slabs:
        codes = held.whole_codes(slab, slice(None), room)
        key = (groups, 4 * rows, width)
        if not ops.runs(_whole, key, made, whole, codes, passes=ops.passes(GROUP)):
            return None
        scales = wide(ops, runtime, "scales", held.scales[slab])
        into = y[:, slab * width : (slab + 1) * width]
        for row in range(rows):
            np.subtract(made[:, row, :, 0], made[:, row, :, 1], out=one)
            if held.kind == "Q4_0":
                factors -= 8 * sums[row][:, None]
            np.multiply(factors, scales, out=factors)
            np.matmul(steps[row], factors, out=into[row])
        if held.minima is not None:
            into += sums @ wide(ops, runtime, "minima", held.minima[slab])
    found = y[:, : held.outputs]
    if out is None:
        return np.ascontiguousarray(found)
    out[...] = found
    return out


def _whole_rows(runtime: Runtime, x: Array, held: BlockMatrix) -> tuple[Array, Array, Array]:
    """Rows of whole numbers (groups, R, 2, 2, 64); the step of each block (R, blocks), and a sum.

    Axes 2 and 3 are the block that a row is of, and the sign. The sum is that of what minima are
    multiplied by, x, or the whole numbers. Those of the last rows are kept: several matrices often
    read the same ones.
    """
    key = held.kind, x.shape, x.tobytes()
    if runtime.last[0] != key:
        with np.errstate(invalid="ignore"):  # NaN and infinity make what they make of any numbers
            runtime.last = key, _made_whole(x, held)
    made: tuple[Array, Array, Array] = runtime.last[1]
    return made


def _made_whole(x: Array, held: BlockMatrix) -> tuple[Array, Array, Array]:
    rows, blocks = len(x), 2 * held.groups
    if held.inputs != blocks * BLOCK:
        x = np.pad(x, ((0, 0), (0, blocks * BLOCK - held.inputs)))
    x = x.reshape(rows, blocks, BLOCK)
    step = np.abs(x).max(2, keepdims=True)
    step *= _PART
    np.maximum(step, _TINY, out=step)
    numbers = np.divide(x, step)
    np.rint(numbers, out=numbers)
    whole = np.zeros((held.groups, rows, 2, 2, 2, BLOCK), np.uint8)
    for half in (0, 1):
        some = numbers[:, half::2].swapaxes(0, 1)
        np.maximum(some, 0, out=whole[:, :, half, 0, half], casting="unsafe")
        np.maximum(-some, 0, out=whole[:, :, half, 1, half], casting="unsafe")
    sums = step if held.bits == 8 else (x if held.minima is not None else numbers).sum(2)
    return whole, step[..., 0], sums


def _whole(build: Builder, groups: int, m: int, n: int) -> None:
    """Operands: sums of blocks (groups, m, n), rows of unsigned, panels of signed numbers."""
    shape = (groups, m, GROUP)
    a, y = build.rows(shape, U8), build.rows((groups, m, n))
    b = build.tagged((groups, GROUP, n), S8, Tag.STACKED_PANELS_OF_FOURS)
    desc = build.primitive_desc("matmul", a, b, None, y)
    build.stage(desc, build.operands((Arg.DST, Arg.SRC, Arg.WEIGHTS), [y, a, b]))
