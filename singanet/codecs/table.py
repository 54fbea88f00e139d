"""All codecs, by layer and by Keras' class; and the one that wraps another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from singanet import layers
from singanet.codecs.activation import ACTIVATIONS
from singanet.codecs.arithmetic import ARITHMETIC
from singanet.codecs.attention import ATTENTION
from singanet.codecs.codec import KerasClass, LayerCodec
from singanet.codecs.convolution import CONVOLUTION
from singanet.codecs.dense import DENSE
from singanet.codecs.described import DescribedLayer, WeightGroup, unknown
from singanet.codecs.moving import MOVING
from singanet.codecs.normalisation import NORMALISATION
from singanet.codecs.passing import PASSING
from singanet.codecs.pooling import POOLING
from singanet.codecs.recurrent import RECURRENT
from singanet.codecs.sequences import SEQUENCES
from singanet.layers.layer import Layer


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


_STEPS = LayerCodec(
    layers.TimeDistributed, keras={"TimeDistributed": KerasClass(draw=_of_steps, masked=True)}
)
_PLAIN = (
    *(*ACTIVATIONS, *ARITHMETIC, *ATTENTION, *DENSE, *MOVING, *NORMALISATION, *PASSING, *SEQUENCES),
    _STEPS,
)
CODECS: Sequence[LayerCodec] = (*_PLAIN, *CONVOLUTION, *POOLING, *RECURRENT)
_BY_LAYER: Mapping[type[Layer], LayerCodec] = {codec.kind: codec for codec in CODECS}


def _classes(codecs: Sequence[LayerCodec]) -> Mapping[str, KerasClass]:
    return {
        name: replace(each, kind=codec.kind)
        for codec in codecs
        for name, each in codec.keras.items()
    }


KERAS = _classes(CODECS)
"""The closed table of Keras' classes."""

_INSIDE = _classes(_PLAIN)
"""Those that may be at every step of a sequence."""
