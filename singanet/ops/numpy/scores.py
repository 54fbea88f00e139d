"""Compute scores, attention weights and random draws by NumPy.

Attention weights are softmax(q kᵀ scale) for each head (Vaswani et al. 2017). q is (N, h, Tq, d)
and k (N, h', Tk, d): samples, heads, positions, features. If h' is less than h, each head of k
serves h / h' consecutive heads of q (Ainslie et al. 2023).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from singanet.ops import draws, transfers
from singanet.ops.blas import product
from singanet.ops.interface import Ops
from singanet.ops.kernel import kernel
from singanet.ops.window import Attention
from singanet.types import Array, Shape


@kernel(half="lift")
def softmax(ops: Ops, x: Array, axis: int = -1) -> Array:
    y: Array = ops.xp.subtract(x, x.max(axis=axis, keepdims=True))
    ops.xp.exp(y, out=y)
    ops.xp.divide(y, y.sum(axis=axis, keepdims=True), out=y)
    return y


@kernel(half="lift")
def softmax_backward(ops: Ops, dy: Array, y: Array, axis: int = -1) -> Array:
    dx: Array = ops.xp.multiply(dy, y)
    inner = dx.sum(axis=axis, keepdims=True)
    ops.xp.subtract(dx, ops.xp.multiply(y, inner), out=dx)
    return dx


@kernel(half="lift")
def log_softmax(ops: Ops, x: Array, axis: int = -1) -> Array:
    y: Array = ops.xp.subtract(x, x.max(axis=axis, keepdims=True))
    y -= ops.xp.log(ops.xp.exp(y).sum(axis=axis, keepdims=True))
    return y


@kernel(half="lift")
def log_softmax_backward(ops: Ops, dy: Array, y: Array, axis: int = -1) -> Array:
    dx: Array = ops.xp.exp(y)
    dx *= dy.sum(axis=axis, keepdims=True)
    return ops.xp.subtract(dy, dx, out=dx)


@kernel(half="native")
def softmax_log_sum(ops: Ops, x: Array, out: Array | None = None) -> tuple[Array, Array]:
    xp = ops.xp
    # NumPy's argmax of short rows is faster than its max.
    top = x.reshape(-1)[_places(ops, x.argmax(axis=1), x)]
    p: Array = xp.empty(x.shape, x.dtype) if out is None else out
    xp.subtract(x, top[:, None], out=p)
    xp.exp(p, out=p)
    total = product(xp, p, xp.ones(x.shape[1], x.dtype))
    xp.divide(p, total[:, None], out=p)
    log_sum: Array = xp.log(total, out=total)
    log_sum += top
    return p, log_sum


@kernel(half="native")
def softmax_cross_entropy(
    ops: Ops, x: Array, labels: Array, smoothing: float = 0.0, out: Array | None = None
) -> tuple[Array, Array]:
    # All reads of x come first: the probabilities may overwrite it.
    of_label = x.reshape(-1)[_places(ops, labels, x)]
    mean = x.mean(axis=1) if smoothing else None
    p, log_sum = ops.softmax_log_sum(x, out)
    losses: Array = log_sum - of_label
    if mean is not None:
        losses *= 1.0 - smoothing
        losses += smoothing * (log_sum - mean)
    return losses, p


@kernel(half="native")
def softmax_cross_entropy_backward(
    ops: Ops, p: Array, labels: Array, smoothing: float = 0.0
) -> Array:
    if smoothing:
        p -= smoothing / p.shape[1]
    flat, places = p.reshape(-1), _places(ops, labels, p)
    flat[places] = flat[places] - (1.0 - smoothing)
    return p


@kernel(half="native")
def softmax_cross_entropy_soft(
    ops: Ops, x: Array, target: Array, out: Array | None = None
) -> tuple[Array, Array]:
    # A label of weight 0 adds nothing, even with a score of -inf; NaN still enters the log-sum.
    of_target = ops.xp.where(target > 0, ops.xp.multiply(target, x), 0).sum(axis=1)
    p, log_sum = ops.softmax_log_sum(x, out)
    losses: Array = log_sum - of_target
    return losses, p


@kernel(half="native")
def sigmoid_cross_entropy(ops: Ops, x: Array, y: Array) -> Array:
    xp = ops.xp
    size: Array = xp.abs(x)
    losses: Array = xp.negative(size)
    xp.exp(losses, out=losses)
    xp.log1p(losses, out=losses)
    # log(1 + exp(-|x|)), plus |x| times the target's weight on the other side.
    other = xp.subtract(x > 0, y, dtype=x.dtype)
    size *= xp.abs(other, out=other)
    # Infinity times zero is zero here; NaN in x already reached the logarithm.
    losses += xp.fmax(size, 0, out=size)
    return losses


def _places(ops: Ops, columns: Array, x: Array) -> Array:
    """Return the flat indices in ``x`` (N, C) of the elements at ``columns`` (N,)."""
    starts = ops.xp.arange(0, x.size, x.shape[1])
    # As signed integers, since unsigned and signed 64 bits give a float.
    return ops.xp.add(columns.astype(starts.dtype, copy=False), starts)


@kernel(half="lift")
def attention_weights(ops: Ops, q: Array, k: Array, case: Attention) -> Array:
    xp = ops.xp
    weights, _ = seen_scores(ops, q, k, case)
    if not weights.size:
        return weights
    top = weights.max(axis=3, keepdims=True)
    # -inf - -inf is NaN, so fully masked rows are shifted by a finite value.
    xp.maximum(top, np.finfo(weights.dtype).min, out=top)
    xp.subtract(weights, top, out=weights)
    xp.exp(weights, out=weights)
    # The largest weight is exp(0) = 1, so this affects only fully masked rows.
    xp.divide(weights, xp.maximum(weights.sum(axis=3, keepdims=True), 1), out=weights)
    return weights


def seen_scores(ops: Ops, q: Array, k: Array, case: Attention) -> tuple[Array, Array | None]:
    """Return the scores before the softmax, -inf if masked, and the mask or None."""
    xp = ops.xp
    n, heads, queries, size = q.shape
    groups, keys = k.shape[1:3]
    # Queries that share keys form one matrix: no key is copied, and products are larger.
    rows = q.reshape(n, groups, heads // groups * queries, size)
    scores: Array = ops.matmul(rows, k.swapaxes(2, 3)).reshape(n, heads, queries, keys)
    xp.multiply(scores, case.scale, out=scores)
    if case.added is not None:
        xp.add(scores, case.added, out=scores)
    hidden: list[Array] = []
    # The last step of a sequence sees all steps before it.
    if case.causal and case.first < keys - 1:
        hidden.append(~xp.tri(queries, keys, case.first, dtype=bool))
    if case.lengths is not None:
        hidden.append((xp.arange(keys) >= case.lengths[:, None])[:, None, None])
    if case.seen is not None:
        hidden.append(case.seen == 0)
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


@kernel(half="native")
def uniform(ops: Ops, rng: np.random.Generator, shape: Shape) -> Array:
    # A seed gives the same numbers on every device.
    drawn: Array = ops.xp.empty(shape, np.float32)
    if ops.on_host:
        draws.fill(rng, drawn, *ops.team())
    else:
        transfers.fill(rng, ops.xp, drawn)
    return drawn


@kernel(half="native")
def normal(ops: Ops, rng: np.random.Generator, shape: Shape) -> Array:
    # Source: Box and Muller, 1958; programs record only uniform draws.
    xp = ops.xp
    radius, angle = ops.uniform(rng, (2, *shape))
    drawn: Array = xp.cos(xp.multiply(angle, 2.0 * math.pi))
    drawn *= xp.sqrt(xp.multiply(xp.log1p(xp.negative(radius)), -2.0))
    return drawn


@kernel(half="native")
def keep_mask(ops: Ops, rng: np.random.Generator, shape: Shape, keep: float) -> Array:
    mask: Array = ops.uniform(rng, shape) < keep
    return mask


@kernel(half="native")
def bernoulli(ops: Ops, rng: np.random.Generator, p: Array) -> Array:
    mask: Array = ops.uniform(rng, p.shape) < p
    return mask


@kernel(half="native")
def check(ops: Ops, function: Callable[[Array], None], array: Array) -> None:
    function(array)


@kernel(half="native")
def look_up(
    ops: Ops, function: Callable[[Array, Array], None], indices: Array, shape: Shape, dtype: Any
) -> Array:
    rows: Array = np.empty(shape, dtype)
    function(ops.host(indices), rows)
    found: Array = ops.xp.asarray(rows)
    return found
