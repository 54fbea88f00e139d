"""Steps that keep what goes on between the blocks of a net, and make all else again."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from singanet.engine.recompute.units import UnitOp, Units, forced

_SHARED = 4
"""Readers from which on a value is for all blocks: a mask, or what an encoder made."""

_TOGETHER = (1, 2, 4)
"""How many blocks may be one, where these are small beside what goes on between them."""


def by_blocks(units: Units) -> list[UnitOp]:
    """The step in which each block but the last runs again before it goes backward.

    It keeps the values of which nothing goes past: in a residual net the stream. What a block makes
    for its backward is there for one block at a time. Layers whose outputs no backward wants, the
    last product of a block for example, do not run again.
    """
    cuts = _cuts(units)
    steps = (_step(units, [*cuts[:-1:each], cuts[-1]]) for each in _TOGETHER)
    return min(steps, key=units.peak)


def _step(units: Units, cuts: list[int]) -> list[UnitOp]:
    ops = [UnitOp("forward", k) for k in range(len(units))]
    for first, last in reversed(list(pairwise(cuts))):
        inside = range(first, last)
        handed_on = [value for value in units.frontier(last) if units.maker[value] in inside]
        is_last = last == len(units)
        dropped = forced(units) if is_last else {k for k in inside if units.units[k].again}
        ops += units.dropping(dropped, inside, handed_on)
    return ops


def _cuts(units: Units) -> list[int]:
    """Where blocks begin, and the end of the last one: each has a product in it."""
    count, cuts, dear = len(units), [0], False
    crossing = list(_crossing(units))
    for k in range(1, count):
        dear |= units.units[k - 1].dear
        if dear and crossing[k] <= 1:
            cuts.append(k)
            dear = False
    return [*cuts, count]


def _crossing(units: Units) -> Iterator[int]:
    """How many values go on from before each unit to it or later ones, but those for all."""
    readers: dict[int, list[int]] = {}
    for at, unit in enumerate(units.units):
        for value in unit.reads:
            readers.setdefault(value, []).append(at)
    change = [0] * (len(units) + 2)
    for value, at in units.maker.items():
        read = readers.get(value, [at])
        last = read[-1]
        if value not in units.pinned and last > at and len(read) <= _SHARED:
            change[at + 1] += 1
            change[last + 1] -= 1
    now = 0
    for more in change[:-1]:
        now += more
        yield now
