"""Attention by several heads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from singanet import layers
from singanet.checkpoint.keras.layer import Variable
from singanet.codecs.arrays import Arrays, StoredArray, across, joined, keras_arrays
from singanet.codecs.codec import KerasClass, LayerCodec
from singanet.codecs.described import DescribedLayer
from singanet.codecs.orders import Uses
from singanet.errors import ArgumentError

_PARTS = ("query", "key", "value")


def _rows(layer: layers.MultiHeadAttention) -> Iterator[StoredArray]:
    """query, key and value (d, heads, size) with biases (heads, size); output (heads, size, d).

    Keras' class for grouped heads has the same arrays under names with a line before.
    """
    heads, groups = layer.num_heads, layer.num_kv_heads or layer.num_heads
    line = "_" if layer.num_kv_heads else ""
    for part in (*_PARTS, "output"):
        count = heads if part in ("query", "output") else groups
        group = f"{line}{part}_dense/"

        def in_heads(layer: Any, shape: Any, count: int = count) -> Any:
            return (*shape[:-1], count, shape[-1] // count)

        def of_heads(layer: Any, shape: Any) -> Any:
            return (layer.num_heads, shape[0] // layer.num_heads, *shape[1:])

        weight, bias = f"{part}_weight", f"{part}_bias"
        if part == "output":
            yield StoredArray(weight, weight, view=of_heads, group=group)
            yield StoredArray(bias, bias, group=group)
        else:
            yield StoredArray(weight, weight, view=in_heads, group=group)
            yield StoredArray(bias, bias, view=in_heads, group=group)


def _torch(layer: layers.MultiHeadAttention, uses: Uses) -> list[Variable]:
    """in_proj_weight of query, key and value, where all three read the same number of features."""
    weights, biases = ([f"{part}_{what}" for part in _PARTS] for what in ("weight", "bias"))
    shapes = [layer.params[suffix].shape for suffix in weights]
    size = layer.params["output_weight"].shape[1]
    if any(out != size for _, out in shapes) or shapes[0][0] != size:
        raise ArgumentError(
            f"layer {layer.name!r}, as PyTorch's MultiheadAttention",
            expected=f"heads that have {size} features together, as queries and the output have",
            received=f"projections of {shapes}",
            advice="leave key_dim and value_dim out",
        )
    apart = {each.label: each for each in _apart(layer, uses)}
    if len(set(shapes)) == 1:
        found = [joined("in_proj_weight", (3 * size, size), weights, turns=True)]
    else:
        found = [replace(apart[name], path=f"{name[0]}_proj_weight") for name in weights]
    if layer.use_bias:
        found.append(joined("in_proj_bias", (3 * size,), biases, turns=False))
    ends = [apart[name] for name in ("output_weight", "output_bias") if name in apart]
    return [*found, *(replace(e, path=f"out_proj.{e.label.removeprefix('output_')}") for e in ends)]


def _apart(layer: layers.MultiHeadAttention, uses: Uses) -> list[Variable]:
    """Each array by itself."""
    return [StoredArray(name, order=across).variable(layer, name, name) for name in layer.params]


def _expect_plain(d: DescribedLayer) -> dict[str, Any]:
    """Query, value and key in this order, as ours."""
    if d.config.get("attention_axes") != [1]:
        d.expect(attention_axes=None)
    d.taken.add("use_causal_mask")
    return {
        "causal": bool(d.call.get("use_causal_mask", False)),
        "mask": "boolean" if d.masked else None,
    }


ATTENTION = (
    LayerCodec(
        layers.MultiHeadAttention,
        Arrays(keras_arrays(lambda layer: [*_rows(layer)]), _torch, _apart),
        {
            "MultiHeadAttention": KerasClass(
                {
                    "num_heads": None,
                    "key_dim": None,
                    "value_dim": None,
                    "dropout": float,
                    "use_bias": bool,
                },
                {"W_specs": ("kernel", {}), "b_specs": ("bias", {})},
                {"output_shape": None, "use_gate": False},
                _expect_plain,
                masked=True,
                fills=True,
            )
        },
        lambda layer: "GroupedQueryAttention" if layer.num_kv_heads else "MultiHeadAttention",
    ),
)
