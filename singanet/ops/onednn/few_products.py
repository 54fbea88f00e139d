"""Small products with constant matrices, which LLVM compiles: plans beside those of oneDNN.

To hand a product over to oneDNN takes a microsecond, in which a core multiplies 50,000 numbers.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from singanet.ops.compiler import has_compiler
from singanet.ops.onednn.base import OneDnnBase
from singanet.ops.onednn.builder import Builder
from singanet.ops.onednn.compiled_plan import CompiledPlan
from singanet.types import Array

if TYPE_CHECKING:
    from singanet.ops.compiled.engine import CompiledFunction

_SMALL = 1 << 17
"""Multiply-adds up to which what oneDNN takes beside computing is a good part of the time."""
_ALONE = 1 << 20
"""Numbers of a matrix up to which one thread multiplies a row by it: some 50 microseconds."""


def fits(ops: OneDnnBase, x: Array, weight: Array, bias: Array | None, relu: bool = False) -> bool:
    """Whether it is a small product of float32, or one of a single row."""
    rest = [] if bias is None else [bias]
    return (
        x.ndim == 2
        and not ops.narrow
        and len(x) * weight.size <= (_ALONE if len(x) == 1 else _SMALL)
        and ops.serves(1, x, weight, *rest)
        and has_compiler()
    )


def multiply(
    ops: OneDnnBase, x: Array, weight: Array, bias: Array | None, relu: bool = False
) -> Array | None:
    """As `Ops.affine_constant`, with the matrix in panels of columns."""
    from singanet.ops.compiled.dense import width_of

    xp, (inputs, outputs) = ops.xp, weight.shape
    width = width_of(outputs)
    panels = -(-outputs // width)
    line, whole = ops.zeros((panels * width,), x), ops.zeros((inputs, panels * width), x)
    whole[:, :outputs] = weight
    if bias is not None:
        line[:outputs] = bias
    packed = xp.ascontiguousarray(whole.reshape(inputs, panels, width).swapaxes(0, 1))
    y: Array = xp.empty((len(x), outputs), x.dtype)
    key = len(x), inputs, outputs, width, relu
    return y if ops.runs(_product, key, y, ops.ordered(x), packed, line, passes=0) else None


def _product(
    build: Builder, rows: int, inputs: int, outputs: int, width: int, relu: bool
) -> CompiledPlan:
    """Operands: the products, the rows, the matrix in panels, the bias in as many columns."""
    numbers = rows, inputs, outputs
    return CompiledPlan(build, _function(width, relu), [[numbers]], reads=(1, 2, 3), writes=(0,))


@cache
def _function(width: int, relu: bool) -> CompiledFunction:
    from singanet.ops.compiled import dense, engine

    return engine.known(dense.product, width, relu)
