"""Small products with constant matrices, which LLVM compiles: plans beside those of oneDNN.

To hand a product over to oneDNN takes a microsecond, in which a core multiplies 50,000 numbers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

from singanet.ops.compiled import has_compiler
from singanet.ops.onednn.base import OneDnnBase
from singanet.ops.onednn.builder import Builder
from singanet.types import Array

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
    return CompiledPlan(_function(width, relu), (rows, inputs, outputs))


@cache
def _function(width: int, relu: bool) -> Callable[[Any], None]:
    from singanet.ops.compiled import dense, engine

    return engine.known(dense.product, width, relu).briefly


class CompiledPlan:
    """A plan like `KernelPlan`: a function of operands, of which it writes the first, and sizes."""

    threads, scratch = 1, 0
    sizes = (0, 0, 0, 0)
    reads, writes = (1, 2, 3), (0,)

    def __init__(self, function: Callable[[Any], None], numbers: tuple[int, ...]) -> None:
        self._function, self._numbers = function, numbers

    def run(self, addresses: Sequence[int], scratch: int) -> None:
        """See `KernelPlan`."""
        self.bound(addresses, scratch)()

    def bound(self, addresses: Sequence[int], scratch: int) -> CompiledCall:
        """See `KernelPlan`."""
        return CompiledCall(self._function, (*addresses, *self._numbers))


class CompiledCall:
    """A call with arguments that stay; it has no threads, and leaves OpenMP's as they are."""

    threads = 0

    def __init__(self, function: Callable[[Any], None], given: tuple[int, ...]) -> None:
        self._given = (ctypes.c_int64 * len(given))(*given)
        self._call = partial(function, ctypes.c_void_p(ctypes.addressof(self._given)))

    def __call__(self) -> None:
        """Make it."""
        self._call()

    def after(self, threads: int) -> list[Callable[[], None]]:
        """See `Calls`."""
        return [self._call]
