"""Compute elementwise kernels by NumPy.

No kernel selects by ``where`` if arithmetic can: on a CPU ``where`` takes ten times as long.

The arrays have equal numbers of axes; an axis of extent 1 broadcasts. x is (N, C, ...); parameters
are (C,), or (1,) for one number over all channels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from singanet.ops.interface import Ops
from singanet.ops.kernel import kernel
from singanet.ops.numpy.windows import blocks, scratch_bytes
from singanet.types import Array, Shape

# erfc(z) = exp(-z²) P(z) / Q(z), highest power first: W. J. Cody, Math. Comp. 23 (1969). Designed
# for 0.47 to 4, with relative error below 2e-15; from 0 to 6 it stays below 5e-12.
_P = (2.15311535474403846e-8, 0.564188496988670089, 8.88314979438837594, 66.1191906371416295,
      298.635138197400131, 881.952221241769090, 1712.04761263407058, 2051.07837782607147,
      1230.33935479799725)  # fmt: skip
_Q = (1.0, 15.7449261107098347, 117.693950891312499, 537.181101862009858, 1621.38957456669019,
      3290.79923573345963, 4362.61909014324716, 3439.36767414372164,
      1230.33935480374942)  # fmt: skip
_SQRT_HALF = 0.7071067811865476
_ZERO_BEYOND = 28.0


def normal_tail(xp: Any, x: Array) -> Array:
    """Return Φ(-|x|) of every element, Φ the standard normal distribution function."""
    # float16 is widened, since 3290 is not a float16 number.
    z: Array = xp.abs(x.astype(xp.float32) if x.dtype.itemsize == 2 else x)
    z *= _SQRT_HALF
    xp.minimum(z, _ZERO_BEYOND, out=z)
    tail = _polynomial(xp, _P, z)
    tail /= _polynomial(xp, _Q, z)
    xp.square(z, out=z)
    tail *= xp.exp(xp.negative(z, out=z), out=z)
    tail *= 0.5
    return tail.astype(x.dtype, copy=False)


def _polynomial(xp: Any, coefficients: tuple[float, ...], z: Array) -> Array:
    """Evaluate a polynomial by Horner's scheme."""
    total: Array = xp.multiply(z, coefficients[0])
    total += coefficients[1]
    for coefficient in coefficients[2:]:
        total *= z
        total += coefficient
    return total


_BLOCK_BYTES = 1 << 18
"""Bytes of an operand's block; longer formulas run by blocks, whose intermediates stay cached."""

_INV_SQRT_2PI = 0.3989422804014327
_TWICE_SQRT_2_PI = 1.5957691216057308
_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805
"""Source: Klambauer et al., 2017; mean 0 and variance 1 are then a fixed point."""
_NO_DENSITY = 40.0
_ONE_GELU = 25.0
"""The |x| from which the gate of gelu by tanh is 1 or 0 in every dtype."""
_MANY = 1 << 14
_ONE_FROM = {2: 11.0, 4: 30.0, 8: 40.0}
"""The x from which 1 / (1 + exp(-x)) is 1, by the bytes of a number."""

Function = Callable[..., Array]


@kernel(half="lift")
def activation(ops: Ops, mode: str, x: Array, slope: float = 0.01) -> Array:
    return _in_blocks(ops, _MODES[mode].forward, slope, x)


@kernel(half="lift")
def activation_backward(ops: Ops, mode: str, dy: Array, kept: Array, slope: float = 0.01) -> Array:
    return _in_blocks(ops, _MODES[mode].backward, slope, dy, kept)


@kernel(half="lift")
def sigmoid(ops: Ops, x: Array) -> Array:
    return _in_blocks(ops, _sigmoid, 0.0, x)


def _in_blocks(ops: Ops, function: Function, slope: float, *arrays: Array) -> Array:
    """Return ``function(xp, *arrays, slope)``, computed for a few samples at a time if large."""
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
    """Return max(x, 0)."""
    # NumPy uses vector instructions for an array of zeros, but not for a number.
    if x.size <= _MANY:
        return xp.maximum(x, xp.zeros_like(x))
    # Large arrays need zeros for one step along the axis of the largest stride, such as a sample.
    axis = max(range(x.ndim), key=lambda k: (x.shape[k] > 1) * abs(x.strides[k]))
    return xp.maximum(x, xp.zeros_like(x[(slice(None),) * axis + (slice(1),)]))


def _relu_backward(xp: Any, dy: Array, y: Array, _: float) -> Array:
    """Return ``dy`` for positive y, and 0 otherwise."""
    above: Array = y > 0
    # For small arrays a separate conversion is faster.
    return xp.multiply(dy, above.astype(dy.dtype) if y.size <= _MANY else above)


def _largest(x: Array) -> float:
    """Return the largest finite number of the dtype of ``x``: infinity times zero would be NaN."""
    return float(np.finfo(x.dtype).max)


def _sigmoid(xp: Any, x: Array, _: float = 0.0) -> Array:
    """Return 1 / (1 + exp(-x))."""
    # exp(x) / (1 + exp(x)), which tends to zero; clipped from where it is 1 to the last bit.
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
    # x Φ(x) = max(x, 0) - |x| Φ(-|x|), which preserves the digits of the left tail.
    y = normal_tail(xp, x)
    y *= xp.minimum(xp.abs(x), _largest(x))
    return xp.subtract(xp.maximum(x, 0), y, out=y)


def _gelu_backward(xp: Any, dy: Array, x: Array, _: float) -> Array:
    # Clipped at density zero, so that the square cannot overflow.
    near = xp.clip(x, -_NO_DENSITY, _NO_DENSITY)
    density = xp.exp(-0.5 * near * near)
    density *= _INV_SQRT_2PI
    density *= near
    # Φ(x) is Φ(-|x|) below zero, and 1 - Φ(-|x|) above.
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


def _relu6(xp: Any, x: Array, _: float) -> Array:
    y: Array = xp.maximum(x, 0)
    return xp.minimum(y, 6, out=y)


def _relu6_backward(xp: Any, dy: Array, y: Array, _: float) -> Array:
    inside: Array = xp.logical_and(y > 0, y < 6)
    return xp.multiply(dy, inside)


def _hard_sigmoid(xp: Any, x: Array, _: float) -> Array:
    """Return x / 6 + 1/2, clipped to [0, 1]."""
    y: Array = xp.add(x, 3.0)
    xp.maximum(y, 0, out=y)
    xp.minimum(y, 6, out=y)
    y /= 6.0
    return y


def _hard_sigmoid_backward(xp: Any, dy: Array, y: Array, _: float) -> Array:
    dx: Array = xp.multiply(dy, xp.logical_and(y > 0, y < 1))
    dx /= 6.0
    return dx


def _hard_swish(xp: Any, x: Array, _: float) -> Array:
    y = _hard_sigmoid(xp, x, _)
    # Zero below -3; infinity times zero would be NaN.
    y *= xp.maximum(x, -3.0)
    return y


def _hard_swish_backward(xp: Any, dy: Array, x: Array, _: float) -> Array:
    dx: Array = xp.clip(x, -3.0, 3.0)
    dx /= 3.0
    dx += 0.5
    dx *= xp.abs(x) < 3
    dx += x >= 3
    dx *= dy
    return dx


def _selu(xp: Any, x: Array, _: float) -> Array:
    y = _elu(xp, x, _SELU_ALPHA)
    y *= _SELU_SCALE
    return y


def _selu_backward(xp: Any, dy: Array, x: Array, _: float) -> Array:
    dx = _elu_backward(xp, dy, x, _SELU_ALPHA)
    dx *= _SELU_SCALE
    return dx


def _celu(xp: Any, x: Array, slope: float) -> Array:
    y: Array = xp.minimum(x, 0)
    y /= slope
    xp.expm1(y, out=y)
    y *= slope
    y += xp.maximum(x, 0)
    return y


def _celu_backward(xp: Any, dy: Array, x: Array, slope: float) -> Array:
    dx: Array = xp.minimum(x, 0)
    dx /= slope
    xp.exp(dx, out=dx)
    dx *= dy
    return dx


def _softsign(xp: Any, x: Array, _: float) -> Array:
    y: Array = xp.clip(x, -_largest(x), _largest(x))
    y /= xp.abs(y) + 1.0
    return y


def _softsign_backward(xp: Any, dy: Array, x: Array, _: float) -> Array:
    dx: Array = xp.abs(x)
    dx += 1.0
    xp.reciprocal(dx, out=dx)
    dx *= dx
    dx *= dy
    return dx


def _mish(xp: Any, x: Array, _: float) -> Array:
    # tanh(log(1 + n)) = n (n + 2) / (n (n + 2) + 2) for n = exp(x), without a logarithm.
    n: Array = xp.exp(xp.minimum(x, _ONE_FROM[x.dtype.itemsize] / 2))
    n *= n + 2.0
    n /= n + 2.0
    n *= xp.maximum(x, -_largest(x))
    return n


def _mish_backward(xp: Any, dy: Array, x: Array, _: float) -> Array:
    near: Array = xp.clip(x, -_largest(x), _ONE_FROM[x.dtype.itemsize] / 2)
    n: Array = xp.exp(near)
    q = n * (n + 2.0)
    q += 2.0
    # tanh(softplus) is (q - 2) / q, and its derivative 4 n (n + 1) / q².
    near *= n
    near *= (n + 1.0) / q
    near *= 4.0
    n *= n + 2.0
    near += n
    near /= q
    near *= dy
    return near


def _tanh_gate(xp: Any, x: Array) -> tuple[Array, Array]:
    """Return ``x`` clipped, and its gate (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2."""
    near: Array = xp.clip(x, -_ONE_GELU, _ONE_GELU)
    twice = xp.square(near)
    twice *= 0.044715
    twice += 1.0
    twice *= near
    twice *= _TWICE_SQRT_2_PI
    return near, _sigmoid(xp, twice)


def _gelu_tanh(xp: Any, x: Array, _: float) -> Array:
    y = _tanh_gate(xp, x)[1]
    y *= xp.maximum(x, -_largest(x))
    return y


def _gelu_tanh_backward(xp: Any, dy: Array, x: Array, _: float) -> Array:
    near, gate = _tanh_gate(xp, x)
    dx: Array = xp.square(near)
    dx *= 3 * 0.044715
    dx += 1.0
    dx *= _TWICE_SQRT_2_PI
    dx *= near
    dx *= xp.subtract(1.0, gate)
    dx += 1.0
    dx *= gate
    dx *= dy
    return dx


def _softcap(xp: Any, x: Array, cap: float) -> Array:
    """Return cap tanh(x / cap)."""
    y: Array = xp.divide(x, cap)
    xp.tanh(y, out=y)
    y *= cap
    return y


def _softcap_backward(xp: Any, dy: Array, y: Array, cap: float) -> Array:
    dx: Array = xp.divide(y, cap)
    xp.square(dx, out=dx)
    xp.subtract(1.0, dx, out=dx)
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
    "relu6": _Mode(_relu6, _relu6_backward),
    "hard_sigmoid": _Mode(_hard_sigmoid, _hard_sigmoid_backward),
    "hard_swish": _Mode(_hard_swish, _hard_swish_backward),
    "selu": _Mode(_selu, _selu_backward),
    "celu": _Mode(_celu, _celu_backward),
    "softsign": _Mode(_softsign, _softsign_backward),
    "mish": _Mode(_mish, _mish_backward),
    "gelu_tanh": _Mode(_gelu_tanh, _gelu_tanh_backward),
    "softcap": _Mode(_softcap, _softcap_backward),
}


@kernel(half="native")
def empty(ops: Ops, shape: Shape, like: Array) -> Array:
    return ops.xp.empty(shape, like.dtype)


@kernel(half="native")
def zeros(ops: Ops, shape: Shape, like: Array) -> Array:
    return ops.xp.zeros(shape, like.dtype)


@kernel(half="lift")
def total(
    ops: Ops,
    x: Array,
    /,
    axis: int | tuple[int, ...] | None = None,
    dtype: Any = None,
    out: Array | None = None,
    keepdims: bool = False,
) -> Array:
    return ops.xp.sum(x, axis=axis, dtype=dtype, out=out, keepdims=keepdims)


@kernel(half="lift")
def mean(
    ops: Ops,
    x: Array,
    /,
    axis: int | tuple[int, ...] | None = None,
    dtype: Any = None,
    out: Array | None = None,
    keepdims: bool = False,
) -> Array:
    return ops.xp.mean(x, axis=axis, dtype=dtype, out=out, keepdims=keepdims)


@kernel(half="lift")
def add_all(ops: Ops, arrays: Sequence[Array]) -> Array:
    total: Array = ops.xp.add(arrays[0], arrays[1])
    for array in arrays[2:]:
        ops.xp.add(total, array, out=total)
    return total


@kernel(half="native")
def concat(ops: Ops, arrays: Sequence[Array], axis: int) -> Array:
    return ops.xp.concatenate(arrays, axis=axis)


@kernel(half="lift")
def combine(
    ops: Ops, mode: str, arrays: Sequence[Array], shape: Shape, relu: bool = False
) -> Array:
    function = getattr(ops.xp, mode)
    # The result has the strides of an input of its shape: images stay channels-last.
    whole = next((array for array in arrays if array.shape == shape), None)
    y: Array = ops.xp.empty(shape, arrays[0].dtype) if whole is None else ops.xp.empty_like(whole)
    function(arrays[0], arrays[1], out=y)
    for array in arrays[2:]:
        function(y, array, out=y)
    return ops.xp.maximum(y, 0, out=y) if relu else y


@kernel(half="native")
def first_equal(ops: Ops, y: Array, arrays: Sequence[Array]) -> Array:
    where: Array = ops.xp.zeros(y.shape, np.min_scalar_type(len(arrays) - 1))
    for k in range(len(arrays) - 1, -1, -1):
        ops.xp.copyto(where, where.dtype.type(k), where=ops.xp.equal(arrays[k], y))
    return where


@kernel(half="native")
def select(ops: Ops, dy: Array, where: Array, k: int) -> Array:
    return ops.xp.where(where == k, dy, 0)


@kernel(half="lift")
def sum_to(ops: Ops, array: Array, shape: Shape) -> Array:
    axes = tuple(k for k, size in enumerate(shape) if size == 1 and array.shape[k] != 1)
    return array.sum(axis=axes, keepdims=True) if axes else array


@kernel(half="lift")
def scale(ops: Ops, x: Array, gamma: Array, beta: Array | None) -> Array:
    y: Array = ops.xp.multiply(x, _spread(x, gamma))
    if beta is not None:
        ops.xp.add(y, _spread(x, beta), out=y)
    return y


@kernel(half="lift")
def prelu(ops: Ops, x: Array, a: Array) -> Array:
    return ops.xp.where(x > 0, x, x * _spread(x, a))


@kernel(half="lift")
def prelu_backward(ops: Ops, dy: Array, x: Array, a: Array) -> tuple[Array, Array]:
    positive = x > 0
    dx = ops.xp.where(positive, dy, dy * _spread(x, a))
    da = ops.channel_total(ops.xp.where(positive, 0, dy * x))
    return dx, da if a.shape == da.shape else da.sum(keepdims=True)


@kernel(half="lift")
def channel_total(ops: Ops, values: Array) -> Array:
    # One axis at a time makes short partial sums, exact enough in float32.
    while values.ndim > 2:
        values = values.sum(axis=-1)
    return values.sum(axis=0)


def _spread(x: Array, values: Array) -> Array:
    """Reshape (C,) to broadcast over ``x``."""
    return values.reshape(-1, *[1] * (x.ndim - 2))
