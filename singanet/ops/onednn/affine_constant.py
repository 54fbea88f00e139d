"""Products with a matrix that never changes: it is laid out once, by a kernel of its own."""

from __future__ import annotations

from singanet.ops.onednn.binding import Arg, Query
from singanet.ops.onednn.builder import Builder
from singanet.ops.onednn.matmul import OneDnnProducts
from singanet.ops.onednn.runtime import SHARED
from singanet.types import Array

_LEAST = 1 << 14
"""Multiply-adds from which a product with its bias takes less than NumPy's product and sum."""

_ADDS_A_PASS = 32


class OneDnnConstantProducts(OneDnnProducts):
    """The matrix goes through a call that reads nothing else, which a program can make once."""

    def affine_constant(self, x: Array, weight: Array, bias: Array | None) -> Array:
        """See `NumpyOps`; the bias is added by the same kernel."""
        rest = [] if bias is None else [bias]
        turned = not weight.flags.c_contiguous
        plain = weight.T if turned else weight
        enough = x.ndim == 2 and len(x) * weight.size >= _LEAST
        if enough and plain.flags.c_contiguous and self.serves(1, x, weight, *rest):
            (m, k), n = x.shape, weight.shape[1]
            # The layout may depend on the number of threads: it has to be the same for both calls.
            passes = SHARED if x.size * (1 + n // _ADDS_A_PASS) >= SHARED else 0
            key = (m, k, n, turned, bias is not None)
            packed = self.room(_pack, key, 0, weight, passes)
            if packed.size:
                y: Array = self.xp.empty((m, n), x.dtype)
                self.runs(_pack, key, packed, plain, passes=passes)
                given = (self.ordered(x), y, packed, *map(self.ordered, rest))
                self.runs(_product_packed, key, *given, passes=passes)
                return y
        return super().affine_constant(x, weight, bias)


def _desc(build: Builder, m: int, k: int, n: int, bias: bool) -> object:
    line = build.rows((1, n)) if bias else None
    given = (build.rows((m, k)), build.free((k, n)), line, build.rows((m, n)))
    return build.primitive_desc("matmul", *given)


def _pack(build: Builder, m: int, k: int, n: int, turned: bool, bias: bool) -> None:
    """Operands: the matrix as the product wants it, and as it is."""
    wanted = build.layout(_desc(build, m, k, n, bias), Query.WEIGHTS)
    plain = build.strided((k, n), (1, k) if turned else (n, 1))
    packed, weight = build.operand(0, wanted), build.operand(1, plain)
    build.reorder(plain, weight, wanted, packed)


def _product_packed(build: Builder, m: int, k: int, n: int, turned: bool, bias: bool) -> None:
    """Operands: the rows, the products, the packed matrix, the bias."""
    desc = _desc(build, m, k, n, bias)
    order = [Arg.SRC, Arg.DST, Arg.WEIGHTS, *[Arg.BIAS] * bias]
    layouts = [build.rows((m, k)), build.rows((m, n)), build.layout(desc, Query.WEIGHTS)]
    build.stage(desc, build.operands(order, [*layouts, *[build.rows((1, n))] * bias]))
