"""Matrix products."""

from __future__ import annotations

from singanet.ops.interface import Ops
from singanet.ops.kernel import kernel
from singanet.types import Array


@kernel(half="lift")
def matmul(ops: Ops, a: Array, b: Array, *, out: Array | None = None) -> Array:
    """See `Ops`."""
    if a.ndim == b.ndim == 2 and a.shape[1] == len(b) == 1:
        # A column and a row, as the gradient of a weight at batch 1: NumPy's product takes
        # four times as long, element by element.
        return ops.xp.multiply(a, b, out=out)
    return ops.xp.matmul(a, b, out=out)


@kernel(half="lift")
def affine(ops: Ops, x: Array, weight: Array, bias: Array | None) -> Array:
    """See `Ops`."""
    y: Array = ops.xp.matmul(x, weight)
    if bias is not None:
        ops.xp.add(y, bias, out=y)
    return y


@kernel(half="lift")
def affine_constant(
    ops: Ops, x: Array, weight: Array, bias: Array | None, relu: bool = False
) -> Array:
    """See `Ops`."""
    y = ops.affine(x, weight, bias)
    return ops.xp.maximum(y, 0, out=y) if relu else y


@kernel(half="lift")
def column_sums(ops: Ops, x: Array) -> Array:
    """See `Ops`; as a product with ones: a tenth to a third of the time of NumPy's own sum."""
    xp = ops.xp
    return xp.matmul(xp.ones(len(x), x.dtype), xp.ascontiguousarray(x))
