"""Kernels with a number a channel.

x is (N, C, ...); parameters are (C,), or (1,) for one number over all channels.
"""

from __future__ import annotations

from singanet.ops.interface import Ops
from singanet.ops.kernel import kernel
from singanet.types import Array


@kernel(half="lift")
def scale(ops: Ops, x: Array, gamma: Array, beta: Array | None) -> Array:
    y: Array = ops.xp.multiply(x, _spread(x, gamma))
    if beta is not None:
        ops.xp.add(y, _spread(x, beta), out=y)
    return y


@kernel(half="lift")
def prelu(ops: Ops, x: Array, a: Array) -> Array:
    return ops.xp.where(x > 0, x, x * _spread(x, a))


@kernel(half="lift")
def prelu_backward(ops: Ops, dy: Array, x: Array, a: Array) -> tuple[Array, Array]:
    positive = x > 0
    dx = ops.xp.where(positive, dy, dy * _spread(x, a))
    da = ops.channel_total(ops.xp.where(positive, 0, dy * x))
    return dx, da if a.shape == da.shape else da.sum(keepdims=True)


@kernel(half="lift")
def channel_total(ops: Ops, values: Array) -> Array:
    # An axis at a time keeps the partial sums short, which keeps float32 exact enough.
    while values.ndim > 2:
        values = values.sum(axis=-1)
    return values.sum(axis=0)


def _spread(x: Array, values: Array) -> Array:
    """(C,) shaped so that it spreads over ``x``."""
    return values.reshape(-1, *[1] * (x.ndim - 2))
