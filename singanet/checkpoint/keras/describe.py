"""The layers of a net as the Keras formats want them; anything that looks like a net will do."""

from __future__ import annotations

from typing import Any

from singanet.checkpoint.keras.layer import LayerDescription
from singanet.errors import ArgumentError, one_of
from singanet.types import Shape

_DATA_FORMATS = ("channels_last", "channels_first")
_SETTINGS = (
    "W_transpose",
    "depth_multiplier",
    "num_heads",
    "rnn_mode",
    "num_stacks",
    "input_mode",
    "bidirectional",
)


def describe_net(net: Any, data_format: str = "channels_last") -> list[LayerDescription]:
    """The layers of ``net`` that have parameters, in its order.

    ``data_format`` is that of the Keras model: with Keras' usual 'channels_last' what follows a
    Flatten of images has its rows in another order. Errors: `ArgumentError` for another.
    """
    if data_format not in _DATA_FORMATS:
        raise ArgumentError(
            "argument data_format",
            expected=f"that of the Keras model, {one_of(_DATA_FORMATS)}",
            received=repr(data_format),
            advice="leave it out, since Keras' own default is channels_last",
        )
    nodes = {node.name: node for node in net.nodes()}
    found = {}
    for node in nodes.values():
        layer = node.layer
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
                _flattened(node) if data_format == "channels_last" else None,
                frozenset(s for s, param in layer.params.items() if not param.trainable),
            )
    return list(found.values())


def _flattened(node: Any) -> Shape | None:
    """The image whose elements make the input row of ``node``, through what leaves rows alone."""
    while len(node.inputs) == 1:
        node = node.inputs[0][0]
        layer = node.layer
        if type(layer).__name__ == "Flatten":
            whole = layer.axis == 1 and _channels_first(node)
            return tuple(layer.in_shapes) if whole else None
        if layer.out_shapes != layer.in_shapes or not _keeps_order(layer):
            return None
    return None


def _keeps_order(layer: Any) -> bool:
    """Whether a layer that keeps the shape works on each feature alone."""
    return not layer.params or type(layer).__name__ in ("BatchNormalization", "PReLU", "Scale")


def _channels_first(node: Any) -> bool:
    """Whether what ``node`` flattens has a channel axis before others, which Keras has last.

    Images (C, H, W) do; of two axes, (C, L) of the one-dimensional layers does and (T, F) of the
    recurrent ones does not.
    """
    if len(node.layer.in_shapes) != 2:
        return len(node.layer.in_shapes) > 2
    while len(node.inputs) == 1:
        node = node.inputs[0][0]
        if type(node.layer).__name__.endswith("1D"):
            return True
        if not _keeps_order(node.layer) or node.layer.out_shapes != node.layer.in_shapes:
            return False
    return False
