"""Parameters whose rows are kept by a table elsewhere, and come here when they are looked up."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, NoReturn

import numpy as np

from singanet.errors import CallOrderError
from singanet.ops.interface import Runs
from singanet.params.storage import ParamStorage
from singanet.types import Array, RowSparse, Shape, StandIn


class ServedStandIn(StandIn):
    """A stand-in for the array of a served parameter; its elements are NaN.

    A rule sends its row-sparse gradients to ``rows``.
    """

    rows: ServedRows

    def __setitem__(self, key: Any, value: Any) -> NoReturn:
        raise CallOrderError(
            f"parameter {self.rows.name!r}",
            expected="rows that are looked up and updated by their table",
            received="an assignment to the array, which is not here",
            advice="use net.load, or write through param.put(array)",
        )


class ServedRows(ParamStorage):
    """The rows of a parameter (rows, width) come from a table and go back to it."""

    by_rows = True
    place = "served by a table"
    way_back = "take copy.deepcopy(net), which has it in memory"

    sums_first = False
    """Whether the table sums what all processes push before its rule, and clipping, see it."""

    def __init__(self, name: str, shape: Shape, dtype: Any) -> None:
        self.name = name
        self.shape = shape
        self._stand_in = np.broadcast_to(np.full((), np.nan, dtype), shape).view(ServedStandIn)
        self._stand_in.rows = self

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._stand_in.dtype

    @abstractmethod
    def look_up(self, ids: Array, out: Array) -> None:
        """Fill ``out`` (*ids.shape, width) with the rows of ``ids``, for a training step."""

    @abstractmethod
    def runs(self, ids: Array) -> Runs:
        """Where equal ones of the flat ``ids`` stand, which were looked up last."""

    @abstractmethod
    def see(self, ids: Array, out: Array) -> None:
        """`look_up` for an evaluation: the rows as the table has them, nothing else changed."""

    @abstractmethod
    def push(self, grad: RowSparse, scale: float) -> None:
        """Have rows updated by ``scale`` times their gradients."""

    @abstractmethod
    def parts(self) -> Iterator[Array]:
        """All rows, as the table has them, so many at a time."""

    def read(self) -> Array:
        """All rows, as the table has them."""
        return np.concatenate([*self.parts()])

    @abstractmethod
    def write(self, array: Array) -> None:
        """Put ``array`` in the place of all rows."""

    def lend(self) -> Array:
        """The array that stands for all rows."""
        return self._stand_in


def is_served(value: Any) -> bool:
    """Whether ``value`` stands for the rows of a table."""
    return isinstance(value, ServedStandIn)


def served_by(value: Any) -> ServedRows | None:
    """Where the updates of ``value`` go, if it stands for the rows of a table."""
    return value.rows if isinstance(value, ServedStandIn) else None
