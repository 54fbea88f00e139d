"""Recurrent layers."""

from __future__ import annotations

from collections.abc import Callable

from singanet import layers
from singanet.keras.described import DescribedLayer, unknown
from singanet.layers.layer import Layer

_SHARED = ("units", "activation", "recurrent_activation", "use_bias", "reset_after")
_MODES = {"LSTM": "lstm", "GRU": "gru", "SimpleRNN": "tanh"}


def _recurrent(kind: str) -> Callable[[DescribedLayer], list[Layer]]:
    return lambda d: [_layer(d, kind, d.name, False)]


def _layer(d: DescribedLayer, kind: str, name: str, bidirectional: bool) -> Layer:
    # What would change the outputs, or the training, of the layer we have.
    d.expect(
        stateful=False,
        return_state=False,
        reset_after=True,
        recurrent_activation="sigmoid",
    )
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
    return [_layer(described, kind, d.name, True)]


RECURRENT: dict[str, Callable[[DescribedLayer], list[Layer]]] = {
    **{kind: _recurrent(kind) for kind in _MODES},
    "Bidirectional": _bidirectional,
}
