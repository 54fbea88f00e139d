"""Arrays of layers in Keras and PyTorch: their names, axes and the order of gates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from singanet.checkpoint.layer_arrays import Variable
from singanet.saving.codecs.orders import Uses, along
from singanet.types import Array, Shape

Lay: TypeAlias = "Callable[[Any, Uses], Sequence[Variable]]"
"""A function from a layer and the order of its inputs' elements to the library's arrays."""


@dataclass(frozen=True)
class Arrays:
    """The arrays of a layer in Keras and in PyTorch, if the library has the layer.

    ``apart`` are arrays that PyTorch joins and that files also store separately.
    """

    keras: Lay | None = None
    torch: Lay | None = None
    apart: Lay | None = None


def _as_ours(layer: Any, shape: Shape) -> Shape:
    return shape


def _in_order(layer: Any, rank: int) -> Sequence[int]:
    return range(rank)


def across(layer: Any, rank: int) -> Sequence[int]:
    """Reverse the axes, as for PyTorch's matrices."""
    return range(rank)[::-1]


@dataclass(frozen=True)
class StoredArray:
    """A parameter in Keras or PyTorch: its name and its layout.

    It is reshaped to ``view`` and its axes are permuted by ``order``. With ``features`` its axis is
    the layer's input features, whose order in Keras may differ. ``group`` is its sublayer in Keras.
    """

    suffix: str
    keras: str = ""
    torch: str = ""
    view: Callable[[Any, Shape], Shape] = _as_ours
    order: Callable[[Any, int], Sequence[int]] = _in_order
    features: bool = False
    group: str = ""

    def variable(self, layer: Any, path: str, label: str) -> Variable:
        """Return the array at ``path``."""
        shape = layer.params[self.suffix].shape
        view = self.view(layer, shape)
        return moved(path, label, self.suffix, shape, view, self.order(layer, len(view)))


def moved(
    path: str, label: str, suffix: str, ours: Shape, view: Shape, order: Sequence[int]
) -> Variable:
    """Return our array reshaped to ``view``, with its axes permuted by ``order``."""
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
    """Return the arrays of ``rows``, of which a layer has all or some."""
    in_keras = keras_arrays(lambda layer: rows) if any(row.keras for row in rows) else None
    named = [row for row in rows if row.torch]

    def torch(layer: Any, uses: Uses) -> list[Variable]:
        there = [row for row in named if row.suffix in layer.params]
        return [row.variable(layer, row.torch, row.suffix) for row in there]

    return Arrays(in_keras, torch if named else None)


def keras_arrays(rows_of: Callable[[Any], Sequence[StoredArray]]) -> Lay:
    """Return Keras' arrays by the rows of a layer."""

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
    """Return arrays over features or channels: ours, each with Keras' and PyTorch's name."""
    rows = names.items()
    return stored(
        *(StoredArray(ours, keras, torch, features=True) for ours, (keras, torch) in rows)
    )


def of_features(layer: Any, suffix: str, path: str, label: str, uses: Uses) -> Variable:
    """Return an array over features, in the order in which Keras' layer reads them."""
    shape, read = layer.params[suffix].shape, uses.read
    if isinstance(read, list) and len(shape) == 1 and shape != (1,):
        there, back = along(read)
        return Variable(path, label, shape, (suffix,), there, lambda array: (back(array),))
    order: Sequence[int] = range(len(shape))
    if isinstance(read, tuple) and len(shape) > 1:
        # The array's axes are our last axes, which Keras orders differently.
        before = len(read) - len(shape)
        order = [axis - before for axis in read if axis >= before]
    return moved(path, label, suffix, shape, shape, order)


def joined(path: str, shape: Shape, suffixes: Sequence[str], turns: bool) -> Variable:
    """Return several of our arrays concatenated along the first axis."""

    def transposed(array: Array) -> Array:
        return array.T if turns else array

    return Variable(
        path,
        path,
        shape,
        suffixes,
        lambda *parts: np.concatenate([transposed(part) for part in parts]),
        lambda array: [transposed(part) for part in np.split(array, len(suffixes))],
        turns=turns,
    )
