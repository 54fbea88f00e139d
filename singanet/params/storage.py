"""Where a parameter's values are.

In memory arrays of small parameters are slices of flat ones, the buckets. What goes over all of
them, as an update or a sum between processes, then goes over a few arrays.
"""

from __future__ import annotations

import copy
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, NoReturn, TypeVar

import numpy as np

from singanet.errors import CallOrderError
from singanet.ops.interface import Runs
from singanet.types import Array, RowSparse, Shape, StandIn

if TYPE_CHECKING:
    from singanet.ops.narrow import NarrowMatrix


SMALL = 1 << 16
"""Bytes of a parameter in a bucket: a call takes some microseconds, as an update of as many."""

BUCKET = 1 << 17
"""Bytes of a bucket: with gradient and state it stays in the cache of a core meanwhile."""


class Place(NamedTuple):
    """The elements from ``start`` up to ``stop`` of ``bucket``, a flat array.

    Two places that have elements in common are one.
    """

    bucket: Array
    start: int
    stop: int


@dataclass(frozen=True, eq=False, slots=True)
class Bucket:
    """A flat ``array`` of one float type on one device that contains several parameters.

    ``slices`` are the ranges of the parameters ``names`` in it, ascending, in the order of
    backward. Elements between the slices are unused.
    """

    names: tuple[str, ...]
    array: Array
    slices: tuple[slice, ...]

    def __repr__(self) -> str:
        return f"Bucket({len(self.names)} parameters, <{self.array.dtype} {self.array.shape}>)"


_Known = TypeVar("_Known")


class ByArray(Generic[_Known]):
    """Notes on arrays, by object identity, each kept for as long as its array lives."""

    def __init__(self) -> None:
        # Once an array is gone another may get its id; the reference tells them apart.
        self._known: dict[int, tuple[weakref.ref[Array], _Known]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def of(self, array: Any) -> _Known | None:
        """The note on this very object, None if there is none."""
        found = self._known.get(id(array))
        return found[1] if found is not None and found[0]() is array else None

    def note(self, array: Array, known: _Known) -> None:
        """Keep the note ``known`` on ``array``, in place of an earlier one."""
        key, owner = id(array), weakref.ref(self)

        def forget(gone: weakref.ref[Array]) -> None:
            here = owner()
            # Another array may have got this id since.
            if here is not None and here._known.get(key, (None,))[0] is gone:
                del here._known[key]

        self._known[key] = weakref.ref(array, forget), known


_places: ByArray[Place] = ByArray()
place_of = _places.of
"""Where an array lies, if this very object was laid in a bucket; else None."""


def slice_of(bucket: Array, start: int, shape: Shape) -> Array:
    """The array of ``shape`` in ``bucket`` from ``start`` on; `place_of` knows it."""
    place = Place(bucket, start, start + prod(shape))
    array = bucket[start : place.stop].reshape(shape)
    _places.note(array, place)
    return array


def lay(arrays: Sequence[Array], put: Callable[[Array], Array]) -> list[Array]:
    """Small ``arrays`` with the same elements, side by side in buckets on the device of ``put``."""
    laid: dict[int, Array] = {}
    for group in groups_of(arrays):
        laid.update(zip(group, lay_as_one([arrays[k] for k in group], put), strict=True))
    return [laid[k] for k in range(len(arrays))]


def lay_as_one(parts: Sequence[Array], put: Callable[[Array], Array]) -> list[Array]:
    """``parts`` of one type with the same elements, in this order in one bucket."""
    # A layer's file needs parameters, but no kernels.
    from singanet.ops import ops_for

    xp = ops_for(parts[0]).xp
    bucket = put(xp.concatenate([part.reshape(-1) for part in parts]))
    laid, start = [], 0
    for part in parts:
        laid.append(slice_of(bucket, start, part.shape))
        start += part.size
    return laid


def groups_of(arrays: Sequence[Array]) -> list[list[int]]:
    """The numbers of the arrays of each bucket: of one type, neighbours as they are given."""
    groups: list[list[int]] = []
    filling: dict[Any, tuple[list[int], int]] = {}
    for k, array in enumerate(arrays):
        group, nbytes = filling.get(array.dtype, ([], BUCKET))
        if nbytes + array.nbytes > BUCKET:
            group, nbytes = [], 0
            groups.append(group)
        group.append(k)
        filling[array.dtype] = group, nbytes + array.nbytes
    return groups


def buckets_of(arrays: Iterable[tuple[str, Array]]) -> list[Bucket]:
    """The buckets in which any of the named ``arrays`` lie, in the order in which these come.

    Of arrays at one place the first counts.
    """
    found: dict[int, dict[int, tuple[Place, str]]] = {}
    for name, array in arrays:
        place = place_of(array)
        if place is not None:
            found.setdefault(id(place.bucket), {}).setdefault(place.start, (place, name))
    made = []
    for by_start in found.values():
        places, names = zip(*(by_start[start] for start in sorted(by_start)), strict=True)
        slices = tuple(slice(place.start, place.stop) for place in places)
        made.append(Bucket(names, places[0].bucket, slices))
    return made


class ParamStorage(ABC):
    """The storage of a parameter's array: memory, a file, a table of rows, another rank.

    ``place`` says so, and ``way_back`` what brings it into memory, as errors have it. A copy of
    it, pickled or not, keeps the array in memory.
    """

    __slots__ = ()

    place: str
    way_back: str

    in_memory = False
    """Whether the array stays in memory for as long as the parameter is not moved."""

    by_rows = False
    """Whether it is a `ParameterServerStorage`, of which only rows come here."""

    bounded = False
    """Whether its owner was told how much memory to keep: copies of all arrays have no room."""

    trains = True
    """Whether the array may be changed by updates."""

    sliced = False
    """Whether several processes have a slice of one array each, and all of them get at it."""

    loads = False
    """Whether programs have the array in memory between calls that load and release it."""

    first_row = 0
    """The first row of what is `here`."""

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

    @property
    def nbytes(self) -> int:
        """The bytes of memory that it keeps the array in."""
        return 0 if self.array is None else int(self.array.nbytes)

    @abstractmethod
    def read(self) -> Array:
        """The array, read-only; it may be dropped, and be another object, at the next call."""

    def here(self) -> Array:
        """The live array, or the slice of it that this process has."""
        return self.lend()

    def here_of(self, whole: Array) -> Array:
        """What of an array of the parameter's shape goes with `here`."""
        return whole

    def factor(self) -> Array | NarrowMatrix:
        """What products and look-ups read: `read`, or a matrix of fewer bits."""
        return self.read()

    @abstractmethod
    def lend(self) -> Array:
        """The live array, which may be changed until the net's next pass; then it is put back."""

    @abstractmethod
    def write(self, array: Array) -> None:
        """Put ``array``, of the same shape and type, in its place."""

    def moved(self, put: Callable[[Array], Array]) -> ParamStorage | None:
        """The same in arrays that ``put`` makes of its own, as on another device.

        None where what is not in memory stays where it is.
        """
        return None

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


class ServedStandIn(StandIn):
    """A stand-in for the array of a served parameter; its elements are NaN.

    A rule sends its row-sparse gradients to ``rows``.
    """

    rows: ParameterServerStorage

    def __setitem__(self, key: Any, value: Any) -> NoReturn:
        raise CallOrderError(
            f"parameter {self.rows.name!r}",
            expected="rows that are looked up and updated by their table",
            received="an assignment to the array, which is not here",
            advice="use net.load, or write through param.put(array)",
        )


class ParameterServerStorage(ParamStorage):
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


def served_by(value: Any) -> ParameterServerStorage | None:
    """Where the updates of ``value`` go, if it stands for the rows of a table."""
    return value.rows if isinstance(value, ServedStandIn) else None
