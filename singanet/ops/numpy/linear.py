"""Matrix products."""

from __future__ import annotations

from math import prod

from singanet.ops.held import HeldMatrix
from singanet.ops.interface import Ops
from singanet.ops.kernel import kernel
from singanet.ops.numpy import held
from singanet.ops.numpy.lanes import LEAST
from singanet.types import Array

_BESIDE = 1 << 22
"""Bytes of a product that is made to be added: they stay in the cache."""

_ROWS = 1 << 11
"""Rows made at a time: of more OpenBLAS keeps copies in memory of its own, up to 19 MB a thread."""


@kernel(half="product")
def matmul(ops: Ops, a: Array, b: Array, *, out: Array | None = None) -> Array:
    if isinstance(b, HeldMatrix):
        return held.matmul(ops, a, b, out)
    if a.ndim == b.ndim == 2 and a.shape[1] == len(b) == 1:
        # A column and a row, as the gradient of a weight at batch 1: NumPy's product takes
        # four times as long, element by element.
        return ops.xp.multiply(a, b, out=out)
    return in_lanes(ops, a, b, out)


@kernel(half="native")
def add_matmul(ops: Ops, y: Array, a: Array, b: Array) -> Array:
    wide = y.shape[1] > len(y)
    count, other = (y.shape[1], len(y)) if wide else y.shape
    most = max(1, _BESIDE // max(1, other * y.itemsize))
    for lane in ops.lanes(count, count * other * a.shape[1]):
        for start in range(lane.start, lane.stop, most):
            part = slice(start, min(start + most, lane.stop))
            room, left, right = (y[:, part], a, b[:, part]) if wide else (y[part], a[part], b)
            ops.xp.add(room, ops.xp.matmul(left, right), out=room)
    return y


@kernel(half="product")
def affine(ops: Ops, x: Array, weight: Array, bias: Array | None) -> Array:
    if isinstance(weight, HeldMatrix):
        return held.affine(ops, x, weight, bias)
    y = in_lanes(ops, x, weight)
    if bias is not None:
        ops.xp.add(y, bias, out=y)
    return y


@kernel(half="product")
def affine_constant(
    ops: Ops, x: Array, weight: Array, bias: Array | None, relu: bool = False
) -> Array:
    y = ops.affine(x, weight, bias)
    return ops.xp.maximum(y, 0, out=y) if relu else y


def in_lanes(ops: Ops, a: Array, b: Array, out: Array | None = None) -> Array:
    """The product, of which each lane makes some rows, or columns where these are more.

    Of stacks that are alike each makes some of the products.
    """
    xp, ahead = ops.xp, a.shape[:-2]
    flat = a.ndim == b.ndim == 2
    work = prod(ahead) * a.shape[-2] * a.shape[-1] * b.shape[-1] if a.ndim > 1 < b.ndim else 0
    if not flat and ahead != b.shape[:-2]:
        work = 0
    if work < LEAST:
        small: Array = xp.matmul(a, b, out=out)
        return small
    wide = flat and b.shape[1] > len(a)
    tall = flat and not wide and len(a) > _ROWS and ops.on_host
    count = b.shape[1] if wide else len(a)
    for lane in ops.lanes(count, work):
        if lane == slice(0, count) and not tall:
            break
        if out is None:
            out = xp.empty((*ahead, a.shape[-2], b.shape[-1]), a.dtype)
        if wide:
            xp.matmul(a, b[:, lane], out=out[:, lane])
        elif flat:
            rows, filled = a[lane], out[lane]
            for start in range(0, len(rows), _ROWS):
                part = slice(start, start + _ROWS)
                xp.matmul(rows[part], b, out=filled[part])
        else:
            xp.matmul(a[lane], b[lane], out=out[lane])
    else:
        assert out is not None
        return out
    product: Array = xp.matmul(a, b, out=out)
    return product


@kernel(half="lift")
def column_sums(ops: Ops, x: Array) -> Array:
    """See `Ops`; as a product with ones: a tenth to a third of the time of NumPy's own sum."""
    xp = ops.xp
    return xp.matmul(xp.ones(len(x), x.dtype), xp.ascontiguousarray(x))
