"""All codecs, by layer and by Keras' class, and the codec of a layer that wraps another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from singanet import layers
from singanet.codecs.activation import ELEMENT_FUNCTIONS
from singanet.codecs.arithmetic import ARITHMETIC
from singanet.codecs.attention import ATTENTION
from singanet.codecs.codec import KerasClass, LayerCodec
from singanet.codecs.comparing import COMPARING
from singanet.codecs.convolution import CONVOLUTION
from singanet.codecs.dense import DENSE, dense_of_steps
from singanet.codecs.described import DescribedLayer, WeightGroup, unknown
from singanet.codecs.matmul import MATMUL
from singanet.codecs.moving import MOVING
from singanet.codecs.normalisation import NORMALISATION
from singanet.codecs.onnx import Converter, NoFormError, Value, WrittenGraph
from singanet.codecs.passing import PASSING
from singanet.codecs.picking import PICKING
from singanet.codecs.pooling import POOLING
from singanet.codecs.recurrent import RECURRENT
from singanet.codecs.reducing import REDUCING
from singanet.codecs.sequences import SEQUENCES
from singanet.layers.layer import Layer
from singanet.loss.head_loss import HeadLoss
from singanet.loss.layer import LossLayer


def codec_of(layer: Layer) -> LayerCodec:
    """The codec of the layer's class; an empty one for a class of a user's own."""
    return _BY_LAYER.get(type(layer)) or LayerCodec(type(layer))


def _of_steps(d: DescribedLayer) -> list[Layer]:
    """Each layer that the wrapped one is made of, at every step."""
    inner, shape = d.config["layer"], d.shapes[0]
    if inner["class_name"] not in _INSIDE or len(shape) > 3:
        raise unknown(d.where, "sequences, and one of the plain layers inside", str(inner)[:60])
    if d.is_image:
        raise unknown(d.where, "sequences of rows", f"samples {shape}")
    described = d.inner(inner["config"], shape[1:])
    made = _INSIDE[inner["class_name"]].drawn(described)
    described.expect_all_taken()
    d.marks.update({layer.name: WeightGroup("layer") for layer in made})
    names = (d.name, *(f"{d.name}_{k}" for k in range(1, len(made))))
    return [layers.TimeDistributed(n, layer) for n, layer in zip(names, made, strict=True)]


def put(g: WrittenGraph, layer: Layer, xs: list[Value]) -> list[Value]:
    """The outputs of ``layer`` on ``xs`` in the graph. Errors: `NoFormError`."""
    onnx = codec_of(layer).onnx
    if onnx is None:
        raise NoFormError(REFUSED.get(type(layer), "no layer of singanet's own"))
    if layer.adapters:
        raise NoFormError("low-rank pairs, which net.merge() adds into the weights")
    if "forward" in vars(layer):
        raise NoFormError("a forward of its own")
    made = onnx(g, layer, xs)
    return made if isinstance(made, list) else [made]


def _write_steps(g: WrittenGraph, layer: layers.TimeDistributed, xs: list[Value]) -> Value:
    inner, x = layer.layer, xs[0]
    if type(inner) is layers.Dense and "forward" not in vars(inner):
        return dense_of_steps(g, inner, x)
    shape: Any = layer.in_shapes
    out: Any = layer.out_shapes
    (y,) = put(g, inner, [g.reshape(x, (-1, *shape[1:]))])
    if shape[0] != -1:
        return g.reshape(y, (-1, *out))
    both = g.node("Shape", x, dtype="int64", start=0, end=2)
    whole = g.node("Concat", both, g.ints(out[1:], "rest"), axis=0)
    return g.node("Reshape", y, whole)


_STEPS = LayerCodec(
    layers.TimeDistributed,
    keras=KerasClass(draw=_of_steps, masked=True),
    onnx=_write_steps,
)
ELEMENT_BY_ELEMENT = (*ARITHMETIC, *COMPARING, *ELEMENT_FUNCTIONS, *PASSING)
MEASURED = (*(*ELEMENT_BY_ELEMENT, *MOVING, *PICKING, *REDUCING, *DENSE, *NORMALISATION),)
"""Of whose operators the shapes tell what they take, in time and memory."""
_PLAIN = (*MEASURED, *ATTENTION, *SEQUENCES, _STEPS)
CODECS: Sequence[LayerCodec] = (*_PLAIN, *MATMUL, *CONVOLUTION, *POOLING, *RECURRENT)
_BY_LAYER: Mapping[type[Layer], LayerCodec] = {codec.kind: codec for codec in CODECS}

REFUSED: Mapping[type[Layer], str] = dict.fromkeys(
    (LossLayer, HeadLoss), "a loss, which training alone needs"
)
"""Layers that have no form in ONNX, with the reason."""


def operators(codecs: Sequence[LayerCodec] = CODECS) -> Mapping[str, Converter]:
    """The converters of ``codecs``, by operator."""
    return {op: draw for codec in codecs for op, draw in codec.operators.items()}


def _classes(codecs: Sequence[LayerCodec]) -> Mapping[str, KerasClass]:
    return {name: each for codec in codecs for name, each in codec.classes().items()}


KERAS = _classes(CODECS)
"""The closed table of Keras' classes."""

_INSIDE = _classes(_PLAIN)
"""Classes that may stand at every step of a sequence."""
