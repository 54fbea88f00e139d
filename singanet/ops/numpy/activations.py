"""Activations and their gradients.

Nothing here selects with ``where``, which takes ten times as long as arithmetic on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from singanet.ops.interface import Ops
from singanet.ops.kernel import kernel
from singanet.ops.numpy.erf import normal_tail
from singanet.ops.numpy.windows import blocks, scratch_bytes
from singanet.types import Array

_BLOCK_BYTES = 1 << 18
"""Of one operand; formulas of many steps run block by block, so that their steps stay cached."""

_INV_SQRT_2PI = 0.3989422804014327
_NO_DENSITY = 40.0
_MANY = 1 << 14
_ONE_FROM = {2: 11.0, 4: 30.0, 8: 40.0}
"""Where 1 / (1 + exp(-x)) is 1, by the bytes of a number."""

Function = Callable[..., Array]


@kernel(half="native")
def activation(ops: Ops, mode: str, x: Array, slope: float = 0.01) -> Array:
    """See `Ops`."""
    return _in_blocks(ops, _MODES[mode].forward, slope, x)


@kernel(half="native")
def activation_backward(ops: Ops, mode: str, dy: Array, kept: Array, slope: float = 0.01) -> Array:
    """See `Ops`."""
    return _in_blocks(ops, _MODES[mode].backward, slope, dy, kept)


@kernel(half="native")
def sigmoid(ops: Ops, x: Array) -> Array:
    """See `Ops`."""
    return _in_blocks(ops, _sigmoid, 0.0, x)


def _in_blocks(ops: Ops, function: Function, slope: float, *arrays: Array) -> Array:
    """``function(xp, *arrays, slope)``, a few samples at a time where they are large."""
    first = arrays[0]
    if first.nbytes <= _BLOCK_BYTES or function in (_relu, _relu_backward):
        return function(ops.xp, *arrays, slope)
    out: Array = ops.xp.empty_like(first)
    step = first.nbytes // len(first)
    for samples, _ in blocks(len(first), 1, step, scratch_bytes(ops, _BLOCK_BYTES)):
        out[samples] = function(ops.xp, *(array[samples] for array in arrays), slope)
    return out


@dataclass(frozen=True)
class _Mode:
    """``forward(xp, x, slope) -> y``; ``backward(xp, dy, kept, slope) -> dx``."""

    forward: Function
    backward: Function


def _relu(xp: Any, x: Array, _: float) -> Array:
    """max(x, 0)."""
    # With an array for the zeros NumPy takes vector instructions, with a number it does not.
    if x.size <= _MANY:
        return xp.maximum(x, xp.zeros_like(x))
    # Many need zeros for one step along the axis that lies farthest apart, such as a sample.
    axis = max(range(x.ndim), key=lambda k: (x.shape[k] > 1) * abs(x.strides[k]))
    return xp.maximum(x, xp.zeros_like(x[(slice(None),) * axis + (slice(1),)]))


def _relu_backward(xp: Any, dy: Array, y: Array, _: float) -> Array:
    """``dy`` where y is positive, else 0."""
    above: Array = y > 0
    # Few are converted in less time ahead than in the product.
    return xp.multiply(dy, above.astype(dy.dtype) if y.size <= _MANY else above)


def _largest(x: Array) -> float:
    """The largest finite number of the type of ``x``: infinity times zero would be none."""
    return float(np.finfo(x.dtype).max)


def _sigmoid(xp: Any, x: Array, _: float = 0.0) -> Array:
    """1 / (1 + exp(-x))."""
    # exp(x) / (1 + exp(x)), which goes down to zero itself; clipped where it is 1 to the last bit.
    y: Array = xp.minimum(x, _ONE_FROM[x.dtype.itemsize])
    xp.exp(y, out=y)
    return xp.divide(y, y + 1.0, out=y)


def _sigmoid_backward(xp: Any, dy: Array, y: Array, _: float) -> Array:
    dx: Array = xp.subtract(1.0, y)
    dx *= y
    dx *= dy
    return dx


def _tanh(xp: Any, x: Array, _: float) -> Array:
    return xp.tanh(x)


def _tanh_backward(xp: Any, dy: Array, y: Array, _: float) -> Array:
    dx: Array = xp.square(y)
    xp.subtract(1.0, dx, out=dx)
    dx *= dy
    return dx


def _leaky_relu(xp: Any, x: Array, slope: float) -> Array:
    y: Array = xp.minimum(x, 0)
    y *= slope
    y += xp.maximum(x, 0)
    return y


def _leaky_relu_backward(xp: Any, dy: Array, x: Array, slope: float) -> Array:
    above: Array = xp.multiply(dy, x > 0)
    below = dy - above
    below *= slope
    above += below
    return above


def _elu(xp: Any, x: Array, slope: float) -> Array:
    y: Array = xp.minimum(x, 0)
    xp.expm1(y, out=y)
    y *= slope
    y += xp.maximum(x, 0)
    return y


def _elu_backward(xp: Any, dy: Array, x: Array, slope: float) -> Array:
    above: Array = xp.multiply(dy, x > 0)
    below = dy - above
    below *= slope
    below *= xp.exp(xp.minimum(x, 0))
    above += below
    return above


def _gelu(xp: Any, x: Array, _: float) -> Array:
    # x Φ(x) = max(x, 0) - |x| Φ(-|x|), which keeps the digits of the left tail.
    y = normal_tail(xp, x)
    y *= xp.minimum(xp.abs(x), _largest(x))
    return xp.subtract(xp.maximum(x, 0), y, out=y)


def _gelu_backward(xp: Any, dy: Array, x: Array, _: float) -> Array:
    # Clipped where the density is zero, so that the square cannot overflow.
    near = xp.clip(x, -_NO_DENSITY, _NO_DENSITY)
    density = xp.exp(-0.5 * near * near)
    density *= _INV_SQRT_2PI
    density *= near
    # Φ(x) is Φ(-|x|) below zero, and 1 less that above.
    above = xp.logical_not(xp.signbit(x))
    dx: Array = xp.subtract(above, xp.copysign(normal_tail(xp, x), x), dtype=x.dtype)
    dx += density
    dx *= dy
    return dx


def _silu(xp: Any, x: Array, _: float) -> Array:
    y = _sigmoid(xp, x)
    y *= xp.maximum(x, -_largest(x))
    return y


def _silu_backward(xp: Any, dy: Array, x: Array, _: float) -> Array:
    s = _sigmoid(xp, x)
    dx: Array = xp.subtract(1.0, s)
    dx *= xp.clip(x, -_largest(x), _largest(x))
    dx += 1.0
    dx *= s
    dx *= dy
    return dx


def _softplus(xp: Any, x: Array, _: float) -> Array:
    y: Array = xp.abs(x)
    xp.exp(xp.negative(y, out=y), out=y)
    xp.log1p(y, out=y)
    y += xp.maximum(x, 0)
    return y


def _softplus_backward(xp: Any, dy: Array, x: Array, _: float) -> Array:
    dx = _sigmoid(xp, x)
    dx *= dy
    return dx


_MODES = {
    "relu": _Mode(_relu, _relu_backward),
    "sigmoid": _Mode(_sigmoid, _sigmoid_backward),
    "tanh": _Mode(_tanh, _tanh_backward),
    "leaky_relu": _Mode(_leaky_relu, _leaky_relu_backward),
    "elu": _Mode(_elu, _elu_backward),
    "gelu": _Mode(_gelu, _gelu_backward),
    "silu": _Mode(_silu, _silu_backward),
    "softplus": _Mode(_softplus, _softplus_backward),
}
