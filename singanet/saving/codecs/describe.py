"""The table of codecs by class of layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from singanet import layers
from singanet.checkpoint.layer_arrays import LayerDescription, Variable
from singanet.errors import ArgumentError, brief, one_of
from singanet.layers import TimeDistributed
from singanet.layers.layer import Layer
from singanet.layers.symbol import Symbol
from singanet.loss.head_loss import HeadLoss
from singanet.loss.loss import LossLayer
from singanet.saving.codecs.activation import ELEMENT_FUNCTIONS
from singanet.saving.codecs.arithmetic import ARITHMETIC, COMPARING
from singanet.saving.codecs.arrays import Lay
from singanet.saving.codecs.attention import ATTENTION
from singanet.saving.codecs.choosing import PICKING, REDUCING
from singanet.saving.codecs.codec import KerasClass, LayerCodec
from singanet.saving.codecs.dense import DENSE, MATMUL, dense_of_steps
from singanet.saving.codecs.described import DescribedLayer, LayerGraph, WeightGroup, unknown
from singanet.saving.codecs.moving import MOVING
from singanet.saving.codecs.normalisation import NORMALISATION
from singanet.saving.codecs.onnx import (
    BATCHES,
    Converter,
    Known,
    NoFormError,
    Use,
    Value,
    WrittenGraph,
)
from singanet.saving.codecs.operations import ENCODINGS
from singanet.saving.codecs.orders import Uses, orders_of
from singanet.saving.codecs.recurrent import RECURRENT, SEQUENCES
from singanet.saving.codecs.spatial import CONVOLUTION, POOLING


def _write_same(g: WrittenGraph, layer: layers.Layer, xs: list[Value]) -> Value | list[Value]:
    """Return the inputs, which evaluation does not change."""
    return xs if len(xs) > 1 else xs[0]


def _write_split(g: WrittenGraph, layer: layers.Split, xs: list[Value]) -> list[Value]:
    return xs * layer.num_outputs


def _read_same(use: Use) -> Any:
    return use.value(0)


def _read_dropout(use: Use) -> list[Any]:
    ratio = use.setting("ratio", 1, 0.5)
    x = use.tensor()
    first, second = (np.broadcast_to(np.True_, x.dims(n)) for n in BATCHES)
    seen = Known.of(first, second)
    if not 0.0 < ratio < 1.0:
        return [x, seen]
    return [use.make(layers.Dropout, x, rate=ratio), seen]


def _dropout(d: DescribedLayer) -> list[Layer]:
    shape = d.config.get("noise_shape")
    rate = float(d.config["rate"])
    if shape is None:
        return [layers.Dropout(d.name, rate)]
    if shape != [None] + [1] * len(d.shapes[0]):
        d.expect(noise_shape=None)
    return [layers.SpatialDropout(d.name, rate, axis=0)]


def _spatial(masked: bool) -> KerasClass:
    return KerasClass(
        {"rate": float},
        more=lambda d: {"axis": 1 if len(d.shapes[0]) >= 3 else -1},
        masked=masked,
    )


def _of_samples(d: DescribedLayer) -> list[Layer]:
    """Convert a layer that changes samples at random in training: they are unchanged here."""
    d.pass_over()
    return [layers.Dummy(d.name)]


RANDOM = (
    "AugMix", "CutMix", "MixUp", "RandAugment", "RandomBrightness", "RandomColorDegeneration",
    "RandomColorJitter", "RandomContrast", "RandomElasticTransform", "RandomErasing", "RandomFlip",
    "RandomGaussianBlur", "RandomGrayscale", "RandomHue", "RandomInvert", "RandomPerspective",
    "RandomPosterization", "RandomRotation", "RandomSaturation", "RandomSharpness", "RandomShear",
    "RandomTranslation", "RandomZoom",
)  # fmt: skip
"""Keras' layers that change samples in training alone."""


PASSING = (
    LayerCodec(
        layers.Dropout,
        keras=KerasClass(draw=_dropout, masked=True),
        onnx=_write_same,
        operators={"Dropout": _read_dropout},
    ),
    LayerCodec(
        layers.SpatialDropout,
        keras={
            "SpatialDropout1D": _spatial(masked=True),
            "SpatialDropout2D": _spatial(False),
            "SpatialDropout3D": _spatial(False),
        },
        onnx=_write_same,
    ),
    LayerCodec(
        layers.AlphaDropout,
        keras=KerasClass({"rate": float}, usual={"noise_shape": None}, masked=True),
        onnx=_write_same,
    ),
    LayerCodec(
        layers.GaussianNoise,
        keras=KerasClass({"stddev": float}, masked=True),
        onnx=_write_same,
    ),
    LayerCodec(
        layers.Dummy,
        keras={
            "Identity": KerasClass(masked=True),
            **dict.fromkeys(RANDOM, KerasClass(draw=_of_samples, prepares=True)),
        },
        onnx=_write_same,
        operators={"Identity": _read_same},
    ),
    LayerCodec(layers.StopGradient, onnx=_write_same),
    LayerCodec(layers.Split, onnx=_write_split, elements="copied"),
)


def codec_of(layer: Layer) -> LayerCodec:
    """Return the codec of the layer's class; an empty one for a user's class."""
    return _BY_LAYER.get(type(layer)) or LayerCodec(type(layer))


def _of_steps(d: DescribedLayer) -> Sequence[Layer | LayerGraph]:
    """Return the layers of the wrapped one, each applied at every step."""
    inner = d.config["layer"]
    if inner["class_name"] not in _INSIDE:
        raise unknown(d.where, "a supported layer inside", str(inner)[:60])
    # Steps of images are (T, C, H, W) here, and their channels are first in other layers.
    shape = d.theirs(layers.Input("x", d.shapes[0])).shape if d.is_image else d.shapes[0]
    one = (shape[-1], *shape[1:-1]) if len(shape) > 3 and d.is_image else shape[1:]
    described = d.inner(inner["config"], one)
    made = _INSIDE[inner["class_name"]].drawn(described)
    described.expect_all_taken()
    each: list[Layer] = []
    for layer in made:
        if isinstance(layer, LayerGraph):
            raise unknown(d.where, "a chain of layers inside", str(inner["class_name"])[:60])
        each.append(layer)
    d.marks.update({layer.name: WeightGroup("layer") for layer in each})
    names = (d.name, *(f"{d.name}_{k}" for k in range(1, len(each))))
    steps = [layers.TimeDistributed(n, layer) for n, layer in zip(names, each, strict=True)]
    if d.data_format != "channels_last":
        return steps

    def apply(sources: Sequence[Symbol]) -> list[Symbol]:
        x = _steps_first(sources[0], len(sources[0].shape))
        for step in steps:
            x = step(x)
        return [_steps_first(x, len(x.shape), back=True)]

    return [LayerGraph(steps, apply)]


def _steps_first(x: Symbol, rank: int, back: bool = False) -> Symbol:
    """Return (C, T, ...) as (T, C, ...) and the reverse; (F, T, ·) as (T, ·, F) for rank 3."""
    if rank < 3:
        return x
    order = (2, 1, *range(3, rank + 1)) if rank > 3 else (3, 1, 2) if back else (2, 3, 1)
    moved: Symbol = layers.Permute(None, order)(x)
    return moved


def put(g: WrittenGraph, layer: Layer, xs: list[Value]) -> list[Value]:
    """Add ``layer`` on ``xs`` to the graph and return its outputs. Errors: `NoFormError`."""
    onnx = codec_of(layer).onnx
    if onnx is None:
        raise NoFormError(REFUSED.get(type(layer), "not a layer of singanet"))
    if layer.adapters:
        raise NoFormError("low-rank pairs, which net.merge() merges into the weights")
    if "forward" in vars(layer):
        raise NoFormError("an overridden forward")
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
"""Codecs of operators whose time and memory follow from the shapes."""
_PLAIN = (*MEASURED, *ATTENTION, *SEQUENCES, _STEPS)
CODECS: Sequence[LayerCodec] = (*_PLAIN, *MATMUL, *CONVOLUTION, *POOLING, *RECURRENT)
_BY_LAYER: Mapping[type[Layer], LayerCodec] = {codec.kind: codec for codec in CODECS}

REFUSED: Mapping[type[Layer], str] = {
    LossLayer: "a loss, which only training needs",
    HeadLoss: "a loss, which only training needs",
    layers.MixtureOfExperts: "experts that multiply the rows that chose them",
}
"""Layers without a form in ONNX, with the reason."""


def operators(codecs: Sequence[LayerCodec] = CODECS) -> Mapping[str, Converter]:
    """Return the converters of ``codecs``, by operator."""
    return {op: draw for codec in codecs for op, draw in codec.operators.items()}


def _classes(codecs: Sequence[LayerCodec]) -> Mapping[str, KerasClass]:
    return {name: each for codec in codecs for name, each in codec.classes().items()}


KERAS = {**_classes(CODECS), **ENCODINGS}
"""The closed table of supported Keras classes."""

_INSIDE = _classes((*_PLAIN, *CONVOLUTION, *POOLING))
"""Classes that TimeDistributed can apply to every step."""


_DATA_FORMATS = ("channels_last", "channels_first")
_AS_HERE = Uses([], [])


def keras_layers(net: Any, data_format: str = "channels_last") -> list[LayerDescription]:
    """Return the layers of ``net`` with parameters, in order, as layers of a Keras model.

    ``data_format`` is the Keras model's: with the default 'channels_last', rows after a Flatten of
    images have another order. Errors: `ArgumentError` for another value, and for layers between
    which no order of the parameters makes the nets equal.
    """
    if data_format not in _DATA_FORMATS:
        raise ArgumentError(
            "argument data_format",
            expected=f"the data_format of the Keras model, {one_of(_DATA_FORMATS)}",
            received=brief(data_format),
            advice="omit it, since Keras' default is channels_last",
        )
    uses = orders_of(
        net.nodes(), data_format == "channels_last", lambda layer: codec_of(layer).elements
    )
    found = {id(node.layer): node.layer for node in net.nodes() if node.layer.params}
    return [keras_layer(layer, uses[key]) for key, layer in found.items()]


def keras_layer(layer: Layer, uses: Uses = _AS_HERE, lay: Lay | None = None) -> LayerDescription:
    """Return ``layer`` as a Keras layer, with the arrays of its codec or of ``lay``."""
    codec = codec_of(layer)
    wanted = "layers with a form in Keras"
    advice = "save in another format: safetensors, hdf5, npz"
    known = [each.kind.__name__ for each in CODECS if each.arrays.keras]
    lay = lay or codec.arrays.keras or partial(_refuse, "", wanted, known, advice)
    return _described(layer, codec.name_of(layer), partial(lay, layer, uses))


def torch_layers(net: Any) -> list[LayerDescription]:
    """Return the layers of ``net`` with parameters, in order, as PyTorch modules."""
    wanted = "layers with a form in PyTorch"
    advice = "omit layout, and transpose the arrays of this layer yourself"
    known = [each.kind.__name__ for each in CODECS if each.arrays.torch]
    refuse = partial(_refuse, ", as a module of PyTorch", wanted, known, advice)
    found = []
    for layer in weighed(net):
        arrays = codec_of(layer).arrays
        lay = partial(arrays.torch or refuse, layer, _AS_HERE)
        apart = partial(arrays.apart or arrays.torch or (lambda layer, uses: ()), layer, _AS_HERE)
        found.append(_described(layer, type(layer).__name__, lay, apart))
    return found


def weighed(net: Any) -> Iterator[Any]:
    """Yield the distinct layers of ``net`` with parameters, without wrappers."""
    seen = set()
    for node in net.nodes():
        layer = node.layer
        while isinstance(layer, TimeDistributed):
            layer = layer.layer
        if layer.params and id(layer) not in seen:
            seen.add(id(layer))
            yield layer


def _described(
    layer: Layer,
    kind: str,
    lay: Callable[[], Sequence[Variable]],
    apart: Callable[[], Sequence[Variable]] = tuple,
) -> LayerDescription:
    if layer.adapters:
        lay = apart = partial(_refuse_pairs, layer)
    params = {suffix: (param.name, param.shape) for suffix, param in layer.params.items()}
    fixed = frozenset(s for s, param in layer.params.items() if not param.trainable)
    return LayerDescription(kind, layer.name, params, lay, apart, fixed)


def _refuse_pairs(layer: Layer) -> list[Variable]:
    raise ArgumentError(
        f"layer {layer.name!r}",
        expected="weights alone, as in other libraries",
        received=f"low-rank pairs of {one_of(layer.adapters)}",
        advice="call net.merge() first, or save in another format: safetensors, hdf5, npz",
    )


def _refuse(
    among: str, wanted: str, known: list[str], advice: str, layer: Layer, uses: Uses
) -> list[Variable]:
    raise ArgumentError(
        f"layer {layer.name!r}{among}",
        expected=f"{wanted}: {one_of(known, 20)}",
        received=type(layer).__name__,
        advice=advice,
    )
