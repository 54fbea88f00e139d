"""Choose NumPy's routes for convolutions."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from singanet.ops.blas import product
from singanet.ops.interface import Ops
from singanet.ops.kernel import Route, in_order, kernel
from singanet.ops.numpy.conv import depthwise, im2col, winograd
from singanet.ops.numpy.conv.depthwise import can_gather, gather, gather_depthwise, moves_less
from singanet.ops.numpy.conv.im2col import scatter
from singanet.ops.window import Window
from singanet.types import Array, Shape

__all__ = [
    "channel_sum",
    "conv2d",
    "conv2d_backward_data",
    "conv2d_backward_weights",
    "conv2d_constant",
    "depthwise_conv2d",
    "depthwise_conv2d_backward_data",
    "depthwise_conv2d_backward_weights",
]


def _are_volumes(ops: Ops, first: Array, *rest: Any, **options: Any) -> bool:
    return first.ndim == 5


Fits = Callable[[Ops, Shape, Shape, Window], bool]
"""Whether a route serves images and a weight of such shapes."""


def _forward(fits: Fits) -> Callable[..., bool]:
    return lambda ops, x, weight, bias, window: fits(ops, x.shape, weight.shape, window)


def _weights(fits: Fits) -> Callable[..., bool]:
    return lambda ops, x, dy, shape, window: fits(ops, x.shape, shape, window)


def _data(fits: Fits) -> Callable[..., bool]:
    return lambda ops, dy, weight, x_shape, window: fits(ops, x_shape, weight.shape, window)


def _is_by_channel(ops: Ops, x_shape: Shape, weight_shape: Shape, window: Window) -> bool:
    return 1 < window.groups == x_shape[1]


def _are_small(ops: Ops, x_shape: Shape, weight_shape: Shape, window: Window) -> bool:
    groups = window.groups
    return groups > 1 and ops.on_host and im2col.joined(groups, tuple(weight_shape)) > 1


def _kernels_by_channel(weight_shape: Shape, window: Window) -> Shape:
    return (window.groups, weight_shape[0] // window.groups, *window.kernel)


def _by_channel(ops: Ops, x: Array, weight: Array, bias: Array | None, window: Window) -> Array:
    kernels = weight.reshape(_kernels_by_channel(weight.shape, window))
    return ops.depthwise_conv2d(x, kernels, bias, window)


def _weights_by_channel(
    ops: Ops, x: Array, dy: Array, weight_shape: Shape, window: Window
) -> Array:
    kernels = _kernels_by_channel(weight_shape, window)
    return ops.depthwise_conv2d_backward_weights(x, dy, kernels, window).reshape(weight_shape)


def _data_by_channel(ops: Ops, dy: Array, weight: Array, x_shape: Shape, window: Window) -> Array:
    kernels = weight.reshape(_kernels_by_channel(weight.shape, window))
    return ops.depthwise_conv2d_backward_data(dy, kernels, x_shape, window)


conv2d = in_order(
    Route("volumes", depthwise.conv, _are_volumes),
    Route("by channel", _by_channel, _forward(_is_by_channel)),
    Route("joined", im2col.joined_conv2d, _forward(_are_small)),
    Route("winograd", winograd.conv2d, _forward(winograd.pays)),
    Route("narrow", depthwise.conv2d, _forward(depthwise.is_narrow)),
    last=im2col.conv2d,
)

conv2d_backward_weights = in_order(
    Route("volumes", depthwise.weights, _are_volumes),
    Route("by channel", _weights_by_channel, _weights(_is_by_channel)),
    Route("joined", im2col.weights, _weights(_are_small)),
    Route("winograd", winograd.weights, _weights(winograd.pays)),
    Route("narrow", depthwise.conv2d_backward_weights, _weights(depthwise.is_narrow)),
    last=im2col.conv2d_backward_weights,
)

conv2d_backward_data = in_order(
    Route("volumes", depthwise.data, _are_volumes),
    Route("by channel", _data_by_channel, _data(_is_by_channel)),
    Route("joined", im2col.data, _data(_are_small)),
    Route("winograd", winograd.data, _data(winograd.pays)),
    Route(
        "gather",
        gather,
        lambda ops, dy, weight, x_shape, window: (
            can_gather(window) and moves_less(dy, x_shape, window)
        ),
    ),
    last=scatter,
)

depthwise_conv2d = depthwise.depthwise_conv2d

depthwise_conv2d_backward_data = in_order(
    Route(
        "gather",
        gather_depthwise,
        lambda ops, dy, weight, x_shape, window: can_gather(window),
    ),
    last=depthwise.scatter_depthwise,
)

depthwise_conv2d_backward_weights = depthwise.depthwise_conv2d_backward_weights


@kernel(half="lift")
def conv2d_constant(
    ops: Ops,
    x: Array,
    weight: Array,
    bias: Array | None,
    window: Window,
    relu: bool = False,
    add: Array | None = None,
) -> Array:
    return after(ops, ops.conv2d(x, weight, bias, window), relu, add)


def after(ops: Ops, y: Array, relu: bool, add: Array | None) -> Array:
    """Add ``add`` to ``y`` and apply relu, in place."""
    if add is not None:
        ops.xp.add(y, add, out=y)
    return ops.xp.maximum(y, 0, out=y) if relu else y


@kernel(half="lift")
def channel_sum(ops: Ops, dy: Array) -> Array:
    n, c, positions = len(dy), dy.shape[1], prod(dy.shape[2:])
    # Products with ones run ten times as fast as sums along an axis; one product a sample makes
    # short partial sums, exact enough in float32.
    ones = ops.xp.ones((1, positions), dy.dtype)
    if dy.flags.c_contiguous:
        rows = dy.reshape(n, c, positions).transpose(0, 2, 1)
    else:
        rows = ops.channels_last(dy).reshape(n, positions, c)
    sums = product(ops.xp, ones, rows)
    return sums.sum(axis=(0, 1))
