"""Scaled dot-product attention.

The weights softmax(q kᵀ scale) of each head (Vaswani et al. 2017).

q is (N, h, Tq, d) and k (N, h, Tk, d): samples, heads, positions, features.
"""

from __future__ import annotations

import numpy as np

from singanet.ops.interface import Ops
from singanet.ops.kernel import kernel
from singanet.types import Array


@kernel(half="lift")
def attention_weights(
    ops: Ops, q: Array, k: Array, scale: float, causal: bool, lengths: Array | None
) -> Array:
    """See `Ops`."""
    xp = ops.xp
    weights: Array = xp.matmul(q, k.swapaxes(2, 3))
    if not weights.size:
        return weights
    xp.multiply(weights, scale, out=weights)
    queries, keys = weights.shape[2:]
    if causal:
        later = ~xp.tri(queries, keys, dtype=bool)
        xp.copyto(weights, weights.dtype.type(-np.inf), where=later)
    if lengths is not None:
        absent = xp.arange(keys) >= lengths[:, None]
        xp.copyto(weights, weights.dtype.type(-np.inf), where=absent[:, None, None])
    top = weights.max(axis=3, keepdims=True)
    # -inf - -inf is no number, so rows that see nothing are shifted by a finite value.
    xp.maximum(top, np.finfo(weights.dtype).min, out=top)
    xp.subtract(weights, top, out=weights)
    xp.exp(weights, out=weights)
    # The largest weight is exp(0) = 1, so this only spares the rows that see nothing.
    xp.divide(weights, xp.maximum(weights.sum(axis=3, keepdims=True), 1), out=weights)
    return weights


@kernel(half="lift")
def attention_backward(
    ops: Ops,
    dweights: Array,
    weights: Array,
    q: Array,
    k: Array,
    scale: float,
) -> tuple[Array, Array]:
    """See `Ops`."""
    xp = ops.xp
    inner = xp.multiply(dweights, weights).sum(axis=3, keepdims=True)
    xp.subtract(dweights, inner, out=dweights)
    xp.multiply(dweights, weights, out=dweights)
    xp.multiply(dweights, scale, out=dweights)
    dq: Array = xp.matmul(dweights, k)
    dk: Array = xp.matmul(dweights.swapaxes(2, 3), q)
    return dq, dk
