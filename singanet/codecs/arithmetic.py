"""Factors and offsets, and what joins branches element by element."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from singanet import layers
from singanet.codecs.codec import Elements, KerasClass, LayerCodec
from singanet.codecs.described import DescribedLayer, WeightGroup, unknown
from singanet.codecs.onnx import (
    Converter,
    Form,
    Known,
    NoFormError,
    Tensor,
    Use,
    Value,
    WrittenGraph,
)
from singanet.codecs.onnx.vocabulary import turned
from singanet.layers.layer import Layer
from singanet.layers.operation import OPERATIONS

_OPERATORS: Mapping[str, str] = {
    **{
        mode.capitalize(): mode
        for mode, row in OPERATIONS.items()
        if row.inputs == 1 and mode != "truncate"
    },
    "Pow": "power",
}
"""Modes of `Operation`."""


def _write_operation(g: WrittenGraph, layer: layers.Operation, xs: list[Value]) -> Value:
    mode = layer.mode
    if mode in (known := turned(_OPERATORS)):
        return g.node(known[mode], *xs)
    if mode == "remainder":
        return g.node("Mod", *xs, fmod=1)
    if mode == "modulo":
        # That of floats has the sign of the first.
        whole = g.node("Floor", g.node("Div", *xs))
        return g.node("Sub", xs[0], g.node("Mul", xs[1], whole))
    if mode == "truncate":
        return g.node("Mul", g.node("Sign", xs[0]), g.node("Floor", g.node("Abs", xs[0])))
    raise NoFormError(f"mode={mode!r}")


def by_channel(layer: Layer, suffix: str) -> tuple[int, ...]:
    """The shape in which a parameter of one number a channel spreads over a batch of samples."""
    shape: Any = layer.in_shapes
    return (*layer.params[suffix].shape, *(1 for _ in shape[1:]))


def _write_scale(g: WrittenGraph, layer: layers.Scale, xs: list[Value]) -> Value:
    if layer.factor is not None:
        y = g.node("Mul", xs[0], g.constant(layer.factor, "factor"))
        return g.node("Add", y, g.constant(layer.offset, "offset")) if layer.offset else y
    return affine(g, layer, xs[0])


def affine(g: WrittenGraph, layer: layers.Layer, x: Value) -> Value:
    """``x`` times gamma plus beta, one of each a channel, as far as the layer has them."""
    for op, suffix in (("Mul", "gamma"), ("Add", "beta")):
        if suffix in layer.params:
            x = g.node(op, x, g.param(layer, suffix, by_channel(layer, suffix)))
    return x


def _write_power(g: WrittenGraph, layer: layers.Power, xs: list[Value]) -> Value:
    return g.node("Pow", xs[0], g.constant(layer.exponent, "exponent"))


def _write_clip(g: WrittenGraph, layer: layers.Clip, xs: list[Value]) -> Value:
    low = None if layer.low is None else g.constant(layer.low, "low")
    high = None if layer.high is None else g.constant(layer.high, "high")
    return g.node("Clip", xs[0], low, *([] if high is None else [high]))


def _write_sum(g: WrittenGraph, layer: layers.Layer, xs: list[Value]) -> Value:
    return g.node("Add" if len(xs) == 2 else "Sum", *xs)


def _write_multiply(g: WrittenGraph, layer: layers.Multiply, xs: list[Value]) -> Value:
    y = xs[0]
    for x in xs[1:]:
        y = g.node("Mul", y, x)
    return y


def _write_joined(op: str) -> Form:
    """Operators that take the inputs as they are."""
    return lambda g, layer, xs: g.node(op, *xs)


def _write_dot(g: WrittenGraph, layer: layers.Dot, xs: list[Value]) -> Value:
    return g.reduce("Sum", g.node("Mul", *xs), [-1])


def _read_operation(mode: str, dtype: Any = None) -> Converter:
    def convert(use: Use) -> Tensor:
        if len(use.values) == 1:
            return use.make(layers.Operation, use.tensor(), mode=mode, dtype=dtype)
        return use.make(layers.Operation, *use.together(0, 1), mode=mode, dtype=dtype)

    return convert


def scalar(use: Use, k: int) -> float | None:
    """The one number that the input ``k`` is, if it is that and adds no axis to the others."""
    value = use.value(k)
    ranks = [v.rank for v in use.values if isinstance(v, Tensor)]
    if not isinstance(value, Known) or not value.constant or value.array.size != 1:
        return None
    if value.array.ndim > max(ranks):
        return None
    number = float(value.array.reshape(()))
    return number if np.isfinite(number) else None


def number_beside(use: Use) -> tuple[Tensor, float] | None:
    """Of two inputs the one, where the other is a number."""
    for k in (0, 1) if len(use.values) == 2 else ():
        number = scalar(use, k)
        if number is not None:
            return use.tensor(1 - k), number
    return None


def scaled(use: Use, x: Tensor, factor: float, offset: float = 0.0) -> Tensor:
    """``x`` factor + offset."""
    if factor == 1.0 and offset == 0.0:
        return x
    return use.make(layers.Scale, x, factor=factor, offset=offset)


def _read_add(use: Use) -> Tensor:
    if (beside := number_beside(use)) is not None:
        return scaled(use, beside[0], 1.0, beside[1])
    if len(use.values) == 1:
        return use.tensor()
    found = _read_positions(use) if len(use.values) == 2 else None
    return use.make(layers.Add, *use.together()) if found is None else found


def _read_positions(use: Use) -> Tensor | None:
    """A table (T, E) added to every sequence of that shape."""
    for k in (0, 1):
        x, table = use.value(1 - k), use.value(k)
        if not isinstance(x, Tensor) or not isinstance(table, Known) or not table.name:
            continue
        plain = x.axis == 0 and not x.folds and len(x.sample) == 2 and x.dtype.kind == "f"
        if plain and table.constant and table.array.shape in (x.sample, (1, *x.sample)):
            layer = layers.PositionEmbedding(use.name(k), x.sample[0])
            return x.like(use.draw(layer, x, weight=table.array))
    return None


def channels(use: Use, k: int, x: Tensor) -> np.ndarray[Any, Any] | None:
    """The input ``k``, if it is a number for each channel of ``x``, (C, 1, 1) in the graph."""
    value = use.value(k)
    if not isinstance(value, Known) or not value.constant or x.axis != 0 or x.folds:
        return None
    array = value.array
    if not value.name or x.rank < 2 or array.dtype.kind != "f":
        return None
    shape = (1,) * (x.rank - array.ndim) + array.shape
    wanted = (1, x.sample[0], *[1] * (x.rank - 2))
    return array.reshape(-1) if shape == wanted and x.sample[0] > 1 else None


def _read_subtract(use: Use) -> Tensor:
    if (number := scalar(use, 1)) is not None:
        return scaled(use, use.tensor(), 1.0, -number)
    if (number := scalar(use, 0)) is not None:
        return scaled(use, use.tensor(1), -1.0, number)
    return use.make(layers.Subtract, *use.together(0, 1))


def _read_multiply(use: Use) -> Tensor:
    if (beside := number_beside(use)) is not None:
        return scaled(use, *beside)
    for k in (0, 1):
        x = use.value(1 - k)
        factors = channels(use, k, x) if isinstance(x, Tensor) else None
        if factors is not None:
            layer = layers.Scale(use.name(k), use_bias=False)
            x = use.tensor(1 - k)
            return x.like(use.draw(layer, x, gamma=factors))
    return use.make(layers.Multiply, *use.together(0, 1))


def _read_divide(use: Use) -> Tensor:
    number = scalar(use, 1)
    value = use.value(0)
    whole = value is not None and value.dtype.kind in "iu"
    if number and not whole:
        return scaled(use, use.tensor(), 1.0 / number)
    y = use.make(layers.Divide, *use.together(0, 1))
    return use.make(layers.Operation, y, mode="truncate") if whole else y


def _read_power(use: Use) -> Tensor:
    exponent = scalar(use, 1)
    if exponent is None:
        return use.make(layers.Operation, *use.together(0, 1), mode="power")
    x = use.tensor()
    if exponent == 0.5:
        return use.make(layers.Operation, x, mode="sqrt")
    return x if exponent == 1.0 else use.make(layers.Power, x, exponent=exponent)


def _read_extreme(kind: Any, side: str) -> Converter:
    def convert(use: Use) -> Tensor:
        if len(use.values) == 1:
            return use.tensor()
        if (beside := number_beside(use)) is not None:
            return use.make(layers.Clip, beside[0], **{side: beside[1]})
        return use.make(kind, *use.together())

    return convert


def _read_mean(use: Use) -> Tensor:
    return use.tensor() if len(use.values) == 1 else use.make(layers.Average, *use.together())


def _read_modulo(use: Use) -> Tensor:
    mode = "remainder" if use.attribute("fmod", 0) else "modulo"
    return use.make(layers.Operation, *use.together(0, 1), mode=mode)


def _read_clip(use: Use) -> Tensor:
    low, high = use.setting("min", 1), use.setting("max", 2)
    x = use.tensor()
    # The largest floats are how older files leave a side open.
    low = None if low is None or low < -3e38 else low
    high = None if high is None or high > 3e38 else high
    if low is None and high is None:
        return x
    if low == 0 and high in (None, 6):
        mode = "relu" if high is None else "relu6"
        return use.make(layers.Activation, x, mode=mode)
    if low is not None and high is not None and low > high:
        low = high
    return use.make(layers.Clip, x, low=low, high=high)


def _read_negate(use: Use) -> Tensor:
    return scaled(use, use.tensor(), -1.0)


def _rescaling(d: DescribedLayer) -> list[Layer]:
    scale, offset = (np.asarray(d.config[key], np.float32) for key in ("scale", "offset"))
    if scale.ndim == offset.ndim == 0:
        return [layers.Scale(d.name, float(d.config["scale"]), offset=float(d.config["offset"]))]
    if max(scale.ndim, offset.ndim) > 1 or len(d.shapes[0]) != 3:
        raise unknown(d.where, "a number, or one a channel of images", f"{scale}"[:60])
    channels = np.zeros(d.shapes[0][0], np.float32)
    each = layers.Scale(d.name)
    each.trainable = False
    d.marks[d.name] = WeightGroup("", fixed={"gamma": channels + scale, "beta": channels + offset})
    return [each]


_MERGE = KerasClass(masked=True, merges=True)
_FILLING = KerasClass(masked=True, merges=True, fills=True)


def _join(
    kind: type[Layer],
    operators: Mapping[str, Converter],
    onnx: Form | None = None,
    keras: KerasClass | None = None,
    elements: Elements = "joined",
) -> LayerCodec:
    """The codec of a layer that takes its inputs as they are, written as the first operator."""
    form = onnx or _write_joined(next(iter(operators)))
    return LayerCodec(kind, keras=keras or {}, onnx=form, operators=operators, elements=elements)


ARITHMETIC = (
    LayerCodec(
        layers.Operation,
        onnx=_write_operation,
        operators={
            **{op: _read_operation(mode) for op, mode in _OPERATORS.items()},
            "Mod": _read_modulo,
        },
    ),
    LayerCodec(
        layers.Scale,
        keras=KerasClass(draw=_rescaling),
        keras_name="Rescaling",
        onnx=_write_scale,
        operators={"Neg": _read_negate},
        elements="each",
    ),
    LayerCodec(layers.Power, onnx=_write_power, operators={"Pow": _read_power}),
    LayerCodec(layers.Clip, onnx=_write_clip, operators={"Clip": _read_clip}),
    LayerCodec(layers.Merge, onnx=_write_sum, elements="joined"),
    _join(layers.Add, {"Add": _read_add, "Sum": _read_add}, _write_sum, _MERGE),
    _join(layers.Multiply, {"Mul": _read_multiply}, _write_multiply, _FILLING),
    _join(layers.Average, {"Mean": _read_mean}, keras=_MERGE),
    _join(layers.Maximum, {"Max": _read_extreme(layers.Maximum, "low")}, keras=_FILLING),
    _join(layers.Minimum, {"Min": _read_extreme(layers.Minimum, "high")}, None, _FILLING, ""),
    _join(layers.Subtract, {"Sub": _read_subtract}, None, _MERGE, ""),
    _join(layers.Divide, {"Div": _read_divide}, elements=""),
    LayerCodec(layers.Dot, onnx=_write_dot),
)
