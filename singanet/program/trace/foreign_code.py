"""Layers and losses of users' classes: which are recorded, and how they are rehearsed."""

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
    """Whether the layer, loss, ... and each inside it, is of a class of singanet's and as that."""
    return all(map(is_as_shipped, with_inner(part)))


def is_pure(layer: Any) -> bool:
    """Whether the layer does the same at each call but for its arrays and draws.

    singanet's own do; a user's class says so by ``pure = True``.
    """
    return all(
        is_as_shipped(part) or (getattr(part, "pure", False) and not is_patched(part))
        for part in with_inner(layer)
    )


def expect_unpatched(part: Any) -> None:
    """Refuse methods of an instance: nobody knows what another call of them would do.

    Raises `NotRecordableError`.
    """
    for inner in with_inner(part):
        if is_patched(inner):
            name = getattr(inner, "name", type(inner).__name__)
            raise NotRecordableError(f"{name!r}, of which a method was replaced")


def stand_in(part: _Part) -> _Part:
    """The copy that runs in the place of ``part`` while recording.

    So nothing that a user's class counts is counted twice, nor any parameter moved that it moves
    by itself. Raises `NotRecordableError` where it cannot be copied.
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
        # Functions are not copied: what they count would be counted.
        for name in patched_methods(one):
            delattr(one, name)
    return made


@contextmanager
def no_draws(part: Layer | Loss) -> Iterator[None]:
    """Undo at the end what is drawn from generators that a copy of ``part`` shares with it.

    These are the global generators of Python and NumPy, and generators that its methods know as
    variables of their module or of an enclosing function.
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

    Also those in lists, tuples and dicts.
    """
    found: list[Any] = []
    for part in with_inner(layer):
        for value in vars(part).values():
            values = value.values() if isinstance(value, dict) else [value]
            for item in values:
                items = item if isinstance(item, (list, tuple)) else [item]
                found += [array for array in items if isinstance(array, (np.ndarray, kind))]
    return found
