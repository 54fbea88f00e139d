"""Convolve by oneDNN, with the routes of each kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

from singanet.ops.casts import has_compiler
from singanet.ops.costs import Case
from singanet.ops.kernel import NEVER, Route, by_cost, in_order
from singanet.ops.llvm import depthwise as by_channel
from singanet.ops.llvm import winograd as llvm_tiles
from singanet.ops.llvm.winograd import constant_case, data_case, forward_case, weights_case
from singanet.ops.numpy import conv as by_numpy
from singanet.ops.numpy.conv import winograd
from singanet.ops.onednn.base import OneDnnBase
from singanet.ops.onednn.conv import blocked, direct, product
from singanet.ops.window import Window
from singanet.types import Array, Shape

__all__ = [
    "conv2d",
    "conv2d_backward_data",
    "conv2d_backward_weights",
    "conv2d_constant",
    "depthwise_conv2d",
    "depthwise_conv2d_backward_data",
    "depthwise_conv2d_backward_weights",
]

_FEW = 4
"""Channels below which oneDNN's input gradient wastes most lanes of its vectors."""

_GAIN = 1.05
"""The factor by which NumPy's tiles have to be faster."""


def _always(ops: OneDnnBase, case: Case) -> bool:
    return True


def _never(ops: OneDnnBase, case: Case) -> float:
    return NEVER


def _of_volumes(run: Callable[..., Any]) -> Route:
    """Return the one route for volumes, which are not measured."""

    def fits(ops: OneDnnBase, a: Array, b: Array, *rest: Any, **options: Any) -> bool:
        return a.ndim == 5 and ops.serves(1, a, b)

    return Route("direct", run, fits)


def _leaves_vectors_empty(ops: OneDnnBase, case: Case) -> float:
    return 0.99 if case.x[1] < _FEW and case.window.groups == 1 else NEVER


def _has_tiles(ops: OneDnnBase, case: Case) -> bool:
    """Whether NumPy's tiles may serve: LLVM's are faster."""
    return not has_compiler() and winograd.pays(ops, case.x, case.weight, case.window)


def _by_tiles(ops: OneDnnBase, case: Case) -> float:
    """Estimate NumPy's tiles, on one thread: nets train in 0.8 to 1.0 of the direct time."""
    if not _has_tiles(ops, case):
        return NEVER
    speeds, pixels = ops.speeds(), prod(case.window._out_size(*case.x[2:]))
    direct = speeds.direct_time(case.x[0], pixels, prod(case.weight), case.kernel == "constant")
    taken = speeds.direct * winograd.multiplications(case.x, case.weight, case.window)
    return _GAIN * ops.threads * taken / direct


def _constant_by_numpy(
    ops: OneDnnBase,
    x: Array,
    weight: Array,
    bias: Array | None,
    window: Window,
    relu: bool = False,
    add: Array | None = None,
) -> Array:
    return by_numpy.after(ops, by_numpy.conv2d(ops, x, weight, bias, window), relu, add)


def _data_by_numpy(ops: OneDnnBase, case: Case) -> float:
    return min(_leaves_vectors_empty(ops, case), _by_tiles(ops, case))


conv2d = by_cost(
    Route("compiled", llvm_tiles.forward, llvm_tiles.fits, llvm_tiles.estimate),
    Route("product", product.forward, product.fits, product.estimate),
    Route("direct", direct.forward, _always),
    Route("blocked", blocked.forward, blocked.fits, blocked.estimate),
    Route("numpy", by_numpy.conv2d, _always, _by_tiles),
    case=forward_case,
    last=in_order(_of_volumes(direct.forward), last=by_numpy.conv2d),
)

conv2d_backward_data = by_cost(
    Route("compiled", llvm_tiles.data, llvm_tiles.fits, llvm_tiles.estimate),
    Route("product", product.data, product.fits, product.estimate),
    Route("direct", direct.data, _always),
    Route("blocked", blocked.data, blocked.fits, blocked.estimate),
    Route("numpy", by_numpy.conv2d_backward_data, _always, _data_by_numpy),
    case=data_case,
    last=in_order(_of_volumes(direct.data), last=by_numpy.conv2d_backward_data),
)

conv2d_backward_weights = by_cost(
    Route("compiled", llvm_tiles.weights, llvm_tiles.fits, llvm_tiles.estimate),
    Route("product", product.weights, product.fits, product.estimate),
    Route("direct", direct.weights, _always),
    Route("numpy", by_numpy.conv2d_backward_weights, _always, _by_tiles),
    case=weights_case,
    last=in_order(_of_volumes(direct.weights), last=by_numpy.conv2d_backward_weights),
)

conv2d_constant = by_cost(
    Route("compiled", llvm_tiles.constant, llvm_tiles.fits, llvm_tiles.estimate),
    Route("product", product.constant, product.constant_fits, product.constant_estimate),
    Route("direct", direct.constant, _always),
    Route("blocked", blocked.constant, blocked.fits, blocked.estimate),
    Route("numpy", _constant_by_numpy, _has_tiles, _by_tiles),
    case=constant_case,
    last=by_numpy.conv2d_constant,
)


# A depthwise convolution has as many groups as channels.


def _by_output(weight: Array) -> Array:
    """Return (C, M, kh, kw) as (C·M, 1, kh, kw)."""
    return weight.reshape(-1, 1, *weight.shape[2:])


def _apart(window: Window, weight_shape: Shape) -> Window:
    return replace(window, groups=weight_shape[0])


def _depthwise(
    ops: OneDnnBase, x: Array, weight: Array, bias: Array | None, window: Window
) -> Array | None:
    return direct.forward(ops, x, _by_output(weight), bias, _apart(window, weight.shape))


def _depthwise_data(
    ops: OneDnnBase, dy: Array, weight: Array, x_shape: Shape, window: Window
) -> Array | None:
    return direct.data(ops, dy, _by_output(weight), x_shape, _apart(window, weight.shape))


def _depthwise_weights(
    ops: OneDnnBase, x: Array, dy: Array, weight_shape: Shape, window: Window
) -> Array | None:
    c, m, kh, kw = weight_shape
    dw = direct.weights(ops, x, dy, (c * m, 1, kh, kw), _apart(window, weight_shape))
    return None if dw is None else dw.reshape(weight_shape)


def _by_channel(ops: OneDnnBase, case: Case) -> float:
    # Measured: 0.2 of the direct time for 5×5 and 7×7.
    return 0.5


depthwise_conv2d = by_cost(
    Route("direct", _depthwise, _always),
    Route("numpy", by_numpy.depthwise_conv2d, _always, _never),
    case=lambda ops, x, weight, bias, window: forward_case(
        ops, x, _by_output(weight), bias, _apart(window, weight.shape)
    ),
    last=by_numpy.depthwise_conv2d,
)

depthwise_conv2d_backward_data = by_cost(
    Route("direct", _depthwise_data, _always),
    Route("numpy", by_numpy.depthwise_conv2d_backward_data, _always, _leaves_vectors_empty),
    case=lambda ops, dy, weight, x_shape, window: data_case(
        ops, dy, _by_output(weight), x_shape, _apart(window, weight.shape)
    ),
    last=by_numpy.depthwise_conv2d_backward_data,
)

depthwise_conv2d_backward_weights = by_cost(
    Route("compiled", by_channel.weights, by_channel.beats_direct, _by_channel),
    Route("direct", _depthwise_weights, _always),
    Route("numpy", by_numpy.depthwise_conv2d_backward_weights, _always, _never),
    case=lambda ops, x, dy, shape, window: weights_case(
        ops, x, dy, (shape[0] * shape[1], 1, *shape[2:]), _apart(window, shape)
    ),
    last=by_numpy.depthwise_conv2d_backward_weights,
)
