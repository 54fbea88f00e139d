"""Writing Keras' weight files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from singanet.checkpoint.entry import Source, State, sources_of
from singanet.checkpoint.hdf5.writer import write_datasets
from singanet.checkpoint.keras.groups import groups
from singanet.checkpoint.keras.layer import LayerDescription, Variable
from singanet.checkpoint.keras.slots import slot_sources
from singanet.errors import ArgumentError
from singanet.types import Array


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
