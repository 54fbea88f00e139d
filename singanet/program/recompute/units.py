"""The calls of a trace as units, a layer each, that run forward, again and backward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from singanet.engine.recompute.units import Unit, Units
from singanet.program.cost import NEVER
from singanet.program.ir import Buffer, Kernel
from singanet.program.layout.arena import rounded_sizes
from singanet.program.layout.in_place import shared_memory

_SMALL = 16
"""Values smaller than a layer's largest by this factor stay: statistics, for example."""


class TracedUnits(NamedTuple):
    """Units, the ``kernels`` of each, and the kernel with which its backward ``begins``.

    Units with small values are left out: these stay. The kernels in ``once`` must not run twice.
    """

    units: Units
    kernels: list[list[int]]
    begins: list[int]
    once: frozenset[int]

    def keeping(self, kernel: int) -> TracedUnits:
        """The same, but the unit of ``kernel``, if there is one, does not run again."""
        units = [
            unit._replace(again=False) if kernel in own else unit
            for unit, own in zip(self.units.units, self.kernels, strict=True)
        ]
        return self._replace(units=Units(units, self.units.sizes))


def traced_units(
    kernels: Sequence[Kernel],
    buffers: Sequence[Buffer],
    passes: Sequence[int],
    touched: Sequence[int],
    wishes: Mapping[str, bool | None],
) -> list[TracedUnits]:
    """``kernels`` by layers, whose ``wishes`` are to be recomputed, or not, or either.

    ``passes`` tells for each kernel how often it goes over its operands, ``touched`` the bytes of
    these. A step that takes the norm of all gradients first goes forward and backward twice: one
    of these for each.
    """
    changes = [
        k
        for k, (one, two) in enumerate(pairwise(kernels), 1)
        if two.phase == "forward" and one.phase != "forward"
    ]
    made = []
    for first, last in pairwise([0, *changes, len(kernels)]):
        builder = _Builder(kernels, buffers, passes, touched, wishes, first, last)
        if builder.turn < last:
            made.append(builder.made())
    return made


class _Builder:
    """The builder of units from the kernels ``first`` up to ``last``."""

    def __init__(
        self,
        kernels: Sequence[Kernel],
        buffers: Sequence[Buffer],
        passes: Sequence[int],
        touched: Sequence[int],
        wishes: Mapping[str, bool | None],
        first: int,
        last: int,
    ) -> None:
        self.kernels, self.buffers = kernels, buffers
        self.passes, self.touched, self.wishes = passes, touched, wishes
        self.sizes: list[int] = rounded_sizes(buffers).tolist()
        self.first, self.last = first, last
        phases = (k for k in range(first, last) if kernels[k].phase != "forward")
        self.turn = next(phases, last)
        number: dict[str, int] = {}
        # Which unit a kernel belongs to; those of the loss go with the last one.
        self.unit_of = {
            k: number.setdefault(kernels[k].layer, len(number)) for k in range(first, self.turn)
        }
        self.names = list(number)
        now = len(number) - 1
        for k in range(self.turn, last):
            if kernels[k].phase == "backward":
                now = min(number.get(kernels[k].layer, now), now)
            self.unit_of[k] = now

    def made(self) -> TracedUnits:
        """The units."""
        kernels, unit_of, turn = self.kernels, self.unit_of, self.turn
        forwards, inside = range(self.first, turn), range(self.first, self.last)
        repeatable = {
            at: not kernels[at].barrier
            and bool(kernels[at].writes)
            and self.passes[at] < NEVER
            and all(self.buffers[buffer].planned for buffer in kernels[at].writes)
            for at in forwards
        }
        users: dict[int, set[tuple[int, bool]]] = {}
        seen: tuple[set[int], set[int]] = set(), set()
        for at in inside:
            used = {*kernels[at].reads, *kernels[at].writes}
            for buffer in used:
                users.setdefault(buffer, set()).add((unit_of[at], at >= turn))
            if kernels[at].barrier:
                seen[at >= turn].update(used)
        forward: set[int] = set()
        # A layer's own Python may keep what it has seen for its way back, where it lay.
        once: set[int] = seen[0] & seen[1]
        for at in forwards:
            forward.update(kernels[at].writes)
            if not repeatable[at]:
                once.update(kernels[at].writes)
        # What other units, or the way back, need; all else is scratch.
        values = {b for b in forward if self.buffers[b].planned and len(users[b]) > 1}
        count = range(len(self.names))
        reads: list[set[int]] = [set() for _ in count]
        makes: list[set[int]] = [set() for _ in count]
        wants: list[set[int]] = [set() for _ in count]
        own: list[list[int]] = [[] for _ in count]
        for at in inside:
            unit, kernel = unit_of[at], kernels[at]
            if at >= turn:
                wants[unit] |= values.intersection((*kernel.reads, *kernel.writes))
                continue
            own[unit].append(at)
            makes[unit] |= values.intersection(kernel.writes)
            reads[unit] |= values.intersection(kernel.reads)
        scratch, gradients = self._beside(values)
        units, runs = [], []
        for unit, name in enumerate(self.names):
            largest = max((self.sizes[b] for b in makes[unit]), default=0)
            stay = {b for b in makes[unit] if _SMALL * self.sizes[b] <= largest}
            again = self._needed(own[unit], values, stay, repeatable)
            runs.append(again)
            wish = self.wishes.get(name)
            units.append(
                Unit(
                    name,
                    float(sum(self.passes[at] * self.touched[at] for at in again)),
                    frozenset(reads[unit] - makes[unit]),
                    frozenset(makes[unit]),
                    frozenset(wants[unit]),
                    frozenset(makes[unit] & (once | stay)),
                    again=wish is not False and bool(again),
                    forced=wish is True,
                    dear=any(self.passes[at] > 1 for at in again),
                    forward_bytes=scratch[unit],
                    backward_bytes=gradients[unit],
                )
            )
        once_only = frozenset(at for at in forwards if not repeatable[at])
        return TracedUnits(Units(units, self.sizes), runs, self._begins(), once_only)

    def _begins(self) -> list[int]:
        """Before which kernel each unit goes backward; one that does not: the next that does."""
        first: dict[int, int] = {}
        for at in range(self.turn, self.last):
            first.setdefault(self.unit_of[at], at)
        made, following = [], self.last
        for unit in range(len(self.names)):
            following = first.get(unit, following)
            made.append(following)
        return made

    def _needed(
        self, own: Sequence[int], values: set[int], stay: set[int], repeatable: Mapping[int, bool]
    ) -> list[int]:
        """The kernels among ``own``, those of a unit, that make ``values`` but what may ``stay``.

        What else they do, such as moving running statistics, happens once.
        """
        needed = {b for at in own for b in self.kernels[at].writes if b in values} - stay
        found = []
        for at in reversed(own):
            if repeatable[at] and not needed.isdisjoint(self.kernels[at].writes):
                found.append(at)
                needed.update(b for b in self.kernels[at].reads if b not in stay)
        return found[::-1]

    def _beside(self, values: set[int]) -> tuple[list[int], list[int]]:
        """For each unit the most bytes at a time that are no values: forward, and backward."""
        sizes = np.array(self.sizes, np.int64)
        sizes[list(values)] = 0
        live = shared_memory(self.kernels, self.buffers).live_bytes(sizes)[1:-1]
        most = [[0] * len(self.names), [0] * len(self.names)]
        for at in range(self.first, self.last):
            nbytes = int(live[at])
            way = most[at >= self.turn]
            way[self.unit_of[at]] = max(way[self.unit_of[at]], nbytes)
        return most[0], most[1]
