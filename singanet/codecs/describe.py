"""The layers of a net as the formats of Keras and PyTorch want them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from singanet.checkpoint.keras.layer import LayerDescription, Variable
from singanet.codecs.arrays import Lay
from singanet.codecs.orders import Uses, orders_of
from singanet.codecs.table import CODECS, codec_of
from singanet.errors import ArgumentError, one_of
from singanet.layers import TimeDistributed
from singanet.layers.layer import Layer

_DATA_FORMATS = ("channels_last", "channels_first")
_AS_HERE = Uses([], [])


def keras_layers(net: Any, data_format: str = "channels_last") -> list[LayerDescription]:
    """The layers of ``net`` that have parameters, in its order, as those of a Keras model.

    ``data_format`` is that of the model: with Keras' usual 'channels_last' what follows a Flatten
    of images has its rows in another order. Errors: `ArgumentError` for another, and for layers
    between which no order of the parameters makes both nets the same.
    """
    if data_format not in _DATA_FORMATS:
        raise ArgumentError(
            "argument data_format",
            expected=f"that of the Keras model, {one_of(_DATA_FORMATS)}",
            received=repr(data_format),
            advice="leave it out, since Keras' own default is channels_last",
        )
    uses = orders_of(
        net.nodes(), data_format == "channels_last", lambda layer: codec_of(layer).elements
    )
    found = {id(node.layer): node.layer for node in net.nodes() if node.layer.params}
    return [keras_layer(layer, uses[key]) for key, layer in found.items()]


def keras_layer(layer: Layer, uses: Uses = _AS_HERE, lay: Lay | None = None) -> LayerDescription:
    """``layer`` as one of Keras, with arrays as its codec has them, or as ``lay``."""
    codec = codec_of(layer)
    wanted = "layers that Keras has too"
    advice = "save in another format: safetensors, hdf5, npz"
    known = [each.kind.__name__ for each in CODECS if each.arrays.keras]
    lay = lay or codec.arrays.keras or partial(_refuse, "", wanted, known, advice)
    return _described(layer, codec.name_of(layer), partial(lay, layer, uses))


def torch_layers(net: Any) -> list[LayerDescription]:
    """The layers of ``net`` that have parameters, in its order, as modules of PyTorch."""
    wanted = "layers that PyTorch has too"
    advice = "leave layout out, and turn the arrays of this layer yourself"
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
    """Each layer of ``net`` that has parameters once; of a wrapper what it wraps."""
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
        expected="weights alone, as layers elsewhere have them",
        received=f"low-rank pairs beside {one_of(layer.adapters)}",
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
