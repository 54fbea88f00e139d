"""Products of stacks of matrices by oneDNN, one by one and wherever they lie: attention's.

A stack may be a view, such as the heads of (N, T, heads·size); no matrix is copied.
"""

from __future__ import annotations

import math

import numpy as np

from singanet.ops.onednn.base import OneDnnBase
from singanet.ops.onednn.binding import Arg
from singanet.ops.onednn.builder import Builder
from singanet.types import Array, Shape

_LEAST = 1 << 22
"""Multiply-adds from which waking oneDNN pays."""

_LEAST_EACH, _LEAST_ROUNDED = 1 << 17, 1 << 16
"""Multiply-adds of one product from which oneDNN is faster, in float32 and in bfloat16."""

_AXES = range(3, 7)


def pays(ops: OneDnnBase, a: Array, b: Array) -> bool:
    """Whether oneDNN's products of the stacks are faster: benchmarks/onednn_kernels.py."""
    if a.ndim not in _AXES or a.ndim != b.ndim or a.shape[:-2] != b.shape[:-2]:
        return False
    each = a.shape[-2] * a.shape[-1] * b.shape[-1]
    least = _LEAST_ROUNDED if ops.narrow else _LEAST_EACH
    return each >= least and math.prod(a.shape[:-2]) * each >= _LEAST


def product(ops: OneDnnBase, a: Array, b: Array, out: Array | None) -> Array | None:
    """The products; None if a stack does not lie as oneDNN can read it."""
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
    """In elements; None if elements lie on each other or apart in both axes of a matrix."""
    strides = [stride // stack.itemsize for stride in stack.strides]
    end = 1
    for axis in sorted(range(stack.ndim), key=strides.__getitem__):
        if stack.shape[axis] == 1:
            # What NumPy says of an axis of one element may be anything.
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
