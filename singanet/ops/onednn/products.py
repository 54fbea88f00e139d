"""Large matrix products by oneDNN, so that they share its threads.

Each matrix is in C order, or the transposed view of one. A constant matrix is laid out by a call of
its own, which a program can make once.
"""

from __future__ import annotations

import numpy as np

from singanet.ops.held import HeldMatrix
from singanet.ops.kernel import Route, in_order
from singanet.ops.numpy import linear as by_numpy
from singanet.ops.onednn import few_products, stacks
from singanet.ops.onednn.base import OneDnnBase
from singanet.ops.onednn.binding import F32, Arg, Query
from singanet.ops.onednn.builder import Builder
from singanet.ops.onednn.runtime import SHARED
from singanet.types import Array

_LEAST = 1 << 18
"""Multiply-adds from which the products are oneDNN's.

From there on NumPy's BLAS uses threads too. It is as fast by itself, but its threads and OpenMP's
would wait for each other's cores.
"""

_LEAST_OUTER = 1 << 16
"""Multiplications from which products of a column and a row are oneDNN's: NumPy's are slow."""

_FEW = 2
"""Rows below which BLAS reads the matrix where it lies; for more it makes a copy of it first."""

_ROUNDED = 1024
"""How often a number has to be multiplied for rounding it beforehand to pay, and not in blocks."""

_GAIN = 4
"""Times what sharing costs that a product takes alone, from which it is shared.

From 2 on it would pay if both threads were awake and all that is read lay in both caches.
"""

_READ = 0.1
"""Nanoseconds to read a number from beyond a core's own cache."""

_COPIES = 0.0038
"""Of the reciprocals of rows and columns: from there on "gemm" reads factors where they lie."""
_ROWS, _COLUMNS, _DEPTH = 384, 10_000, 192
"""Extents of the blocks that it arranges."""
_WHOLE, _SHALLOW = 256, 48
"""Depths up to which there is one block, and below which it has 24 rows."""
_BESIDE = 16_480
"""Bytes that lie between the blocks."""

_LEAST_CONSTANT = 1 << 14
"""Multiply-adds from which a product alone takes less than NumPy's: with what follows any does."""


def _matmul(ops: OneDnnBase, a: Array, b: Array, *, out: Array | None = None) -> Array | None:
    return _multiplied(ops, a, b, None, out) if a.ndim == 2 else stacks.product(ops, a, b, out)


def _add_matmul(ops: OneDnnBase, y: Array, a: Array, b: Array) -> Array | None:
    return _multiplied(ops, a, b, None, y, adds=True)


def _affine(ops: OneDnnBase, x: Array, weight: Array, bias: Array | None) -> Array | None:
    return _multiplied(ops, x, weight, bias, None)


def _pays(ops: OneDnnBase, a: Array, b: Array, *, out: Array | None = None) -> bool:
    return _is_large(ops, a, b) or stacks.pays(ops, a, b)


def _is_large(ops: OneDnnBase, a: Array, b: Array, bias: Array | None = None) -> bool:
    """Whether it is a product of two matrices of floats, as large as oneDNN's are."""
    if isinstance(b, HeldMatrix):
        return False
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != len(b):
        return False
    return len(a) * b.size >= (_LEAST_OUTER if len(b) == 1 else _LEAST)


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
        # With the runtime BLAS stands aside: it sums in the same order from the first time on.
        ops.runtime()
        return None
    turned = _turned(a), _turned(b)
    (m, k), n = a.shape, b.shape[1]
    y: Array = ops.xp.empty((m, n), np.float32) if out is None else out
    fits = y.shape == (m, n) and y.dtype == a.dtype and y.flags.c_contiguous
    if None in turned or not fits:
        return None
    key = (m, k, n, *turned, bias is not None, adds)
    done = ops.runs(product, key, y, a, b, *rest, passes=ops.passes(k))
    return y if done else None


def _affine_constant(
    ops: OneDnnBase, x: Array, weight: Array, bias: Array | None, relu: bool = False
) -> Array | None:
    rest = [] if bias is None else [bias]
    turned = not weight.flags.c_contiguous
    plain = weight.T if turned else weight
    if not plain.flags.c_contiguous or not ops.serves(1, x, weight, *rest):
        return None
    (m, k), n = x.shape, weight.shape[1]
    # The layout may depend on the number of threads: it has to be the same for both calls.
    passes = SHARED if _is_worth_threads(ops, m, weight.size) else 0
    key = (m, k, n, turned, bias is not None, relu)
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


def _is_compiled(
    ops: OneDnnBase, x: Array, weight: Array, bias: Array | None, relu: bool = False
) -> bool:
    """Whether LLVM's function makes it, on one thread: a large matrix lies in the caches of all."""
    if not few_products.fits(ops, x, weight, bias, relu):
        return False
    return not _is_worth_threads(ops, len(x), weight.size)


matmul = in_order(Route("onednn", _matmul, _pays), last=by_numpy.matmul)

add_matmul = in_order(
    Route("onednn", _add_matmul, lambda ops, y, a, b: _is_large(ops, a, b)),
    last=by_numpy.add_matmul,
)

affine = in_order(Route("onednn", _affine, _is_large), last=by_numpy.affine)

affine_constant = in_order(
    Route("compiled", few_products.multiply, _is_compiled),
    Route(
        "onednn",
        _affine_constant,
        lambda ops, x, weight, bias, relu=False: (
            x.ndim == 2
            and not isinstance(weight, HeldMatrix)
            and (bias is not None or relu or len(x) * weight.size >= _LEAST_CONSTANT)
        ),
    ),
    last=by_numpy.affine_constant,
)


def _is_worth_threads(ops: OneDnnBase, rows: int, weight: int) -> bool:
    """Whether a product with so many numbers of a constant weight is to be shared.

    With few rows the time goes into reading it, of which every core has its part in its own cache.
    """
    if ops.threads == 1:
        return False
    speeds = ops.speeds()
    multiplied = speeds.narrow if ops.narrow else speeds.products
    return weight * (rows * multiplied + _READ) >= _GAIN * speeds.shared


def _turned(matrix: Array) -> bool | None:
    """Whether it is transposed in memory; None if it has gaps."""
    if matrix.flags.c_contiguous:
        return False
    return True if matrix.flags.f_contiguous else None


def product(
    build: Builder,
    m: int,
    k: int,
    n: int,
    a_turned: bool,
    b_turned: bool,
    bias: bool,
    adds: bool = False,
) -> None:
    """Operands: the result, two matrices each as it is or the transpose of one, maybe a bias.

    One that ``adds`` has the product added to what is there.
    """
    large = min(m, n) >= _ROUNDED
    # Rounded beforehand a smaller product would sum in another order.
    kind = build.factor if large else build.kind
    a = build.strided((m, k), (1, m) if a_turned else (k, 1), kind(1))
    b = build.strided((k, n), (1, k) if b_turned else (n, 1), kind(2))
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
    """The bytes that oneDNN's "gemm" kernels write to arrange blocks of the factors.

    It asks malloc for them, and no scratchpad tells of it; its other kernels do not. As in
    ``gemm_driver.cpp`` and ``gemm_info.cpp`` of oneDNN 3, for processors without AVX-512.
    """
    if not build.implementation(desc).startswith("gemm") or 1 / m + 1 / n >= _COPIES:
        return 0
    # The threads share the columns where each has a block of them, else the rows.
    n = -(-n // build.threads) if n >= build.threads * _ROWS else n
    columns = -(-min(n, _COLUMNS) // 24) * 24
    rows = 24 if k < _SHALLOW else min(-(-m // 4) * 4, _ROWS)
    depth = k if k <= _WHOLE else -(-k // 2) if k < 2 * _DEPTH else _DEPTH
    numbers = (rows + columns) * depth + rows
    return build.threads * (4 * numbers + _BESIDE)


def _desc(build: Builder, m: int, k: int, n: int, bias: bool, relu: bool) -> object:
    line = build.rows((1, n)) if bias else None
    given = (build.rows((m, k), build.factors), build.free((k, n), build.factors))
    after = build.post_ops(relu=relu)
    return build.primitive_desc("matmul", *given, line, build.rows((m, n)), attributes=after)


def _pack(build: Builder, m: int, k: int, n: int, turned: bool, bias: bool, relu: bool) -> None:
    """Operands: the matrix as the product wants it, and as it is."""
    wanted = build.layout(_desc(build, m, k, n, bias, relu), Query.WEIGHTS)
    plain = build.strided((k, n), (1, k) if turned else (n, 1))
    packed, weight = build.operand(0, wanted), build.operand(1, plain)
    build.reorder(plain, weight, wanted, packed)


def _product_packed(
    build: Builder, m: int, k: int, n: int, turned: bool, bias: bool, relu: bool
) -> None:
    """Operands: the rows, the products, the packed matrix, the bias."""
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
