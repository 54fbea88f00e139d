"""Where the parameters of a net stand in the files of others, and how they lie there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from singanet.params.param import Param
from singanet.types import Array, Shape


@dataclass(frozen=True)
class ArrayPlace:
    """The array called ``name``, or a part of it, that is a parameter of ours.

    ``turned`` are matrices (out, in), as PyTorch's Linear has them. Of several parameters in one
    array each is the part ``order`` along ``axis``. ``shape`` is said where the array has other
    axes than the parameter, such as one of extent 1 in front.
    """

    name: str
    turned: bool = False
    order: int = 0
    axis: int = 0
    shape: Shape | None = None

    def extents(self, ours: Shape) -> Shape:
        """The shape in the file for a parameter of the shape ``ours``."""
        return self.shape or (ours[::-1] if self.turned else ours)

    def theirs(self, value: Array) -> Array:
        """A view of the parameter's ``value`` as the array in the file, or the part of it, is."""
        return value.T if self.turned else value.reshape(self.extents(value.shape))


@dataclass
class FileArray:
    """An array in the files, and the parameters that are its parts, in their order."""

    name: str
    members: list[tuple[Param, ArrayPlace]]

    @property
    def shape(self) -> Shape:
        """The shape in the file."""
        parts = [place.extents(param.shape) for param, place in self.members]
        axis = self.members[0][1].axis
        whole = list(parts[0])
        whole[axis : axis + 1] = [sum(part[axis] for part in parts)] if whole else []
        return tuple(whole)

    def part(self, array: Array, param: Param) -> Array:
        """What of the ``array`` in the file is ``param``, as it lies there."""
        start = 0
        for other, place in self.members:
            end = start + place.extents(other.shape)[place.axis]
            if other is param:
                return array[(slice(None),) * place.axis + (slice(start, end),)]
            start = end
        raise KeyError(param.name)

    def place_of(self, param: Param) -> ArrayPlace:
        """Where ``param`` is."""
        return next(place for other, place in self.members if other is param)

    def whole(self, value_of: Callable[[Param], Array]) -> Array:
        """The array in the file, of the parameters' values."""
        parts = [place.theirs(value_of(param)) for param, place in self.members]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, self.members[0][1].axis)


def stored_arrays(places: Iterable[tuple[Param, ArrayPlace]]) -> dict[str, FileArray]:
    """The arrays in the files by name, for parameters with their places."""
    found: dict[str, FileArray] = {}
    for param, place in sorted(places, key=lambda each: each[1].order):
        found.setdefault(place.name, FileArray(place.name, [])).members.append((param, place))
    return found
