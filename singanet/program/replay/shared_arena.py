"""Signatures of steps, and the arena that programs share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from singanet.base.heap import trim
from singanet.program.lowering import ON_HOST
from singanet.types import Array


class SharedArena:
    """One array of bytes, of the largest size that a program has needed."""

    def __init__(self) -> None:
        self._free: list[Array] = []

    def take(
        self,
        size: int,
        let_go: Callable[[], object],
        holes: bool = False,
        made: Callable[[int, bool], Array] = ON_HOST.memory,
    ) -> Array:
        """At least ``size`` bytes, which belong to the caller until they are given back.

        If the arena has to grow, ``let_go`` is called first, which unbinds programs from the old
        one. With ``holes`` much of it is never written. The backend's ``made`` allocates it.
        """
        try:
            # One thread gets it: two would write over each other.
            arena = self._free.pop()
        except IndexError:
            arena = None
        if arena is None or len(arena) < size:
            let_go()
            if arena is not None:
                # A recording has freed its own memory.
                arena = None
                trim()
            arena = made(size, holes)
        return arena

    def give_back(self, arena: Array) -> None:
        """Let the next replay have the bytes."""
        free = self._free
        if not free or len(free[0]) < len(arena):
            self._free = [arena]

    def clear(self) -> None:
        """Give the memory back."""
        self._free = []


WORTH = 8
"""Replays after which a recording has paid."""

LONGEST = 1 << 10


class WarmUpPolicy:
    """Calls by the layers until the next recording: twice as many after each unused program.

    A net whose layers are frozen and unfrozen at every step would otherwise be recorded every other
    step.
    """

    def __init__(self) -> None:
        self._calls = 1
        self._left = 0

    def start(self, replays: int) -> None:
        """Start to wait, after a program with this number of replays."""
        self._calls = 1 if replays >= WORTH else min(2 * self._calls, LONGEST)
        self._left = self._calls

    def goes_on(self) -> bool:
        """Whether one more call is to run by the layers."""
        self._left = max(self._left - 1, -1)
        return self._left >= 0


_NOTHING: frozenset[Any] = frozenset()


def shapes_of_feed(feed: Mapping[str, Any]) -> tuple[Any, ...]:
    """The facts of the fed arrays that determine a program."""
    return tuple(
        (name, *((part.shape, part.strides, part.dtype) for part in given))
        if isinstance(given, (list, tuple))
        else (name, facts(given))
        for name, given in feed.items()
    )


def shapes_of_targets(y: Any, weight: Any) -> tuple[Any, ...]:
    """The facts of targets and weights that determine a program."""
    parts = [*(y[name] for name in sorted(y)), weight] if isinstance(y, Mapping) else [y, weight]
    return tuple(
        (part.shape, part.strides, part.dtype) if type(part) is np.ndarray else type(part)
        for part in parts
    )


def facts(value: Any) -> Any:
    """The facts of an array or dict of arrays that determine a program; for others the type."""
    if type(value) is np.ndarray:
        return value.shape, value.strides, value.dtype
    if value is None:
        return None
    # Asking for an abstract class takes long, and so do calls.
    if type(value) is dict:
        if not value:
            return _NOTHING
        array = np.ndarray
        return frozenset(
            [
                (name, part.shape, part.strides, part.dtype)
                if type(part) is array
                else (name, facts(part))
                for name, part in value.items()
            ]
        )
    if isinstance(value, Mapping):
        return facts(dict(value))
    # An array of a device.
    if hasattr(value, "strides"):
        return type(value), value.shape, value.strides, value.dtype
    return type(value)


def facts_of_feed(feed: Mapping[str, Any]) -> Any:
    """The `facts` of the arguments that became ``feed`` without conversion.

    For a net with a single input the argument is the array.
    """
    if len(feed) == 1:
        (part,) = feed.values()
        return (list, *map(facts, part)) if isinstance(part, (list, tuple)) else facts(part)
    return frozenset(
        [
            (name, (list, *map(facts, part)))
            if isinstance(part, (list, tuple))
            else (name, part.shape, part.strides, part.dtype)
            if type(part) is np.ndarray
            else (name, facts(part))
            for name, part in feed.items()
        ]
    )
