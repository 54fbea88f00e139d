"""Layers with the arrays that another library has for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from singanet.types import Array, Shape


@dataclass(frozen=True)
class LayerDescription:
    """A layer with parameters: ``kind`` is its Keras class, ``name`` its name.

    ``params`` maps a suffix to name and shape in the net. ``lay`` returns the arrays in the other
    library, or raises an error that explains why there are none. ``apart`` returns the separate
    arrays of one parameter each, for files that split joined arrays. ``fixed`` are the suffixes
    that no optimizer trains. ``place`` is the group in a Keras file, if known.
    """

    kind: str
    name: str
    params: Mapping[str, tuple[str, Shape]]
    lay: Callable[[], Sequence[Variable]]
    apart: Callable[[], Sequence[Variable]] = tuple
    fixed: frozenset[str] = frozenset()
    place: str = ""

    @cached_property
    def variables(self) -> Sequence[Variable]:
        """The arrays in the other library, in order.

        Errors: `ArgumentError` if it has no such layer.
        """
        return self.lay()

    def single(self, suffix: str) -> Variable | None:
        """Return the array of ``suffix`` alone; None if there is none."""
        found = (each for each in self.apart() if tuple(each.parts) == (suffix,))
        return next(found, None)

    def full(self, suffix: str) -> str:
        """Return the name of the parameter ``suffix`` in the net."""
        return self.params[suffix][0]

    def shape(self, suffix: str) -> Shape:
        """Return the shape of the parameter ``suffix`` in the net."""
        return self.params[suffix][1]


@dataclass(frozen=True)
class Variable:
    """An array of a layer in another library: its path, and its conversion from and to ours.

    ``parts`` are our suffixes; ``join`` converts their arrays to this one, ``split`` back. With
    ``sum_of_parts`` the array is the sum of the parts, and every part has the gradient of the sum.
    """

    path: str
    label: str
    shape: Shape
    parts: Sequence[str]
    join: Callable[..., Array]
    split: Callable[[Array], Sequence[Array]]
    sum_of_parts: bool = False
    turns: bool = False
    """Whether the order of the axes differs from ours."""

    def slot_join(self, *parts: Array) -> Array:
        """Join an optimizer's state."""
        return parts[0] if self.sum_of_parts else self.join(*parts)

    def slot_split(self, array: Array) -> Sequence[Array]:
        """Split an optimizer's state."""
        return [array] * len(self.parts) if self.sum_of_parts else self.split(array)

    def fits(self, shape: Shape) -> bool:
        """Return whether an array of ``shape`` in a file can be this one."""
        if self.label == "alpha":
            # Slopes are per channel, with axes of size 1 for shared positions.
            return math.prod(shape) == math.prod(self.shape)
        return shape == self.shape
