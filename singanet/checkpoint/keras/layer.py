"""What the Keras formats must know of a layer, and of an array as Keras keeps it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from singanet.checkpoint.keras.orders import Uses
from singanet.types import Array, Shape


@dataclass(frozen=True)
class LayerDescription:
    """A layer with parameters: its class, its name, and name and shape of each by suffix.

    ``settings`` holds what the conversion of some kinds depends on, such as ``kernel``.
    ``uses`` says in which order Keras has what the layer reads and yields; without it the order is
    ours. ``fixed`` are the suffixes that no optimizer trains. ``place`` is the group in a file of
    Keras', where it is known.
    """

    kind: str
    name: str
    params: Mapping[str, tuple[str, Shape]]
    settings: Mapping[str, Any] = field(default_factory=dict)
    uses: Uses = field(default_factory=lambda: Uses([], []))
    fixed: frozenset[str] = frozenset()
    place: str = ""

    def full(self, suffix: str) -> str:
        """The name of the parameter ``suffix`` in the net."""
        return self.params[suffix][0]

    def shape(self, suffix: str) -> Shape:
        """The shape of the parameter ``suffix`` in the net."""
        return self.params[suffix][1]


@dataclass(frozen=True)
class Variable:
    """One array of a Keras layer: where it stands, and how ours become it and come from it.

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


def one(
    path: str,
    label: str,
    shape: Shape,
    suffix: str,
    there: Callable[[Array], Array],
    back: Callable[[Array], Array],
) -> Variable:
    """A variable that is one array of ours, moved ``there`` and ``back``."""
    return Variable(path, label, shape, (suffix,), there, lambda array: (back(array),))


def same(path: str, label: str, shape: Shape, suffix: str) -> Variable:
    """A variable that is kept as ours is."""
    return one(path, label, shape, suffix, lambda a: a, lambda a: a)
