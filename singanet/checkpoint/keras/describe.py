"""The layers of a net as the Keras formats want them; anything that looks like a net will do."""

from __future__ import annotations

from typing import Any

from singanet.checkpoint.keras.layer import LayerDescription
from singanet.checkpoint.keras.orders import Uses, orders_of
from singanet.errors import ArgumentError, one_of

_DATA_FORMATS = ("channels_last", "channels_first")
_SETTINGS = (
    "W_transpose",
    "depth_multiplier",
    "num_heads",
    "num_kv_heads",
    "rnn_mode",
    "num_stacks",
    "input_mode",
    "bidirectional",
)


def describe_net(net: Any, data_format: str | None = "channels_last") -> list[LayerDescription]:
    """The layers of ``net`` that have parameters, in its order; of a wrapper what it wraps.

    ``data_format`` is that of the Keras model: with Keras' usual 'channels_last' what follows a
    Flatten of images has its rows in another order; None stands for PyTorch's, which is ours.
    Errors: `ArgumentError` for another, and for layers between which no order of the parameters
    makes both nets the same.
    """
    if data_format is not None and data_format not in _DATA_FORMATS:
        raise ArgumentError(
            "argument data_format",
            expected=f"that of the Keras model, {one_of(_DATA_FORMATS)}",
            received=repr(data_format),
            advice="leave it out, since Keras' own default is channels_last",
        )
    nodes = net.nodes()
    uses = {} if data_format is None else orders_of(nodes, data_format == "channels_last")
    found = {}
    for node in nodes:
        layer = node.layer
        while data_format is None and type(layer).__name__ == "TimeDistributed":
            layer = layer.layer
        if layer.params and id(layer) not in found:
            settings = {key: getattr(layer, key) for key in _SETTINGS if hasattr(layer, key)}
            if hasattr(layer, "window"):
                settings["kernel"] = layer.window.kernel
            settings["in_shape"] = layer.in_shapes
            found[id(layer)] = LayerDescription(
                type(layer).__name__,
                layer.name,
                {suffix: (param.name, param.shape) for suffix, param in layer.params.items()},
                settings,
                uses.get(id(layer)) or Uses([], []),
                frozenset(s for s, param in layer.params.items() if not param.trainable),
            )
    return list(found.values())
