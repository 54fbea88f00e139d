"""The distinct ones of ids that tables are looked up by, found once for all who ask."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

from singanet.ops.interface import Runs
from singanet.ops.numpy.table import runs_of
from singanet.types import Array

_AHEAD = 4
"""Arrays of ids that are known for each table: of the step under way, and of those to come."""


_TOLD_BY = 16
"""Of so many ids arrays are told apart, before all are compared."""


class Distinct(NamedTuple):
    """The ``runs`` of equal ids, and for each id, flat, its place among the distinct ones."""

    runs: Runs
    places: Array

    @property
    def rows(self) -> Array:
        """The distinct ids, rising."""
        return self.runs.distinct


class KnownIds:
    """What was made of the last ids, which tables of one net often have in common.

    A step asks for the same when rows are fetched ahead, looked up, and updated.
    """

    def __init__(self) -> None:
        self._tables = 0
        # With some of each, by which others are told from them.
        self._known: deque[tuple[list[int], Array, Distinct]] = deque()

    def join(self) -> None:
        """Keep what one table more is looked up by."""
        self._tables += 1

    def of(self, ids: Array) -> Distinct:
        """The distinct ones of ``ids``, of any shape."""
        flat = ids.reshape(-1)
        some = flat[:: 1 + len(flat) // _TOLD_BY].tolist()
        for known_by, known, found in self._known:
            if known_by == some and np.array_equal(known, flat):
                return found
        made = distinct(flat)
        # The caller may write the next ids to the same array.
        self._known.appendleft((some, flat.copy(), made))
        if len(self._known) > _AHEAD * self._tables:
            self._known.pop()
        return made


def distinct(ids: Array) -> Distinct:
    """The distinct ones of the flat ``ids``."""
    runs = runs_of(np, ids.astype(np.int64, copy=False))
    numbers = np.zeros(len(ids), np.intp)
    numbers[runs.starts[1:]] = 1
    places = np.empty(len(ids), np.intp)
    places[runs.order] = np.cumsum(numbers, out=numbers)
    return Distinct(runs, places)
