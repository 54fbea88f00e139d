"""Multi-head attention: Keras gives heads an axis of their own."""

from __future__ import annotations

from singanet.checkpoint.keras.layer import LayerDescription, Variable, one, same
from singanet.types import Shape


def attention(layer: LayerDescription) -> list[Variable]:
    """query, key and value (d, heads, size) with biases (heads, size); output (heads, size, d)."""
    heads = layer.settings["num_heads"]
    found = []
    for part in ("query", "key", "value"):
        inward, outward = layer.shape(f"{part}_weight")
        each = (heads, outward // heads)
        found.append(_shaped(layer, f"{part}_dense/vars/0", f"{part}_weight", (inward, *each)))
        if f"{part}_bias" in layer.params:
            found.append(_shaped(layer, f"{part}_dense/vars/1", f"{part}_bias", each))
    inward, outward = layer.shape("output_weight")
    shape = (heads, inward // heads, outward)
    found.append(_shaped(layer, "output_dense/vars/0", "output_weight", shape))
    if "output_bias" in layer.params:
        found.append(same("output_dense/vars/1", "output_bias", (outward,), "output_bias"))
    return found


def _shaped(layer: LayerDescription, path: str, suffix: str, shape: Shape) -> Variable:
    ours = layer.shape(suffix)
    return one(path, suffix, shape, suffix, lambda a: a.reshape(shape), lambda a: a.reshape(ours))
