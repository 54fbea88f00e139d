"""Layers and losses of users' classes: which are recorded, and how they are rehearsed."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import numpy as np

from singanet.layers.layer import Layer
from singanet.loss.loss import Loss
from singanet.program.call import NotRecordableError
from singanet.program.recording.settings import with_inner
from singanet.types import Array

_Part = TypeVar("_Part", bound="Layer | Loss")


def is_own(part: Layer | Loss) -> bool:
    """Whether the layer or loss, and each inside it, is of a class of singanet's."""
    return all(is_ours(inner) for inner in with_inner(part))


def is_pure(layer: Layer) -> bool:
    """Whether the layer does the same at each call but for its arrays and draws.

    singanet's own do; a user's class says so by ``pure = True``.
    """
    return all(is_ours(part) or getattr(part, "pure", False) for part in with_inner(layer))


def is_ours(part: object) -> bool:
    """Whether the class of ``part`` is singanet's."""
    return type(part).__module__.partition(".")[0] == "singanet"


def stand_in(part: _Part) -> _Part:
    """What runs in the place of ``part`` while recording: a copy with the same parameters.

    So nothing that a user's class counts is counted twice. Raises `NotRecordableError` where it
    cannot be copied.
    """
    if is_own(part):
        return part
    inner = [params for one in with_inner(part) for params in getattr(one, "params", {}).values()]
    try:
        return copy.deepcopy(part, {id(param): param for param in inner})
    except Exception as error:
        raise NotRecordableError(f"{type(part).__name__} cannot be copied: {error}") from error


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
