"""Recurrent layers: gates in other orders, and one bias where we have two."""

from __future__ import annotations

import numpy as np

from singanet.checkpoint.keras.layer import LayerDescription, Variable, one
from singanet.errors import ArgumentError
from singanet.types import Array

# Where each of Keras' gate blocks stands among ours: z r h from r z n; i f c o as i f g o.
_ORDERS = {"gru": (1, 0, 2), "lstm": (0, 1, 2, 3), "tanh": (0,), "relu": (0,)}
CLASSES = {"gru": "GRU", "lstm": "LSTM", "tanh": "SimpleRNN", "relu": "SimpleRNN"}


def recurrent(layer: LayerDescription) -> list[Variable]:
    """kernel (in, G·u), recurrent_kernel (u, G·u), bias (G·u); for GRU (2, G·u).

    Errors: `ArgumentError` for several stacks or ``input_mode='skip'``, which Keras lacks.
    """
    mode = layer.settings["rnn_mode"]
    if layer.settings["num_stacks"] != 1 or layer.settings["input_mode"] != "linear":
        raise ArgumentError(
            f"layer {layer.name!r}, as a Keras {CLASSES[mode]}",
            expected="num_stacks=1 and input_mode='linear'",
            received=f"num_stacks={layer.settings['num_stacks']} and "
            f"input_mode={layer.settings['input_mode']!r}",
            advice="build one layer for each stack, as Keras does",
        )
    if not layer.settings["bidirectional"]:
        return _direction(layer, "l0/forward", "", mode)
    return [
        *_direction(layer, "l0/forward", "forward_layer/", mode),
        *_direction(layer, "l0/backward", "backward_layer/", mode),
    ]


def _direction(layer: LayerDescription, ours: str, above: str, mode: str) -> list[Variable]:
    def blocks(array: Array) -> Array:
        """Gate blocks exchanged; doing it twice changes nothing."""
        order = _ORDERS[mode]
        if order == tuple(range(len(order))):
            return array
        parts = np.split(array, len(order), axis=-1)
        return np.concatenate([parts[index] for index in order], axis=-1)

    found = []
    for index, (label, kind) in enumerate(
        (("kernel", "weight_x"), ("recurrent_kernel", "weight_h"))
    ):
        suffix = f"{ours}/{kind}"
        path = f"{above}cell/vars/{index}"
        found.append(one(path, above + label, layer.shape(suffix), suffix, blocks, blocks))
    parts = (f"{ours}/bias_x", f"{ours}/bias_h")
    width = layer.shape(parts[0])
    path, label = f"{above}cell/vars/2", f"{above}bias"
    if mode == "gru":
        found.append(
            Variable(
                path,
                label,
                (2, *width),
                parts,
                lambda x, h: blocks(np.stack([x, h])),
                lambda both: tuple(blocks(both)),
            )
        )
    else:
        # Only the sum of our two counts.
        found.append(
            Variable(
                path,
                label,
                width,
                parts,
                lambda x, h: x + h,
                lambda b: (b, np.zeros_like(b)),
                sum_of_parts=True,
            )
        )
    return found
