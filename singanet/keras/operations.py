"""Keras' records of operators between tensors: ``x + 3``, ``x * y``, ``x[:, 0]``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from singanet import layers
from singanet.base.arguments import is_number
from singanet.codecs.codec import Drawn, KerasClass
from singanet.codecs.described import DescribedLayer, unknown
from singanet.layers.layer import Layer

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
    def make(d: DescribedLayer) -> list[Layer]:
        first, second = _arguments(d)
        if first is None and second is None:
            return [_JOINS[kind](d.name)]
        number = first if second is None else second
        if not is_number(number):
            raise unknown(d.where, "numbers and outputs of layers", str(number)[:60])
        if kind == "Add" or kind == "Subtract":
            sign = -1.0 if kind == "Subtract" and first is not None else 1.0
            offset = -number if kind == "Subtract" and first is None else number
            return [layers.Scale(d.name, sign, offset=float(offset))]
        if kind == "Multiply" or (kind.endswith("Divide") and first is None):
            return [layers.Scale(d.name, float(number if kind == "Multiply" else 1 / number))]
        raise unknown(d.where, f"{kind} of outputs of layers", str(number)[:60])

    return make


def _item(d: DescribedLayer) -> list[Layer]:
    _, places = _arguments(d)
    places = places if isinstance(places, list) else [places]
    first, *rest = map(_place, places)
    if first != (None, None, None) or len(d.shapes[0]) == 3:
        raise unknown(d.where, "parts of rows and sequences, of all samples", str(places)[:60])
    return [layers.Index(d.name, rest)] if rest else [layers.Dummy(d.name)]


def _place(place: Any) -> Any:
    if isinstance(place, dict):
        config = place["config"]
        return config["start"], config["stop"], config["step"]
    return int(place)


def _arguments(d: DescribedLayer) -> tuple[Any, Any]:
    first, second = d.call["args"]
    return first, second


OPERATIONS: Mapping[str, KerasClass] = {
    **{kind: KerasClass(draw=_arithmetic(kind)) for kind in _JOINS},
    "GetItem": KerasClass(draw=_item),
}
"""Our layers for Keras' operations, by their class names."""
