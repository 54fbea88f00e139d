"""The formulas of the activations and of their gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from singanet.ops.numpy.erf import normal_tail
from singanet.types import Array

_INV_SQRT_2PI = 0.3989422804014327
_NO_DENSITY = 40.0
_MANY = 1 << 14
_LARGEST_EXPONENT = {2: 10.0, 4: 87.0, 8: 700.0}

Function = Callable[..., Array]


@dataclass(frozen=True)
class Mode:
    """``forward(xp, x, slope) -> y``; ``backward(xp, dy, kept, slope) -> dx``.

    ``keeps`` says whether backward wants the input "x" or the output "y". Nothing here selects
    with ``where``, which takes ten times as long as arithmetic on a CPU.
    """

    keeps: str
    forward: Function
    backward: Function


def relu(xp: Any, x: Array, _: float) -> Array:
    """max(x, 0)."""
    # With an array for the zeros NumPy takes vector instructions, with a number it does not.
    if x.size <= _MANY:
        return xp.maximum(x, xp.zeros_like(x))
    # Many need zeros for one step along the axis that lies farthest apart, such as a sample.
    axis = max(range(x.ndim), key=lambda k: (x.shape[k] > 1) * abs(x.strides[k]))
    return xp.maximum(x, xp.zeros_like(x[(slice(None),) * axis + (slice(1),)]))


def relu_backward(xp: Any, dy: Array, y: Array, _: float) -> Array:
    """``dy`` where y is positive, else 0."""
    above: Array = y > 0
    # Few are converted in less time ahead than in the product.
    return xp.multiply(dy, above.astype(dy.dtype) if y.size <= _MANY else above)


def sigmoid(xp: Any, x: Array, _: float = 0.0) -> Array:
    """1 / (1 + exp(-x))."""
    # Clipped where exp would overflow; the result is zero to the last bit there anyway.
    y: Array = xp.maximum(x, -_LARGEST_EXPONENT[x.dtype.itemsize])
    xp.exp(xp.negative(y, out=y), out=y)
    y += 1.0
    return xp.reciprocal(y, out=y)


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
    y *= xp.abs(x)
    return xp.subtract(xp.maximum(x, 0), y, out=y)


def _gelu_backward(xp: Any, dy: Array, x: Array, _: float) -> Array:
    # Clipped where the density is zero, so that the square cannot overflow.
    near = xp.clip(x, -_NO_DENSITY, _NO_DENSITY)
    density = xp.exp(-0.5 * near * near)
    density *= _INV_SQRT_2PI
    density *= near
    # Φ(x) is Φ(-|x|) below zero, and 1 less that above.
    dx: Array = xp.subtract(x > 0, xp.copysign(normal_tail(xp, x), x), dtype=x.dtype)
    dx += density
    dx *= dy
    return dx


def _silu(xp: Any, x: Array, _: float) -> Array:
    y = sigmoid(xp, x)
    y *= x
    return y


def _silu_backward(xp: Any, dy: Array, x: Array, _: float) -> Array:
    s = sigmoid(xp, x)
    dx: Array = xp.subtract(1.0, s)
    dx *= x
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
    dx = sigmoid(xp, x)
    dx *= dy
    return dx


MODES = {
    "relu": Mode("y", relu, relu_backward),
    "sigmoid": Mode("y", sigmoid, _sigmoid_backward),
    "tanh": Mode("y", _tanh, _tanh_backward),
    "leaky_relu": Mode("x", _leaky_relu, _leaky_relu_backward),
    "elu": Mode("x", _elu, _elu_backward),
    "gelu": Mode("x", _gelu, _gelu_backward),
    "silu": Mode("x", _silu, _silu_backward),
    "softplus": Mode("x", _softplus, _softplus_backward),
}
