"""An optimizer's state as Keras keeps it beside the weights: by number, in the variables' order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from singanet.checkpoint.entry import Source
from singanet.checkpoint.keras.layer import LayerDescription, Variable
from singanet.checkpoint.keras.reader import KerasReader
from singanet.checkpoint.keras.table import variables
from singanet.errors import ArgumentError, FileFormatError, one_of
from singanet.types import Array

# Our slots in the order of Keras' and the sign between them: its momentum is what is added.
_SLOTS: dict[str, tuple[tuple[str, float], ...]] = {
    "SGD": (("momentum", -1.0),),
    "Adam": (("first", 1.0), ("second", 1.0)),
    "AdamW": (("first", 1.0), ("second", 1.0)),
    "RMSProp": (("square", 1.0),),
    "AdaGrad": (("square", 1.0),),
    "Lion": (("first", 1.0),),
}
_PLACE = "optimizer/vars"


def slot_sources(layers: Sequence[LayerDescription], optimizer: Any, where: str) -> list[Source]:
    """The arrays of ``optimizer``, anything with ``slots``, ``lr`` and ``state_dict``.

    Errors: `ArgumentError` for one that Keras lacks, or that has not updated every parameter.
    """
    slots, state = _slots(optimizer, where), optimizer.state_dict()
    steps = [int(array) for key, array in state.items() if key.endswith("/step")]
    arrays: list[tuple[tuple[int, ...], str, Callable[[], Array]]] = [
        ((), "<i4", lambda: np.array(max(steps, default=0), np.int32))
    ]
    if isinstance(optimizer.lr, (int, float)):
        arrays.append(((), "<f4", lambda: np.array(optimizer.lr, np.float32)))
    for layer, variable in _trained(layers):
        names = [layer.full(suffix) for suffix in variable.parts]
        for slot, sign in slots:
            keys = [f"{name}/{slot}" for name in names]
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
    """What `load_state_dict` of ``optimizer`` takes, from the file of ``reader``.

    Errors: `ArgumentError` as for `slot_sources`; `FileFormatError` for the state of another kind
    of optimizer.
    """
    slots = _slots(optimizer, reader.where)
    trained = list(_trained(layers))
    wanted = len(trained) * len(slots)
    there = sum(name.startswith(f"{_PLACE}/") for name in reader.raw)
    # With a schedule Keras stores no rate.
    first = there - wanted
    if first not in (1, 2):
        raise FileFormatError(
            reader.where,
            expected=f"the state of {type(optimizer).__name__}: {wanted} arrays after the step",
            received=f"{there} arrays in all",
            advice="load it with an optimizer of the kind that was saved",
        )
    step = np.array(int(reader.read_raw(f"{_PLACE}/0")), np.int64)
    state: dict[str, Array] = {}
    index = first
    for layer, variable in trained:
        names = [layer.full(suffix) for suffix in variable.parts]
        state.update({f"{name}/step": step for name in names})
        for slot, sign in slots:
            array = reader.read_raw(f"{_PLACE}/{index}")
            index += 1
            if not variable.fits(array.shape):
                raise FileFormatError(
                    reader.where,
                    expected=f"state of shape {variable.shape} for {names[0]!r}",
                    received=f"shape {array.shape}",
                    advice="load it into the net whose training it was",
                )
            parts = variable.slot_split(array * sign)
            state.update(
                {
                    f"{name}/{slot}": np.ascontiguousarray(part)
                    for name, part in zip(names, parts, strict=True)
                }
            )
    return state


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
        for variable in variables(layer):
            if not layer.fixed.intersection(variable.parts):
                yield layer, variable


def _slots(optimizer: Any, where: str) -> tuple[tuple[str, float], ...]:
    kind = type(optimizer).__name__
    if kind not in _SLOTS:
        raise ArgumentError(
            where,
            expected=f"an optimizer that Keras keeps alike: {one_of(_SLOTS)}",
            received=kind,
            advice="keep whole trainings with ModelCheckpoint",
        )
    named: Mapping[str, float] = dict(_SLOTS[kind])
    return tuple((slot, named[slot]) for slot in named if slot in optimizer.slots)
