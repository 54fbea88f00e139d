"""In which order arrays are needed: what to read ahead, and what to let go of."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence


class AccessOrder:
    """``groups`` of arrays by name, each needed together, one after the other and then anew."""

    def __init__(self, groups: Sequence[tuple[str, ...]] = ()) -> None:
        self.groups = [group for group in groups if group]
        self._places: dict[str, list[int]] = {}
        for place, group in enumerate(self.groups):
            for name in dict.fromkeys(group):
                self._places.setdefault(name, []).append(place)
        self._at = 0

    def advance(self, name: str) -> None:
        """``name`` is needed now."""
        if name in self._places:
            self._at = (self._at + self.distance(name)) % len(self.groups)

    def distance(self, name: str) -> int:
        """How many groups come before the next that has ``name``; as many as there are for none."""
        places = self._places.get(name)
        if places is None:
            return len(self.groups)
        k = bisect_left(places, self._at)
        return places[k] - self._at if k < len(places) else places[0] + len(self.groups) - self._at

    def coming(self) -> Iterator[tuple[int, str]]:
        """Names with their distances, the next first."""
        for distance in range(len(self.groups)):
            for name in self.groups[(self._at + distance) % len(self.groups)]:
                yield distance, name
