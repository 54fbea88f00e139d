"""Layers and losses of users' classes: whether they are recorded, and their rehearsal."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from contextlib import contextmanager
from types import CellType, FunctionType
from typing import Any, TypeVar

import numpy as np

from singanet.base.described import with_inner
from singanet.base.elsewhere import is_library
from singanet.layers.layer import Layer
from singanet.loss.loss import Loss
from singanet.program.guard import is_as_shipped, is_patched, patched_methods
from singanet.program.ir import NotRecordableError

_Part = TypeVar("_Part", bound="Layer | Loss")


def is_own(part: Any) -> bool:
    """Whether the layer, loss, ... and each inner part are singanet's and unmodified."""
    return all(map(is_as_shipped, with_inner(part)))


def is_pure(layer: Any) -> bool:
    """Whether each call of the layer depends only on its arrays and draws.

    This holds for singanet's own layers; a user's class declares it by ``pure = True``.
    """
    return all(
        is_as_shipped(part) or (getattr(part, "pure", False) and not is_patched(part))
        for part in with_inner(layer)
    )


def expect_unpatched(part: Any) -> None:
    """Refuse methods of an instance, as their effects are unknown.

    Raises `NotRecordableError`.
    """
    for inner in with_inner(part):
        if is_patched(inner):
            name = getattr(inner, "name", type(inner).__name__)
            raise NotRecordableError(f"{name!r}, of which a method was replaced")


def stand_in(part: _Part) -> _Part:
    """The copy that replaces ``part`` while recording.

    So a user's class counts nothing twice, and moves no parameter during recording. Raises
    `NotRecordableError` if it cannot be copied.
    """
    if is_own(part):
        return part
    kept = with_inner(part) if is_pure(part) else ()
    inner = [params for one in kept for params in getattr(one, "params", {}).values()]
    try:
        made = copy.deepcopy(part, {id(param): param for param in inner})
    except Exception as error:
        raise NotRecordableError(f"{type(part).__name__} cannot be copied: {error}") from error
    for one in with_inner(made):
        # Replaced methods are not copied, as they may count calls.
        for name in patched_methods(one):
            delattr(one, name)
    return made


@contextmanager
def no_draws(part: Layer | Loss) -> Iterator[None]:
    """Undo at the end the draws from generators that a copy of ``part`` shares with it.

    These are the global generators of Python and NumPy, and generators in the module or an
    enclosing function of its methods.
    """
    numpy, python = np.random.get_state(), random.getstate()
    seen = _generators(part)
    states = [each.bit_generator.state for each in seen]
    try:
        yield
    finally:
        np.random.set_state(numpy)
        random.setstate(python)
        for each, state in zip(seen, states, strict=True):
            each.bit_generator.state = state


def _generators(part: Layer | Loss) -> list[np.random.Generator]:
    found: dict[int, np.random.Generator] = {}
    kinds = {base for inner in with_inner(part) for base in type(inner).__mro__}
    for kind in kinds:
        for method in () if is_library(kind) else vars(kind).values():
            if not isinstance(method, FunctionType):
                continue
            around = [cell.cell_contents for cell in method.__closure__ or () if _is_filled(cell)]
            for value in (*method.__globals__.values(), *around):
                if isinstance(value, np.random.Generator):
                    found[id(value)] = value
    return list(found.values())


def _is_filled(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def arrays_of(layer: Layer, kind: type) -> list[Any]:
    """NumPy's and the device's ``kind`` of arrays among the layer's attributes.

    Lists, tuples and dicts are included.
    """
    found: list[Any] = []
    for part in with_inner(layer):
        for value in vars(part).values():
            values = value.values() if isinstance(value, dict) else [value]
            for item in values:
                items = item if isinstance(item, (list, tuple)) else [item]
                found += [array for array in items if isinstance(array, (np.ndarray, kind))]
    return found
