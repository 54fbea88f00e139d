"""In which order Keras has the elements of each tensor of a net.

Images are (C, H, W) here and (H, W, C) there, and so the rows that are made of them stand in
another order, whatever passes them on: joins, normalisation, dense layers. A tensor of two or more
axes is described by the axes that Keras' one has of ours, a row by blocks of flattened tensors. The
units of a `Dense` may stand in any order: what follows decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import TypeAlias

import numpy as np

from singanet.types import Array, Shape

Move = Callable[[Array], Array]


@dataclass(frozen=True)
class Block:
    """A part of a row: Keras' is ``ours.reshape(shape).transpose(axes).ravel()``."""

    shape: Shape
    axes: Shape

    @property
    def size(self) -> int:
        """Its elements."""
        return prod(self.shape)


class FreeUnits:
    """A part of a row that may stand in any order, until ``row`` says which."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.row: list[Part] | None = None


Part: TypeAlias = Block | FreeUnits


@dataclass(frozen=True)
class Mixed:
    """A tensor whose elements are arranged otherwise than in Keras, since the layer ``name``."""

    name: str


Order: TypeAlias = Shape | list[Part] | Mixed
"""Of a tensor with several axes, Keras' axes among ours; of a row, its parts."""


@dataclass
class Uses:
    """What the uses of one layer read and yield: the order of the first, with which all agree."""

    read: Order
    made: Order


def blocks(order: Order) -> list[Block]:
    """The parts of a row; what nothing has decided on stands as it does here."""
    if not isinstance(order, list):
        return []
    found = [part if isinstance(part, Block) else plain(part.size) for part in resolved(order)]
    return _joined(found)


def along(order: Order) -> tuple[Move, Move]:
    """Axis 0 of an array from our order to Keras', and back."""
    parts = blocks(order)
    if all(len(part.axes) == 1 for part in parts):
        return (lambda a: a), (lambda a: a)
    ends = np.cumsum([part.size for part in parts])[:-1]

    def there(a: Array) -> Array:
        return np.concatenate([turned(p, x) for p, x in zip(parts, np.split(a, ends), strict=True)])

    def back(a: Array) -> Array:
        return np.concatenate(
            [turned(_inverse(p), x) for p, x in zip(parts, np.split(a, ends), strict=True)]
        )

    return there, back


def turned(block: Block, a: Array) -> Array:
    """``a`` with its axis 0 brought to the order of ``block``."""
    rank, rest = len(block.shape), a.shape[1:]
    axes = (*block.axes, *range(rank, rank + len(rest)))
    return a.reshape(*block.shape, *rest).transpose(axes).reshape(a.shape)


def _inverse(block: Block) -> Block:
    shape = tuple(block.shape[axis] for axis in block.axes)
    return Block(shape, tuple(block.axes.index(axis) for axis in range(len(shape))))


def plain(size: int) -> Block:
    """A part that stands as it does here."""
    return Block((size,), (0,))


def block_of(shape: Shape, axes: Shape) -> Block:
    """The block with axes of 1 left out, and those that stay together made one."""
    kept = [axis for axis in axes if shape[axis] != 1]
    order = [sorted(kept).index(axis) for axis in kept]
    extents = [shape[axis] for axis in sorted(kept)]
    cuts = [0, *(i for i, (a, b) in enumerate(pairwise(order), 1) if b != a + 1), len(order)]
    runs = [order[a:b] for a, b in pairwise(cuts) if a < b]
    places = sorted(runs)
    sizes = tuple(prod(extents[run[0] : run[-1] + 1]) for run in places)
    return Block(sizes or (1,), tuple(places.index(run) for run in runs) or (0,))


def resolved(row: Sequence[Part]) -> list[Part]:
    """The parts of ``row``, as far as is known of free units."""
    found: list[Part] = []
    for part in row:
        if isinstance(part, FreeUnits) and part.row is not None:
            found += resolved(part.row)
        else:
            found.append(part)
    return found


def _joined(row: list[Block]) -> list[Block]:
    """Parts that stand as they do here, one behind the other, as one."""
    found: list[Block] = []
    for part in row:
        if found and len(found[-1].axes) == len(part.axes) == 1:
            part = plain(found.pop().size + part.size)
        found.append(part)
    return found


def agree(a: Order, b: Order) -> bool:
    """Whether the orders are one, where free units take what they have to."""
    if not isinstance(a, list) or not isinstance(b, list):
        return a == b
    left, right = list(a), list(b)
    while left and right:
        x, y = _next(left), _next(right)
        if x is y:
            continue
        size = min(x.size, y.size)
        one, other = _start(x, size, left), _start(y, size, right)
        if one is None or other is None:
            return False
        if isinstance(one, FreeUnits):
            one.row = [other]
        elif isinstance(other, FreeUnits):
            other.row = [one]
        elif one != other:
            return False
    return not left and not right


def _next(row: list[Part]) -> Part:
    """Take the first part of ``row``, by what is known of it."""
    part = row.pop(0)
    while isinstance(part, FreeUnits) and part.row is not None:
        part, *rest = part.row
        row[:0] = rest
    return part


def _start(part: Part, size: int, rest: list[Part]) -> Part | None:
    """The first ``size`` elements of ``part``; what remains goes back to the front of ``rest``.

    None for a block that cannot be cut.
    """
    if part.size == size:
        return part
    if isinstance(part, FreeUnits):
        part.row = [FreeUnits(size), FreeUnits(part.size - size)]
        rest.insert(0, part.row[1])
        return part.row[0]
    if len(part.axes) > 1:
        return None
    rest.insert(0, plain(part.size - size))
    return plain(size)


def cut(row: list[Part], sizes: Sequence[int], name: str) -> list[Order]:
    """``row`` in pieces."""
    rest, found = list(row), list[Order]()
    for size in sizes:
        piece: list[Part] = []
        while (left := size - sum(part.size for part in piece)) > 0:
            first = _next(rest)
            start = _start(first, min(first.size, left), rest)
            if start is None:
                return [Mixed(name)] * len(sizes)
            piece.append(start)
        found.append(piece)
    return found
