"""Codecs of arithmetic and comparisons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from singanet import layers
from singanet.layers.elementwise import OPERATIONS
from singanet.layers.layer import Layer
from singanet.layers.symbol import Symbol
from singanet.saving.codecs.codec import Elements, KerasClass, LayerCodec
from singanet.saving.codecs.described import DescribedLayer, LayerGraph, WeightGroup, unknown
from singanet.saving.codecs.onnx import (
    Converter,
    Form,
    Known,
    NoFormError,
    RefusedError,
    Tensor,
    Use,
    Value,
    WrittenGraph,
    by_dims,
    norm_axis,
)
from singanet.saving.codecs.onnx.written import DTYPES, inverted

_OPERATORS: Mapping[str, str] = {
    **{
        mode.capitalize(): mode
        for mode, row in OPERATIONS.items()
        if row.inputs == 1 and mode != "truncate"
    },
    "Pow": "power",
}
"""The modes of `Operation` by operator."""


def _write_operation(g: WrittenGraph, layer: layers.Operation, xs: list[Value]) -> Value:
    mode = layer.mode
    if mode in (known := inverted(_OPERATORS)):
        return g.node(known[mode], *xs)
    if mode == "remainder":
        return g.node("Mod", *xs, fmod=1)
    if mode == "modulo":
        # Mod of floats would have the sign of the dividend.
        whole = g.node("Floor", g.node("Div", *xs))
        return g.node("Sub", xs[0], g.node("Mul", xs[1], whole))
    if mode == "truncate":
        return g.node("Mul", g.node("Sign", xs[0]), g.node("Floor", g.node("Abs", xs[0])))
    raise NoFormError(f"mode={mode!r}")


def by_channel(layer: Layer, suffix: str) -> tuple[int, ...]:
    """Return the shape in which a per-channel parameter broadcasts over a batch."""
    shape: Any = layer.in_shapes
    return (*layer.params[suffix].shape, *(1 for _ in shape[1:]))


def _write_scale(g: WrittenGraph, layer: layers.Scale, xs: list[Value]) -> Value:
    if layer.factor is not None:
        y = g.node("Mul", xs[0], g.constant(layer.factor, "factor"))
        return g.node("Add", y, g.constant(layer.offset, "offset")) if layer.offset else y
    return affine(g, layer, xs[0])


def affine(g: WrittenGraph, layer: layers.Layer, x: Value) -> Value:
    """Scale ``x`` by gamma and add beta, per channel, if the layer has them."""
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
    """Return a form that passes the inputs to the operator."""
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
    """Return input ``k`` as a finite number if it is a constant that adds no axis."""
    value = use.value(k)
    ranks = [v.rank for v in use.values if isinstance(v, Tensor)]
    if not isinstance(value, Known) or not value.constant or value.array.size != 1:
        return None
    if value.array.ndim > max(ranks):
        return None
    number = float(value.array.reshape(()))
    return number if np.isfinite(number) else None


def number_beside(use: Use) -> tuple[Tensor, float] | None:
    """Return one input and the other as a number, if that is a constant."""
    for k in (0, 1) if len(use.values) == 2 else ():
        number = scalar(use, k)
        if number is not None:
            return use.tensor(1 - k), number
    return None


def scaled(use: Use, x: Tensor, factor: float, offset: float = 0.0) -> Tensor:
    """Return factor · ``x`` + offset."""
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
    """Match a table (T, E) added to sequences of this shape."""
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
    """Return input ``k`` if it has a number for each channel of ``x``, (C, 1, 1) in the graph."""
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
    if any(isinstance(use.value(k), Tensor) for k in (1, 2)):
        for k, kind in ((1, layers.Maximum), (2, layers.Minimum)):
            if use.value(k) is not None:
                use.values[0] = use.make(kind, *use.together(0, k))
        return use.tensor()
    low, high = use.setting("min", 1), use.setting("max", 2)
    x = use.tensor()
    # Older files mark an open side by the largest float.
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


def _read_scaler(use: Use) -> Tensor:
    """Convert (x − offset) · scale, with numbers for all or for each feature."""
    x = use.tensor()
    for kind, name in ((layers.Subtract, "offset"), (layers.Multiply, "scale")):
        numbers = np.asarray(use.attribute(name, [0.0 if name == "offset" else 1.0]), np.float32)
        x = use.make(kind, x, use.weight(Known((numbers, numbers)), x), dtype=np.float32)
    return x


def _read_negate(use: Use) -> Tensor:
    return scaled(use, use.tensor(), -1.0)


def _by_axis(use: Use, k: int, x: Tensor) -> Tensor:
    """Return input ``k``, a number for all of ``x``, for each index of an axis or for blocks."""
    value, axis = use.value(k), norm_axis(use.attribute("axis", 1), max(x.rank, 2))
    if not isinstance(value, Known):
        return use.raised(use.tensor(k), x.rank)
    arrays, block = value.at, use.attribute("block_size", 0)
    if block:
        arrays = arrays[0].repeat(block, axis), arrays[1].repeat(block, axis)
    elif arrays[0].ndim == 1 and arrays[0].size > 1:
        wide = [-1 if k == axis else 1 for k in range(x.rank)]
        arrays = arrays[0].reshape(wide), arrays[1].reshape(wide)
    else:
        arrays = arrays[0].reshape(()), arrays[1].reshape(())
    return use.weight(Known.of(*arrays), x)


def _read_quantize(use: Use) -> Tensor:
    """Convert to rounded floats, in the range of the integers that they are in the graph."""
    x, zero = use.tensor(), use.value(2)
    kind = np.dtype(np.uint8) if zero is None else zero.dtype
    number = use.attribute("output_dtype", 0)
    kind = DTYPES.get(number, kind) if zero is None else kind
    if kind.kind not in "iu" or kind.itemsize > 2 or use.attribute("precision", 0):
        raise RefusedError("integers of 8 or 16 bits", f"{kind}")
    y = use.make(layers.Divide, x, _by_axis(use, 1, x))
    y = _shifted(use, use.make(layers.Operation, y, mode="round"), 1.0)
    ends = np.iinfo(kind)
    return use.make(layers.Clip, y, low=float(ends.min), high=float(ends.max), dtype=kind)


def _read_dequantize(use: Use) -> Tensor:
    x = _shifted(use, use.tensor(), -1.0)
    scale = _by_axis(use, 1, x)
    return use.make(layers.Multiply, x, scale, dtype=scale.dtype)


def read_dynamic_quantize(use: Use) -> list[Tensor]:
    """Convert to rounded floats, scale and zero point, each of a sample as of a batch of one."""
    x = use.tensor()
    places = list(range(1, len(x.sample) + 1))
    if x.folds or not places:
        raise RefusedError("samples with axes of their own", f"sample shape {x.sample}")
    high, low = (
        use.make(layers.Reduce, x, mode=mode, axis=places, keepdims=x.axis is not None)
        for mode in ("max", "min")
    )
    high, low = use.make(layers.Clip, high, low=0.0), use.make(layers.Clip, low, high=0.0)
    scale = scaled(use, use.make(layers.Subtract, high, low), 1 / 255)
    empty = compared(use, scale, "==", 0.0)
    scale = scale.like(use.draw(layers.Where(use.name(), a=1.0), empty, scale), np.float32)
    byte = np.dtype(np.uint8)
    within = {"low": 0.0, "high": 255.0, "dtype": byte}
    zero = scaled(use, use.make(layers.Divide, low, scale), -1.0)
    zero = use.make(layers.Clip, use.make(layers.Operation, zero, mode="round"), **within)
    y = use.make(layers.Divide, x, use.raised(scale, x.rank))
    y = use.make(layers.Operation, y, mode="round")
    y = use.make(layers.Add, y, use.raised(zero, x.rank))
    return [use.make(layers.Clip, y, **within), scale, zero]


def of_integers(convert: Converter) -> Converter:
    """Return a converter of a product of integers, by that of floats without the zero points."""

    def converted(use: Use) -> Tensor:
        weight, zero, less = (use.value(k) for k in (1, 2, 3))
        if not isinstance(weight, Known) or isinstance(less, Tensor):
            raise RefusedError("a constant as input 2", "an array that depends on an input")
        matrix = weight.array.astype(np.float32)
        if less is not None:
            axes = (-1, *(1 for _ in matrix.shape[1:])) if use.node.op == "ConvInteger" else (-1,)
            matrix = matrix - less.array.astype(np.float32).reshape(axes)
        first = use.tensor()
        if isinstance(zero, Tensor):
            first = use.make(layers.Subtract, first, use.raised(use.tensor(2), first.rank))
        elif zero is not None and zero.array.size != 1:
            raise RefusedError("one zero point of input 1", f"shape {zero.array.shape}")
        elif zero is not None:
            first = scaled(use, first, 1.0, -float(zero.array.reshape(())))
        use.values = [first, Known((matrix, matrix), weight.name)]
        made: Any = convert(use)
        return replace(made, dtype=np.dtype(np.int32))

    return converted


def _shifted(use: Use, x: Tensor, sign: float) -> Tensor:
    """Add the zero point, or subtract it."""
    if use.value(2) is None:
        return x
    number = scalar(use, 2)
    if number is not None:
        return scaled(use, x, 1.0, sign * number)
    return use.make(layers.Add if sign > 0 else layers.Subtract, x, _by_axis(use, 2, x))


def _rescaling(d: DescribedLayer) -> list[Layer]:
    scale, offset = (np.asarray(d.config[key], np.float32) for key in ("scale", "offset"))
    if scale.ndim == offset.ndim == 0:
        return [layers.Scale(d.name, float(d.config["scale"]), offset=float(d.config["offset"]))]
    if max(scale.ndim, offset.ndim) > 1 or not d.is_image:
        raise unknown(d.where, "a number, or one a channel of images", f"{scale}"[:60])
    channels = np.zeros(d.shapes[0][0], np.float32)
    each = layers.Scale(d.name)
    each.trainable = False
    d.marks[d.name] = WeightGroup("", fixed={"gamma": channels + scale, "beta": channels + offset})
    return [each]


def _dot(d: DescribedLayer) -> list[LayerGraph]:
    """Convert to a product of matrices, summed over an axis of either input."""
    given: Any = d.config["axes"]
    several = given if isinstance(given, list) else [given] * 2
    normalize = bool(d.config["normalize"])
    if len(d.shapes) != 2 or len(several) != 2:
        raise unknown(d.where, "two inputs with an axis each", f"axes={given}"[:60])
    ends = [norm_axis(k, len(s) + 1) - 1 for k, s in zip(several, d.shapes, strict=True)]
    if min(ends) < 0:
        raise unknown(d.where, "axes of the samples", f"axes={given}"[:60])

    def apply(sources: Sequence[Symbol]) -> list[Symbol]:
        rows: list[Symbol] = []
        shape: list[int] = []
        for x, axis in zip(map(d.theirs, sources), ends, strict=True):
            rest = [k for k in range(len(x.shape)) if k != axis]
            x = layers.Permute(None, [k + 1 for k in [*rest, axis]])(x)
            x = layers.L2Norm(None, epsilon=UNIT)(x) if normalize else x
            shape += x.shape[:-1]
            rows.append(layers.Reshape(None, (-1, x.shape[-1]))(x))
        y = layers.MatMul(None, transpose_b=True)(*rows)
        return [d.back(layers.Reshape(None, shape or (1,))(y))]

    return [LayerGraph([], apply)]


UNIT = 1e-24
"""The smallest square of a length by which Keras divides."""

_MERGE = KerasClass(masked=True, merges=True)
_FILLING = KerasClass(masked=True, merges=True, fills=True)


def _join(
    kind: type[Layer],
    operators: Mapping[str, Converter],
    onnx: Form | None = None,
    keras: KerasClass | None = None,
    elements: Elements = "joined",
) -> LayerCodec:
    """Return the codec of a layer that passes its inputs to the first operator."""
    form = onnx or _write_joined(next(iter(operators)))
    return LayerCodec(kind, keras=keras or {}, onnx=form, operators=operators, elements=elements)


ARITHMETIC = (
    LayerCodec(
        layers.Operation,
        onnx=_write_operation,
        operators={
            **{op: _read_operation(mode) for op, mode in _OPERATORS.items()},
            "Mod": _read_modulo,
            "QuantizeLinear": _read_quantize,
            "DequantizeLinear": _read_dequantize,
            "DynamicQuantizeLinear": read_dynamic_quantize,
            "ai.onnx.ml.Scaler": _read_scaler,
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
    LayerCodec(layers.Dot, keras=KerasClass(draw=_dot), onnx=_write_dot),
)


_COMPARISONS: Mapping[str, str] = {
    "Equal": "==", "Greater": ">", "GreaterOrEqual": ">=", "Less": "<", "LessOrEqual": "<="
}  # fmt: skip
"""The comparison of `Compare` by operator."""


def _write_compare(g: WrittenGraph, layer: layers.Compare, xs: list[Value]) -> Value:
    value = layer.value
    kinds = [x.dtype for x in xs]
    if value is not None and float(value) != int(value) and kinds[0].kind != "f":
        kinds.append(np.dtype(np.float64))
    kind = np.result_type(*kinds)
    # Comparison operators take floats and int64.
    kind = kind if kind.kind == "f" else np.dtype(np.int64)
    sides = [g.cast(x, kind) for x in xs]
    sides += [] if value is None else [g.constant(value, "value", kind)]
    if layer.how == "!=":
        return g.node("Not", g.node("Equal", *sides, dtype=bool))
    return g.node(inverted(_COMPARISONS)[layer.how], *sides, dtype=bool)


def _write_masking(g: WrittenGraph, layer: layers.Masking, xs: list[Value]) -> Value:
    shape: Any = layer.in_shapes
    x = xs[0] if xs[0].dtype.kind == "f" else g.cast(xs[0], np.int64)
    fills = g.node("Equal", x, g.constant(layer.mask_value, "value", x.dtype), dtype=bool)
    there = g.node("Not", fills)
    if len(shape) == 1:
        return there
    found = g.reduce("Max", g.cast(there, g.dtype), list(range(2, len(shape) + 1)), keepdims=False)
    return g.cast(found, bool)


def _write_where(g: WrittenGraph, layer: layers.Where, xs: list[Value]) -> Value:
    rest = xs[1:]
    a = rest[0] if layer.a is None else g.constant(layer.a, "a")
    b = rest[-1] if layer.b is None else g.constant(layer.b, "b")
    return g.node("Where", g.cast(xs[0], bool), a, b, dtype=g.dtype)


def _write_cast(g: WrittenGraph, layer: layers.Cast, xs: list[Value]) -> Value:
    return g.cast(xs[0], g.dtype if layer.dtype == "float" else layer.dtype)


def _read_compare(how: str) -> Converter:
    def convert(use: Use) -> Tensor:
        for k in (1, 0):
            number = scalar(use, k)
            if number is not None:
                mode = how if k else _MIRRORED.get(how, how)
                return compared(use, use.tensor(1 - k), mode, number)
        first, second = use.together(0, 1)
        return compared(use, first, how, second)

    return convert


_MIRRORED = {">": "<", ">=": "<=", "<": ">", "<=": ">="}


def compared(use: Use, x: Tensor, how: str, other: float | Tensor) -> Tensor:
    """Compare ``x`` with ``other``, as booleans."""
    if isinstance(other, Tensor):
        symbol = use.draw(layers.Compare(use.name(), how), x, other)
    else:
        symbol = use.draw(layers.Compare(use.name(), how, other), x)
    return replace(x, symbol=symbol, dtype=np.dtype(bool), whole=True)


def _read_joined(kind: Any) -> Converter:
    """Convert a logical operator to arithmetic of the floats 0 and 1."""
    return lambda use: use.make(kind, *use.together(0, 1), dtype=bool)


def _read_xor(use: Use) -> Tensor:
    first, second = use.together(0, 1)
    return compared(use, first, "!=", second)


def _read_not(use: Use) -> Tensor:
    return compared(use, use.tensor(), "==", 0.0)


def _read_is_nan(use: Use) -> Tensor:
    x = use.tensor()
    return compared(use, x, "!=", x)


def _read_is_inf(use: Use) -> Tensor:
    x = use.tensor()
    most = float(np.finfo(np.float64 if x.dtype.itemsize == 8 else np.float32).max)
    if not use.attribute("detect_positive", 1):
        return compared(use, x, "<", -most)
    if use.attribute("detect_negative", 1):
        x = use.make(layers.Operation, x, mode="abs")
    return compared(use, x, ">", most)


def _read_cast(use: Use) -> Tensor:
    x: Any = use.value(0)
    like = use.value(1)
    number = use.attribute("to")
    if use.node.op == "CastLike":
        if like is None:
            raise RefusedError("two inputs", "one")
        wanted = like.dtype
    elif number in DTYPES:
        wanted = DTYPES[number]
    else:
        raise RefusedError("a numeric type of at least 8 bits", f"type {number}")
    if wanted.kind == "f":
        y = use.floats(x)
        return y.like(y.symbol, wanted)
    if x.whole and wanted.kind != "b":
        return Tensor(x.symbol, wanted, x.axis, x.before, x.after, True)
    y = use.floats(x)
    if wanted.kind == "b" and x.dtype.kind != "b":
        return compared(use, y, "!=", 0.0)
    if x.dtype.kind == "f":
        y = use.make(layers.Operation, y, mode="truncate")
    return y.like(y.symbol, wanted)


def _read_where(use: Use) -> Tensor:
    condition, *rest = use.together(0, 1, 2, keep=True)
    if not condition.whole:
        condition = compared(use, condition, "!=", 0.0)
    a, b = (use.floats(each) for each in rest)
    dtype: Any = next(v.dtype for v in (use.value(1), use.value(2)) if v is not None)
    for k, other, side in ((2, a, "b"), (1, b, "a")):
        number = scalar(use, k)
        if number is not None:
            layer = layers.Where(use.name(), **{side: number})
            return other.like(use.draw(layer, condition, other), dtype)
    return a.like(use.draw(layers.Where(use.name()), condition, a, b), dtype)


def _read_one_hot(use: Use) -> Tensor:
    """Convert OneHot: (on − off) at the index, plus off; negative indices count from the end."""
    depth = int(use.needed(1).reshape(-1)[0])
    off, on = (float(value) for value in use.needed(2).tolist())
    x = use.tensor()
    axis = norm_axis(use.attribute("axis", -1), x.rank + 1)
    if not 1 <= depth <= 1 << 20 or (x.axis is not None and axis <= x.axis):
        raise RefusedError("a new axis after the samples, of a known size", f"{axis}, {depth}")
    wide = by_dims(use, x, lambda d: [*d[:axis], 1, *d[axis:]])
    numbers = np.arange(depth).reshape(-1, *[1] * (x.rank - axis))
    found = []
    for each in (numbers, numbers - depth):
        other = use.weight(Known((each, each)), wide)
        found.append(use.floats(compared(use, wide, "==", other)))
    both = use.make(layers.Add, *found)
    made = scaled(use, both, on - off, off)
    return made.like(made.symbol, use.needed(2).dtype)


COMPARING = (
    LayerCodec(
        layers.Compare,
        onnx=_write_compare,
        operators={
            **{op: _read_compare(how) for op, how in _COMPARISONS.items()},
            "And": _read_joined(layers.Multiply), "Or": _read_joined(layers.Maximum),
            "Xor": _read_xor, "Not": _read_not, "IsNaN": _read_is_nan, "IsInf": _read_is_inf,
            "OneHot": _read_one_hot,
        },
    ),
    LayerCodec(layers.Where, onnx=_write_where, operators={"Where": _read_where}),
    LayerCodec(
        layers.Cast,
        onnx=_write_cast,
        operators={"Cast": _read_cast, "CastLike": _read_cast},
    ),
    LayerCodec(
        layers.Masking,
        keras=KerasClass({"mask_value": float}, masked=True),
        onnx=_write_masking,
    ),
)  # fmt: skip
