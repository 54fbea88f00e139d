"""A recording bound to memory: calls that are ready to run."""

from __future__ import annotations

from typing import Any

from singanet.program.call import Ref
from singanet.program.places import address, map_leaves
from singanet.program.planning.arena import ALIGNMENT
from singanet.program.recording.build import Recording
from singanet.program.replaying.ready import Ready, ready_call
from singanet.types import Array


class Bound:
    """Calls on the arrays of one arena, in segments that end where the program hands out arrays.

    ``payloads`` holds for each segment the arrays that stand at its end: what is fed before the
    next one, or what the caller gets.
    """

    def __init__(self, recording: Recording, arena: Array) -> None:
        start = -address(arena) % ALIGNMENT
        self._outside = recording.outside
        self._arrays: dict[Ref, Array] = dict(recording.outside)
        self._place = {token: start + offset for token, offset in recording.place.items()}
        self.arena = arena
        self.segments: list[tuple[Ready, ...]] = []
        self.payloads: list[Any] = []
        calls: list[Ready] = []
        for call in recording.calls:
            if call.function is None:
                self.segments.append(tuple(calls))
                self.payloads.append(self._filled(call.arguments))
                calls = []
            else:
                calls.append(ready_call(call, self.array))
        self.segments.append(tuple(calls))

    def outside(self) -> list[tuple[Ref, Array]]:
        """What lies outside of the arena."""
        return list(self._outside.items())

    def array(self, ref: Ref) -> Array:
        """The array at ``ref``."""
        found = self._arrays.get(ref)
        if found is None:
            found = self._arrays[ref] = ref.array(self.arena, self._place[ref.token])
        return found

    def _filled(self, value: Any) -> Any:
        """``value`` with arrays in the places of their refs."""
        return map_leaves(value, Ref, self.array)
