"""Hyper-parameters that depend on the step, and the scale of gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeGuard, cast, runtime_checkable

import numpy as np

from singanet.base.arguments import checked_number
from singanet.errors import DataError, one_of
from singanet.ops import ops_for
from singanet.types import Array

Hyper: TypeAlias = float | Callable[[int], float]
"""A number, or a callable from the step (0 at a parameter's first update) to a number."""


@runtime_checkable
class Learning(Protocol):
    """A schedule with state to save, since its values depend on more than the step."""

    def state_dict(self) -> Mapping[str, float]:
        """Return the state as numbers."""

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Load the state of another schedule."""


def checked(where: str, name: str, value: Hyper, low: float = 0.0, high: float = math.inf) -> Hyper:
    """Return ``value``, if it is a schedule or a number in [low, high), or raise an error."""
    if callable(value):
        return value
    return checked_number(
        f"{where}({name}=)",
        value,
        f"a number in [{low:g}, {high:g}) or a schedule",
        lambda number: low <= number < high,
        f"give {name} a finite number in that range",
    )


def at(value: Hyper, step: int) -> float:
    """Return the value of the hyper-parameter at ``step``."""
    if isinstance(value, float):
        return value
    return float(value(step)) if callable(value) else float(value)


def _learns(value: Hyper) -> TypeGuard[Learning]:
    # isinstance with a protocol takes 60 µs for a number.
    return callable(value) and isinstance(value, Learning)


def dump_hypers(
    owner: object, hypers: Sequence[str], given: Mapping[str, Hyper | None]
) -> dict[str, Array]:
    """Return the state of schedules among the attributes ``hypers``, and assigned numbers.

    The keys are ``*/hyper.key`` and ``*/hyper``. A number counts as assigned if it differs from
    the constructor's argument in ``given``.
    """
    learnt = {
        f"*/{hyper}.{key}": np.array(number, np.float64)
        for hyper in hypers
        if _learns(schedule := getattr(owner, hyper))
        for key, number in schedule.state_dict().items()
    }
    return learnt | {
        f"*/{hyper}": np.array(value, np.float64)
        for hyper, value in _assigned(owner, hypers, given).items()
    }


def load_hypers(
    where: str,
    owner: object,
    hypers: Sequence[str],
    given: Mapping[str, Hyper | None],
    saved: Mapping[str, Array],
) -> None:
    """Set the attributes from the entries of `dump_hypers`; other assigned numbers are reset.

    Errors: `DataError`, before anything changes, if the schedules differ.
    """
    numbers = {hyper: saved[key] for hyper in hypers if (key := f"*/{hyper}") in saved}
    since = {hyper: given[hyper] for hyper in _assigned(owner, hypers, given)}
    to_set = {**since, **{hyper: _number(where, hyper, a) for hyper, a in numbers.items()}}
    values = {hyper: to_set.get(hyper, getattr(owner, hyper)) for hyper in hypers}
    schedules = {hyper: value for hyper, value in values.items() if _learns(value)}
    expected = sorted(
        f"*/{h}.{key}" for h, value in schedules.items() for key in value.state_dict()
    )
    learnt = sorted(key for key in saved if key.removeprefix("*/") not in numbers)
    if learnt != expected:
        raise DataError(
            f"{where}.load_state_dict",
            expected=f"schedule state {one_of(expected) or 'for no schedule'}",
            received=one_of(learnt) or "none",
            advice="construct the optimizer with the same schedules before loading",
        )
    for hyper, value in to_set.items():
        setattr(owner, hyper, value)
    for hyper, schedule in schedules.items():
        start = f"*/{hyper}."
        schedule.load_state_dict(
            {k[len(start) :]: float(v) for k, v in saved.items() if k.startswith(start)}
        )


def _assigned(
    owner: object, hypers: Sequence[str], given: Mapping[str, Hyper | None]
) -> dict[str, float]:
    """Return the numbers among the attributes that differ from ``given``."""
    now = {hyper: getattr(owner, hyper) for hyper in hypers if hyper in given}
    return {
        hyper: float(value)
        for hyper, value in now.items()
        if isinstance(value, (int, float, np.number)) and value != given[hyper]
    }


def _number(where: str, hyper: str, saved: Array) -> float:
    array = np.asarray(saved)
    if array.size != 1 or array.dtype.kind not in "fiu":
        raise DataError(
            f"{where}.load_state_dict",
            expected=f"a number for {hyper!r}",
            received=f"{array.dtype} of shape {array.shape}",
            advice="load a complete state_dict of the same kind of optimizer",
        )
    return float(array.reshape(-1)[0])


def learnt_by(owner: object, hypers: Sequence[str]) -> dict[str, tuple[Learning, Any]]:
    """Return the schedules among the attributes ``hypers``, each with its state."""
    found = {hyper: getattr(owner, hyper) for hyper in hypers}
    return {k: (each, dict(each.state_dict())) for k, each in found.items() if _learns(each)}


def begin_schedules(
    owner: object, hypers: Sequence[str], learnt: Mapping[str, tuple[Learning, Any]]
) -> None:
    """Load the states of `learnt_by` into the schedules of ``owner``, or restart these.

    A user's schedule restarts if it has a `restart`.
    """
    for hyper in hypers:
        schedule: Any = getattr(owner, hyper)
        if not _learns(schedule):
            continue
        known, state = learnt.get(hyper, (None, {}))
        if known is schedule:
            schedule.load_state_dict(state)
        elif hasattr(schedule, "restart"):
            schedule.restart()


Scale: TypeAlias = float | Array


def is_one(scale: Scale) -> bool:
    """Whether ``scale`` is the number 1; the value of an array is not read."""
    return isinstance(scale, (int, float)) and scale == 1


def in_type(xp: Any, number: Any, dtype: Any) -> Any:
    """Convert ``number`` to ``dtype``, if it has a dtype, so that it does not widen arrays."""
    return xp.asarray(number, dtype) if hasattr(number, "dtype") else number


def plain(scale: Scale) -> Scale:
    """Convert ``scale`` to a Python float, unless it is on a device or part of a recording."""
    known = type(scale) is np.ndarray or isinstance(scale, np.floating)
    return float(scale) if known else scale


def as_float(scale: Any) -> float:
    """Convert ``scale`` to a float, unless it is part of a recording."""
    return cast("float", scale) if getattr(scale, "recorded", False) else float(scale)


def within(xp: Any, norm: Any, limit: float) -> Any:
    """Return min(1, ``limit`` / ``norm``), and 1 if the norm is NaN, so that NaN is not hidden."""
    return limit / xp.fmax(norm, limit)


def module_of(values: Sequence[Any]) -> Any:
    """Return the array module of ``values``."""
    return ops_for(values[0]).xp if values else np


def on_host(xp: Any) -> bool:
    """Whether ``xp`` is NumPy, or a recorder of NumPy's calls."""
    return str(xp.__name__) == "numpy"


def put(xp: Any, array: Any, dtype: Any = None) -> Any:
    """Return ``array`` on the device of the module ``xp``, without a copy if it is there."""
    if xp is np and type(array) is not np.ndarray:
        array = ops_for(array).host(array)
    return xp.asarray(array, dtype)
