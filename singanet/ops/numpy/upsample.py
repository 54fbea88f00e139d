"""Images made larger by whole factors.

x is (N, C, H, W), y and dy (N, C, H·fh, W·fw) for the factors (fh, fw).
"""

from __future__ import annotations

from singanet.ops.interface import Ops
from singanet.ops.kernel import kernel
from singanet.ops.window import Pair
from singanet.types import Array


@kernel(half="native")
def upsample_nearest(ops: Ops, x: Array, factors: Pair) -> Array:
    n, c, h, w = x.shape
    y: Array = ops.xp.empty((n, c, h, factors[0], w, factors[1]), x.dtype)
    ops.xp.copyto(y, x[:, :, :, None, :, None])
    return y.reshape(n, c, h * factors[0], w * factors[1])


@kernel(half="lift")
def upsample_nearest_backward(ops: Ops, dy: Array, factors: Pair) -> Array:
    n, c, h, w = dy.shape
    blocks = dy.reshape(n, c, h // factors[0], factors[0], w // factors[1], factors[1])
    return blocks.sum(axis=5).sum(axis=3)


@kernel(half="lift")
def upsample_bilinear(ops: Ops, x: Array, factors: Pair) -> Array:
    return _interpolated(ops, _interpolated(ops, x, 2, factors[0]), 3, factors[1])


@kernel(half="lift")
def upsample_bilinear_backward(ops: Ops, dy: Array, factors: Pair) -> Array:
    return _gathered(ops, _gathered(ops, dy, 3, factors[1]), 2, factors[0])


def _interpolated(ops: Ops, x: Array, axis: int, factor: int) -> Array:
    rows = x.swapaxes(axis, -1)
    size = rows.shape[-1]
    bordered = ops.xp.concatenate([rows[..., :1], rows, rows[..., -1:]], axis=-1)
    y: Array = ops.xp.empty((*rows.shape, factor), x.dtype)
    for phase in range(factor):
        first, share = _neighbours(phase, factor)
        y[..., phase] = (1.0 - share) * bordered[..., first : first + size]
        y[..., phase] += share * bordered[..., first + 1 : first + 1 + size]
    return y.reshape(*rows.shape[:-1], size * factor).swapaxes(axis, -1)


def _gathered(ops: Ops, dy: Array, axis: int, factor: int) -> Array:
    rows = dy.swapaxes(axis, -1)
    size = rows.shape[-1] // factor
    phases = rows.reshape(*rows.shape[:-1], size, factor)
    bordered: Array = ops.xp.zeros((*rows.shape[:-1], size + 2), dy.dtype)
    for phase in range(factor):
        first, share = _neighbours(phase, factor)
        bordered[..., first : first + size] += (1.0 - share) * phases[..., phase]
        bordered[..., first + 1 : first + 1 + size] += share * phases[..., phase]
    bordered[..., 1] += bordered[..., 0]
    bordered[..., -2] += bordered[..., -1]
    return bordered[..., 1:-1].swapaxes(axis, -1)


def _neighbours(phase: int, factor: int) -> tuple[int, float]:
    """For output ``factor``·q + ``phase`` the first of its two pixels, and the second's share.

    The pixel is counted from q in the image with a border of one; pixel centres lie at halves.
    """
    place = (phase + 0.5) / factor - 0.5
    return (0, place + 1.0) if place < 0 else (1, place)
