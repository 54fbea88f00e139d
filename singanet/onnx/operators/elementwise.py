"""Functions of each element: of one array, of several that spread over each other, of constants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import isclose
from typing import Any

import numpy as np

from singanet import layers
from singanet.onnx.arrays import DTYPES
from singanet.onnx.shaping import in_shape
from singanet.onnx.use import Converter, Use
from singanet.onnx.values import BATCHES, Known, RefusedError, Tensor, norm_axis
from singanet.onnx.vocabulary import ACTIVATIONS, ALPHAS, COMPARISONS, OPERATIONS

_BOOL = np.dtype(bool)


def _operation(mode: str, dtype: Any = None) -> Converter:
    def convert(use: Use) -> Tensor:
        if len(use.values) == 1:
            return use.make(layers.Operation, use.tensor(), mode=mode, dtype=dtype)
        return use.make(layers.Operation, *use.together(0, 1), mode=mode, dtype=dtype)

    return convert


def _activation(mode: str, usual: float | None = None) -> Converter:
    def convert(use: Use) -> Tensor:
        x = use.tensor()
        alpha = None if usual is None else use.attribute("alpha", usual)
        return x.like(use.draw(layers.Activation(use.name(), mode, alpha=alpha), x))

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


def scaled(use: Use, x: Tensor, factor: float, offset: float = 0.0) -> Tensor:
    """``x`` factor + offset."""
    if factor == 1.0 and offset == 0.0:
        return x
    return use.make(layers.Scale, x, factor=factor, offset=offset)


def _add(use: Use) -> Tensor:
    if len(use.values) == 2:
        for k in (0, 1):
            number = scalar(use, k)
            if number is not None:
                return scaled(use, use.tensor(1 - k), 1.0, number)
    if len(use.values) == 1:
        return use.tensor()
    found = _positions(use) if len(use.values) == 2 else None
    return use.make(layers.Add, *use.together()) if found is None else found


def _positions(use: Use) -> Tensor | None:
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


def _subtract(use: Use) -> Tensor:
    if (number := scalar(use, 1)) is not None:
        return scaled(use, use.tensor(), 1.0, -number)
    if (number := scalar(use, 0)) is not None:
        return scaled(use, use.tensor(1), -1.0, number)
    return use.make(layers.Subtract, *use.together(0, 1))


def _multiply(use: Use) -> Tensor:
    for k in (0, 1):
        number = scalar(use, k)
        if number is not None:
            return scaled(use, use.tensor(1 - k), number)
    for k in (0, 1):
        x = use.value(1 - k)
        factors = channels(use, k, x) if isinstance(x, Tensor) else None
        if factors is not None:
            layer = layers.Scale(use.name(k), use_bias=False)
            x = use.tensor(1 - k)
            return x.like(use.draw(layer, x, gamma=factors))
    return use.make(layers.Multiply, *use.together(0, 1))


def _divide(use: Use) -> Tensor:
    number = scalar(use, 1)
    value = use.value(0)
    whole = value is not None and value.dtype.kind in "iu"
    if number and not whole:
        return scaled(use, use.tensor(), 1.0 / number)
    y = use.make(layers.Divide, *use.together(0, 1))
    return use.make(layers.Operation, y, mode="truncate") if whole else y


def _power(use: Use) -> Tensor:
    exponent = scalar(use, 1)
    if exponent is None:
        return use.make(layers.Operation, *use.together(0, 1), mode="power")
    x = use.tensor()
    if exponent == 0.5:
        return use.make(layers.Operation, x, mode="sqrt")
    return x if exponent == 1.0 else use.make(layers.Power, x, exponent=exponent)


def _extreme(kind: Any, side: str) -> Converter:
    def convert(use: Use) -> Tensor:
        if len(use.values) == 1:
            return use.tensor()
        if len(use.values) == 2:
            for k in (0, 1):
                number = scalar(use, k)
                if number is not None:
                    return use.make(layers.Clip, use.tensor(1 - k), **{side: number})
        return use.make(kind, *use.together())

    return convert


def _mean(use: Use) -> Tensor:
    return use.tensor() if len(use.values) == 1 else use.make(layers.Average, *use.together())


def _modulo(use: Use) -> Tensor:
    mode = "remainder" if use.attribute("fmod", 0) else "modulo"
    return use.make(layers.Operation, *use.together(0, 1), mode=mode)


def _clip(use: Use) -> Tensor:
    low, high = use.setting("min", 1), use.setting("max", 2)
    x = use.tensor()
    # The largest floats are how older files leave a side open.
    low = None if low is None or low < -3e38 else low
    high = None if high is None or high > 3e38 else high
    if low is None and high is None:
        return x
    if low == 0 and high in (None, 6):
        mode = "relu" if high is None else "relu6"
        return x.like(use.draw(layers.Activation(use.name(), mode), x))
    if low is not None and high is not None and low > high:
        low = high
    return use.make(layers.Clip, x, low=low, high=high)


def _hard_sigmoid(use: Use) -> Tensor:
    alpha, beta = use.attribute("alpha", 0.2), use.attribute("beta", 0.5)
    x = use.tensor()
    if isclose(alpha, 1 / 6, rel_tol=1e-6) and beta == 0.5:
        return x.like(use.draw(layers.Activation(use.name(), "hard_sigmoid"), x))
    return use.make(layers.Clip, scaled(use, x, alpha, beta), low=0.0, high=1.0)


def _gelu(use: Use) -> Tensor:
    mode = "gelu_tanh" if use.attribute("approximate", "none") == "tanh" else "gelu"
    x = use.tensor()
    return x.like(use.draw(layers.Activation(use.name(), mode), x))


_SELU = (1.67326319217681884765625, 1.05070102214813232421875)


def _selu(use: Use) -> Tensor:
    alpha, gamma = use.attribute("alpha", _SELU[0]), use.attribute("gamma", _SELU[1])
    x = use.tensor()
    if isclose(alpha, _SELU[0], rel_tol=1e-5) and isclose(gamma, _SELU[1], rel_tol=1e-5):
        return x.like(use.draw(layers.Activation(use.name(), "selu"), x))
    y = x.like(use.draw(layers.Activation(use.name(), "elu", alpha=alpha), x))
    return scaled(use, y, gamma)


def _swish(use: Use) -> Tensor:
    alpha, x = use.attribute("alpha", 1.0), use.tensor()
    y = scaled(use, x, alpha)
    y = y.like(use.draw(layers.Activation(use.name(), "silu"), y))
    return scaled(use, y, 1.0 / alpha)


def _thresholded(use: Use) -> Tensor:
    x = use.tensor()
    over = compared(use, x, ">", use.attribute("alpha", 1.0))
    return x.like(use.draw(layers.Where(use.name(), b=0.0), over, x))


def _prelu(use: Use) -> Tensor:
    x, slope = use.tensor(), use.value(1)
    if not isinstance(slope, Known):
        raise RefusedError("a constant slope", "what depends on an input of the net")
    array = slope.array
    shape = (1,) * (x.rank - array.ndim) + array.shape
    channel = 1
    alone = all(size == 1 for k, size in enumerate(shape) if k != channel)
    plain = x.axis == 0 and not x.folds and x.rank > 1
    if plain and alone and shape[channel] in (1, x.sample[0]):
        layer = layers.PReLU(use.name(1), channel_shared=shape[channel] == 1)
        return x.like(use.draw(layer, x, a=array))
    positive = x.like(use.draw(layers.Activation(use.name(), "relu"), x))
    below = use.make(layers.Subtract, x, positive)
    return use.make(layers.Add, positive, use.make(layers.Multiply, below, use.weight(slope, x)))


def _negate(use: Use) -> Tensor:
    return scaled(use, use.tensor(), -1.0)


def _compare(how: str) -> Converter:
    def convert(use: Use) -> Tensor:
        for k in (1, 0):
            number = scalar(use, k)
            if number is not None:
                mode = how if k else _TURNED.get(how, how)
                return compared(use, use.tensor(1 - k), mode, number)
        made = use.together(0, 1)
        symbol = use.draw(layers.Compare(use.name(), how), *made)
        return replace(made[0], symbol=symbol, dtype=_BOOL, whole=True)

    return convert


_TURNED = {">": "<", ">=": "<=", "<": ">", "<=": ">="}


def compared(use: Use, x: Tensor, how: str, value: float) -> Tensor:
    """Whether ``x`` is so, as booleans."""
    symbol = use.draw(layers.Compare(use.name(), how, value), x)
    return replace(x, symbol=symbol, dtype=_BOOL, whole=True)


def _joined(kind: Any) -> Converter:
    """Of truths, which are 1 and 0 among floats."""
    return lambda use: use.make(kind, *use.together(0, 1), dtype=bool)


def _xor(use: Use) -> Tensor:
    made = use.together(0, 1)
    symbol = use.draw(layers.Compare(use.name(), "!="), *made)
    return replace(made[0], symbol=symbol, dtype=_BOOL, whole=True)


def _not(use: Use) -> Tensor:
    return compared(use, use.tensor(), "==", 0.0)


def _is_nan(use: Use) -> Tensor:
    x = use.tensor()
    symbol = use.draw(layers.Compare(use.name(), "!="), x, x)
    return replace(x, symbol=symbol, dtype=_BOOL, whole=True)


def _is_inf(use: Use) -> Tensor:
    x = use.tensor()
    most = float(np.finfo(np.float64 if x.dtype.itemsize == 8 else np.float32).max)
    if not use.attribute("detect_positive", 1):
        return compared(use, x, "<", -most)
    if use.attribute("detect_negative", 1):
        x = use.make(layers.Operation, x, mode="abs")
    return compared(use, x, ">", most)


def _cast(use: Use) -> Tensor:
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


def _where(use: Use) -> Tensor:
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


def _one_hot(use: Use) -> Tensor:
    """On − off at the index, + off; one out of range is nowhere, a negative one counts back."""
    depth = int(use.needed(1).reshape(-1)[0])
    off, on = (float(value) for value in use.needed(2).tolist())
    x = use.tensor()
    axis = norm_axis(use.attribute("axis", -1), x.rank + 1)
    if not 1 <= depth <= 1 << 20 or (x.axis is not None and axis <= x.axis):
        raise RefusedError("a new axis behind the samples, of a known extent", f"{axis}, {depth}")
    shapes = [[*d[:axis], 1, *d[axis:]] for d in (x.dims(n) for n in BATCHES)]
    wide = in_shape(use, x, shapes)
    numbers = np.arange(depth).reshape(-1, *[1] * (x.rank - axis))
    found = []
    for each in (numbers, numbers - depth):
        other = use.weight(Known((each, each)), wide)
        symbol = use.draw(layers.Compare(use.name(), "=="), wide, other)
        found.append(use.floats(replace(wide, symbol=symbol, dtype=_BOOL, whole=True)))
    both = use.make(layers.Add, *found)
    made = scaled(use, both, on - off, off)
    return made.like(made.symbol, use.needed(2).dtype)


def _same(use: Use) -> Any:
    return use.value(0)


def _dropout(use: Use) -> list[Any]:
    ratio = use.setting("ratio", 1, 0.5)
    x = use.tensor()
    first, second = (np.broadcast_to(np.True_, x.dims(n)) for n in BATCHES)
    seen = Known.of(first, second)
    if not 0.0 < ratio < 1.0:
        return [x, seen]
    return [use.make(layers.Dropout, x, p=ratio), seen]


def _shrink(use: Use) -> Tensor:
    x, edge, bias = use.tensor(), use.attribute("lambd", 0.5), use.attribute("bias", 0.0)
    high, low = compared(use, x, ">", edge), compared(use, x, "<", -edge)
    below = x.like(use.draw(layers.Where(use.name(), b=0.0), low, scaled(use, x, 1.0, bias)))
    return x.like(use.draw(layers.Where(use.name()), high, scaled(use, x, 1.0, -bias), below))


ELEMENTWISE: Mapping[str, Converter] = {
    **{op: _operation(mode) for op, mode in OPERATIONS.items()},
    **{op: _compare(how) for op, how in COMPARISONS.items()},
    **{op: _activation(mode, ALPHAS.get(op)) for op, mode in ACTIVATIONS.items()},
    "And": _joined(layers.Multiply), "Or": _joined(layers.Maximum), "Xor": _xor, "IsNaN": _is_nan,
    "Add": _add, "Sum": _add, "Sub": _subtract, "Mul": _multiply, "Div": _divide, "Pow": _power,
    "Max": _extreme(layers.Maximum, "low"), "Min": _extreme(layers.Minimum, "high"),
    "Mean": _mean, "Mod": _modulo, "Clip": _clip, "HardSigmoid": _hard_sigmoid, "Gelu": _gelu,
    "Selu": _selu, "Swish": _swish, "ThresholdedRelu": _thresholded, "PRelu": _prelu,
    "Neg": _negate, "Not": _not, "IsInf": _is_inf, "Cast": _cast, "CastLike": _cast,
    "Where": _where, "Identity": _same, "OneHot": _one_hot, "Dropout": _dropout,
    "Shrink": _shrink,
}  # fmt: skip
