"""Several arrays combined element by element.

The arrays have equally many axes; an axis of extent 1 spreads over the others' extent.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from singanet.ops.interface import Ops
from singanet.ops.kernel import kernel
from singanet.types import Array, Shape


@kernel(half="lift")
def combine(
    ops: Ops, mode: str, arrays: Sequence[Array], shape: Shape, relu: bool = False
) -> Array:
    function = getattr(ops.xp, mode)
    # Ordered in memory as an input is: images lie channels-last, and stay so.
    whole = next((array for array in arrays if array.shape == shape), None)
    y: Array = ops.xp.empty(shape, arrays[0].dtype) if whole is None else ops.xp.empty_like(whole)
    function(arrays[0], arrays[1], out=y)
    for array in arrays[2:]:
        function(y, array, out=y)
    return ops.xp.maximum(y, 0, out=y) if relu else y


@kernel(half="native")
def first_equal(ops: Ops, y: Array, arrays: Sequence[Array]) -> Array:
    where: Array = ops.xp.zeros(y.shape, np.min_scalar_type(len(arrays) - 1))
    for k in range(len(arrays) - 1, -1, -1):
        ops.xp.copyto(where, where.dtype.type(k), where=ops.xp.equal(arrays[k], y))
    return where


@kernel(half="native")
def select(ops: Ops, dy: Array, where: Array, k: int) -> Array:
    return ops.xp.where(where == k, dy, 0)


@kernel(half="lift")
def sum_to(ops: Ops, array: Array, shape: Shape) -> Array:
    axes = tuple(k for k, size in enumerate(shape) if size == 1 and array.shape[k] != 1)
    return array.sum(axis=axes, keepdims=True) if axes else array
