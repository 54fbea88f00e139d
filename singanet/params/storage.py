"""Storages of parameters' values.

Arrays of small parameters in memory are slices of flat ones, the buckets. An operation on all of
them, such as an update or a sum between processes, is then done on a few arrays.
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

from singanet.base import terms
from singanet.errors import CallOrderError
from singanet.ops.interface import Runs
from singanet.types import Array, RowSparse, Shape, StandIn

if TYPE_CHECKING:
    from singanet.ops.narrow import NarrowMatrix


SMALL = 1 << 16
"""The maximum bytes of a parameter in a bucket: updating them takes about the overhead of a call.
"""

BUCKET = 1 << 17
"""The maximum bytes of a bucket: with gradient and state it fits the cache of a core."""


class Place(NamedTuple):
    """The elements from ``start`` up to ``stop`` of ``bucket``, a flat array.

    Places with common elements are equal.
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
    """Notes on arrays, by object identity, each for the lifetime of its array."""

    def __init__(self) -> None:
        # After an array is freed another may get its id; the reference distinguishes them.
        self._known: dict[int, tuple[weakref.ref[Array], _Known]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def of(self, array: Any) -> _Known | None:
        """The note on this very object, None if there is none."""
        found = self._known.get(id(array))
        return found[1] if found is not None and found[0]() is array else None

    def note(self, array: Array, known: _Known) -> None:
        """Store the note ``known`` on ``array``, replacing an earlier one."""
        key, owner = id(array), weakref.ref(self)

        def forget(gone: weakref.ref[Array]) -> None:
            here = owner()
            # Another array may have got this id since.
            if here is not None and here._known.get(key, (None,))[0] is gone:
                del here._known[key]

        self._known[key] = weakref.ref(array, forget), known


_places: ByArray[Place] = ByArray()
place_of = _places.of
"""The place of an array in a bucket, if this very object was made there; else None."""


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
    """The numbers of the arrays of each bucket: consecutive arrays of one type."""
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
    """The buckets that contain any of the named ``arrays``, in order of first use.

    Of several arrays at one place the first counts.
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

    Errors describe it by ``place``, and by ``way_back`` how to get into memory. A copy, pickled or
    not, has the array in memory.
    """

    __slots__ = ()

    place: str
    way_back: str

    takes: tuple[str, ...] = (terms.IN_MEMORY,)
    """The conditions of `singanet.base.terms` that it takes away; without any it is in memory."""

    by_rows = False
    """Whether it is a `ParameterServerStorage`, which fetches single rows."""

    bounded = False
    """Whether its owner has a limit on memory: copies of all arrays would exceed it."""

    trains = True
    """Whether the array may be changed by updates."""

    sliced = False
    """Whether several processes have one slice of the array each."""

    loads = False
    """Whether programs load and release the array by calls."""

    first_row = 0
    """The first row of the slice `here`."""

    array: Array | None = None
    """The array if it is in memory as it is; a plain attribute, as every step reads it."""

    @property
    def in_memory(self) -> bool:
        """Whether the array stays in memory for as long as the parameter is not moved."""
        return not self.takes

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
        """The bytes of memory of the array."""
        return 0 if self.array is None else int(self.array.nbytes)

    @abstractmethod
    def read(self) -> Array:
        """The array, read-only; it may be dropped, and be another object, at the next call."""

    def here(self) -> Array:
        """The live array, or the slice of it that this process has."""
        return self.lend()

    def here_of(self, whole: Array) -> Array:
        """The part of ``whole``, of the parameter's shape, that corresponds to `here`."""
        return whole

    def factor(self) -> Array | NarrowMatrix:
        """The operand of products and look-ups: `read`, or a narrow matrix."""
        return self.read()

    @abstractmethod
    def lend(self) -> Array:
        """The live array, which may be changed until the net's next pass; changes are stored."""

    @abstractmethod
    def write(self, array: Array) -> None:
        """Overwrite the array with ``array``, of the same shape and type."""

    def moved(self, put: Callable[[Array], Array]) -> ParamStorage | None:
        """The same in arrays that ``put`` makes of its own, as on another device.

        None if it is not in memory and does not move.
        """
        return None

    def replace(self, name: str, array: Array) -> None:
        """Store ``array``, of any type, instead. Errors: `CallOrderError` if not in memory."""
        raise CallOrderError(
            f"parameter {name!r}",
            expected="a net in memory, whose arrays can be replaced by other types or devices",
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

    takes = ()
    place = "in memory"
    way_back = ""

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
        """Pickle an array in a bucket by its place, so that a net's buckets stay together."""
        place = place_of(self.array)
        if place is None or self.array is None:
            return Memory, (self.array,)
        return _in_bucket, (place.bucket, place.start, self.array.shape)

    def __deepcopy__(self, memo: dict[int, Any]) -> Memory:
        """Return a copy; other users of the array get the copy's."""
        place = place_of(self.array)
        if place is None or self.array is None or id(self.array) in memo:
            return Memory(copy.deepcopy(self.array, memo))
        bucket = copy.deepcopy(place.bucket, memo)
        made = memo[id(self.array)] = slice_of(bucket, place.start, self.array.shape)
        return Memory(made)


def _in_bucket(bucket: Array, start: int, shape: Shape) -> Memory:
    return Memory(slice_of(bucket, start, shape))


class ServedStandIn(StandIn):
    """A placeholder for the array of a served parameter; its elements are NaN.

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
    """The rows of a parameter (rows, width), read from a table and updated there."""

    by_rows = True
    takes = (terms.UNSERVED,)
    place = "served by a table"
    way_back = "take copy.deepcopy(net), which has it in memory"

    sums_first = False
    """Whether the table sums the gradients of all processes before its rule and clipping."""

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
        """The positions of equal elements in the flat ``ids``, which were looked up last."""

    @abstractmethod
    def see(self, ids: Array, out: Array) -> None:
        """`look_up` for an evaluation: the present rows, with no change of the table."""

    @abstractmethod
    def push(self, grad: RowSparse, scale: float) -> None:
        """Have rows updated by ``scale`` times their gradients."""

    @abstractmethod
    def parts(self) -> Iterator[Array]:
        """All rows as the table has them, some at a time."""

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
    """The table that gets the updates of ``value``, if it stands for rows of a table."""
    return value.rows if isinstance(value, ServedStandIn) else None
