"""Descriptions of layers, and of arrays in files, for the formats of others."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from singanet.types import Array, Shape


@dataclass(frozen=True)
class LayerDescription:
    """A layer with parameters: its class there, its name, and name and shape of each by suffix.

    ``lay`` tells the arrays there, or why there are none; ``apart`` those that are one array of
    ours each, as files have them whose authors took joined ones apart. ``fixed`` are the suffixes
    that no optimizer trains. ``place`` is the group in a file of Keras', where it is known.
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
        """The arrays there, in order. Errors: `ArgumentError` where there is no such layer."""
        return self.lay()

    def single(self, suffix: str) -> Variable | None:
        """The array that is ``suffix`` alone; None where there is none such."""
        found = (each for each in self.apart() if tuple(each.parts) == (suffix,))
        return next(found, None)

    def full(self, suffix: str) -> str:
        """The name of the parameter ``suffix`` in the net."""
        return self.params[suffix][0]

    def shape(self, suffix: str) -> Shape:
        """The shape of the parameter ``suffix`` in the net."""
        return self.params[suffix][1]


@dataclass(frozen=True)
class Variable:
    """One array of a layer elsewhere: where it stands, and how ours become it and come from it.

    ``parts`` are our suffixes; ``join`` takes their arrays, ``split`` gives one for each. Where
    only the ``sum_of_parts`` counts, every part has the gradient of the sum.
    """

    path: str
    label: str
    shape: Shape
    parts: Sequence[str]
    join: Callable[..., Array]
    split: Callable[[Array], Sequence[Array]]
    sum_of_parts: bool = False
    turns: bool = False
    """Whether the axes stand in another order than ours."""

    def slot_join(self, *parts: Array) -> Array:
        """`join` for an optimizer's state."""
        return parts[0] if self.sum_of_parts else self.join(*parts)

    def slot_split(self, array: Array) -> Sequence[Array]:
        """`split` for an optimizer's state."""
        return [array] * len(self.parts) if self.sum_of_parts else self.split(array)

    def fits(self, shape: Shape) -> bool:
        """Whether an array of ``shape`` in a file can be this one."""
        if self.label == "alpha":
            # One slope a channel, with an axis of 1 for each that shares it.
            return math.prod(shape) == math.prod(self.shape)
        return shape == self.shape
