"""Functions of each element, of one input and of several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from singanet.layers.activation import Activation
from singanet.layers.arithmetic import Clip, Power
from singanet.layers.cast import Cast
from singanet.layers.dropout import AlphaDropout, Dropout, GaussianNoise, SpatialDropout
from singanet.layers.dummy import Dummy
from singanet.layers.glu import GLU
from singanet.layers.joins import (
    Add,
    Average,
    Divide,
    Dot,
    Maximum,
    Merge,
    Minimum,
    Multiply,
    Subtract,
)
from singanet.layers.layer import Layer
from singanet.layers.masking import Masking
from singanet.layers.operation import Operation
from singanet.layers.prelu import PReLU
from singanet.layers.scale import Scale
from singanet.layers.softmax import LogSoftmax, Softmax
from singanet.layers.split import Split
from singanet.layers.stop_gradient import StopGradient
from singanet.layers.where import Compare, Where
from singanet.onnx.forms.graph import Form, NoFormError, Value, WrittenGraph
from singanet.onnx.vocabulary import ACTIVATIONS, ALPHAS, COMPARISONS, OPERATIONS, turned

_ACTIVATIONS, _OPERATIONS, _COMPARISONS = map(turned, (ACTIVATIONS, OPERATIONS, COMPARISONS))


def _activation(g: WrittenGraph, layer: Activation, xs: list[Value]) -> Value:
    return activated(g, layer.mode, xs[0], layer.alpha)


def activated(g: WrittenGraph, mode: str, x: Value, alpha: float = 0.01) -> Value:
    """The function ``mode`` of ``x``."""
    op = _ACTIVATIONS.get(mode, "")
    if op in ALPHAS:
        return g.node(op, x, alpha=alpha)
    if op and (op != "Mish" or g.opset >= 18):
        return g.node(op, x)
    if mode == "relu6":
        return g.node("Clip", x, g.constant(0.0, "low"), g.constant(6.0, "high"))
    if mode == "hard_sigmoid":
        return g.node("HardSigmoid", x, alpha=1 / 6, beta=0.5)
    if mode == "silu":
        return g.node("Mul", x, g.node("Sigmoid", x))
    if mode == "mish":
        return g.node("Mul", x, g.node("Tanh", g.node("Softplus", x)))
    return _gelu(g, x, "tanh" if mode == "gelu_tanh" else "none")


def _gelu(g: WrittenGraph, x: Value, approximate: str) -> Value:
    if g.opset >= 20:
        return g.node("Gelu", x, approximate=approximate)
    if approximate == "none":
        inner = g.node("Erf", g.node("Div", x, g.constant(2**0.5, "root")))
    else:
        cube = g.node("Mul", g.node("Mul", g.node("Mul", x, x), x), g.constant(0.044715, "cubic"))
        root = g.constant(0.7978845608028654, "root")
        inner = g.node("Tanh", g.node("Mul", g.node("Add", x, cube), root))
    gate = g.node("Add", inner, g.constant(1.0, "one"))
    return g.node("Mul", g.node("Mul", x, gate), g.constant(0.5, "half"))


def _operation(g: WrittenGraph, layer: Operation, xs: list[Value]) -> Value:
    mode = layer.mode
    if mode in _OPERATIONS:
        return g.node(_OPERATIONS[mode], *xs)
    if mode == "remainder":
        return g.node("Mod", *xs, fmod=1)
    if mode == "modulo":
        # That of floats has the sign of the first.
        whole = g.node("Floor", g.node("Div", *xs))
        return g.node("Sub", xs[0], g.node("Mul", xs[1], whole))
    if mode == "truncate":
        return g.node("Mul", g.node("Sign", xs[0]), g.node("Floor", g.node("Abs", xs[0])))
    raise NoFormError(f"mode={mode!r}")


def _compare(g: WrittenGraph, layer: Compare, xs: list[Value]) -> Value:
    value = layer.value
    kinds = [x.dtype for x in xs]
    if value is not None and float(value) != int(value) and kinds[0].kind != "f":
        kinds.append(np.dtype(np.float64))
    kind = np.result_type(*kinds)
    # What operators compare.
    kind = kind if kind.kind == "f" else np.dtype(np.int64)
    sides = [g.cast(x, kind) for x in xs]
    sides += [] if value is None else [g.constant(value, "value", kind)]
    if layer.how == "!=":
        return g.node("Not", g.node("Equal", *sides, dtype=bool))
    return g.node(_COMPARISONS[layer.how], *sides, dtype=bool)


def _masking(g: WrittenGraph, layer: Masking, xs: list[Value]) -> Value:
    shape: Any = layer.in_shapes
    x = xs[0] if xs[0].dtype.kind == "f" else g.cast(xs[0], np.int64)
    fills = g.node("Equal", x, g.constant(layer.value, "value", x.dtype), dtype=bool)
    there = g.node("Not", fills)
    if len(shape) == 1:
        return there
    found = g.reduce("Max", g.cast(there, g.dtype), list(range(2, len(shape) + 1)), keepdims=False)
    return g.cast(found, bool)


def _where(g: WrittenGraph, layer: Where, xs: list[Value]) -> Value:
    rest = xs[1:]
    a = rest[0] if layer.a is None else g.constant(layer.a, "a")
    b = rest[-1] if layer.b is None else g.constant(layer.b, "b")
    return g.node("Where", g.cast(xs[0], bool), a, b, dtype=g.dtype)


def _cast(g: WrittenGraph, layer: Cast, xs: list[Value]) -> Value:
    return g.cast(xs[0], g.dtype if layer.dtype == "float" else layer.dtype)


def _softmax(g: WrittenGraph, layer: Softmax, xs: list[Value]) -> Value:
    return g.node("Softmax", xs[0], axis=layer.axis)


def _log_softmax(g: WrittenGraph, layer: LogSoftmax, xs: list[Value]) -> Value:
    return g.node("LogSoftmax", xs[0], axis=layer.axis)


def by_channel(layer: Layer, suffix: str) -> tuple[int, ...]:
    """The shape in which a parameter of one number a channel spreads over a batch of samples."""
    shape: Any = layer.in_shapes
    return (*layer.params[suffix].shape, *(1 for _ in shape[1:]))


def _prelu(g: WrittenGraph, layer: PReLU, xs: list[Value]) -> Value:
    return g.node("PRelu", xs[0], g.param(layer, "a", by_channel(layer, "a")))


def _scale(g: WrittenGraph, layer: Scale, xs: list[Value]) -> Value:
    if layer.factor is not None:
        y = g.node("Mul", xs[0], g.constant(layer.factor, "factor"))
        return g.node("Add", y, g.constant(layer.offset, "offset")) if layer.offset else y
    return scaled(g, layer, xs[0])


def scaled(g: WrittenGraph, layer: Layer, x: Value) -> Value:
    """``x`` times gamma plus beta, one of each a channel, as far as the layer has them."""
    for op, suffix in (("Mul", "gamma"), ("Add", "beta")):
        if suffix in layer.params:
            x = g.node(op, x, g.param(layer, suffix, by_channel(layer, suffix)))
    return x


def _power(g: WrittenGraph, layer: Power, xs: list[Value]) -> Value:
    return g.node("Pow", xs[0], g.constant(layer.exponent, "exponent"))


def _clip(g: WrittenGraph, layer: Clip, xs: list[Value]) -> Value:
    low = None if layer.low is None else g.constant(layer.low, "low")
    high = None if layer.high is None else g.constant(layer.high, "high")
    return g.node("Clip", xs[0], low, *([] if high is None else [high]))


def _glu(g: WrittenGraph, layer: GLU, xs: list[Value]) -> Value:
    shape: Any = layer.out_shapes
    axis = layer._of(len(shape) + 1)
    a, b = g.nodes_of("Split", 2, xs[0], g.ints([shape[axis - 1]] * 2, "sizes"), axis=axis)
    return g.node("Mul", a, g.node("Sigmoid", b))


def _same(g: WrittenGraph, layer: Layer, xs: list[Value]) -> Value | list[Value]:
    """What evaluation passes on."""
    return xs if len(xs) > 1 else xs[0]


def _split(g: WrittenGraph, layer: Split, xs: list[Value]) -> list[Value]:
    return xs * layer.num_output


def _sum(g: WrittenGraph, layer: Layer, xs: list[Value]) -> Value:
    return g.node("Add" if len(xs) == 2 else "Sum", *xs)


def _multiply(g: WrittenGraph, layer: Multiply, xs: list[Value]) -> Value:
    y = xs[0]
    for x in xs[1:]:
        y = g.node("Mul", y, x)
    return y


def _joined(op: str) -> Form:
    """Operators that take the inputs as they are."""
    return lambda g, layer, xs: g.node(op, *xs)


def _dot(g: WrittenGraph, layer: Dot, xs: list[Value]) -> Value:
    return g.reduce("Sum", g.node("Mul", *xs), [-1])


ELEMENT_WISE: Mapping[type[Layer], Form] = {
    Activation: _activation,
    Add: _sum,
    AlphaDropout: _same,
    Average: _joined("Mean"),
    Cast: _cast,
    Clip: _clip,
    Compare: _compare,
    Divide: _joined("Div"),
    Dot: _dot,
    Dropout: _same,
    Dummy: _same,
    GLU: _glu,
    GaussianNoise: _same,
    LogSoftmax: _log_softmax,
    Masking: _masking,
    Maximum: _joined("Max"),
    Merge: _sum,
    Minimum: _joined("Min"),
    Multiply: _multiply,
    Operation: _operation,
    PReLU: _prelu,
    Power: _power,
    Scale: _scale,
    Softmax: _softmax,
    SpatialDropout: _same,
    Split: _split,
    StopGradient: _same,
    Subtract: _joined("Sub"),
    Where: _where,
}
