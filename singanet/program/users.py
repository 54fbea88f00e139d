"""Layers of users' classes: which may be recorded, and how they are rehearsed."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from singanet.layers.layer import Layer
from singanet.program.settings import with_inner
from singanet.program.tape import NotRecordableError
from singanet.types import Array


def is_own(layer: Layer) -> bool:
    """Whether the layer, and each inside it, is of a class of singanet's."""
    return all(_is_own(part) for part in with_inner(layer))


def is_pure(layer: Layer) -> bool:
    """Whether the layer does the same at each call but for its arrays and draws.

    singanet's own do; a user's class says so by ``pure = True``.
    """
    return all(_is_own(part) or getattr(part, "pure", False) for part in with_inner(layer))


def _is_own(part: object) -> bool:
    return type(part).__module__.partition(".")[0] == "singanet"


def stand_in(layer: Layer) -> Layer:
    """What runs in the place of ``layer`` while recording: a copy with the same parameters.

    So nothing that the layer counts is counted twice. Raises `NotRecordableError` where it cannot
    be copied.
    """
    if is_own(layer):
        return layer
    shared = {id(p): p for part in with_inner(layer) for p in getattr(part, "params", {}).values()}
    try:
        return copy.deepcopy(layer, dict(shared))
    except Exception as error:
        raise NotRecordableError(f"a layer that cannot be copied: {error}") from error


@contextmanager
def no_draws() -> Iterator[None]:
    """Undo at the end the draws from the generators that Python and NumPy have for all."""
    numpy, python = np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        np.random.set_state(numpy)
        random.setstate(python)


def arrays_of(layer: Layer) -> list[Array]:
    """The arrays among the layer's attributes, also in lists, tuples and dicts."""
    found: list[Array] = []
    for part in with_inner(layer):
        for value in vars(part).values():
            values = value.values() if isinstance(value, dict) else [value]
            for item in values:
                items = item if isinstance(item, (list, tuple)) else [item]
                found += [array for array in items if isinstance(array, np.ndarray)]
    return found
