"""Hyper-parameters: numbers, or schedules of the step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias, TypeGuard, runtime_checkable

import numpy as np

from singanet.errors import ArgumentError, DataError, one_of
from singanet.types import Array

Hyper: TypeAlias = float | Callable[[int], float]
"""A number, or a callable from the step (0 at a parameter's first update) to one."""


@runtime_checkable
class Learning(Protocol):
    """A schedule whose values depend on more than the step, so that it has state to save."""

    def state_dict(self) -> Mapping[str, float]:
        """Its learnt state, as numbers."""

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Take what another one has learnt."""


def checked(where: str, name: str, value: Hyper, low: float = 0.0, high: float = math.inf) -> Hyper:
    """``value`` where it is a schedule or a number in [low, high); otherwise `ArgumentError`."""
    if callable(value):
        return value
    number = isinstance(value, (int, float, np.integer, np.floating))
    if not number or isinstance(value, bool) or not low <= value < high:
        raise ArgumentError(
            f"{where}({name}=)",
            expected=f"a number in [{low:g}, {high:g}) or a schedule",
            received=repr(value),
            advice=f"give {name} a finite number in that range",
        )
    return float(value)


def at(value: Hyper, step: int) -> float:
    """The hyper-parameter at ``step``."""
    if isinstance(value, float):
        return value
    return float(value(step)) if callable(value) else float(value)


def _learns(value: Hyper) -> TypeGuard[Learning]:
    # A protocol takes 60 µs to find that a number is none.
    return callable(value) and isinstance(value, Learning)


def dump_schedules(owner: object, hypers: Sequence[str]) -> dict[str, Array]:
    """What the schedules among the attributes ``hypers`` have learnt, by ``*/hyper.key``."""
    return {
        f"*/{hyper}.{key}": np.array(number, np.float64)
        for hyper in hypers
        if _learns(schedule := getattr(owner, hyper))
        for key, number in schedule.state_dict().items()
    }


def load_schedules(
    where: str, owner: object, hypers: Sequence[str], saved: Mapping[str, Array]
) -> None:
    """Give the schedules what `dump_schedules` took; both must have the same ones."""
    expected = sorted(dump_schedules(owner, hypers))
    if sorted(saved) != expected:
        raise DataError(
            f"{where}.load_state_dict",
            expected=f"schedule state {one_of(expected) or 'for no schedule'}",
            received=one_of(sorted(saved)) or "none",
            advice="construct the optimizer with the same schedules before loading",
        )
    for hyper in hypers:
        schedule = getattr(owner, hyper)
        if _learns(schedule):
            start = f"*/{hyper}."
            schedule.load_state_dict(
                {k[len(start) :]: float(v) for k, v in saved.items() if k.startswith(start)}
            )
