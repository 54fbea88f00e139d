"""The functions of a device's array module that do what recorded functions of NumPy do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from singanet.program.calls import gather, scatter, store, take_rows
from singanet.program.ir import NotRecordableError
from singanet.types import Array

_REDUCTIONS = {
    np.add: "sum",
    np.multiply: "prod",
    np.maximum: "amax",
    np.minimum: "amin",
    np.logical_or: "any",
    np.logical_and: "all",
}
_FILL_NOTHING = frozenset((np.einsum,))
"""Functions that fill no array that is given, but make one."""

_TAKEN = {
    "copyto": {"casting", "where"},
    "sum": {"axis", "dtype", "out", "keepdims"},
    "prod": {"axis", "dtype", "out", "keepdims"},
    "amax": {"axis", "out", "keepdims"},
    "amin": {"axis", "out", "keepdims"},
    "any": {"axis", "out", "keepdims"},
    "all": {"axis", "out", "keepdims"},
}
"""What functions are given by name at most; element-wise ones take ``out`` alone."""


_USUAL = ("where", True), ("subok", False), ("keepdims", False), ("dtype", None), ("initial", None)

Lowered = tuple[Callable[..., Any], dict[str, Any]]
"""A function of the device's module, and what it is given by name."""


def on_device(xp: Any, function: Any, named: Mapping[str, Any]) -> Lowered | None:
    """The form of NumPy's ``function``, given ``named``, over ``xp``; None for any other function.

    Raises `NotRecordableError` for what the module has not.
    """
    given = {key: value for key, value in named.items() if not _is_usual(key, value)}
    if function in (gather, scatter):
        return function, given
    if function is store:
        return _storing(xp), given
    if function is take_rows:
        return _taking(xp), given
    owner = getattr(function, "__self__", None)
    if isinstance(owner, np.ufunc):
        return _method(xp, owner, function, given)
    if isinstance(function, np.ufunc):
        return _found(xp, function.__name__, given, {"out", "dtype", "casting"}), given
    if function in _FILL_NOTHING:
        return _filling(getattr(xp, function.__name__)), given
    if getattr(function, "__module__", "").partition(".")[0] == "numpy":
        return _found(xp, function.__name__, given, _TAKEN.get(function.__name__)), given
    return None


def returning(xp: Any, function: Any, named: Mapping[str, Any]) -> Lowered:
    """As `on_device`, in the form that returns what it makes.

    Raises `NotRecordableError` for what the module has not.
    """
    given = {key: value for key, value in named.items() if not _is_usual(key, value)}
    owner = getattr(function, "__self__", None)
    if not isinstance(owner, np.ufunc):
        return _found(xp, function.__name__, given, None), given
    if function.__name__ != "reduce" or owner not in _REDUCTIONS:
        raise NotRecordableError(f"{owner.__name__}.{function.__name__} on a device")
    return partial(_reduced, _found(xp, _REDUCTIONS[owner], given, None)), given


def _reduced(function: Callable[..., Any], array: Array, axis: Any = 0, **named: Any) -> Any:
    return function(array, axis, **named)


def _is_usual(key: str, value: Any) -> bool:
    """Whether it is as if the argument were not given."""
    return any(key == name and value is usual for name, usual in _USUAL)


def _method(xp: Any, owner: np.ufunc, method: Any, given: dict[str, Any]) -> Lowered:
    name = method.__name__
    if name == "reduce" and owner in _REDUCTIONS:
        reduced = _REDUCTIONS[owner]
        if reduced in ("any", "all") and np.dtype(given.get("dtype", bool)) == np.bool_:
            # They make nothing else.
            given.pop("dtype", None)
        return _reducing(_found(xp, reduced, given, _TAKEN[reduced])), given
    if name == "at":
        return getattr(xp, owner.__name__).at, given
    raise NotRecordableError(f"{owner.__name__}.{name} on a device")


def _found(
    xp: Any, name: str, given: Mapping[str, Any], taken: set[str] | None
) -> Callable[..., object]:
    found: Callable[..., object] | None = getattr(xp, name, None)
    if found is None or (taken is not None and not given.keys() <= taken):
        raise NotRecordableError(f"{name} with {', '.join(given)} on a device")
    return found


def _reducing(function: Callable[..., object]) -> Callable[..., object]:
    """A reduction as NumPy's methods: along the first axis unless it is told."""

    def reduce(array: Array, axis: Any = 0, dtype: Any = None, **named: Any) -> None:
        function(array, axis, **named) if dtype is None else function(array, axis, dtype, **named)

    return reduce


def _filling(function: Callable[..., Any]) -> Callable[..., object]:
    def fill(*given: Any, out: Array, **named: Any) -> None:
        out[...] = function(*given, **named)

    return fill


def _storing(xp: Any) -> Callable[..., object]:
    def keep(out: Array, function: Any, given: Any, named: Any) -> None:
        out[...] = getattr(xp, function.__name__)(*given, **named)

    return keep


def _taking(xp: Any) -> Callable[..., object]:
    def take(table: Array, indices: Array, out: Array) -> None:
        xp.take(table, indices, 0, out)

    return take
