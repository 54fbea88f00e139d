"""Scaled dot-product attention, and queries and keys turned by their positions.

The weights softmax(q kᵀ scale) of each head (Vaswani et al. 2017).

q is (N, h, Tq, d) and k (N, h', Tk, d): samples, heads, positions, features. Where h' is less than
h, each head of k serves h / h' heads of q that stand side by side (Ainslie et al. 2023).
"""

from __future__ import annotations

from functools import reduce

import numpy as np

from singanet.ops.interface import Ops
from singanet.ops.kernel import kernel
from singanet.types import Array


@kernel(half="lift")
def attention_weights(
    ops: Ops,
    q: Array,
    k: Array,
    scale: float,
    causal: bool,
    lengths: Array | None = None,
    seen: Array | None = None,
    added: Array | None = None,
    first: int = 0,
) -> Array:
    xp = ops.xp
    weights, _ = seen_scores(ops, q, k, scale, causal, lengths, seen, added, first)
    if not weights.size:
        return weights
    top = weights.max(axis=3, keepdims=True)
    # -inf - -inf is no number, so rows that see nothing are shifted by a finite value.
    xp.maximum(top, np.finfo(weights.dtype).min, out=top)
    xp.subtract(weights, top, out=weights)
    xp.exp(weights, out=weights)
    # The largest weight is exp(0) = 1, so this only spares the rows that see nothing.
    xp.divide(weights, xp.maximum(weights.sum(axis=3, keepdims=True), 1), out=weights)
    return weights


def seen_scores(
    ops: Ops,
    q: Array,
    k: Array,
    scale: float,
    causal: bool,
    lengths: Array | None,
    seen: Array | None,
    added: Array | None,
    first: int,
) -> tuple[Array, Array | None]:
    """What `Ops.attention_weights` takes the softmax of, -inf for what is hidden; which that is."""
    xp = ops.xp
    n, heads, queries, size = q.shape
    groups, keys = k.shape[1:3]
    # The queries that share keys are one matrix: no key is copied, and the products are larger.
    rows = q.reshape(n, groups, heads // groups * queries, size)
    scores: Array = ops.matmul(rows, k.swapaxes(2, 3)).reshape(n, heads, queries, keys)
    xp.multiply(scores, scale, out=scores)
    if added is not None:
        xp.add(scores, added, out=scores)
    hidden: list[Array] = []
    # The last step of a sequence sees all that came before.
    if causal and first < keys - 1:
        hidden.append(~xp.tri(queries, keys, first, dtype=bool))
    if lengths is not None:
        hidden.append((xp.arange(keys) >= lengths[:, None])[:, None, None])
    if seen is not None:
        hidden.append(seen == 0)
    if not hidden:
        return scores, None
    together = reduce(xp.logical_or, hidden)
    xp.copyto(scores, scores.dtype.type(-np.inf), where=together)
    return scores, together


@kernel(half="lift")
def attention_backward(
    ops: Ops,
    dweights: Array,
    weights: Array,
    q: Array,
    k: Array,
    scale: float,
) -> tuple[Array, Array]:
    xp = ops.xp
    dscores: Array = ops.softmax_backward(dweights, weights)
    xp.multiply(dscores, scale, out=dscores)
    n, heads, queries, size = q.shape
    groups, keys = k.shape[1:3]
    together = heads // groups * queries
    dscores = dscores.reshape(n, groups, together, keys)
    dq: Array = ops.matmul(dscores, k).reshape(q.shape)
    dk: Array = ops.matmul(dscores.swapaxes(2, 3), q.reshape(n, groups, together, size))
    return dq, dk


@kernel(half="lift")
def rotate(ops: Ops, x: Array, cos: Array, sin: Array, interleaved: bool) -> Array:
    xp = ops.xp
    y = ops.empty(x.shape, x)
    half = cos.shape[-1]
    size = 2 * half
    ends = (
        (slice(0, size, 2), slice(1, size, 2)) if interleaved else (slice(half), slice(half, size))
    )
    first, second = ((..., end) for end in ends)
    xp.multiply(x[first], cos, out=y[first])
    xp.subtract(y[first], x[second] * sin, out=y[first])
    xp.multiply(x[second], cos, out=y[second])
    xp.add(y[second], x[first] * sin, out=y[second])
    if size < x.shape[-1]:
        ops.copyto(y[..., size:], x[..., size:])
    return y
