"""Products of many rows with matrices that are held in fewer bits.

Some columns at a time become float32, and are rounded to bfloat16 while they are in the cache,
where the processor multiplies that much faster.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from singanet.base.addresses import steps
from singanet.ops.held import GROUP, PANEL, Bfloat16Matrix, BlockMatrix, HeldMatrix
from singanet.ops.onednn.base import OneDnnBase
from singanet.ops.onednn.binding import BF16, F16, S8, Arg, Query, Tag
from singanet.ops.onednn.builder import Builder
from singanet.ops.onednn.runtime import Runtime
from singanet.types import Array

_GAIN = 0.75
"""Of a multiplication of float32 what one of bfloat16 may take to be used for many rows."""
_IN_CACHE = 1 << 17
"""Numbers that are unpacked, turned and scaled at a time."""


def rounds(ops: OneDnnBase) -> bool:
    """Whether products of bfloat16 are the faster ones by far."""
    library = ops.library()
    return bool(library and library.bfloat16 and ops.speeds().narrow < _GAIN * ops.speeds().direct)


def by_widened(ops: OneDnnBase, x: Array, held: HeldMatrix, out: Array | None) -> Array | None:
    """The product, by some columns of ``held`` at a time."""
    runtime = ops.runtime()
    if runtime is None:
        return None
    y: Array = np.empty((len(x), held.shape[1]), np.float32) if out is None else out
    x, many = ops.ordered(x), False
    for part, plain in _parts(ops, runtime, held):
        if not held.turned:
            _rounded(ops, y[:, part], x, plain, False)
        elif not many:
            _rounded(ops, y, x[:, part], plain, True)
        else:
            beside = runtime.working("beside", y.shape)
            _rounded(ops, beside, x[:, part], plain, True)
            np.add(y, beside, out=y)
        many = True
    return y


def _rounded(ops: OneDnnBase, y: Array, x: Array, plain: Array, turned: bool) -> None:
    (m, k), n = x.shape, y.shape[1]
    across = tuple(steps(each)[0] // 4 for each in (y, x, plain))
    key = m, k, n, turned, *across
    if not ops.runs(_product, key, y, x, plain, passes=ops.passes(k)):
        np.matmul(x, plain.T if turned else plain, out=y)


def _product(
    build: Builder, m: int, k: int, n: int, turned: bool, over_y: int, over_x: int, over_b: int
) -> None:
    """Operands: the products, the rows, the matrix; each row is so many numbers after another."""
    y = build.strided((m, n), (over_y, 1))
    a = build.strided((m, k), (over_x, 1))
    b = build.strided((k, n), (1, over_b) if turned else (over_b, 1))
    desc = build.primitive_desc(
        "matmul", build.rows((m, k), BF16), build.free((k, n), BF16), None, y
    )
    memories = {
        Arg.DST: build.operand(0, y),
        Arg.SRC: build.packed_input(1, a, build.layout(desc, Query.SRC)),
        Arg.WEIGHTS: build.packed_input(2, b, build.layout(desc, Query.WEIGHTS)),
    }
    build.stage(desc, memories)


def _parts(ops: OneDnnBase, runtime: Runtime, held: HeldMatrix) -> Iterator[tuple[slice, Array]]:
    """Runs of columns, and what they are in float32 (inputs, ·) until the next run is asked for."""
    if isinstance(held, BlockMatrix):
        for slab, part in held.slabs:
            yield part, _of_blocks(ops, runtime, held, slab)[:, : part.stop - part.start]
    else:
        for part in held.parts():
            yield part, _of_words(ops, runtime, held, part)


def _of_words(ops: OneDnnBase, runtime: Runtime, held: HeldMatrix, part: slice) -> Array:
    shape = held.inputs, part.stop - part.start
    plain = runtime.working("widened", shape)
    if isinstance(held, Bfloat16Matrix):
        words = held.words[part.start // PANEL :]
        if ops.runs(_from_pairs, shape, plain, words):
            return plain
    plain[...] = held.columns(part.start, part.stop)
    return plain


def _from_pairs(build: Builder, k: int, n: int) -> None:
    plain, words = build.rows((k, n)), build.tagged((k, n), BF16, Tag.PANELS_OF_PAIRS)
    target, source = build.operand(0, plain), build.operand(1, words)
    build.reorder(words, source, plain, target)


def _of_blocks(ops: OneDnnBase, runtime: Runtime, held: BlockMatrix, slab: int) -> Array:
    width = held.panels * PANEL
    plain = runtime.working("widened", (held.groups, 2, GROUP // 2, width))
    scales = _wide(ops, runtime, "scales", held.scales[slab])
    minima = None if held.minima is None else _wide(ops, runtime, "minima", held.minima[slab])
    step = max(1, _IN_CACHE // (GROUP * width))
    for start in range(0, held.groups, step):
        groups = slice(start, min(start + step, held.groups))
        made = plain[groups]
        codes = held.whole_codes(slab, groups, _room_of_codes(runtime, held, len(made)))
        if held.kind == "Q4_0":
            codes -= np.int8(8)
        if not ops.runs(_from_fours, (len(made), width), made, codes):
            made[...] = codes.transpose(0, 2, 4, 1, 3).reshape(made.shape)
        blocks = slice(2 * groups.start, 2 * groups.stop)
        made *= scales[blocks].reshape(len(made), 2, 1, width)
        if minima is not None:
            made += minima[blocks].reshape(len(made), 2, 1, width)
    return plain.reshape(-1, width)[: held.inputs]


def _room_of_codes(runtime: Runtime, held: BlockMatrix, groups: int) -> Array | None:
    """Memory for the numbers of so many groups, where they are unpacked."""
    if held.bits == 8:
        return None
    # Four numbers of a byte in the place of one float.
    return runtime.working("codes", (groups, held.panels, 16, PANEL, 1)).view(np.int8)


def _from_fours(build: Builder, groups: int, n: int) -> None:
    shape = groups, GROUP, n
    plain, codes = build.rows(shape), build.tagged(shape, S8, Tag.STACKED_PANELS_OF_FOURS)
    target, source = build.operand(0, plain), build.operand(1, codes)
    build.reorder(codes, source, plain, target)


def _wide(ops: OneDnnBase, runtime: Runtime, name: str, halves: Array) -> Array:
    """float16 numbers as float32; NumPy takes five times as long, and fifty for the least."""
    made = runtime.working(name, halves.shape)
    if not ops.runs(_from_halves, (halves.size,), made, halves):
        made[...] = halves
    return made


def _from_halves(build: Builder, size: int) -> None:
    plain, halves = build.rows((size,)), build.rows((size,), F16)
    target, source = build.operand(0, plain), build.operand(1, halves)
    build.reorder(halves, source, plain, target)
