"""The calls of a trace as units, a layer each, that run forward, again and backward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from singanet.engine.recompute.units import Unit, Units
from singanet.program.ir import Buffer, Kernel
from singanet.program.layout.arena import rounded_sizes
from singanet.program.layout.in_place import merge_in_place, merged_lifetimes
from singanet.program.layout.liveness import lifetimes, live_bytes

_SMALL = 16
"""What takes so much less than the most that a layer makes stays: statistics, for example."""


@dataclass(frozen=True)
class TracedUnits:
    """Units with the ``kernels`` that make each one's values, and before which it goes backward.

    Those are left out that make so little that it stays.
    """

    units: Units
    kernels: list[list[int]]
    begins: list[int]
    repeatable: list[bool]


def traced_units(
    kernels: Sequence[Kernel],
    buffers: Sequence[Buffer],
    passes: Sequence[int],
    touched: Sequence[int],
    wishes: Mapping[str, bool | None],
) -> TracedUnits | None:
    """``kernels`` by layers, whose ``wishes`` are to be recomputed, or not, or either.

    ``passes`` and ``touched`` are those of `Flow`. None where forwards and backwards are not each
    in one go, as in a step that takes the norm of all gradients first.
    """
    turn = next((k for k, kernel in enumerate(kernels) if kernel.phase != "forward"), len(kernels))
    if any(kernel.phase == "forward" for kernel in kernels[turn:]):
        return None
    number: dict[str, int] = {}
    unit_of = [number.setdefault(kernel.layer, len(number)) for kernel in kernels[:turn]]
    names = list(number)
    first: dict[int, int] = {}
    now = len(names) - 1
    for at, kernel in enumerate(kernels[turn:], turn):
        now = number.get(kernel.layer, now) if kernel.phase == "backward" else now
        unit_of.append(now)
        first.setdefault(now, at)
    begins, latest = [0] * len(names), turn
    for unit in reversed(range(len(names))):
        if unit in first and first[unit] < latest:
            return None
        begins[unit] = latest = first.get(unit, latest)
    # What has no backward of its own is before that of the next that has.
    following = len(kernels)
    for unit in range(len(names)):
        begins[unit] = following = first.get(unit, following)
    return _Builder(kernels, buffers, passes, touched, wishes, names, unit_of, turn).made(begins)


class _Builder:
    """What the units of ``kernels`` are made from; those from ``turn`` on are no forwards."""

    def __init__(
        self,
        kernels: Sequence[Kernel],
        buffers: Sequence[Buffer],
        passes: Sequence[int],
        touched: Sequence[int],
        wishes: Mapping[str, bool | None],
        names: list[str],
        unit_of: list[int],
        turn: int,
    ) -> None:
        self.kernels, self.buffers = kernels, buffers
        self.passes, self.touched, self.wishes = passes, touched, wishes
        self.names, self.unit_of, self.turn = names, unit_of, turn
        self.sizes: list[int] = rounded_sizes(buffers).tolist()

    def made(self, begins: list[int]) -> TracedUnits:
        """The units."""
        kernels, unit_of, turn = self.kernels, self.unit_of, self.turn
        repeatable = [
            not kernel.barrier
            and bool(kernel.writes)
            and all(self.buffers[buffer].planned for buffer in kernel.writes)
            for kernel in kernels[:turn]
        ]
        users: dict[int, set[tuple[int, bool]]] = {}
        for at, kernel in enumerate(kernels):
            for buffer in {*kernel.reads, *kernel.writes}:
                users.setdefault(buffer, set()).add((unit_of[at], at >= turn))
        forward: dict[int, int] = {}
        once: set[int] = set()
        for at, kernel in enumerate(kernels[:turn]):
            for buffer in kernel.writes:
                forward.setdefault(buffer, at)
                if not repeatable[at]:
                    once.add(buffer)
        # What other units, or the way back, need; all else is scratch.
        values = {b for b in forward if self.buffers[b].planned and len(users[b]) > 1}
        count = range(len(self.names))
        reads: list[set[int]] = [set() for _ in count]
        makes: list[set[int]] = [set() for _ in count]
        wants: list[set[int]] = [set() for _ in count]
        own: list[list[int]] = [[] for _ in count]
        for at, kernel in enumerate(kernels):
            unit = unit_of[at]
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
        return TracedUnits(Units(units, self.sizes), runs, begins, repeatable)

    def _needed(
        self, own: Sequence[int], values: set[int], stay: set[int], repeatable: Sequence[bool]
    ) -> list[int]:
        """The kernels among ``own``, those of a unit, that make ``values`` but for what may ``stay``.

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
        lives = lifetimes(self.kernels, self.buffers)
        holder, _ = merge_in_place(self.kernels, self.buffers, lives)
        merged = merged_lifetimes(lives, holder)
        sizes = np.array(self.sizes, np.int64)
        sizes[np.array(holder) != np.arange(len(sizes))] = 0
        sizes[list(values)] = 0
        live = live_bytes(merged, sizes)[1:-1]
        most = [[0] * len(self.names), [0] * len(self.names)]
        for at, nbytes in enumerate(live.tolist()):
            way = most[at >= self.turn]
            way[self.unit_of[at]] = max(way[self.unit_of[at]], nbytes)
        return most[0], most[1]
