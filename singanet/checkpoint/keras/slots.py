"""An optimizer's state as Keras keeps it beside the weights: by number, in the variables' order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from singanet.checkpoint.entry import Source
from singanet.checkpoint.keras.layer import LayerDescription, Variable
from singanet.checkpoint.keras.reader import KerasReader
from singanet.errors import ArgumentError, FileFormatError, one_of
from singanet.types import Array

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
