"""Keras' operations on outputs of layers, as layers and as functions of symbols."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import log
from typing import Any

from singanet import functional, layers
from singanet.base.arguments import is_number
from singanet.layers.elementwise import OPERATIONS as ELEMENT_OPERATIONS
from singanet.layers.layer import Layer
from singanet.layers.symbol import BATCH, Symbol
from singanet.saving.codecs.codec import Drawn, KerasClass
from singanet.saving.codecs.described import DescribedLayer, LayerGraph, unknown

_JOINS = {
    "Add": layers.Add,
    "Subtract": layers.Subtract,
    "Multiply": layers.Multiply,
    "TrueDivide": layers.Divide,
    "Divide": layers.Divide,
    "Maximum": layers.Maximum,
    "Minimum": layers.Minimum,
}


def _arithmetic(kind: str) -> Drawn:
    def make(d: DescribedLayer) -> Sequence[Layer | LayerGraph]:
        first, second = d.call["args"]
        if first is None and second is None:
            if len(set(d.shapes)) == 1:
                return [_JOINS[kind](d.name)]
            return _on_axes(_BROADCAST[kind])(d)
        number = first if second is None else second
        if not is_number(number):
            raise unknown(d.where, "numbers and outputs of layers", str(number)[:60])
        if kind == "Add" or kind == "Subtract":
            sign = -1.0 if kind == "Subtract" and first is not None else 1.0
            offset = -number if kind == "Subtract" and first is None else number
            return [layers.Scale(d.name, sign, offset=float(offset))]
        if kind == "Multiply" or (kind.endswith("Divide") and first is None):
            return [layers.Scale(d.name, float(number if kind == "Multiply" else 1 / number))]
        return _on_axes(_BROADCAST[kind])(d)

    return make


def _item(d: DescribedLayer) -> list[Layer]:
    _, places = d.call["args"]
    places = places if isinstance(places, list) else [places]
    first, *rest = map(_place, places)
    if first != (None, None, None) or len(d.shapes[0]) >= 3:
        raise unknown(d.where, "slices of vectors or sequences, of all samples", str(places)[:60])
    return [layers.Index(d.name, rest)] if rest else [layers.Dummy(d.name)]


def _place(place: Any) -> Any:
    if isinstance(place, dict):
        config = place["config"]
        return config["start"], config["stop"], config["step"]
    return int(place)


_MOST_CLASSES = 1024


def _bins(d: DescribedLayer) -> list[LayerGraph]:
    """Convert Discretization: the number of boundaries that are not above a number."""
    bounds = [float(bound) for bound in d.config["bin_boundaries"]]
    for key in ("num_bins", "epsilon"):  # of boundaries that were learned
        d.config.get(key)

    def hot(x: Symbol) -> list[Symbol]:
        reached = [functional.where(x >= bound, 1.0, 0.0) for bound in bounds]
        return [1.0 - reached[0], *(a - b for a, b in pairwise(reached)), reached[-1]]

    return _encoded(d, hot, len(bounds) + 1)


def _categories(d: DescribedLayer) -> list[LayerGraph]:
    count = int(d.config["num_tokens"])

    def hot(x: Symbol) -> list[Symbol]:
        return [functional.where(functional.equal(x, k), 1.0, 0.0) for k in range(count)]

    return _encoded(d, hot, count)


def _encoded(
    d: DescribedLayer, hot: Callable[[Symbol], list[Symbol]], count: int
) -> list[LayerGraph]:
    """Return indices of classes, or ones at their places, joined over the first axis or not."""
    mode, shape = d.config["output_mode"], d.shapes[0]
    d.expect(sparse=False)
    if mode not in ("int", "one_hot", "multi_hot", "count") or not 2 <= count <= _MOST_CLASSES:
        raise unknown(d.where, f"2 to {_MOST_CLASSES} classes by a known mode", f"{mode}, {count}")
    if not shape and mode in ("multi_hot", "count"):
        raise unknown(d.where, "several numbers a sample", f"samples {shape}")

    def apply(sources: Sequence[Symbol]) -> list[Symbol]:
        x = d.theirs(sources[0])
        if mode == "int":
            places = [float(k) * each for k, each in enumerate(hot(x)) if k]
            total = places[0]
            for each in places[1:]:
                total = total + each
            return [d.back(layers.Cast(None, "int64")(total))]
        if mode == "one_hot" and x.shape[-1:] == (1,):
            x = functional.squeeze(x, -1)
        y = functional.stack(hot(x), len(x.full))
        if mode == "multi_hot":
            y = functional.max(y, axis=1)
        return [d.back(functional.sum(y, axis=1) if mode == "count" else y)]

    return [LayerGraph([], apply)]


Function = Callable[..., Any]
"""A function of the config and of the operands, with Keras' axes."""


def _on_axes(function: Function) -> Drawn:
    """Return what draws ``function`` of operands in Keras' order of axes."""

    def make(d: DescribedLayer) -> list[LayerGraph]:
        args = list(d.call["args"])
        if not all(each is None or is_number(each) for each in args):
            raise unknown(d.where, "numbers and outputs of layers", str(args)[:60])
        # The settings are read now, so that none is passed over.
        config = {key: d.config[key] for key in d.config if key not in ("name", "dtype")}

        def apply(sources: Sequence[Symbol]) -> list[Symbol]:
            given = iter(map(d.theirs, sources))
            made = function(config, *(next(given) if each is None else each for each in args))
            several = made if isinstance(made, list) else [made]
            for each in several:
                if not each.full or each.full[0] > BATCH:
                    raise unknown(d.where, "an operation within samples", f"{each.full}")
            return [d.back(each) for each in several]

        return [LayerGraph([], apply)]

    return make


def _reduction(function: Function) -> KerasClass:
    return KerasClass(
        draw=_on_axes(lambda c, x: function(x, _axes(c["axis"]), bool(c["keepdims"])))
    )


def _axes(given: Any) -> Any:
    return tuple(given) if isinstance(given, list) else given


def _alone(make: Callable[[DescribedLayer], Layer]) -> KerasClass:
    """Return the class of an operation on one operand."""

    def draw(d: DescribedLayer) -> list[Layer]:
        if d.call["args"] != [None]:
            raise unknown(d.where, "the output of a layer", str(d.call["args"])[:60])
        return [make(d)]

    return KerasClass(draw=draw)


def _element(mode: str) -> KerasClass:
    return _alone(lambda d: layers.Operation(d.name, mode))


def _activation(mode: str, key: str = "") -> KerasClass:
    def make(d: DescribedLayer) -> Layer:
        alpha: dict[str, Any] = {"alpha": float(d.config[key])} if key else {}
        return layers.Activation(d.name, mode, **alpha)

    return _alone(make)


def _gelu(d: DescribedLayer) -> Layer:
    return layers.Activation(d.name, "gelu_tanh" if d.config["approximate"] else "gelu")


def _reshape(config: Mapping[str, Any], x: Any) -> Any:
    first, *rest = (-1 if n is None else int(n) for n in config["newshape"])
    return functional.reshape(x, (first, *rest))


def _power(config: Mapping[str, Any], a: Any, b: Any) -> Any:
    return a**b if isinstance(a, Symbol) else functional.exp(b * log(a))


_BROADCAST: Mapping[str, Function] = {
    "Add": lambda c, a, b: a + b,
    "Subtract": lambda c, a, b: a - b,
    "Multiply": lambda c, a, b: a * b,
    "TrueDivide": lambda c, a, b: a / b,
    "Divide": lambda c, a, b: a / b,
    "Maximum": lambda c, a, b: functional.maximum(a, b),
    "Minimum": lambda c, a, b: functional.minimum(a, b),
}

_FUNCTIONS: Mapping[str, Function] = {
    "Clip": lambda c, x: functional.clip(x, c["x_min"], c["x_max"]),
    "Concatenate": lambda c, *x: functional.concatenate(x, c["axis"]),
    "Einsum": lambda c, *x: functional.einsum(c["subscripts"], *x),
    "ExpandDims": lambda c, x: functional.expand_dims(x, _axes(c["axis"])),
    "Greater": lambda c, a, b: a > b,
    "GreaterEqual": lambda c, a, b: a >= b,
    "Less": lambda c, a, b: a < b,
    "LessEqual": lambda c, a, b: a <= b,
    "LogSoftmax": lambda c, x: functional.log_softmax(x, c["axis"]),
    "Matmul": lambda c, a, b: functional.matmul(a, b),
    "Negative": lambda c, x: -x,
    "Power": _power,
    "Reshape": _reshape,
    "Softmax": lambda c, x: functional.softmax(x, c["axis"]),
    "Split": lambda c, x: functional.split(x, _axes(c["indices_or_sections"]), c["axis"]),
    "Square": lambda c, x: functional.square(x),
    "Squeeze": lambda c, x: functional.squeeze(x, _axes(c["axis"])),
    "Stack": lambda c, *x: functional.stack(x, c["axis"]),
    "Transpose": lambda c, x: functional.transpose(x, c["axes"]),
    "Where": lambda c, where, a, b: functional.where(where, a, b),
}

_ELEMENT_NAMES = {"Absolute": "abs"} | {
    mode.capitalize(): mode
    for mode in ("ceil", "cos", "exp", "floor", "log", "sign", "sin", "sqrt", "tan")
    if mode in ELEMENT_OPERATIONS
}

OPERATIONS: Mapping[str, KerasClass] = {
    **{kind: KerasClass(draw=_arithmetic(kind)) for kind in _JOINS},
    **{kind: KerasClass(draw=_on_axes(function)) for kind, function in _FUNCTIONS.items()},
    **{kind: _element(mode) for kind, mode in _ELEMENT_NAMES.items()},
    **{
        kind: _activation(mode)
        for kind, mode in (
            ("Relu", "relu"), ("Relu6", "relu6"), ("Sigmoid", "sigmoid"), ("Tanh", "tanh"),
            ("Silu", "silu"), ("Softplus", "softplus"), ("Softsign", "softsign"),
            ("Selu", "selu"), ("HardSigmoid", "hard_sigmoid"), ("HardSilu", "hard_swish"),
        )
    },
    "Elu": _activation("elu", "alpha"),
    "LeakyRelu": _activation("leaky_relu", "negative_slope"),
    "Gelu": _alone(_gelu),
    "GetItem": KerasClass(draw=_item),
    "Sum": _reduction(functional.sum),
    "Mean": _reduction(functional.mean),
    "Max": _reduction(functional.max),
    "Min": _reduction(functional.min),
    "Var": _reduction(functional.var),
    "Logsumexp": _reduction(functional.logsumexp),
}  # fmt: skip
"""The layers for Keras' operations, by class name."""

ENCODINGS: Mapping[str, KerasClass] = {
    "Discretization": KerasClass(draw=_bins),
    "CategoryEncoding": KerasClass(draw=_categories),
}
"""Keras' layers of categories, by class name."""
