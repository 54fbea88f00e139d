"""The arrays of attention in files of Keras and PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from singanet import layers
from singanet.checkpoint.keras.layer import Variable
from singanet.codecs.arrays import Arrays, StoredArray, across, joined, keras_arrays
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


def _keras(layer: layers.MultiHeadAttention) -> list[StoredArray]:
    if _adds(layer) or _bias_count(layer) not in (0, 4):
        raise ArgumentError(
            f"layer {layer.name!r}, as an attention of Keras",
            expected="one with all biases or none, without a norm and relative positions",
            received=repr(layer),
            advice="save in another format: safetensors, hdf5, npz",
        )
    return [*_rows(layer)]


def _torch(layer: layers.MultiHeadAttention, uses: Uses) -> list[Variable]:
    """The arrays of PyTorch's MultiheadAttention, where it can be one, else of separate modules.

    It has in_proj_weight of query, key and value, where all three read the same number of features.
    The modules are called as in published decoders: q_proj, k_proj, v_proj, o_proj, q_norm, k_norm.
    """
    weights, biases = ([f"{part}_{what}" for part in _PARTS] for what in ("weight", "bias"))
    shapes = [layer.params[suffix].shape for suffix in weights]
    size = layer.params["output_weight"].shape[1]
    apart = {each.label: each for each in _apart(layer, uses)}
    plain = all(out == size for _, out in shapes) and shapes[0][0] == size
    biased = _bias_count(layer)
    if not plain or biased not in (0, 4) or _adds(layer):
        return [replace(each, path=_in_modules(name)) for name, each in apart.items()]
    if len(set(shapes)) == 1:
        found = [joined("in_proj_weight", (3 * size, size), weights, turns=True)]
    else:
        found = [replace(apart[name], path=f"{name[0]}_proj_weight") for name in weights]
    if biased:
        found.append(joined("in_proj_bias", (3 * size,), biases, turns=False))
    ends = [apart[name] for name in ("output_weight", "output_bias") if name in apart]
    return [*found, *(replace(e, path=f"out_proj.{e.label.removeprefix('output_')}") for e in ends)]


def _adds(layer: layers.MultiHeadAttention) -> bool:
    """Whether it has parameters that neither Keras' nor PyTorch's attention has."""
    return layer.norm is not None or layer.relative is not None


def _bias_count(layer: layers.MultiHeadAttention) -> int:
    return sum(name.endswith("_bias") for name in layer.params)


def _in_modules(suffix: str) -> str:
    """Where the parameter ``suffix`` is in modules of their own."""
    part, _, what = suffix.partition("_")
    if part == "relative":
        return "relative_attention_bias.weight"
    return f"{part[0]}_norm.weight" if what == "gamma" else f"{part[0]}_proj.{what}"


def _apart(layer: layers.MultiHeadAttention, uses: Uses) -> list[Variable]:
    """Each array by itself."""
    found = []
    for name in layer.params:
        row = StoredArray(name) if name == "relative_weight" else StoredArray(name, order=across)
        found.append(row.variable(layer, name, name))
    return found


HEADS = Arrays(keras_arrays(_keras), _torch, _apart)
