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
from singanet.ops.onednn.binding import BF16, F16, S8, U8, Arg, Query, Tag
from singanet.ops.onednn.builder import Builder
from singanet.types import Array

_FEW_ROUNDED = 32
"""Rows up to which words are read as they lie even where products of float32 are faster."""
_GAIN = 0.75
"""Of a multiplication of float32 what one of bfloat16 may take: without AMX some take as long."""
_PART = np.float32(1 / 255)
_TINY = np.finfo(np.float32).tiny


def _multiply(ops: OneDnnBase, x: Array, held: HeldMatrix) -> Array | None:
    slow = ops.narrow and ops.speeds().narrow > _GAIN * ops.speeds().direct
    if isinstance(held, Bfloat16Matrix) and ops.narrow and not held.turned:
        if len(x) <= _FEW_ROUNDED or not slow:
            return _rounded(ops, x, held)
    elif isinstance(held, BlockMatrix) and len(x) <= by_numpy.FEW and not held.turned:
        return _by_blocks(ops, x, held)
    return by_numpy.multiply_held(ops.wide, x, held) if slow and ops.wide is not None else None


multiply_held = in_order(
    Route("onednn", _multiply, lambda ops, x, held: ops.serves(1, x)),
    last=by_numpy.multiply_held,
)


def _rounded(ops: OneDnnBase, x: Array, held: Bfloat16Matrix) -> Array | None:
    y: Array = ops.xp.empty((len(x), held.outputs), np.float32)
    key = (len(x), held.inputs, held.outputs)
    done = ops.runs(_words, key, y, ops.ordered(x), held.words, passes=ops.passes(held.inputs))
    return y if done else None


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


def _by_blocks(ops: OneDnnBase, x: Array, held: BlockMatrix) -> Array | None:
    rows, groups, width = len(x), held.groups, held.panels * PANEL
    whole, steps, sums = _whole_rows(x, held)
    y = np.empty((rows, len(held.codes) * width), np.float32)
    made = np.empty((groups, rows, 2, 2, width), np.float32)
    one = np.empty((groups, 2, width), np.float32)
    factors = one.reshape(2 * groups, width)
    codes = None
    for slab, _ in held.slabs:
        codes = held.whole_codes(slab, codes if held.bits == 4 else None)
        key = (groups, 4 * rows, width)
        if not ops.runs(_whole, key, made, whole, codes, passes=ops.passes(GROUP)):
            return None
        scales = _wide(ops, held.scales[slab])
        into = y[:, slab * width : (slab + 1) * width]
        for row in range(rows):
            np.subtract(made[:, row, :, 0], made[:, row, :, 1], out=one)
            if held.kind == "Q4_0":
                factors -= 8 * sums[row][:, None]
            np.multiply(factors, scales, out=factors)
            np.matmul(steps[row], factors, out=into[row])
        if held.minima is not None:
            into += sums @ _wide(ops, held.minima[slab])
    return y[:, : held.outputs]


def _whole_rows(x: Array, held: BlockMatrix) -> tuple[Array, Array, Array]:
    """Rows of whole numbers (groups, R, 2, 2, 64); the step of each block (R, blocks), and a sum.

    Axes 2 and 3 are the block that a row is of, and the sign. The sum is that of what minima are
    multiplied by, x, or the whole numbers.
    """
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


def _wide(ops: OneDnnBase, halves: Array) -> Array:
    """float16 numbers as float32; NumPy takes five times as long, and fifty for the least."""
    made = np.empty(halves.shape, np.float32)
    if not ops.runs(_widened, (halves.size,), made, halves):
        made[...] = halves
    return made


def _widened(build: Builder, size: int) -> None:
    plain, halves = build.rows((size,)), build.rows((size,), F16)
    target, source = build.operand(0, plain), build.operand(1, halves)
    build.reorder(halves, source, plain, target)


def _whole(build: Builder, groups: int, m: int, n: int) -> None:
    """Operands: sums of blocks (groups, m, n), rows of unsigned, panels of signed numbers."""
    shape = (groups, m, GROUP)
    a, y = build.rows(shape, U8), build.rows((groups, m, n))
    b = build.tagged((groups, GROUP, n), S8, Tag.STACKED_PANELS_OF_FOURS)
    desc = build.primitive_desc("matmul", a, b, None, y)
    build.stage(desc, build.operands((Arg.DST, Arg.SRC, Arg.WEIGHTS), [y, a, b]))
