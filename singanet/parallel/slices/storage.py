"""A parameter of which each rank has some rows."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Protocol

import numpy as np

from singanet.parallel.communicators.communicator import Communicator
from singanet.params.storage import ParamStorage
from singanet.types import Array, Shape, StandIn


class Gathering(Protocol):
    """What puts slices together, as `Gathers`."""

    comm: Communicator
    lent: list[Slices]
    by_slices: bool

    def read(self, slices: Slices) -> Array:
        """The whole array, until it is dropped."""


class SliceStandIn(StandIn):
    """A stand-in for the array of a parameter in slices, whose elements are 0."""

    slices: Slices


class Slices(ParamStorage):
    """Rows ``rows[k]`` to ``rows[k + 1]`` of the parameter ``name`` are those of rank k.

    ``whole`` is the array of all, of which the rank keeps its own. All ranks read and lend it at
    the same point.
    """

    __slots__ = (
        "_lent",
        "_lent_at",
        "_stand_in",
        "_updates",
        "first_row",
        "gathers",
        "name",
        "own",
        "rows",
    )

    place = "in slices on several ranks"
    way_back = "take copy.deepcopy(net) on all ranks, which has it in memory"
    sliced = True

    def __init__(self, gathers: Gathering, name: str, whole: Array, rows: Sequence[int]) -> None:
        self.gathers, self.name, self.rows = gathers, name, list(rows)
        self._stand_in = np.broadcast_to(np.zeros((), whole.dtype), whole.shape).view(SliceStandIn)
        self._stand_in.slices = self
        self.first_row = self.rows[gathers.comm.rank]
        self.own = self.here_of(whole).copy()
        self._lent: Array | None = None
        self._updates = self._lent_at = 0

    @property
    def shape(self) -> Shape:
        """The shape of the whole array."""
        return self._stand_in.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._stand_in.dtype

    @property
    def nbytes(self) -> int:
        return int(self.own.nbytes)

    @property
    def bounds(self) -> list[int]:
        """Where the slices begin, in elements, then how many there are."""
        width = prod(self.shape[1:])
        return [row * width for row in self.rows]

    @property
    def stand_in(self) -> Array:
        """An array of the whole one's shape and type, for those who update slices."""
        return self._stand_in

    def here(self) -> Array:
        # What is lent would be out of date.
        self.put_back()
        return self.own

    def here_of(self, whole: Array) -> Array:
        rank = self.gathers.comm.rank
        return whole[self.rows[rank] : self.rows[rank + 1]]

    def read(self) -> Array:
        lent = self._lent if self._lent_at == self._updates else None
        found = (self.gathers.read(self) if lent is None else lent).view()
        found.flags.writeable = False
        return found

    def lend(self) -> Array:
        """As `ParamStorage`; in steps that update by slices what stands for it."""
        if self.gathers.by_slices:
            return self._stand_in
        if self._lent is None:
            self._lent, self._lent_at = self.gathers.read(self), self._updates
            self.gathers.lent.append(self)
        return self._lent

    def write(self, array: Array) -> None:
        self.own[...] = self.here_of(np.asarray(array))
        self.updated()

    def updated(self) -> None:
        """Note that the own slice has changed: what was lent is out of date."""
        self._updates += 1

    def put_back(self) -> None:
        """End the loan: what has become of the own rows is kept."""
        if self._lent is not None and self._lent_at == self._updates:
            self.own[...] = self.here_of(self._lent)
        self._lent = None


def slices_of(value: Any) -> Slices | None:
    """The storage of ``value``, if it stands for an array in slices."""
    return value.slices if isinstance(value, SliceStandIn) else None
