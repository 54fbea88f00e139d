"""Relus of an array and of a sum of two by functions that LLVM compiles, in which NaN stays."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from singanet.ops.compiler import has_compiler
from singanet.ops.kernel import Route
from singanet.ops.onednn.base import OneDnnBase, is_dense
from singanet.ops.onednn.builder import Builder
from singanet.ops.onednn.compiled_plan import CompiledPlan, shared
from singanet.types import Array, Shape

if TYPE_CHECKING:
    from singanet.ops.compiled.engine import CompiledFunction

_LEAST = 1 << 17
"""Elements from which the look for NaN that oneDNN's kernels need takes longer than a call."""


def _relu(ops: OneDnnBase, mode: str, x: Array, slope: float = 0.01) -> Array | None:
    y: Array = ops.xp.empty_like(x)
    return y if ops.runs(_relu_of, (x.size, 1), y, x) else None


def _is_relu(ops: OneDnnBase, mode: str, x: Array, slope: float = 0.01) -> bool:
    return mode == "relu" and _is_served(ops, x)


def _sum(
    ops: OneDnnBase, mode: str, arrays: Sequence[Array], shape: Shape, relu: bool = False
) -> Array | None:
    a, b = arrays
    y: Array = ops.xp.empty_like(a)
    return y if ops.runs(_relu_of, (a.size, 2), y, a, b) else None


def _is_sum(
    ops: OneDnnBase, mode: str, arrays: Sequence[Array], shape: Shape, relu: bool = False
) -> bool:
    if mode != "add" or not relu or len(arrays) != 2:
        return False
    a, b = arrays
    return a.shape == b.shape and a.strides == b.strides and _is_served(ops, a, b)


def _is_served(ops: OneDnnBase, *arrays: Array) -> bool:
    # oneDNN's may store bfloat16.
    if ops.narrow or not ops.serves(_LEAST, *arrays):
        return False
    return is_dense(arrays[0]) and has_compiler()


of_one = Route("compiled", _relu, _is_relu)
of_sum = Route("compiled", _sum, _is_sum)


def _relu_of(build: Builder, size: int, terms: int) -> CompiledPlan:
    """Operands: what is made, and the terms."""
    from singanet.ops.compiled.relu import BLOCK

    stages = shared((size,), (-(-size // BLOCK),), build.threads)
    reads = tuple(range(1, 1 + terms))
    return CompiledPlan(build, _function(terms), stages, reads, writes=(0,))


@cache
def _function(terms: int) -> CompiledFunction:
    from singanet.ops.compiled import engine, relu

    return engine.known(relu.relu_of, terms)
