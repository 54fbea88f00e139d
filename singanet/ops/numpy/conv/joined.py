"""Convolution in groups of few channels, several of them as one.

BLAS multiplies sixteen kernels in little more time than four, so zeros in the place of other
groups' channels cost less than they save. A NaN or an infinity reaches the groups joined with its
own.
"""

from __future__ import annotations

from functools import lru_cache

from singanet.ops.interface import Ops
from singanet.ops.window import Window
from singanet.types import Array, Shape

_WIDE = 16
"""Channels and kernels of joined groups, at most: with 32 of them the zeros cost more."""


@lru_cache(maxsize=256)
def joined(groups: int, weight_shape: Shape) -> int:
    """How many groups make one; 1 where none are joined."""
    most = _WIDE // max(weight_shape[1], weight_shape[0] // groups)
    return max((many for many in range(1, most + 1) if groups % many == 0), default=1)


def conv2d(
    ops: Ops, x: Array, weight: Array, bias: Array | None, window: Window, groups: int = 1
) -> Array:
    """See `Ops`."""
    many = joined(groups, weight.shape)
    return ops.conv2d(x, _wide(ops, weight, groups, many), bias, window, groups // many)


def data(
    ops: Ops, dy: Array, weight: Array, x_shape: Shape, window: Window, groups: int = 1
) -> Array:
    """See `Ops.conv2d_backward_data`."""
    many = joined(groups, weight.shape)
    wide = _wide(ops, weight, groups, many)
    return ops.conv2d_backward_data(dy, wide, x_shape, window, groups // many)


def weights(
    ops: Ops, x: Array, dy: Array, weight_shape: Shape, window: Window, groups: int = 1
) -> Array:
    """See `Ops.conv2d_backward_weights`."""
    f, cg, *kernel = weight_shape
    many = joined(groups, weight_shape)
    shape = (f, many * cg, *kernel)
    wide = ops.conv2d_backward_weights(x, dy, shape, window, groups // many)
    split = wide.reshape(groups // many, many, f // groups, many, cg, *kernel)
    dw: Array = ops.xp.empty((groups // many, many, f // groups, cg, *kernel), wide.dtype)
    for own in range(many):
        dw[:, own] = split[:, own, :, own]
    return dw.reshape(weight_shape)


def _wide(ops: Ops, weight: Array, groups: int, many: int) -> Array:
    """The weight (F, C/groups, kh, kw) with ``many`` groups as one: zeros but for their own."""
    f, cg, *kernel = weight.shape
    split = weight.reshape(groups // many, many, f // groups, cg, *kernel)
    wide: Array = ops.xp.zeros((groups // many, many, f // groups, many, cg, *kernel), weight.dtype)
    for own in range(many):
        wide[:, own, :, own] = split[:, own]
    return wide.reshape(f, many * cg, *kernel)
