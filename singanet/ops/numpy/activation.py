"""Activations and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from singanet.ops.numpy.erf import normal_cdf
from singanet.types import Array

_INV_SQRT_2PI = 0.3989422804014327
_NO_DENSITY = 40.0
_LARGEST_EXPONENT = {2: 10.0, 4: 87.0, 8: 700.0}


@dataclass(frozen=True)
class _Mode:
    """``forward(xp, x, slope) -> y``; ``backward(xp, dy, kept, slope) -> dx``.

    ``keeps`` says whether backward wants the input "x" or the output "y".
    """

    keeps: str
    forward: Callable[[Any, Array, float], Array]
    backward: Callable[[Any, Array, Array, float], Array]


def _sigmoid(xp: Any, x: Array) -> Array:
    # Clipped where exp would overflow; the result is zero to the last bit there anyway.
    y: Array = xp.negative(xp.maximum(x, -_LARGEST_EXPONENT[x.dtype.itemsize]))
    xp.exp(y, out=y)
    y += 1.0
    return xp.reciprocal(y, out=y)


def _leaky_relu(xp: Any, x: Array, slope: float) -> Array:
    return xp.where(x > 0, x, x * slope)


def _leaky_relu_backward(xp: Any, dy: Array, x: Array, slope: float) -> Array:
    return xp.where(x > 0, dy, dy * slope)


def _elu(xp: Any, x: Array, slope: float) -> Array:
    return xp.where(x > 0, x, slope * xp.expm1(xp.minimum(x, 0)))


def _elu_backward(xp: Any, dy: Array, x: Array, slope: float) -> Array:
    return xp.where(x > 0, dy, dy * (slope * xp.exp(xp.minimum(x, 0))))


def _gelu(xp: Any, x: Array, _: float) -> Array:
    return x * normal_cdf(xp, x)


def _gelu_backward(xp: Any, dy: Array, x: Array, _: float) -> Array:
    # Clipped where the density is zero, so that the square cannot overflow.
    near = xp.clip(x, -_NO_DENSITY, _NO_DENSITY)
    density = _INV_SQRT_2PI * xp.exp(-0.5 * near * near)
    return dy * (normal_cdf(xp, x) + near * density)


def _silu_backward(xp: Any, dy: Array, x: Array, _: float) -> Array:
    s = _sigmoid(xp, x)
    return dy * (s * (1.0 + x * (1.0 - s)))


def _softplus(xp: Any, x: Array, _: float) -> Array:
    return xp.log1p(xp.exp(-xp.abs(x))) + xp.maximum(x, 0)


_MODES = {
    "relu": _Mode(
        "y",
        lambda xp, x, _: xp.maximum(x, 0),
        lambda xp, dy, y, _: xp.multiply(dy, y > 0),
    ),
    "sigmoid": _Mode(
        "y",
        lambda xp, x, _: _sigmoid(xp, x),
        lambda xp, dy, y, _: dy * (y * (1.0 - y)),
    ),
    "tanh": _Mode(
        "y",
        lambda xp, x, _: xp.tanh(x),
        lambda xp, dy, y, _: dy * (1.0 - y * y),
    ),
    "leaky_relu": _Mode("x", _leaky_relu, _leaky_relu_backward),
    "elu": _Mode("x", _elu, _elu_backward),
    "gelu": _Mode("x", _gelu, _gelu_backward),
    "silu": _Mode("x", lambda xp, x, _: x * _sigmoid(xp, x), _silu_backward),
    "softplus": _Mode("x", _softplus, lambda xp, dy, x, _: dy * _sigmoid(xp, x)),
}


class Activations:
    """Element-wise functions by name; ``slope`` is the negative slope, or elu's alpha."""

    xp: Any
    activations = tuple(_MODES)

    def activation(self, mode: str, x: Array, slope: float = 0.01) -> Array:
        """The function ``mode`` of every element."""
        return _MODES[mode].forward(self.xp, x, slope)

    def activation_keeps(self, mode: str) -> str:
        """Whether `activation_backward` wants the input "x" or the output "y"."""
        return _MODES[mode].keeps

    def activation_backward(self, mode: str, dy: Array, kept: Array, slope: float = 0.01) -> Array:
        """``dy`` times the derivative, from what `activation_keeps` names."""
        return _MODES[mode].backward(self.xp, dy, kept, slope)

    def sigmoid(self, x: Array) -> Array:
        """1 / (1 + exp(-x)) without overflow."""
        return _sigmoid(self.xp, x)
