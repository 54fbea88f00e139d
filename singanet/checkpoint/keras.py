"""Keras' weight files, read and written, with optimizer slots."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from singanet.checkpoint.entry import Entry, Source, State, sources_of, truncated
from singanet.checkpoint.hdf5 import Hdf5Reader, write_datasets
from singanet.checkpoint.hdf5_guard import Texts, hdf5_errors, is_legacy, weights_group
from singanet.checkpoint.layer_arrays import LayerDescription, Variable
from singanet.errors import ArgumentError, FileFormatError, one_of
from singanet.types import Array


def groups(layers: Sequence[LayerDescription]) -> list[str]:
    """Return Keras' group of each layer: its ``place``, or by its class."""
    found = iter(numbered([layer.kind for layer in layers if not layer.place]))
    return [layer.place or next(found) for layer in layers]


def numbered(classes: Sequence[str]) -> list[str]:
    """Return the groups of layers of these classes: snake case, numbered from the second on."""
    counts: dict[str, int] = {}
    found = []
    for name in map(snake_case, classes):
        count = counts[name] = counts.get(name, -1) + 1
        found.append(f"{name}_{count}" if count else name)
    return found


def snake_case(name: str) -> str:
    """Convert a name as Keras does: BatchNormalization → batch_normalization, PReLU → p_re_lu."""
    name = re.sub(r"(.)([A-Z][a-z0-9]+)", r"\1_\2", re.sub(r"\W+", "", name))
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()


_ROOTS = ("layers/", "_layer_checkpoint_dependencies/")


class KerasReader(Hdf5Reader):
    """A reader of the arrays of ``layers`` in a ``.weights.h5`` or legacy ``.h5``.

    Arrays of no layer keep Keras' names; the optimizer's arrays are not listed.
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
        """Yield the path in the file of each variable of each layer."""
        if is_legacy(self._file):
            texts = Texts(self._file, self._stream, self._size)
            yield from legacy_datasets(self._file, self._layers, texts)
            return
        root = next((root for root in _ROOTS if any(n.startswith(root) for n in names)), _ROOTS[0])
        for group, layer in zip(groups(self._layers), self._layers, strict=True):
            for variable in layer.variables:
                yield f"{root}{group}/{variable.path}", layer, variable

    def read_raw(self, dataset: str) -> Array:
        """Return the array at the path ``dataset`` in Keras' layout. Errors: as for `read`."""
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
    """Return whether an unplaced dataset is a weight, not of an optimizer or seed generator."""
    parts = name.split("/")
    return parts[0] not in ("optimizer", "optimizer_weights", "metrics") and not any(
        "seed_generator" in part for part in parts
    )


def legacy_datasets(
    file: Any, layers: Sequence[LayerDescription], texts: Texts
) -> Iterator[tuple[str, LayerDescription, Variable]]:
    """Yield the path of each variable: layers by name if all exist, otherwise in order."""
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
    """Return the strings of the attribute ``name``; long lists are in ``name0``, ``name1``, ..."""
    import h5py

    keys = [name] if name in item.attrs else []
    while f"{name}{len(keys)}" in item.attrs and name not in keys:
        keys.append(f"{name}{len(keys)}")
    found: list[str] = []
    for key in keys:
        attribute = item.attrs.get_id(key)
        kind = attribute.get_type()
        # An empty list has a numeric type.
        if kind.get_class() != h5py.h5t.STRING:
            continue
        if kind.is_variable_str():
            found += texts.read(item, key, math.prod(attribute.shape or ()))
        else:
            found += [_text(each) for each in np.atleast_1d(item.attrs[key])]
    return found


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


# Our slots in Keras' order, with the sign of Keras': its momentum is added to the weights. The
# slots of a group alternate for each variable; groups follow each other.
Slots = tuple[tuple[tuple[str, float], ...], ...]
_MOMENTUM: Slots = ((("momentum", -1.0),),)
_MOMENTS: Slots = ((("first", 1.0), ("second", 1.0)),)
_SLOTS: dict[str, Slots] = {
    "SGD": _MOMENTUM,
    "Nesterov": _MOMENTUM,
    **dict.fromkeys(("Adam", "AdamW", "AMSGrad"), (*_MOMENTS, (("largest", 1.0),))),
    "LAMB": _MOMENTS,
    "Adamax": ((("first", 1.0), ("norm", 1.0)),),
    "Adadelta": ((("square", 1.0), ("moved", 1.0)),),
    "RMSProp": ((("square", 1.0),), (("momentum", 1.0),), (("mean", 1.0),)),
    "AdaGrad": ((("square", 1.0),),),
    "Lion": ((("first", 1.0),),),
}
_PLACE = "optimizer/vars"


def slot_sources(layers: Sequence[LayerDescription], optimizer: Any, where: str) -> list[Source]:
    """Return the arrays of ``optimizer``, which has ``slots``, ``learning_rate``, ``state_dict``.

    Errors: `ArgumentError` if Keras has no such optimizer, or if it has not updated all parameters.
    """
    slots, state = _slots(optimizer, where), optimizer.state_dict()
    steps = [int(array) for key, array in state.items() if key.endswith("/step")]
    arrays: list[tuple[tuple[int, ...], str, Callable[[], Array]]] = [
        ((), "<i4", lambda: np.array(max(steps, default=0), np.int32))
    ]
    if isinstance(optimizer.learning_rate, (int, float)):
        arrays.append(((), "<f4", lambda: np.array(optimizer.learning_rate, np.float32)))
    for layer, variable, slot, sign in _in_order(slots, list(_trained(layers))):
        keys = [f"{layer.full(suffix)}/{slot}" for suffix in variable.parts]
        missing = [key for key in keys if key not in state]
        if missing:
            raise ArgumentError(
                where,
                expected="an optimizer that has updated every trained parameter",
                received=f"none of {missing[0]!r}",
                advice="train a step first, or save the weights alone",
            )
        found = [state[key] for key in keys]
        arrays.append((variable.shape, "", _joined(variable, layer, found, sign)))
    return [
        Source(f"{_PLACE}/{i}", shape, np.dtype(kind) if kind else np.dtype("<f4"), fetch)
        for i, (shape, kind, fetch) in enumerate(arrays)
    ]


def read_slots(
    reader: KerasReader, layers: Sequence[LayerDescription], optimizer: Any
) -> dict[str, Array]:
    """Read the state of ``optimizer`` for `load_state_dict`.

    Errors: `ArgumentError` as for `slot_sources`; `FileFormatError` for another optimizer's state.
    """
    slots = _slots(optimizer, reader.where)
    trained = list(_trained(layers))
    places = list(_in_order(slots, trained))
    there = sum(name.startswith(f"{_PLACE}/") for name in reader.raw)
    # Keras stores no learning rate with a schedule.
    first = there - len(places)
    if first not in (1, 2):
        raise FileFormatError(
            reader.where,
            expected=f"the state of {type(optimizer).__name__}: {len(places)} arrays and the step",
            received=f"{there} arrays in all",
            advice="load it with an optimizer of the saved class",
        )
    step = np.array(int(reader.read_raw(f"{_PLACE}/0")), np.int64)
    state: dict[str, Array] = {}
    for layer, variable in trained:
        state.update({f"{layer.full(suffix)}/step": step for suffix in variable.parts})
    for index, (layer, variable, slot, sign) in enumerate(places, first):
        names = [layer.full(suffix) for suffix in variable.parts]
        array = reader.read_raw(f"{_PLACE}/{index}")
        if not variable.fits(array.shape):
            raise FileFormatError(
                reader.where,
                expected=f"state of shape {variable.shape} for {names[0]!r}",
                received=f"shape {array.shape}",
                advice="load it into the net that was trained",
            )
        parts = variable.slot_split(array * sign)
        for name, part in zip(names, parts, strict=True):
            state[f"{name}/{slot}"] = np.ascontiguousarray(part)
    return state


def _in_order(
    slots: Slots, trained: Sequence[tuple[LayerDescription, Variable]]
) -> Iterator[tuple[LayerDescription, Variable, str, float]]:
    """Yield the layer, array, slot and sign in Keras' order."""
    for group in slots:
        for layer, variable in trained:
            for slot, sign in group:
                yield layer, variable, slot, sign


def _joined(
    variable: Variable, layer: LayerDescription, found: Sequence[Array], sign: float
) -> Callable[[], Array]:
    shapes = [layer.shape(suffix) for suffix in variable.parts]

    def fetch() -> Array:
        parts = [array.reshape(shape) for array, shape in zip(found, shapes, strict=True)]
        return np.asarray(variable.slot_join(*parts) * sign, np.float32)

    return fetch


def _trained(layers: Sequence[LayerDescription]) -> Iterator[tuple[LayerDescription, Variable]]:
    for layer in layers:
        for variable in layer.variables:
            if not layer.fixed.intersection(variable.parts):
                yield layer, variable


def _slots(optimizer: Any, where: str) -> Slots:
    kind = type(optimizer).__name__
    if kind not in _SLOTS:
        raise ArgumentError(
            where,
            expected=f"an optimizer with Keras' state: {one_of(_SLOTS)}",
            received=kind,
            advice="save whole trainings with ModelCheckpoint",
        )
    return tuple(
        tuple((slot, sign) for slot, sign in group if slot in optimizer.slots)
        for group in _SLOTS[kind]
    )


def write_keras(
    path: str | os.PathLike[str],
    state: State,
    layers: Sequence[LayerDescription],
    optimizer: Any = None,
) -> None:
    """Write a ``.weights.h5`` that Keras 3 loads into a model of the same layers in order.

    The state of ``optimizer`` is written too. Errors: `ArgumentError` if Keras has no such layer,
    parameter or optimizer; `FileAccessError`.
    """
    sources = _by_name(path, state, layers)
    found = []
    for group, layer in zip(groups(layers), layers, strict=True):
        for variable in layer.variables:
            name = f"layers/{group}/{variable.path}"
            found.append(_source(name, variable, layer, sources))
    if optimizer is not None:
        found += slot_sources(layers, optimizer, f"keras file {os.fspath(path)!r}")
    write_datasets(path, found, {}, {})


def write_keras_legacy(
    path: str | os.PathLike[str], state: State, layers: Sequence[LayerDescription]
) -> None:
    """Write a legacy ``.h5`` of weights, which Keras 2 and 3 load by position or by name.

    Errors: as for `write_keras`.
    """
    sources = _by_name(path, state, layers)
    found = []
    marks: dict[str, dict[str, object]] = {}
    for layer in layers:
        names = []
        for variable in layer.variables:
            names.append(f"{layer.name}/{variable.label}")
            found.append(_source(f"{layer.name}/{names[-1]}", variable, layer, sources))
        marks[layer.name] = {"weight_names": np.array(names, np.bytes_)}
    root = {
        "layer_names": np.array([layer.name.encode() for layer in layers], np.bytes_),
        "backend": np.bytes_("tensorflow"),
        # Any version from 2 on: Keras transposes arrays of version 1.
        "keras_version": np.bytes_("3.0.0"),
    }
    write_datasets(path, found, root, marks)


def _by_name(
    path: str | os.PathLike[str], state: State, layers: Sequence[LayerDescription]
) -> Mapping[str, Source]:
    where = f"keras file {os.fspath(path)!r}"
    sources = {source.name: source for source in sources_of(state, where)}
    placed = {name for layer in layers for name, _ in layer.params.values()}
    homeless = sorted(sources.keys() - placed) or sorted(placed - sources.keys())
    if homeless:
        raise ArgumentError(
            where,
            expected="every array as a parameter of a layer, and every parameter as an array",
            received=f"{homeless[0]!r}, only one of both",
            advice="save the state of the net itself",
        )
    return sources


def _source(
    name: str, variable: Variable, layer: LayerDescription, sources: Mapping[str, Source]
) -> Source:
    parts = [sources[layer.full(suffix)] for suffix in variable.parts]

    def fetch() -> Array:
        return np.ascontiguousarray(variable.join(*(part.array() for part in parts)))

    dtype = parts[0].dtype if parts else np.dtype("<i4")
    return Source(name, variable.shape, dtype, fetch)
