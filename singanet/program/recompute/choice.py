"""The choice of calls that run again for the backward pass, so that a step needs less memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Literal, NamedTuple, Protocol, TypeVar

import numpy as np

from singanet.engine.recompute.blocks import by_blocks
from singanet.engine.recompute.decisions import Decision, decisions
from singanet.engine.recompute.units import (
    Plans,
    UnitOp,
    Units,
    UnitWay,
    again_before,
    dropped_alone,
    forced,
    lowered,
)
from singanet.errors import ArgumentError
from singanet.program.cost import bytes_of, passes_of
from singanet.program.ir import Buffer, Call, Kernel, Token
from singanet.program.layout.arena import Layout
from singanet.program.recompute.runs import CannotRepeatError, with_runs
from singanet.program.recompute.units import TracedUnits, traced_units

Recompute = Literal["none", "cheap", "blocks", "sqrt", "optimal"] | int
"""Nothing; what waits for memory; all but what goes on between blocks; segments of a chain; the
least memory; within so many bytes."""

_LEVELS: tuple[Literal["none", "cheap", "blocks", "sqrt", "optimal"], ...] = (
    "none", "cheap", "blocks", "sqrt", "optimal",
)  # fmt: skip

_TRIES = 8
"""Plans tried for a number of bytes: an arena takes a little other than the model of its units."""

_APART = 0.985
"""What the bytes of a target are of those of the one before, at most."""


def checked_recompute(where: str, value: object) -> Recompute:
    """``value``, if it is a level. Errors: anything else."""
    for level in _LEVELS:
        if isinstance(value, str) and value == level:
            return level
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool) and value > 0:
        return int(value)
    raise ArgumentError(
        f"{where}, recompute",
        expected=f"{', '.join(map(repr, _LEVELS))}, or the bytes that the arena may take",
        received=repr(value),
        advice="start with recompute='cheap'; program.report() tells what it saves",
    )


class Planned(Protocol):
    """Calls with their memory planned."""

    @property
    def calls(self) -> list[Call]:
        """In their order."""

    @property
    def kernels(self) -> list[Kernel]:
        """The same, for planners."""

    @property
    def buffers(self) -> list[Buffer]:
        """The buffers that these read and write."""

    @property
    def layout(self) -> Layout:
        """Where it lies."""


_P = TypeVar("_P", bound=Planned)


def recomputed(
    kept: _P, choice: Choice, level: Recompute, lay_out: Callable[[list[Call]], _P]
) -> tuple[_P, tuple[Decision, ...]]:
    """``kept``, or by ``choice`` calls that run again, which ``lay_out`` gives their places; why.

    Errors: bytes in which the arena cannot be kept.
    """
    asked = choice.asked
    if not asked and kept.layout.nbytes <= _bytes(level):
        return kept, ()
    best: _P | None = None
    decided: tuple[Decision, ...] = ()
    reached: list[int] = []
    for plan, why in choice.plans(level, reached):
        made = lay_out(choice.calls(plan))
        reached.append(made.layout.nbytes)
        if best is None or made.layout.nbytes < best.layout.nbytes:
            best, decided = made, choice.decisions(plan, why)
        if made.layout.nbytes <= _bytes(level):
            break
    if best is None or not (asked or worth(best, kept)):
        best, decided = kept, ()
    if isinstance(level, int) and best.layout.nbytes > level:
        raise CannotKeepError(level, best.layout.nbytes)
    return best, decided


def worth(made: Planned, kept: Planned) -> bool:
    """Whether what runs again takes fewer bytes."""
    return made.layout.nbytes < kept.layout.nbytes


def _bytes(level: Recompute) -> int:
    return level if isinstance(level, int) else -1


_Plan = Callable[[Units, Plans], list[UnitOp]]
_Traced = list[tuple[TracedUnits, Plans]]


class MemoryTarget(NamedTuple):
    """What a step within a number of bytes of the arena comes to, before it is laid out.

    ``again`` calls run once more for each one that there is.
    """

    nbytes: int
    again: float


class Choice:
    """The calls of ``kept`` that can run again; it walks once or, for all gradients, twice.

    ``wishes`` are those of layers, by name, to be recomputed or not.
    """

    def __init__(
        self, kept: Planned, tokens: list[Token], wishes: Mapping[str, bool | None]
    ) -> None:
        self._kept, self._tokens, self._wishes = kept, tokens, wishes

    @property
    def asked(self) -> bool:
        """Whether a layer is to be recomputed."""
        return True in self._wishes.values()

    @cached_property
    def _first(self) -> _Traced:
        kept, tokens = self._kept, self._tokens
        passes = [passes_of(call) for call in kept.calls]
        touched = [bytes_of(call, tokens) for call in kept.calls]
        traced = traced_units(kept.kernels, kept.buffers, passes, touched, self._wishes)
        return [(each, _plans(each)) for each in traced]

    @cached_property
    def _traced(self) -> _Traced:
        """What is repeatable as far as the level that was asked for last has shown."""
        return self._first

    @cached_property
    def _beside(self) -> int:
        """Bytes by which the arena is above what units tell of it."""
        told = (traced.units.peak(traced.units.kept()) for traced, _ in self._first)
        return self._kept.layout.nbytes - max(told, default=0)

    @cached_property
    def targets(self) -> list[MemoryTarget]:
        """Bytes of the arena that can be asked for, the most first."""
        found: list[MemoryTarget] = []
        count = sum(call.parts for call in self._kept.calls)
        for goal in sorted({way.nbytes for _, plans in self._first for way in plans.ways})[::-1]:
            ways = [(traced, plans.quickest(goal)) for traced, plans in self._first]
            nbytes = max(way.nbytes for _, way in ways) + self._beside
            if not found or nbytes < _APART * found[-1].nbytes:
                again = sum(self._calls_again(traced, way) for traced, way in ways)
                found.append(MemoryTarget(nbytes, again / count))
        return found

    def _calls_again(self, traced: TracedUnits, way: UnitWay) -> int:
        runs = again_before(way.ops).values()
        kernels = (at for units in runs for unit in units for at in traced.kernels[unit])
        return sum(self._kept.calls[at].parts for at in kernels)

    def plans(self, level: Recompute, reached: Sequence[int]) -> Iterator[tuple[_Plan, str]]:
        """Plans for ``level``, and why; ``reached`` are the bytes of those before."""
        # What another level has found not to be repeatable tells nothing of this one.
        self._traced = self._first
        if not self._traced:
            return
        if level == "none":
            yield (lambda units, _: dropped_alone(units, forced(units))), ""
        elif level == "cheap":
            yield (lambda units, _: lowered(units)), "takes little time"
        elif level == "blocks":
            yield (lambda units, _: by_blocks(units)), "in a block that runs again"
        elif level == "sqrt":
            yield (lambda _, plans: plans.segments()), "in a segment that runs again"
        elif level == "optimal":
            yield (lambda _, plans: plans.ways[-1].ops), "for the least memory"
        else:
            yield from self._within(level, reached)

    def _within(self, budget: int, reached: Sequence[int]) -> Iterator[tuple[_Plan, str]]:
        goal, least = budget - self._beside, max(plans.ways[-1].nbytes for _, plans in self._first)
        for _ in range(_TRIES):
            if goal <= least:
                break
            yield partial(_quickest, goal), "least time within the bytes"
            goal -= max(reached[-1] - budget, goal // 200)
        yield partial(_quickest, least), "least time within the bytes"

    def calls(self, plan: _Plan) -> list[Call]:
        """The calls by ``plan``; what turns out not to be repeatable is kept."""
        while True:
            runs = [
                (traced, again_before(plan(traced.units, plans))) for traced, plans in self._traced
            ]
            try:
                return with_runs(self._kept.calls, runs, self._tokens)
            except CannotRepeatError as error:
                kept = [traced.keeping(error.kernel) for traced, _ in self._traced]
                self._traced = [(traced, _plans(traced)) for traced in kept]

    def decisions(self, plan: _Plan, why: str) -> tuple[Decision, ...]:
        """The decision of ``plan`` on each layer."""
        found = []
        for traced, plans in self._traced:
            found += decisions(traced.units, plan(traced.units, plans), why)
        return tuple(found)


def _plans(traced: TracedUnits) -> Plans:
    return Plans(traced.units, by_blocks(traced.units))


def _quickest(goal: int, _: Units, plans: Plans) -> list[UnitOp]:
    return plans.quickest(goal).ops


class CannotKeepError(ArgumentError):
    """An arena takes ``least`` bytes, however much is made again."""

    def __init__(self, budget: int, least: int) -> None:
        super().__init__(
            "recompute",
            expected=f"bytes that the arena can be kept in; the least found is {least:,}",
            received=f"{budget:,}",
            advice="give it more, or take a smaller batch",
        )
