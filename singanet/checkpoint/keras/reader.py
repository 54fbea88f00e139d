"""Reading Keras' weight files under our names, in our layouts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from singanet.checkpoint.entry import Entry
from singanet.checkpoint.hdf5.guard import hdf5_errors
from singanet.checkpoint.hdf5.keras_marks import is_legacy, weights_group
from singanet.checkpoint.hdf5.reader import Hdf5Reader
from singanet.checkpoint.hdf5.texts import Texts
from singanet.checkpoint.keras.groups import groups
from singanet.checkpoint.keras.layer import LayerDescription, Variable
from singanet.checkpoint.streaming import truncated
from singanet.types import Array

_ROOTS = ("layers/", "_layer_checkpoint_dependencies/")


class KerasReader(Hdf5Reader):
    """The arrays of ``layers`` in a ``.weights.h5`` or a legacy ``.h5``, whichever it is.

    What belongs to none of the layers keeps Keras' own name; the optimizer's arrays are left out.
    """

    format = "keras"

    def __init__(self, path: Path, layers: Sequence[LayerDescription] = ()) -> None:
        self._layers = list(layers)
        self.raw: dict[str, Entry] = {}
        self._parts: dict[str, tuple[str, Variable, int]] = {}
        super().__init__(path)

    def _list(self) -> None:
        super()._list()
        raw, self.entries = self.entries, {}
        left = dict(raw)
        with hdf5_errors(self.where):
            places = list(self._places(list(raw)))
        for dataset, layer, variable in places:
            if dataset not in raw:
                continue
            entry = left.pop(dataset)
            for index, suffix in enumerate(variable.parts):
                name = layer.full(suffix)
                shape = layer.shape(suffix) if variable.fits(entry.shape) else entry.shape
                self.entries[name] = Entry(name, shape, entry.dtype, entry.stored, entry.checksum)
                self._parts[name] = (dataset, variable, index)
        self.entries.update({name: entry for name, entry in left.items() if _is_weight(name)})
        self.raw = raw

    def _places(self, names: list[str]) -> Iterator[tuple[str, LayerDescription, Variable]]:
        """Where in the file each variable of each layer is looked for."""
        if is_legacy(self._file):
            texts = Texts(self._file, self._stream, self._size)
            yield from legacy_datasets(self._file, self._layers, texts)
            return
        root = next((root for root in _ROOTS if any(n.startswith(root) for n in names)), _ROOTS[0])
        for group, layer in zip(groups(self._layers), self._layers, strict=True):
            for variable in layer.variables:
                yield f"{root}{group}/{variable.path}", layer, variable

    def read_raw(self, dataset: str) -> Array:
        """The array at the path ``dataset`` as Keras keeps it. Errors: as for `read`."""
        if dataset not in self.raw:
            raise truncated(self.where, repr(dataset), "no such dataset")
        return super()._read(self.raw[dataset])

    def _read(self, entry: Entry) -> Array:
        if entry.name not in self._parts:
            return super()._read(entry)
        dataset, variable, index = self._parts[entry.name]
        array = super()._read(self.raw[dataset])
        if not variable.fits(array.shape):
            return array
        return np.ascontiguousarray(variable.split(array)[index])


def _is_weight(name: str) -> bool:
    """Whether a dataset without a place is a weight: not the optimizer's, nor a generator's."""
    parts = name.split("/")
    return parts[0] not in ("optimizer", "optimizer_weights", "metrics") and not any(
        "seed_generator" in part for part in parts
    )


def legacy_datasets(
    file: Any, layers: Sequence[LayerDescription], texts: Texts
) -> Iterator[tuple[str, LayerDescription, Variable]]:
    """The path of each variable of each layer: layers by name if all are there, else in order."""
    root = weights_group(file)
    start = "" if root.name == "/" else root.name.strip("/") + "/"
    there: dict[str, list[str]] = {}
    for name in _texts(root, "layer_names", texts):
        if name in there:
            raise ValueError(f"the layer {name[:60]!r} twice")
        there[name] = []
        names = _texts(root[name], "weight_names", texts) if name in root else []
        there[name] = [f"{start}{name}/{each}" for each in names]
    there = {name: paths for name, paths in there.items() if paths}
    if all(layer.name in there for layer in layers):
        pairs = [(layer, there[layer.name]) for layer in layers]
    else:
        pairs = list(zip(layers, there.values(), strict=False))
    for layer, paths in pairs:
        for variable, path in zip(layer.variables, paths, strict=False):
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
