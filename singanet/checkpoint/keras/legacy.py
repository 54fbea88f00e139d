"""Legacy ``.h5`` files: layers by name, arrays by the order that an attribute gives."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from singanet.checkpoint.hdf5.keras_marks import weights_group
from singanet.checkpoint.hdf5.texts import Texts
from singanet.checkpoint.keras.layer import LayerDescription, Variable
from singanet.checkpoint.keras.table import variables


def legacy_datasets(
    file: Any, layers: Sequence[LayerDescription], texts: Texts
) -> Iterator[tuple[str, LayerDescription, Variable]]:
    """The path of each variable of each layer: layers by name if all are there, else in order."""
    root = weights_group(file)
    start = "" if root.name == "/" else root.name.strip("/") + "/"
    there = {}
    for name in _texts(root, "layer_names", texts):
        names = _texts(root[name], "weight_names", texts) if name in root else []
        if names:
            there[name] = [f"{start}{name}/{each}" for each in names]
    if all(layer.name in there for layer in layers):
        pairs = [(layer, there[layer.name]) for layer in layers]
    else:
        pairs = list(zip(layers, there.values(), strict=False))
    for layer, paths in pairs:
        for variable, path in zip(variables(layer), paths, strict=False):
            yield path, layer, variable


def _texts(item: Any, name: str, texts: Texts) -> list[str]:
    """The texts in the attribute ``name``; a long list is in ``name0``, ``name1`` and so on."""
    import h5py

    keys = [name] if name in item.attrs else []
    while f"{name}{len(keys)}" in item.attrs and name not in keys:
        keys.append(f"{name}{len(keys)}")
    found: list[str] = []
    for key in keys:
        attribute = item.attrs.get_id(key)
        kind = attribute.get_type()
        # An empty list is written as numbers.
        if kind.get_class() != h5py.h5t.STRING:
            continue
        if kind.is_variable_str():
            found += texts.read(item, key, math.prod(attribute.shape or ()))
        else:
            found += [_text(each) for each in np.atleast_1d(item.attrs[key])]
    return found


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
