"""How Keras and PyTorch keep the arrays of layers: their names, the order of axes and of gates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from singanet.checkpoint.keras import Variable
from singanet.saving.codecs.orders import Uses, along
from singanet.types import Array, Shape

Lay: TypeAlias = "Callable[[Any, Uses], Sequence[Variable]]"
"""A function that lays out a layer's arrays elsewhere, by the order of its inputs' elements."""


@dataclass(frozen=True)
class Arrays:
    """The arrays of a layer in Keras and in PyTorch, as far as these have it.

    ``apart`` are those of PyTorch's that files have also one by one, and it has joined.
    """

    keras: Lay | None = None
    torch: Lay | None = None
    apart: Lay | None = None


def _as_ours(layer: Any, shape: Shape) -> Shape:
    return shape


def _in_order(layer: Any, rank: int) -> Sequence[int]:
    return range(rank)


def across(layer: Any, rank: int) -> Sequence[int]:
    """The axes the other way round, as PyTorch's matrices have them."""
    return range(rank)[::-1]


@dataclass(frozen=True)
class StoredArray:
    """One parameter as Keras or PyTorch keep it: by which name, and how its elements lie.

    It is seen with the axes ``view``, which stand in ``order`` there. One with ``features`` is
    along what the layer reads, whose elements may stand in another order in Keras. ``group`` is
    the part of Keras' layer that it is in.
    """

    suffix: str
    keras: str = ""
    torch: str = ""
    view: Callable[[Any, Shape], Shape] = _as_ours
    order: Callable[[Any, int], Sequence[int]] = _in_order
    features: bool = False
    group: str = ""

    def variable(self, layer: Any, path: str, label: str) -> Variable:
        """The array at ``path``."""
        shape = layer.params[self.suffix].shape
        view = self.view(layer, shape)
        return moved(path, label, self.suffix, shape, view, self.order(layer, len(view)))


def moved(
    path: str, label: str, suffix: str, ours: Shape, view: Shape, order: Sequence[int]
) -> Variable:
    """Our array seen as ``view``, with its axes in ``order``."""
    order = tuple(order)
    back = tuple(order.index(axis) for axis in range(len(order)))
    return Variable(
        path,
        label,
        tuple(view[axis] for axis in order),
        (suffix,),
        lambda array: array.reshape(view).transpose(order),
        lambda array: (array.transpose(back).reshape(ours),),
        turns=list(order) != sorted(order),
    )


def stored(*rows: StoredArray) -> Arrays:
    """The arrays that these tell, of which a layer has all or some."""
    in_keras = keras_arrays(lambda layer: rows) if any(row.keras for row in rows) else None
    named = [row for row in rows if row.torch]

    def torch(layer: Any, uses: Uses) -> list[Variable]:
        there = [row for row in named if row.suffix in layer.params]
        return [row.variable(layer, row.torch, row.suffix) for row in there]

    return Arrays(in_keras, torch if named else None)


def keras_arrays(rows_of: Callable[[Any], Sequence[StoredArray]]) -> Lay:
    """Keras' arrays by the rows that a layer has."""

    def lay(layer: Any, uses: Uses) -> list[Variable]:
        counts: dict[str, int] = {}
        found = []
        for row in rows_of(layer):
            if row.keras and row.suffix in layer.params:
                number = counts.get(row.group, 0)
                counts[row.group] = number + 1
                path = f"{row.group}vars/{number}"
                found.append(
                    of_features(layer, row.suffix, path, row.keras, uses)
                    if row.features
                    else row.variable(layer, path, row.keras)
                )
        return found

    return lay


def per_feature(**names: tuple[str, str]) -> Arrays:
    """Arrays over features or channels: ours, each with Keras' name and PyTorch's."""
    rows = names.items()
    return stored(
        *(StoredArray(ours, keras, torch, features=True) for ours, (keras, torch) in rows)
    )


def of_features(layer: Any, suffix: str, path: str, label: str, uses: Uses) -> Variable:
    """An array over features, in the order in which Keras' layer reads them."""
    shape, read = layer.params[suffix].shape, uses.read
    if isinstance(read, list) and len(shape) == 1 and shape != (1,):
        there, back = along(read)
        return Variable(path, label, shape, (suffix,), there, lambda array: (back(array),))
    order: Sequence[int] = range(len(shape))
    if isinstance(read, tuple) and len(shape) > 1:
        # Over the last of our axes, which Keras has in an order of its own.
        before = len(read) - len(shape)
        order = [axis - before for axis in read if axis >= before]
    return moved(path, label, suffix, shape, shape, order)


def joined(path: str, shape: Shape, suffixes: Sequence[str], turns: bool) -> Variable:
    """Several of our arrays as one, behind each other along its first axis."""

    def turned(array: Array) -> Array:
        return array.T if turns else array

    return Variable(
        path,
        path,
        shape,
        suffixes,
        lambda *parts: np.concatenate([turned(part) for part in parts]),
        lambda array: [turned(part) for part in np.split(array, len(suffixes))],
        turns=turns,
    )
