"""The choice of layers to run again, with reasons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from singanet.base.text import megabytes, text_table
from singanet.engine.recompute.units import UnitOp, Units


class Decision(NamedTuple):
    """The decision on a layer: ``runs`` more of its forward, and ``why``, also if none.

    ``released`` bytes of its own do not wait at the turn from forward to backward; ``added`` bytes
    of its inputs do, which else would not. ``time`` is its part of what all forwards take once.
    """

    layer: str
    runs: int
    released: int
    added: int
    time: float
    why: str


class Decisions(tuple[Decision, ...]):
    """The decisions of a step; ``str`` gives those that change something as a table."""

    __slots__ = ()

    def __str__(self) -> str:
        head = ["layer", "runs", "MB released", "MB added", "% of forward", "why"]
        rows = [
            [
                one.layer,
                str(one.runs),
                megabytes(one.released),
                megabytes(one.added),
                f"{100 * one.runs * one.time:.2f}",
                one.why,
            ]
            for one in self
            if one.runs
        ]
        return "\n".join(text_table(head, rows)) if rows else "nothing is recomputed"

    def as_dicts(self) -> list[dict[str, Any]]:
        """The same as data for JSON."""
        return [one._asdict() for one in self]


def decisions(units: Units, ops: Sequence[UnitOp], why: str) -> list[Decision]:
    """The decisions in ``ops`` on each of ``units`` with values for its backward.

    ``why`` is said of those that run again unasked.
    """
    before, now = _waiting(units, units.kept()), _waiting(units, ops)
    runs = [-1] * len(units)
    for op in ops:
        if op.kind == "forward":
            runs[op.unit] += 1
    late = now - before
    whole = sum(unit.time for unit in units.units) or 1.0
    found = []
    for k, unit in enumerate(units.units):
        inputs = [
            value
            for value in late
            if runs[k] and value in unit.reads and _first_reader(units, runs, value) == k
        ]
        released = units.bytes_of((before - now) & unit.makes)
        if unit.makes and (runs[k] or unit.makes & before):
            found.append(
                Decision(
                    unit.name,
                    runs[k],
                    released,
                    units.bytes_of(inputs),
                    unit.time / whole,
                    _why(unit.forced, unit.again, bool(runs[k]), unit.dear, why),
                )
            )
    return found


def _why(forced: bool, again: bool, runs: bool, dear: bool, why: str) -> str:
    if forced:
        return "layer.recompute is True"
    if runs:
        return why
    if not again:
        return "must not run again"
    return "takes long" if dear else "would not take less"


def _first_reader(units: Units, runs: Sequence[int], value: int) -> int:
    readers = (k for k, unit in enumerate(units.units) if runs[k] and value in unit.reads)
    return next(readers, -1)


def _waiting(units: Units, ops: Sequence[UnitOp]) -> frozenset[int]:
    """The values that wait at the turn from forward to backward for a use after it."""
    turn = next((at for at, op in enumerate(ops) if op.kind == "backward"), len(ops))
    made = {value for op in ops[:turn] for value in units.units[op.unit].makes}
    waiting: set[int] = set()
    for op in ops[turn:]:
        unit = units.units[op.unit]
        waiting |= (unit.reads if op.kind == "forward" else unit.wants) & made
        if op.kind == "forward":
            made -= unit.makes - units.pinned
    return frozenset(waiting)
