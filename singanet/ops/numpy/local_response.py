"""Local response normalisation.

x is (N, C, ...); windows lie along the channels, centred and cut off at the ends.
"""

from __future__ import annotations

from singanet.ops.interface import Ops
from singanet.ops.kernel import kernel
from singanet.types import Array


@kernel(half="lift")
def lrn(ops: Ops, x: Array, size: int, alpha: float, beta: float, k: float) -> Array:
    scale = _scale(ops, x, size, alpha, k)
    return ops.xp.multiply(x, _power(ops, scale, beta), out=scale)


@kernel(half="lift")
def lrn_backward(
    ops: Ops, dy: Array, x: Array, size: int, alpha: float, beta: float, k: float
) -> Array:
    xp = ops.xp
    scale = _scale(ops, x, size, alpha, k)
    dx: Array = xp.multiply(dy, _power(ops, scale, beta))
    inner = xp.multiply(dx, x)
    inner /= scale
    around = _window_sum(ops, inner, size)
    around *= x
    around *= 2.0 * alpha * beta
    return xp.subtract(dx, around, out=dx)


def _scale(ops: Ops, x: Array, size: int, alpha: float, k: float) -> Array:
    scale = _window_sum(ops, ops.xp.square(x), size)
    scale *= alpha
    scale += k
    return scale


def _window_sum(ops: Ops, values: Array, size: int) -> Array:
    """Sums over windows of channels, by whole shifted arrays."""
    total: Array = values.copy()
    for shift in range(1, min(size // 2, values.shape[1] - 1) + 1):
        total[:, shift:] += values[:, :-shift]
        total[:, :-shift] += values[:, shift:]
    return total


def _power(ops: Ops, scale: Array, beta: float) -> Array:
    """``scale`` ** -beta; square roots for the usual exponent, which cost far less."""
    xp = ops.xp
    if beta == 0.75:
        root = xp.sqrt(scale)
        return xp.reciprocal(xp.multiply(root, xp.sqrt(root), out=root), out=root)
    return xp.power(scale, -beta)
