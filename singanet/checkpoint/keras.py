"""Keras' weight files, read and written, optimizers' slots among them."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from singanet.checkpoint.entry import Entry, Source, State, sources_of, truncated
from singanet.checkpoint.hdf5 import Hdf5Reader, write_datasets
from singanet.checkpoint.hdf5_guard import Texts, hdf5_errors, is_legacy, weights_group
from singanet.errors import ArgumentError, FileFormatError, one_of
from singanet.types import Array, Shape


@dataclass(frozen=True)
class LayerDescription:
    """A layer with parameters: its class there, its name, and name and shape of each by suffix.

    ``lay`` tells the arrays there, or why there are none; ``apart`` those that are one array of
    ours each, as files have them whose authors took joined ones apart. ``fixed`` are the suffixes
    that no optimizer trains. ``place`` is the group in a file of Keras', where it is known.
    """

    kind: str
    name: str
    params: Mapping[str, tuple[str, Shape]]
    lay: Callable[[], Sequence[Variable]]
    apart: Callable[[], Sequence[Variable]] = tuple
    fixed: frozenset[str] = frozenset()
    place: str = ""

    @cached_property
    def variables(self) -> Sequence[Variable]:
        """The arrays there, in order. Errors: `ArgumentError` where there is no such layer."""
        return self.lay()

    def single(self, suffix: str) -> Variable | None:
        """The array that is ``suffix`` alone; None where there is none such."""
        found = (each for each in self.apart() if tuple(each.parts) == (suffix,))
        return next(found, None)

    def full(self, suffix: str) -> str:
        """The name of the parameter ``suffix`` in the net."""
        return self.params[suffix][0]

    def shape(self, suffix: str) -> Shape:
        """The shape of the parameter ``suffix`` in the net."""
        return self.params[suffix][1]


@dataclass(frozen=True)
class Variable:
    """One array of a layer elsewhere: where it stands, and how ours become it and come from it.

    ``parts`` are our suffixes; ``join`` takes their arrays, ``split`` gives one for each. Where
    only the ``sum_of_parts`` counts, every part has the gradient of the sum.
    """

    path: str
    label: str
    shape: Shape
    parts: Sequence[str]
    join: Callable[..., Array]
    split: Callable[[Array], Sequence[Array]]
    sum_of_parts: bool = False
    turns: bool = False
    """Whether the axes stand in another order than ours."""

    def slot_join(self, *parts: Array) -> Array:
        """`join` for an optimizer's state."""
        return parts[0] if self.sum_of_parts else self.join(*parts)

    def slot_split(self, array: Array) -> Sequence[Array]:
        """`split` for an optimizer's state."""
        return [array] * len(self.parts) if self.sum_of_parts else self.split(array)

    def fits(self, shape: Shape) -> bool:
        """Whether an array of ``shape`` in a file can be this one."""
        if self.label == "alpha":
            # One slope a channel, with an axis of 1 for each that shares it.
            return math.prod(shape) == math.prod(self.shape)
        return shape == self.shape


def groups(layers: Sequence[LayerDescription]) -> list[str]:
    """Keras' group of each layer: where it is known to be, else by its class."""
    found = iter(numbered([layer.kind for layer in layers if not layer.place]))
    return [layer.place or next(found) for layer in layers]


def numbered(classes: Sequence[str]) -> list[str]:
    """The groups of layers of these classes: in snake case, numbered from the second on."""
    counts: dict[str, int] = {}
    found = []
    for name in map(snake_case, classes):
        count = counts[name] = counts.get(name, -1) + 1
        found.append(f"{name}_{count}" if count else name)
    return found


def snake_case(name: str) -> str:
    """As Keras does it: BatchNormalization → batch_normalization, PReLU → p_re_lu."""
    name = re.sub(r"(.)([A-Z][a-z0-9]+)", r"\1_\2", re.sub(r"\W+", "", name))
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()


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


# Our slots in the order of Keras', and the sign between them: its momentum is what is added.
# Those of a group stand together for each variable; the next group begins after the last one.
Slots = tuple[tuple[tuple[str, float], ...], ...]
_MOMENTUM: Slots = ((("momentum", -1.0),),)
_MOMENTS: Slots = ((("first", 1.0), ("second", 1.0)),)
_SLOTS: dict[str, Slots] = {
    "SGD": _MOMENTUM,
    "Nesterov": _MOMENTUM,
    "Adam": _MOMENTS,
    "AdamW": _MOMENTS,
    "LAMB": _MOMENTS,
    "AMSGrad": (*_MOMENTS, (("largest", 1.0),)),
    "Adamax": ((("first", 1.0), ("norm", 1.0)),),
    "Adadelta": ((("square", 1.0), ("moved", 1.0)),),
    "RMSProp": ((("square", 1.0),), (("momentum", 1.0),), (("mean", 1.0),)),
    "AdaGrad": ((("square", 1.0),),),
    "Lion": ((("first", 1.0),),),
}
_PLACE = "optimizer/vars"


def slot_sources(layers: Sequence[LayerDescription], optimizer: Any, where: str) -> list[Source]:
    """The arrays of ``optimizer``, anything with ``slots``, ``learning_rate``, ``state_dict``.

    Errors: `ArgumentError` for one that Keras lacks, or that has not updated every parameter.
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
    """The state for `load_state_dict` of ``optimizer``, from the file of ``reader``.

    Errors: `ArgumentError` as for `slot_sources`; `FileFormatError` for the state of another kind
    of optimizer.
    """
    slots = _slots(optimizer, reader.where)
    trained = list(_trained(layers))
    places = list(_in_order(slots, trained))
    there = sum(name.startswith(f"{_PLACE}/") for name in reader.raw)
    # With a schedule Keras stores no rate.
    first = there - len(places)
    if first not in (1, 2):
        raise FileFormatError(
            reader.where,
            expected=f"the state of {type(optimizer).__name__}: {len(places)} arrays and the step",
            received=f"{there} arrays in all",
            advice="load it with an optimizer of the kind that was saved",
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
                advice="load it into the net whose training it was",
            )
        parts = variable.slot_split(array * sign)
        for name, part in zip(names, parts, strict=True):
            state[f"{name}/{slot}"] = np.ascontiguousarray(part)
    return state


def _in_order(
    slots: Slots, trained: Sequence[tuple[LayerDescription, Variable]]
) -> Iterator[tuple[LayerDescription, Variable, str, float]]:
    """Whose array, which slot and its sign, as Keras numbers them."""
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
            expected=f"an optimizer that Keras keeps alike: {one_of(_SLOTS)}",
            received=kind,
            advice="keep whole trainings with ModelCheckpoint",
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

    The state of ``optimizer`` is written too. Errors: `ArgumentError` for a layer, parameter or
    optimizer that Keras has no place for; `FileAccessError`.
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
        # Any version from 2 on: arrays of version 1 would be turned round.
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
            received=f"{homeless[0]!r}, which is only one of the two",
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
