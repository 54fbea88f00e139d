"""The form of each class of layers, and which have none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from singanet.layers.dense import Dense
from singanet.layers.layer import Layer
from singanet.layers.time_distributed import TimeDistributed
from singanet.loss.layer import LossLayer
from singanet.onnx.forms.element_wise import ELEMENT_WISE
from singanet.onnx.forms.graph import Form, NoFormError, Value, WrittenGraph
from singanet.onnx.forms.norms import NORMS
from singanet.onnx.forms.recurrent import RECURRENT
from singanet.onnx.forms.sequences import SEQUENCES, dense_of_steps
from singanet.onnx.forms.shapes import SHAPES
from singanet.onnx.forms.spatial import SPATIAL

__all__ = ["FORMS", "REFUSED", "put"]


def put(g: WrittenGraph, layer: Layer, xs: list[Value]) -> list[Value]:
    """The outputs of ``layer`` on ``xs`` in the graph. Errors: `NoFormError`."""
    form = FORMS.get(type(layer))
    if form is None:
        raise NoFormError(REFUSED.get(type(layer), "no layer of singanet's own"))
    if "forward" in vars(layer):
        raise NoFormError("a forward of its own")
    made = form(g, layer, xs)
    return made if isinstance(made, list) else [made]


def _time_distributed(g: WrittenGraph, layer: TimeDistributed, xs: list[Value]) -> Value:
    inner, x = layer.layer, xs[0]
    if type(inner) is Dense and "forward" not in vars(inner):
        return dense_of_steps(g, inner, x)
    shape: Any = layer.in_shapes
    out: Any = layer.out_shapes
    (y,) = put(g, inner, [g.reshape(x, (-1, *shape[1:]))])
    if shape[0] != -1:
        return g.reshape(y, (-1, *out))
    both = g.node("Shape", x, dtype="int64", start=0, end=2)
    whole = g.node("Concat", both, g.ints(out[1:], "rest"), axis=0)
    return g.node("Reshape", y, whole)


FORMS: Mapping[type[Layer], Form] = {
    **ELEMENT_WISE,
    **SPATIAL,
    **NORMS,
    **SHAPES,
    **RECURRENT,
    **SEQUENCES,
    TimeDistributed: _time_distributed,
}

REFUSED: Mapping[type[Layer], str] = {
    LossLayer: "a loss, which training alone needs",
}
"""Layers that have no form, with the reason."""
