"""Recurrent layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from singanet import layers
from singanet.checkpoint.keras.layer import Variable
from singanet.codecs.arrays import Arrays, StoredArray, across
from singanet.codecs.codec import KerasClass, LayerCodec
from singanet.codecs.described import DescribedLayer, unknown
from singanet.codecs.orders import Uses
from singanet.errors import ArgumentError
from singanet.layers.layer import Layer
from singanet.types import Array

_CLASSES = {"lstm": "LSTM", "gru": "GRU", "tanh": "SimpleRNN", "relu": "SimpleRNN"}
_MODES = {"LSTM": "lstm", "GRU": "gru", "SimpleRNN": "tanh"}
_SHARED = ("units", "activation", "recurrent_activation", "use_bias", "reset_after")
_GATES: Mapping[str, Sequence[int]] = {"gru": (1, 0, 2)}
"""Which of our gates each of Keras' is, where they stand otherwise: z r h of r z n."""


def _class_of(layer: layers.RNN) -> str:
    return "Bidirectional" if layer.bidirectional else _CLASSES[layer.rnn_mode]


def _keras(layer: layers.RNN, uses: Uses) -> list[Variable]:
    """kernel (in, G·u), recurrent_kernel (u, G·u), perhaps bias (G·u); for GRU (2, G·u).

    Errors: `ArgumentError` for several stacks or ``input_mode='skip'``, which Keras lacks.
    """
    if layer.num_stacks != 1 or layer.input_mode != "linear":
        raise ArgumentError(
            f"layer {layer.name!r}, as a Keras {_CLASSES[layer.rnn_mode]}",
            expected="num_stacks=1 and input_mode='linear'",
            received=f"num_stacks={layer.num_stacks} and input_mode={layer.input_mode!r}",
            advice="build one layer for each stack, as Keras does",
        )
    ways = ("forward", "backward") if layer.bidirectional else ("forward",)
    return [
        each
        for way in ways
        for each in _direction(layer, way, f"{way}_layer/" if layer.bidirectional else "")
    ]


def _direction(layer: layers.RNN, way: str, above: str) -> Iterator[Variable]:
    def blocks(array: Array) -> Array:
        """Gate blocks exchanged; doing it twice changes nothing."""
        order = _GATES.get(layer.rnn_mode)
        if order is None:
            return array
        parts = np.split(array, len(order), axis=-1)
        return np.concatenate([parts[index] for index in order], axis=-1)

    def shape(suffix: str) -> Any:
        return layer.params[suffix].shape

    path, ours = f"{above}cell/vars", f"l0/{way}"
    for k, (label, kind) in enumerate((("kernel", "weight_x"), ("recurrent_kernel", "weight_h"))):
        each = f"{ours}/{kind}"
        split = lambda a: (blocks(a),)  # noqa: E731
        yield Variable(f"{path}/{k}", above + label, shape(each), (each,), blocks, split)
    if not layer.use_bias:
        return
    parts, label = (f"{ours}/bias_x", f"{ours}/bias_h"), f"{above}bias"
    width = shape(parts[0])
    if layer.rnn_mode == "gru":
        yield Variable(
            f"{path}/2",
            label,
            (2, *width),
            parts,
            lambda x, h: blocks(np.stack([x, h])),
            lambda both: tuple(blocks(both)),
        )
    else:
        # Only the sum of our two counts.
        yield Variable(
            f"{path}/2",
            label,
            width,
            parts,
            lambda x, h: x + h,
            lambda b: (b, np.zeros_like(b)),
            sum_of_parts=True,
        )


def _torch(layer: layers.RNN, uses: Uses) -> Iterator[Variable]:
    """weight_ih_l0_reverse and the like, of ours called l0/backward/weight_x."""
    for suffix in layer.params:
        if suffix.startswith("state/"):
            continue  # of a stateful layer, which PyTorch leaves to its user
        stack, direction, kind = suffix.split("/")
        part, of = kind.split("_")
        back = "_reverse" if direction == "backward" else ""
        path = f"{part}_{'ih' if of == 'x' else 'hh'}_{stack}{back}"
        yield StoredArray(suffix, order=across).variable(layer, path, suffix)


def _layer(d: DescribedLayer, kind: str, name: str, bidirectional: bool) -> Layer:
    # What would change the outputs, or the training, of the layer we have.
    d.expect(stateful=False, return_state=False, reset_after=True, recurrent_activation="sigmoid")
    d.expect_all_taken()
    mode = _MODES[kind]
    if kind == "SimpleRNN" and d.config["activation"] == "relu":
        mode = "relu"
    else:
        d.expect(activation="tanh")
    return layers.RNN(
        name,
        d.config["units"],
        mode,
        bidirectional=bidirectional,
        return_sequences=bool(d.config["return_sequences"]),
        use_bias=bool(d.config.get("use_bias", True)),
        go_backwards=bool(d.config.get("go_backwards", False)),
        input_dropout=d.config.get("dropout", 0.0),
        recurrent_dropout=d.config.get("recurrent_dropout", 0.0),
    )


def _one_way(kind: str) -> KerasClass:
    return KerasClass(
        draw=lambda d: [_layer(d, kind, d.name, bidirectional=False)], masked=True, fills=True
    )


def _bidirectional(d: DescribedLayer) -> list[Layer]:
    d.expect(merge_mode="concat")
    inner = d.config["layer"]
    kind = inner["class_name"]
    if kind not in _MODES:
        raise unknown(d.where, f"one of {', '.join(_MODES)} inside", str(kind)[:60])
    back = d.config.get("backward_layer") or {}
    if back and any(back["config"].get(key) != inner["config"].get(key) for key in _SHARED):
        raise unknown(d.where, "the same layer in both directions", "another one backwards")
    described = DescribedLayer(inner["config"], d.shapes, d.data_format, d.where, d.prefix)
    return [_layer(described, kind, d.name, bidirectional=True)]


_ARRAYS = Arrays(_keras, lambda layer, uses: list(_torch(layer, uses)))

RECURRENT = (
    LayerCodec(
        layers.RNN,
        _ARRAYS,
        {
            **{kind: _one_way(kind) for kind in _MODES},
            "Bidirectional": KerasClass(draw=_bidirectional, masked=True, fills=True),
        },
        _class_of,
    ),
    LayerCodec(layers.LSTM, _ARRAYS, keras_class=_class_of),
    LayerCodec(layers.GRU, _ARRAYS, keras_class=_class_of),
)
