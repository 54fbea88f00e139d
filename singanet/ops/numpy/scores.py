"""Scores to probabilities, and losses of scores fused with their gradients."""

from __future__ import annotations

from singanet.ops.interface import Ops
from singanet.ops.kernel import kernel
from singanet.types import Array


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
def softmax_cross_entropy(
    ops: Ops, x: Array, labels: Array, smoothing: float = 0.0, out: Array | None = None
) -> tuple[Array, Array]:
    # What is read of x comes first: the probabilities may take its place.
    of_label = x.reshape(-1)[_places(ops, labels, x)]
    mean = x.mean(axis=1) if smoothing else None
    p, log_sum = _softmax_with_log_sum(ops, x, out)
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
    # What the target leaves out costs nothing, be its score -inf; NaN is in the sum of all.
    of_target = ops.xp.where(target > 0, ops.xp.multiply(target, x), 0).sum(axis=1)
    p, log_sum = _softmax_with_log_sum(ops, x, out)
    losses: Array = log_sum - of_target
    return losses, p


@kernel(half="native")
def sigmoid_cross_entropy(ops: Ops, x: Array, y: Array) -> Array:
    xp = ops.xp
    size: Array = xp.abs(x)
    losses: Array = xp.negative(size)
    xp.exp(losses, out=losses)
    xp.log1p(losses, out=losses)
    # log(1 + exp(-|x|)), and |x| for as much as the target is on the other side.
    other = xp.subtract(x > 0, y, dtype=x.dtype)
    size *= xp.abs(other, out=other)
    # Infinity times zero is zero here; where x is no number, the logarithm is none.
    losses += xp.fmax(size, 0, out=size)
    return losses


def _softmax_with_log_sum(ops: Ops, x: Array, out: Array | None = None) -> tuple[Array, Array]:
    """softmax(x) in C order, and log Σ_j exp(x_j)."""
    xp = ops.xp
    # NumPy finds where the largest of a short row is in less time than what it is.
    top = x.reshape(-1)[_places(ops, x.argmax(axis=1), x)]
    p: Array = xp.empty(x.shape, x.dtype) if out is None else out
    xp.subtract(x, top[:, None], out=p)
    xp.exp(p, out=p)
    total = xp.matmul(p, xp.ones(x.shape[1], x.dtype))
    xp.divide(p, total[:, None], out=p)
    log_sum: Array = xp.log(total, out=total)
    log_sum += top
    return p, log_sum


def _places(ops: Ops, columns: Array, x: Array) -> Array:
    """Where the elements of ``columns`` (N,), one in each row, are in the flat ``x`` (N, C)."""
    starts = ops.xp.arange(0, x.size, x.shape[1])
    # As signed, since unsigned 64 bits and signed ones make a float.
    return ops.xp.add(columns.astype(starts.dtype, copy=False), starts)
