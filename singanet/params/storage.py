"""Where the array of a parameter is kept, and the verbs by which everybody gets at it."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from singanet.errors import CallOrderError
from singanet.params.store import place_of, slice_of
from singanet.types import Array, Shape


class ParamStorage(ABC):
    """What keeps the array of a parameter: memory, a file, a table of rows, another rank.

    ``place`` says so, and ``way_back`` what brings it into memory, as errors have it. A copy of
    it, pickled or not, keeps the array in memory.
    """

    __slots__ = ()

    place: str
    way_back: str

    in_memory = False
    """Whether the array stays in memory for as long as the parameter is not moved."""

    by_rows = False
    """Whether it is a `ServedRows`, of which only rows come here."""

    array: Array | None = None
    """The array where it is at hand as it is: a plain attribute, as every step asks."""

    @property
    def filled(self) -> bool:
        """Whether the array exists yet."""
        return True

    @property
    @abstractmethod
    def dtype(self) -> np.dtype[Any]:
        """The array's type."""

    @abstractmethod
    def read(self) -> Array:
        """The array, read-only; it may be dropped, and be another object, at the next call."""

    @abstractmethod
    def lend(self) -> Array:
        """The live array, which may be changed until the net's next pass; then it is put back."""

    @abstractmethod
    def write(self, array: Array) -> None:
        """Put ``array``, of the same shape and type, in its place."""

    def replace(self, name: str, array: Array) -> None:
        """Keep ``array``, of any type, instead. Errors: `CallOrderError` out of memory."""
        raise CallOrderError(
            f"parameter {name!r}",
            expected="a net in memory, where arrays of other types or devices can be put",
            received=f"one that is {self.place}",
            advice=self.way_back,
        )

    def __reduce__(self) -> Any:
        return Memory, (self.read().copy(),)

    def __deepcopy__(self, memo: dict[int, Any]) -> ParamStorage:
        return Memory(self.read().copy())


class Memory(ParamStorage):
    """The memory of this process; the array is None until it is filled."""

    __slots__ = ("array",)

    place = "in memory"
    way_back = ""
    in_memory = True

    def __init__(self, array: Array | None = None) -> None:
        self.array = array

    @property
    def filled(self) -> bool:
        return self.array is not None

    @property
    def dtype(self) -> np.dtype[Any]:
        found: np.dtype[Any] = self.lend().dtype
        return found

    def read(self) -> Array:
        return self.lend()

    def lend(self) -> Array:
        assert self.array is not None
        return self.array

    def write(self, array: Array) -> None:
        self.lend()[...] = array

    def replace(self, name: str, array: Array) -> None:
        self.array = array

    def __reduce__(self) -> Any:
        """With an array in a bucket by its place, so that those of a net stay together."""
        place = place_of(self.array)
        if place is None or self.array is None:
            return Memory, (self.array,)
        return _in_bucket, (place.bucket, place.start, self.array.shape)

    def __deepcopy__(self, memo: dict[int, Any]) -> Memory:
        """A copy; whoever has the array as well gets the copy's."""
        place = place_of(self.array)
        if place is None or self.array is None or id(self.array) in memo:
            return Memory(copy.deepcopy(self.array, memo))
        bucket = copy.deepcopy(place.bucket, memo)
        made = memo[id(self.array)] = slice_of(bucket, place.start, self.array.shape)
        return Memory(made)


def _in_bucket(bucket: Array, start: int, shape: Shape) -> Memory:
    return Memory(slice_of(bucket, start, shape))
