"""Questions about each element, and what is chosen or turned by the answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from singanet import layers
from singanet.codecs.arithmetic import scalar, scaled
from singanet.codecs.codec import KerasClass, LayerCodec
from singanet.codecs.onnx import (
    Converter,
    Known,
    RefusedError,
    Tensor,
    Use,
    Value,
    WrittenGraph,
    by_dims,
    norm_axis,
)
from singanet.codecs.onnx.vocabulary import DTYPES, turned

_OPERATORS: Mapping[str, str] = {
    "Equal": "==", "Greater": ">", "GreaterOrEqual": ">=", "Less": "<", "LessOrEqual": "<="
}  # fmt: skip
"""How a `Compare` compares."""


def _write_compare(g: WrittenGraph, layer: layers.Compare, xs: list[Value]) -> Value:
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
    return g.node(turned(_OPERATORS)[layer.how], *sides, dtype=bool)


def _write_masking(g: WrittenGraph, layer: layers.Masking, xs: list[Value]) -> Value:
    shape: Any = layer.in_shapes
    x = xs[0] if xs[0].dtype.kind == "f" else g.cast(xs[0], np.int64)
    fills = g.node("Equal", x, g.constant(layer.value, "value", x.dtype), dtype=bool)
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
                mode = how if k else _TURNED.get(how, how)
                return compared(use, use.tensor(1 - k), mode, number)
        first, second = use.together(0, 1)
        return compared(use, first, how, second)

    return convert


_TURNED = {">": "<", ">=": "<=", "<": ">", "<=": ">="}


def compared(use: Use, x: Tensor, how: str, other: float | Tensor) -> Tensor:
    """Whether ``x`` is so, as booleans."""
    if isinstance(other, Tensor):
        symbol = use.draw(layers.Compare(use.name(), how), x, other)
    else:
        symbol = use.draw(layers.Compare(use.name(), how, other), x)
    return replace(x, symbol=symbol, dtype=np.dtype(bool), whole=True)


def _read_joined(kind: Any) -> Converter:
    """Of truths, which are 1 and 0 among floats."""
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
        raise RefusedError("a type of numbers of 8 bits and more", f"type {number}")
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
    """On − off at the index, + off; one out of range is nowhere, a negative one counts back."""
    depth = int(use.needed(1).reshape(-1)[0])
    off, on = (float(value) for value in use.needed(2).tolist())
    x = use.tensor()
    axis = norm_axis(use.attribute("axis", -1), x.rank + 1)
    if not 1 <= depth <= 1 << 20 or (x.axis is not None and axis <= x.axis):
        raise RefusedError("a new axis behind the samples, of a known extent", f"{axis}, {depth}")
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
            **{op: _read_compare(how) for op, how in _OPERATORS.items()},
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
        keras=KerasClass({"mask_value": ("value", float)}, masked=True),
        onnx=_write_masking,
    ),
)  # fmt: skip
