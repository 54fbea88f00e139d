"""Legacy ``.h5`` files: layers by name, arrays by the order that an attribute gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from singanet.checkpoint.hdf5.keras_marks import weights_group
from singanet.checkpoint.keras.layer import LayerDescription, Variable
from singanet.checkpoint.keras.table import variables


def legacy_datasets(
    file: Any, layers: Sequence[LayerDescription], prepare: Callable[[], None]
) -> Iterator[tuple[str, LayerDescription, Variable]]:
    """The path of each variable of each layer: layers by name if all are there, else in order.

    ``prepare`` is called before texts of variable length are read.
    """
    root = weights_group(file)
    start = "" if root.name == "/" else root.name.strip("/") + "/"
    there = {}
    for name in _texts(root, "layer_names", prepare):
        names = _texts(root[name], "weight_names", prepare) if name in root else []
        if names:
            there[name] = [f"{start}{name}/{each}" for each in names]
    if all(layer.name in there for layer in layers):
        pairs = [(layer, there[layer.name]) for layer in layers]
    else:
        pairs = list(zip(layers, there.values(), strict=False))
    for layer, paths in pairs:
        for variable, path in zip(variables(layer), paths, strict=False):
            yield path, layer, variable


def _texts(item: Any, name: str, prepare: Callable[[], None]) -> list[str]:
    """The texts in the attribute ``name``; a long list is in ``name0``, ``name1`` and so on."""
    import h5py

    keys = [name] if name in item.attrs else []
    while f"{name}{len(keys)}" in item.attrs and name not in keys:
        keys.append(f"{name}{len(keys)}")
    found: list[str] = []
    for key in keys:
        kind = item.attrs.get_id(key).get_type()
        # An empty list is written as numbers.
        if kind.get_class() == h5py.h5t.STRING:
            if kind.is_variable_str():
                prepare()
            found += [_text(each) for each in np.atleast_1d(item.attrs[key])]
    return found


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
