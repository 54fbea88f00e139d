"""New arrays, sums and joins of several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from singanet.ops.interface import Ops
from singanet.ops.kernel import kernel
from singanet.types import Array, Shape


@kernel(half="native")
def empty(ops: Ops, shape: Shape, like: Array) -> Array:
    return ops.xp.empty(shape, like.dtype)


@kernel(half="native")
def zeros(ops: Ops, shape: Shape, like: Array) -> Array:
    return ops.xp.zeros(shape, like.dtype)


@kernel(half="lift")
def total(
    ops: Ops,
    x: Array,
    /,
    axis: int | tuple[int, ...] | None = None,
    dtype: Any = None,
    out: Array | None = None,
    keepdims: bool = False,
) -> Array:
    return ops.xp.sum(x, axis=axis, dtype=dtype, out=out, keepdims=keepdims)


@kernel(half="lift")
def mean(
    ops: Ops,
    x: Array,
    /,
    axis: int | tuple[int, ...] | None = None,
    dtype: Any = None,
    out: Array | None = None,
    keepdims: bool = False,
) -> Array:
    return ops.xp.mean(x, axis=axis, dtype=dtype, out=out, keepdims=keepdims)


@kernel(half="lift")
def add_all(ops: Ops, arrays: Sequence[Array]) -> Array:
    total: Array = ops.xp.add(arrays[0], arrays[1])
    for array in arrays[2:]:
        ops.xp.add(total, array, out=total)
    return total


@kernel(half="native")
def concat(ops: Ops, arrays: Sequence[Array], axis: int) -> Array:
    return ops.xp.concatenate(arrays, axis=axis)
