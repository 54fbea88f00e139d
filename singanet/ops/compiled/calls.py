"""Call compiled functions with constant arguments, one by one or many in one call."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from singanet.ops.compiled.engine import CompiledFunction


class CompiledCall:
    """A call of ``function`` with the arguments ``given``; a ``brief`` one keeps Python's lock."""

    def __init__(self, function: CompiledFunction, brief: bool, given: Sequence[int]) -> None:
        self.given = (ctypes.c_int64 * len(given))(*given)
        place = ctypes.addressof(self.given)
        self.call = partial(
            function.briefly if brief else function.at_length, ctypes.c_void_p(place)
        )
        self.places = function.address, place
        # Memory that the arguments refer to.
        self.kept: object = None

    def __call__(self) -> None:
        """Make the call."""
        self.call()

    @property
    def in_turn(self) -> list[CompiledCall]:
        """The calls that it consists of."""
        return [self]


def joined(calls: Iterable[Callable[[], Any]]) -> list[Callable[[], Any]]:
    """Return ``calls``; compiled ones that follow each other become one call.

    A call may have a list `in_turn` of the compiled calls that it consists of.
    """
    made: list[Callable[[], Any]] = []
    run: list[CompiledCall] = []
    for call in calls:
        parts = getattr(call, "in_turn", None)
        if parts is not None:
            run += parts
            continue
        made += _one(run)
        run = []
        made.append(call)
    return made + _one(run)


def _one(calls: list[CompiledCall]) -> list[Callable[[], Any]]:
    if len(calls) < 2:
        return [*calls]
    places = [place for call in calls for place in call.places]
    table = (ctypes.c_int64 * len(places))(*places)
    whole = CompiledCall(_in_turn(), False, (ctypes.addressof(table), len(calls)))
    whole.kept = table, calls
    return [whole]


@cache
def _in_turn() -> CompiledFunction:
    from singanet.ops.compiled import engine, steps

    return engine.known(steps.in_turn)
