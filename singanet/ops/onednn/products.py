"""Multiply matrices by oneDNN.

Each matrix is in C order, or the transposed view of one. A constant matrix is reordered by a call
of its own, which a program makes once. A call of oneDNN takes a microsecond, in which a core
multiplies 50,000 numbers. A stack of matrices may be a view, such as the heads of (N, T,
heads·size); it is not copied.

A narrow matrix is converted to float32 a few columns at a time, and rounded to bfloat16 in the
cache if the processor multiplies that much faster. bfloat16 matrices are multiplied by rows rounded
to bfloat16.

`narrowed` kernels round the factors of convolutions and large products to bfloat16, which has
float32's range and 8 of its 24 bits, and sum in float32; recurrent kernels also round the state h
of each step. Their arguments and results are float32. A float32 product is used if it is expected
to be faster, for example for some sizes and for tiled convolutions on processors with AVX-512 BF16.
`singanet.program.narrow` has the arrays that a program stores in bfloat16.
"""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable, Iterator

import numpy as np

from singanet.base.heap import steps
from singanet.errors import BackendError
from singanet.ops import blas
from singanet.ops.interface import Ops
from singanet.ops.kernel import Route, in_order
from singanet.ops.llvm import few, kernels
from singanet.ops.llvm.kernels import is_worth_threads
from singanet.ops.llvm.plans import SHARED
from singanet.ops.narrow import GROUP, PANEL, Bfloat16Matrix, BlockMatrix, NarrowMatrix
from singanet.ops.narrow_products import any_rows, few_rows, prepared
from singanet.ops.numpy import linear as by_numpy
from singanet.ops.onednn.base import OneDnnBase
from singanet.ops.onednn.binding import BF16, F16, F32, S8, Arg, Query, Tag
from singanet.ops.onednn.builder import Builder
from singanet.ops.onednn.library import INSTALL
from singanet.ops.onednn.runtime import Runtime
from singanet.types import Array, Shape

_STACKS_LEAST = 1 << 22
"""Multiply-adds from which starting oneDNN's threads pays."""

_LEAST_EACH, _LEAST_ROUNDED = 1 << 17, 1 << 16
"""Multiply-adds of one product from which oneDNN is faster, in float32 and in bfloat16."""

_AXES = range(3, 7)


def pays(ops: OneDnnBase, a: Array, b: Array) -> bool:
    """Whether oneDNN multiplies the stacks faster: benchmarks/onednn_kernels.py."""
    if a.ndim not in _AXES or a.ndim != b.ndim or a.shape[:-2] != b.shape[:-2]:
        return False
    each = a.shape[-2] * a.shape[-1] * b.shape[-1]
    least = _LEAST_ROUNDED if ops.narrow else _LEAST_EACH
    return each >= least and math.prod(a.shape[:-2]) * each >= _STACKS_LEAST


def stacks_product(ops: OneDnnBase, a: Array, b: Array, out: Array | None) -> Array | None:
    """Return the products; None if oneDNN cannot read the strides of a stack."""
    lie = _strides(a), _strides(b)
    shape = (*a.shape[:-1], b.shape[-1])
    if None in lie or a.shape[-1] != b.shape[-2] or not ops.serves(1, a, b):
        return None
    y: Array = ops.xp.empty(shape, np.float32) if out is None else out
    if y.shape != shape or y.dtype != a.dtype or not y.flags.c_contiguous:
        return None
    key = (a.shape, b.shape, *lie)
    done = ops.runs(_products, key, y, a, b, passes=ops.passes(a.shape[-1]))
    return y if done else None


def _strides(stack: Array) -> Shape | None:
    """Return strides in elements; None if elements overlap or no matrix axis has stride 1."""
    strides = [stride // stack.itemsize for stride in stack.strides]
    end = 1
    for axis in sorted(range(stack.ndim), key=strides.__getitem__):
        if stack.shape[axis] == 1:
            # The stride of an axis of one element is arbitrary.
            continue
        if strides[axis] < end:
            return None
        end = strides[axis] * stack.shape[axis]
    made = tuple(
        end if extent == 1 else stride for extent, stride in zip(stack.shape, strides, strict=True)
    )
    return made if 1 in made[-2:] else None


def _products(build: Builder, a: Shape, b: Shape, of_a: Shape, of_b: Shape) -> None:
    stacks = build.strided(a, of_a), build.strided(b, of_b), build.rows((*a[:-1], b[-1]))
    desc = build.primitive_desc("matmul", *stacks[:2], None, stacks[2])
    order = (Arg.DST, Arg.SRC, Arg.WEIGHTS)
    build.stage(desc, build.operands(order, [stacks[2], *stacks[:2]]))


_LEAST = 1 << 18
"""Multiply-adds from which oneDNN multiplies.

NumPy's BLAS starts threads at this size. Alone it is as fast, but its threads and OpenMP's would
compete for cores.
"""

_LEAST_OUTER = 1 << 16
"""Multiplications from which oneDNN computes outer products: NumPy's are slow."""

_FEW = 2
"""Rows below which BLAS reads the matrix in place; for more it copies the matrix first."""

_ROUNDED = 1024
"""Uses of a number from which rounding the whole matrix first pays, instead of by blocks."""

_COPIES = 0.0038
"""Sum of the reciprocals of rows and columns from which "gemm" reads factors in place."""
_ROWS, _COLUMNS, _DEPTH = 384, 10_000, 192
"""Extents of a packed block."""
_WHOLE, _SHALLOW = 256, 48
"""Largest depth of a single block, and the depth below which a block has 24 rows."""
_GAP = 16_480
"""Bytes between the blocks."""

_LEAST_CONSTANT = 1 << 14
"""Multiply-adds from which a bare product beats NumPy's; with bias or relu it always does."""


def _matmul(ops: OneDnnBase, a: Array, b: Array, *, out: Array | None = None) -> Array | None:
    return _multiplied(ops, a, b, None, out) if a.ndim == 2 else stacks_product(ops, a, b, out)


def _add_matmul(ops: OneDnnBase, y: Array, a: Array, b: Array) -> Array | None:
    return _multiplied(ops, a, b, None, y, adds=True)


def _affine(ops: OneDnnBase, x: Array, weight: Array, bias: Array | None) -> Array | None:
    return _multiplied(ops, x, weight, bias, None)


def _pays(ops: OneDnnBase, a: Array, b: Array, *, out: Array | None = None) -> bool:
    return _is_large(ops, a, b) or pays(ops, a, b)


def _is_large(ops: OneDnnBase, a: Array, b: Array, bias: Array | None = None) -> bool:
    """Whether two float matrices are large enough for oneDNN, and its threads share the product."""
    rows, matrix = a.shape, b.shape
    if len(rows) != 2 or len(matrix) != 2 or rows[1] != matrix[0] or isinstance(b, NarrowMatrix):
        return False
    adds = rows[0] * matrix[0] * matrix[1]
    if matrix[0] == 1:
        return adds >= _LEAST_OUTER
    return adds >= _LEAST and ops.shares_products()


def _multiplied(
    ops: OneDnnBase,
    a: Array,
    b: Array,
    bias: Array | None,
    out: Array | None,
    adds: bool = False,
) -> Array | None:
    rest = [] if bias is None else [bias]
    if not ops.serves(1, a, b, *rest):
        return None
    if len(a) < _FEW:
        # Loading the runtime limits BLAS's threads: sums have one order from the first call on.
        ops.runtime()
        return None
    transposed = _is_transposed(a), _is_transposed(b)
    (m, k), n = a.shape, b.shape[1]
    y: Array = ops.xp.empty((m, n), np.float32) if out is None else out
    fits = y.shape == (m, n) and y.dtype == a.dtype and y.flags.c_contiguous
    if None in transposed or not fits:
        return None
    key = (m, k, n, *transposed, bias is not None, adds)
    done = ops.runs(product, key, y, a, b, *rest, passes=ops.passes(k))
    return y if done else None


def _affine_constant(
    ops: OneDnnBase, x: Array, weight: Array, bias: Array | None, relu: bool = False
) -> Array | None:
    rest = [] if bias is None else [bias]
    transposed = not weight.flags.c_contiguous
    plain = weight.T if transposed else weight
    if not plain.flags.c_contiguous or not ops.serves(1, x, weight, *rest):
        return None
    (m, k), n = x.shape, weight.shape[1]
    # The layout may depend on the thread count, so both calls use the same.
    passes = SHARED if is_worth_threads(ops, m, weight.size) else 0
    key = (m, k, n, transposed, bias is not None, relu)
    packed = ops.room(_pack, key, 0, weight, passes)
    if not packed.size:
        return None
    y: Array = ops.xp.empty((m, n), x.dtype)
    ops.runs(_pack, key, packed, plain, passes=passes)
    given = (ops.ordered(x), y, packed, *map(ops.ordered, rest))
    ops.runs(_product_packed, key, *given, passes=passes)
    if ops.prepared is not None:
        ops.prepared.drops_nan |= relu
    return y


matmul = in_order(few.matmul, Route("onednn", _matmul, _pays), last=by_numpy.matmul)

add_matmul = in_order(
    Route("onednn", _add_matmul, lambda ops, y, a, b: _is_large(ops, a, b)),
    last=by_numpy.add_matmul,
)

affine = in_order(few.affine, Route("onednn", _affine, _is_large), last=by_numpy.affine)

affine_constant = in_order(
    kernels.product,
    Route(
        "onednn",
        _affine_constant,
        lambda ops, x, weight, bias, relu=False: (
            x.ndim == 2
            and not isinstance(weight, NarrowMatrix)
            and (bias is not None or relu or len(x) * weight.size >= _LEAST_CONSTANT)
        ),
    ),
    last=by_numpy.affine_constant,
)


def _is_transposed(matrix: Array) -> bool | None:
    """Whether the matrix is transposed in memory; None if it has gaps."""
    if matrix.flags.c_contiguous:
        return False
    return True if matrix.flags.f_contiguous else None


def product(
    build: Builder,
    m: int,
    k: int,
    n: int,
    transpose_a: bool,
    transpose_b: bool,
    bias: bool,
    adds: bool = False,
) -> None:
    """Operands: the result, two matrices, each plain or transposed, and a bias if ``bias``.

    ``adds`` adds the product to the result.
    """
    large = min(m, n) >= _ROUNDED
    # Rounding first would change the order of sums of a smaller product.
    kind = build.factor if large else build.kind
    a = build.strided((m, k), (1, m) if transpose_a else (k, 1), kind(1))
    b = build.strided((k, n), (1, k) if transpose_b else (n, 1), kind(2))
    y, line = build.rows((m, n)), build.rows((1, n))
    wanted = [a, b]
    if build.factors != F32 and (large or build.stores):
        wanted = [build.rows((m, k), build.factors), build.free((k, n), build.factors)]
    after = build.post_ops(add=adds)
    desc = build.primitive_desc("matmul", *wanted, line if bias else None, y, attributes=after)
    build.packing = _packing(build, desc, m, k, n)
    memories = {
        Arg.DST: build.operand(0, y),
        Arg.SRC: build.packed_input(1, a, build.layout(desc, Query.SRC)),
        Arg.WEIGHTS: build.packed_input(2, b, build.layout(desc, Query.WEIGHTS)),
    }
    if bias:
        memories[Arg.BIAS] = build.operand(3, line)
    build.stage(desc, memories, adds_to=(Arg.DST,) if adds else ())


def _packing(build: Builder, desc: object, m: int, k: int, n: int) -> int:
    """Return the bytes that oneDNN's "gemm" kernels write to pack blocks of the factors.

    They come from malloc, and no scratchpad size includes them; other kernels need none. Source:
    ``gemm_driver.cpp`` and ``gemm_info.cpp`` of oneDNN 3, for processors without AVX-512.
    """
    if not build.implementation(desc).startswith("gemm") or 1 / m + 1 / n >= _COPIES:
        return 0
    # The threads divide the columns if each has a block of them, and the rows otherwise.
    n = -(-n // build.threads) if n >= build.threads * _ROWS else n
    columns = -(-min(n, _COLUMNS) // 24) * 24
    rows = 24 if k < _SHALLOW else min(-(-m // 4) * 4, _ROWS)
    depth = k if k <= _WHOLE else -(-k // 2) if k < 2 * _DEPTH else _DEPTH
    numbers = (rows + columns) * depth + rows
    return build.threads * (4 * numbers + _GAP)


def _desc(build: Builder, m: int, k: int, n: int, bias: bool, relu: bool) -> object:
    line = build.rows((1, n)) if bias else None
    given = (build.rows((m, k), build.factors), build.free((k, n), build.factors))
    after = build.post_ops(relu=relu)
    return build.primitive_desc("matmul", *given, line, build.rows((m, n)), attributes=after)


def _pack(build: Builder, m: int, k: int, n: int, transposed: bool, bias: bool, relu: bool) -> None:
    """Operands: the matrix in the layout of the product, and plain."""
    wanted = build.layout(_desc(build, m, k, n, bias, relu), Query.WEIGHTS)
    plain = build.strided((k, n), (1, k) if transposed else (n, 1))
    packed, weight = build.operand(0, wanted), build.operand(1, plain)
    build.reorder(plain, weight, wanted, packed)


def _product_packed(
    build: Builder, m: int, k: int, n: int, transposed: bool, bias: bool, relu: bool
) -> None:
    desc = _desc(build, m, k, n, bias, relu)
    build.packing = _packing(build, desc, m, k, n)
    memories = {
        Arg.SRC: build.packed_input(0, build.rows((m, k)), build.layout(desc, Query.SRC)),
        Arg.DST: build.operand(1, build.rows((m, n))),
        Arg.WEIGHTS: build.operand(2, build.layout(desc, Query.WEIGHTS)),
    }
    if bias:
        memories[Arg.BIAS] = build.operand(3, build.rows((1, n)))
    build.stage(desc, memories)


_WIDENED_GAIN = 0.75
"""Largest time of a bfloat16 product, relative to float32, that serves many rows."""
_IN_CACHE = 1 << 17
"""Numbers that are unpacked, transposed and scaled at a time."""


def rounds(ops: OneDnnBase) -> bool:
    """Whether bfloat16 products are much faster."""
    library = ops.library()
    return bool(
        library and library.bfloat16 and ops.speeds().narrow < _WIDENED_GAIN * ops.speeds().direct
    )


def by_widened(ops: OneDnnBase, x: Array, held: NarrowMatrix, out: Array | None) -> Array | None:
    """Compute the product, some columns of ``held`` at a time."""
    runtime = ops.runtime()
    if runtime is None:
        return None
    y: Array = np.empty((len(x), held.shape[1]), np.float32) if out is None else out
    x, many = ops.ordered(x), False
    for part, plain in _parts(ops, runtime, held):
        if not held.transposed:
            _rounded(ops, y[:, part], x, plain, False)
        elif not many:
            _rounded(ops, y, x[:, part], plain, True)
        else:
            beside = runtime.working("beside", y.shape)
            _rounded(ops, beside, x[:, part], plain, True)
            np.add(y, beside, out=y)
        many = True
    return y


def _rounded(ops: OneDnnBase, y: Array, x: Array, plain: Array, transposed: bool) -> None:
    (m, k), n = x.shape, y.shape[1]
    across = tuple(steps(each)[0] // 4 for each in (y, x, plain))
    key = m, k, n, transposed, *across
    if not ops.runs(_widened_product, key, y, x, plain, passes=ops.passes(k)):
        blas.product(np, x, plain.T if transposed else plain, y)


def _widened_product(
    build: Builder, m: int, k: int, n: int, transposed: bool, over_y: int, over_x: int, over_b: int
) -> None:
    """Operands: the products, the rows, the matrix; the last arguments are their row strides."""
    y = build.strided((m, n), (over_y, 1))
    a = build.strided((m, k), (over_x, 1))
    b = build.strided((k, n), (1, over_b) if transposed else (over_b, 1))
    desc = build.primitive_desc(
        "matmul", build.rows((m, k), BF16), build.free((k, n), BF16), None, y
    )
    memories = {
        Arg.DST: build.operand(0, y),
        Arg.SRC: build.packed_input(1, a, build.layout(desc, Query.SRC)),
        Arg.WEIGHTS: build.packed_input(2, b, build.layout(desc, Query.WEIGHTS)),
    }
    build.stage(desc, memories)


def _parts(ops: OneDnnBase, runtime: Runtime, held: NarrowMatrix) -> Iterator[tuple[slice, Array]]:
    """Yield ranges of columns with their float32 values, valid until the next is requested."""
    if isinstance(held, BlockMatrix):
        for slab, part in held.slabs:
            yield part, _of_blocks(ops, runtime, held, slab)[:, : part.stop - part.start]
    else:
        for part in held.parts():
            yield part, _of_words(ops, runtime, held, part)


def _of_words(ops: OneDnnBase, runtime: Runtime, held: NarrowMatrix, part: slice) -> Array:
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
    """Return memory for the unpacked integers of ``groups`` groups."""
    if held.bits == 8:
        return None
    # Four integers of a byte take the place of one float.
    return runtime.working("codes", (groups, held.panels, 16, PANEL, 1)).view(np.int8)


def _from_fours(build: Builder, groups: int, n: int) -> None:
    shape = groups, GROUP, n
    plain, codes = build.rows(shape), build.tagged(shape, S8, Tag.STACKED_PANELS_OF_FOURS)
    target, source = build.operand(0, plain), build.operand(1, codes)
    build.reorder(codes, source, plain, target)


def _wide(ops: OneDnnBase, runtime: Runtime, name: str, halves: Array) -> Array:
    """Convert float16 to float32; NumPy takes five times as long, fifty for subnormal numbers."""
    made = runtime.working(name, halves.shape)
    if not ops.runs(_from_halves, (halves.size,), made, halves):
        made[...] = halves
    return made


def _from_halves(build: Builder, size: int) -> None:
    plain, halves = build.rows((size,)), build.rows((size,), F16)
    target, source = build.operand(0, plain), build.operand(1, halves)
    build.reorder(halves, source, plain, target)


_FEW_ROUNDED = 32
"""Rows up to which bfloat16 weights are read in place, even if float32 products are faster."""


def _multiply(
    ops: OneDnnBase, x: Array, held: NarrowMatrix, *, out: Array | None = None
) -> Array | None:
    if not (out is None or out.flags.c_contiguous) or not len(x):
        return None
    if not isinstance(held, (Bfloat16Matrix, BlockMatrix)):
        return None
    made = None
    if isinstance(held, Bfloat16Matrix) and not held.transposed:
        made = _by_words(ops, x, held, out)
    if made is None and _widens(ops, x, held):
        made = by_widened(ops, x, held, out)
    return made


def _widens(ops: OneDnnBase, x: Array, held: NarrowMatrix) -> bool:
    return rounds(ops) and (held.transposed or len(x) > by_numpy.FEW)


multiply_held = in_order(
    few_rows,
    Route("onednn", _multiply, lambda ops, x, held, out=None: ops.serves(1, x)),
    any_rows,
    last=by_numpy.multiply_widened,
)


def prepared_held(ops: OneDnnBase, x: Array, held: NarrowMatrix) -> Callable[..., None] | None:
    if not few_rows.fits(ops, x, held) and ops.serves(1, x):
        by_words = isinstance(held, Bfloat16Matrix) and not held.transposed and _rounds(ops, len(x))
        if by_words or _widens(ops, x, held):
            return None
    return prepared(ops, x, held)


def _rounds(ops: OneDnnBase, rows: int) -> bool:
    return ops.rounds_rows() and (rows <= _FEW_ROUNDED or rounds(ops))


def _by_words(ops: OneDnnBase, x: Array, held: Bfloat16Matrix, out: Array | None) -> Array | None:
    """Multiply rows rounded to bfloat16, if they are few or that is faster."""
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
    """Operands: the products, the rows, the bfloat16 matrix in panels."""
    a, y = build.rows((m, k), BF16), build.rows((m, n))
    b = build.tagged((k, n), BF16, Tag.PANELS_OF_PAIRS)
    desc = build.primitive_desc("matmul", a, b, None, y)
    memories = {
        Arg.DST: build.operand(0, y),
        Arg.SRC: build.packed_input(1, build.rows((m, k)), build.layout(desc, Query.SRC)),
        Arg.WEIGHTS: build.operand(2, b),
    }
    build.stage(desc, memories)


def narrowed(ops: Ops, where: str, stores: bool = True) -> Ops:
    """Return ``ops`` with bfloat16 factors and plans of its own; itself if it already has them.

    ``stores`` lets programs store eligible arrays in bfloat16.

    Errors: `BackendError` if the kernels or the processor have no such products.
    """
    library = ops.library() if isinstance(ops, OneDnnBase) else None
    if not isinstance(ops, OneDnnBase) or library is None:
        received, advice = f"kernels of {ops.name}", INSTALL
    elif not library.bfloat16:
        received = "oneDNN on a processor without such products"
        advice = "use a processor with AVX-512 BF16 or AMX"
    else:
        return ops if ops.narrow and ops.stores == stores else _narrow(ops, stores)
    raise BackendError(
        where,
        expected="kernels that multiply bfloat16",
        received=received,
        advice=f'{advice}; "auto" uses float32 then',
    )


def narrow_pays(ops: Ops) -> bool:
    """Whether ``ops`` can be narrowed, and its bfloat16 products are much faster."""
    library = ops.library() if isinstance(ops, OneDnnBase) else None
    if not isinstance(ops, OneDnnBase) or library is None:
        return False
    return library.bfloat16 and ops.speeds()._narrow_pays


def _narrow(ops: OneDnnBase, stores: bool) -> OneDnnBase:
    made = copy.copy(ops)
    made.stores = stores
    made.narrow, made._local = True, threading.local()
    return made
