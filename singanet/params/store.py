"""The parameter store: arrays of small parameters as slices of flat ones.

What goes over all of them, as an update or a sum between processes, then goes over a few arrays.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from singanet.types import Array, Shape

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
    """A flat ``array`` of one float type on one device, and what lies in it.

    ``slices`` are those of the parameters ``names``, rising. Parameters stand in the order in
    which a walk back yields them. What lies between the slices is nobody's.
    """

    names: tuple[str, ...]
    array: Array
    slices: tuple[slice, ...]


_places: dict[int, tuple[weakref.ref[Array], Place]] = {}
"""By the id of an array in a bucket: that array, for as long as it lives, and where it lies."""


def place_of(array: Any) -> Place | None:
    """Where ``array`` lies, if this very object was laid in a bucket."""
    found = _places.get(id(array))
    return found[1] if found is not None and found[0]() is array else None


def slice_of(bucket: Array, start: int, shape: Shape) -> Array:
    """The array of ``shape`` in ``bucket`` from ``start`` on; `place_of` knows it."""
    place = Place(bucket, start, start + prod(shape))
    array = bucket[start : place.stop].reshape(shape)
    key = id(array)

    def forget(gone: weakref.ref[Array], places: Any = _places) -> None:
        # Another array may have got this id since.
        if places.get(key, (None,))[0] is gone:
            del places[key]

    _places[key] = weakref.ref(array, forget), place
    return array


def lay(arrays: Sequence[Array], put: Callable[[Array], Array]) -> list[Array]:
    """Small ``arrays`` with the same elements, side by side in buckets on the device of ``put``."""
    # A layer's file needs parameters, but no kernels.
    from singanet.ops import ops_for

    laid: dict[int, Array] = {}
    for group in groups_of(arrays):
        parts = [arrays[k] for k in group]
        xp = ops_for(parts[0]).xp
        bucket = put(xp.concatenate([part.reshape(-1) for part in parts]))
        start = 0
        for k, part in zip(group, parts, strict=True):
            laid[k] = slice_of(bucket, start, part.shape)
            start += part.size
    return [laid[k] for k in range(len(arrays))]


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
