"""A recording bound to memory: calls that are ready to run."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from singanet.program.array_tree import map_leaves
from singanet.program.compile import Recording
from singanet.program.ir import MarkName, Ref
from singanet.program.launches import Launches
from singanet.program.lowering import ReadyCalls
from singanet.program.trace.python_pass import copy_into
from singanet.types import Array


class Segment(NamedTuple):
    """A place where the program meets its caller, and the calls up to the next such place.

    At "feed" and "dy" the caller fills ``arrays``, at "outputs" and "layer" it gets them.
    """

    name: MarkName
    arrays: Any
    calls: ReadyCalls


class Bound:
    """The calls of a recording on the arrays of one arena, in segments.

    An evaluation has ``feed`` and ``outputs``, a step ``feed`` alone, a pass both ways ``dy`` and
    one of ``layers`` for each item as well.
    """

    def __init__(self, recording: Recording, arena: Array) -> None:
        self._lowering = recording.lowering
        start = self._lowering.start(arena)
        self._outside = self._lowering.outside(recording.outside)
        self._arrays: dict[Ref, Array] = dict(self._outside)
        self._place = {token: start + offset for token, offset in recording.place.items()}
        self.arena = arena
        marks = [at for at, call in enumerate(recording.calls) if call.function is None]
        self.segments: list[Segment] = []
        for at, end in pairwise([*marks, len(recording.calls)]):
            mark: Any = recording.calls[at]
            calls = self._lowering.ready(recording.calls[at + 1 : end], self.array)
            self.segments.append(Segment(mark.name, self._filled(mark.arguments), calls))
        named = {segment.name: segment for segment in self.segments}
        self.feed = named["feed"]
        self.outputs = named.get("outputs")
        self.dy = named.get("dy")
        self.layers = [segment for segment in self.segments if segment.name == "layer"]

    def fill(self, x: Any) -> None:
        """Copy ``x``, a dict or the array of a single input, to where the program is fed."""
        given = self.feed.arrays[0]
        if type(x) is dict:
            for name, target in given.items():
                if type(target) is np.ndarray:
                    target[...] = x[name]
                else:
                    copy_into(x[name], target, self._lowering.fill)
        else:
            (target,) = given.values()
            if type(target) is np.ndarray:
                target[...] = x
            else:
                copy_into(x, target, self._lowering.fill)

    def fill_targets(self, y: Any, weight: Any) -> None:
        """Copy targets and weights; what is no array a loss in Python is shown as it is."""
        targets, weights = self.feed.arrays[1]
        if type(targets) is np.ndarray:
            targets[...] = y
        elif targets is not None:
            copy_into(y, targets, self._lowering.fill)
        if weights is not None:
            copy_into(weight, weights, self._lowering.fill)

    def outside(self) -> list[tuple[Ref, Array]]:
        """The arrays outside of the arena."""
        return list(self._outside.items())

    def launches(self) -> Launches | None:
        """What the host asks a device for at each replay; None where it computes itself."""
        parts = [self._lowering.launches(segment.calls) for segment in self.segments]
        there = [part for part in parts if part is not None]
        return Launches.of_all(there) if there else None

    def array(self, ref: Ref) -> Array:
        """The array at ``ref``."""
        found = self._arrays.get(ref)
        if found is None:
            place = self._place[ref.token]
            found = self._arrays[ref] = self._lowering.array(ref, self.arena, place)
        return found

    def _filled(self, value: Any) -> Any:
        """``value`` with arrays in the places of their refs."""
        return map_leaves(value, Ref, self.array)
