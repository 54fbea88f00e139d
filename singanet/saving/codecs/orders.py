"""The order of elements in Keras of each tensor of a net.

Images are (C, H, W) here and (H, W, C) in Keras. Vectors made from them thus have another order,
through joins, normalisation and dense layers. A tensor of two or more axes is described by the
order of Keras' axes, a vector by blocks of flattened tensors. The units of a `Dense` may have any
order; the layers after it decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any, TypeAlias

import numpy as np

from singanet.errors import ArgumentError
from singanet.layers import Permute, Reshape
from singanet.layers.geometry import Windowed
from singanet.layers.layer import Layer
from singanet.layers.pooling import AdaptivePooling, GlobalPooling
from singanet.types import Array, Shape

Move = Callable[[Array], Array]


@dataclass(frozen=True)
class Block:
    """A part of a vector: Keras' is ``ours.reshape(shape).transpose(axes).ravel()``."""

    shape: Shape
    axes: Shape

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)


class FreeUnits:
    """A part of a vector of undetermined order, until ``row`` is set."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.row: list[Part] | None = None


Part: TypeAlias = Block | FreeUnits


@dataclass(frozen=True)
class Mixed:
    """A tensor whose order has no simple form in Keras, since the layer ``name``."""

    name: str


Order: TypeAlias = Shape | list[Part] | Mixed
"""Keras' order of a tensor's axes, or the parts of a vector."""


@dataclass
class Uses:
    """The orders of a layer's input and output: its first use's, with which all must agree."""

    read: Order
    made: Order


def blocks(order: Order) -> list[Block]:
    """Return the parts of a vector; undetermined parts keep our order."""
    if not isinstance(order, list):
        return []
    found = [part if isinstance(part, Block) else _plain(part.size) for part in _resolved(order)]
    return _joined(found)


def along(order: Order) -> tuple[Move, Move]:
    """Return functions that permute axis 0 from our order to Keras', and back."""
    parts = blocks(order)
    if all(len(part.axes) == 1 for part in parts):
        return (lambda a: a), (lambda a: a)
    ends = np.cumsum([part.size for part in parts])[:-1]

    def there(a: Array) -> Array:
        return np.concatenate(
            [in_order(p, x) for p, x in zip(parts, np.split(a, ends), strict=True)]
        )

    def back(a: Array) -> Array:
        return np.concatenate(
            [in_order(_inverse(p), x) for p, x in zip(parts, np.split(a, ends), strict=True)]
        )

    return there, back


def in_order(block: Block, a: Array) -> Array:
    """Permute axis 0 of ``a`` to the order of ``block``."""
    rank, rest = len(block.shape), a.shape[1:]
    axes = (*block.axes, *range(rank, rank + len(rest)))
    return a.reshape(*block.shape, *rest).transpose(axes).reshape(a.shape)


def _inverse(block: Block) -> Block:
    shape = tuple(block.shape[axis] for axis in block.axes)
    return Block(shape, tuple(block.axes.index(axis) for axis in range(len(shape))))


def _plain(size: int) -> Block:
    return Block((size,), (0,))


def _block(shape: Shape, axes: Shape) -> Block:
    """Return the block without axes of size 1, and with adjacent axes merged."""
    kept = [axis for axis in axes if shape[axis] != 1]
    order = [sorted(kept).index(axis) for axis in kept]
    extents = [shape[axis] for axis in sorted(kept)]
    cuts = [0, *(i for i, (a, b) in enumerate(pairwise(order), 1) if b != a + 1), len(order)]
    runs = [order[a:b] for a, b in pairwise(cuts) if a < b]
    places = sorted(runs)
    sizes = tuple(prod(extents[run[0] : run[-1] + 1]) for run in places)
    return Block(sizes or (1,), tuple(places.index(run) for run in runs) or (0,))


def _resolved(row: Sequence[Part]) -> list[Part]:
    found: list[Part] = []
    for part in row:
        if isinstance(part, FreeUnits) and part.row is not None:
            found += _resolved(part.row)
        else:
            found.append(part)
    return found


def _joined(row: list[Block]) -> list[Block]:
    """Merge adjacent parts in our order."""
    found: list[Block] = []
    for part in row:
        if found and len(found[-1].axes) == len(part.axes) == 1:
            part = _plain(found.pop().size + part.size)
        found.append(part)
    return found


def _agree(a: Order, b: Order) -> bool:
    """Return whether the orders are equal, and set free units accordingly."""
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
    """Pop the first part of ``row``, resolved if possible."""
    part = row.pop(0)
    while isinstance(part, FreeUnits) and part.row is not None:
        part, *rest = part.row
        row[:0] = rest
    return part


def _start(part: Part, size: int, rest: list[Part]) -> Part | None:
    """Return the first ``size`` elements of ``part``; the remainder goes back to ``rest``.

    None for a block that cannot be split.
    """
    if part.size == size:
        return part
    if isinstance(part, FreeUnits):
        part.row = [FreeUnits(size), FreeUnits(part.size - size)]
        rest.insert(0, part.row[1])
        return part.row[0]
    if len(part.axes) > 1:
        return None
    rest.insert(0, _plain(part.size - size))
    return _plain(size)


def _cut(row: list[Part], sizes: Sequence[int], name: str) -> list[Order]:
    """Split ``row`` into pieces."""
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


def orders_of(
    nodes: Sequence[Any], images_last: bool, elements_of: Callable[[Layer], str]
) -> dict[int, Uses]:
    """Return the order of input and output of each layer with parameters, by the layer's id.

    With ``images_last`` False Keras' tensors equal ours. ``elements_of`` returns a layer's effect
    on the order. Errors: `ArgumentError` for a layer whose input has another order in Keras, and
    for joins of different orders.
    """
    walk = _Walk(images_last, _signals(nodes), elements_of)
    for node in _sources_first(nodes):
        walk.made[id(node)] = walk.outputs(node)
    return walk.uses


class _Walk:
    """A walk from the inputs to the outputs."""

    def __init__(
        self, images_last: bool, signals: set[int], elements_of: Callable[[Layer], str]
    ) -> None:
        self.elements_of = elements_of
        self.images_last = images_last
        self.signals = signals
        self.made: dict[int, list[Order]] = {}
        self.uses: dict[int, Uses] = {}

    def outputs(self, node: Any) -> list[Order]:
        """Return the orders of the outputs of ``node``, and record its uses."""
        layer = node.layer
        shapes, outs = _listed(layer.in_shapes), _listed(layer.out_shapes)
        read = [self.made[id(source)][index] for source, index in node.inputs]
        read = read or [self._usual(node, shape) for shape in shapes]
        for order in read:
            if layer.params and isinstance(order, Mixed):
                raise _refused(node, f"elements that {order.name!r} orders otherwise in Keras")
        made = self._made(node, read, shapes, outs)
        if layer.params:
            self._note(node, read[0], made[0])
        return made

    def _note(self, node: Any, read: Order, made: Order) -> None:
        before = self.uses.setdefault(id(node.layer), Uses(read, made))
        if not _agree(before.read, read) or not _agree(before.made, made):
            raise _refused(node, "two orders of elements in its uses")

    def _usual(self, node: Any, shape: Shape) -> Order:
        """Return the order of a new tensor: our first axis, the channels, is Keras' last.

        The first of two axes is channels for a signal, and not for a sequence.
        """
        rank = len(shape)
        if rank == 1:
            return [_plain(shape[0])]
        signal = _is_of_signals(node.layer) or id(node) in self.signals
        if not self.images_last or (rank == 2 and not signal):
            return tuple(range(rank))
        return (*range(1, rank), 0)

    def _made(
        self, node: Any, read: list[Order], shapes: list[Shape], outs: list[Shape]
    ) -> list[Order]:
        layer, how = node.layer, self.elements_of(node.layer)
        first = read[0]
        if not layer.params and any(isinstance(order, Mixed) for order in read):
            return [Mixed(node.name)] * len(outs)
        if how == "units" and isinstance(first, list):
            known = self.uses.get(id(layer))
            return [[FreeUnits(outs[0][0])] if known is None else known.made]
        if how in ("units", "features") and isinstance(first, tuple):
            return [self._along_features(node, first)]
        if how == "moved":
            return [self._moved(node, first, shapes[0], outs[0])]
        if how == "in a row" and layer.axis == 1 and isinstance(first, list):
            return [[part for row in read if isinstance(row, list) for part in row]]
        if how == "cut" and isinstance(first, list):
            return _cut(first, [out[0] for out in outs], node.name)
        if how in ("joined", "in a row"):
            for order in read[1:]:
                if not _agree(first, order):
                    raise _refused(node, "inputs with different orders in Keras")
            return [first]
        if how in ("cut", "copied"):
            return [first] * len(outs)
        if outs == shapes and (not layer.params or how in ("features", "each")):
            return read
        return self._as_usual(node, read, shapes, outs)

    def _along_features(self, node: Any, read: Shape) -> Order:
        """Return the order for a layer along one axis, which must be Keras' last."""
        axis = 0 if getattr(node.layer, "axis", -1) == 1 else len(read) - 1
        if self.images_last and read[-1] != axis:
            raise _refused(node, "another last axis")
        return read

    def _as_usual(
        self, node: Any, read: list[Order], shapes: list[Shape], outs: list[Shape]
    ) -> list[Order]:
        """Return the order for a layer that depends on its axes, which must have Keras' order."""
        # Pooling ignores the order of positions, and two axes may be a signal or a sequence.
        reduced = isinstance(node.layer, GlobalPooling) and len(shapes[0]) == 2
        for order, shape in zip(read, shapes, strict=True):
            if not reduced and not _agree(order, self._usual(node, shape)):
                if node.layer.params:
                    raise _refused(node, "elements in another order in Keras")
                return [Mixed(node.name)] * len(outs)
        return [self._usual(node, out) for out in outs]

    def _moved(self, node: Any, order: Order, shape: Shape, out: Shape) -> Order:
        """Return the order for a layer that only moves elements."""
        if isinstance(order, Mixed) or (shape == out and len(shape) == 1):
            return order
        if isinstance(node.layer, Permute) and not isinstance(order, list):
            axes = [axis - 1 for axis in node.layer.dims]
            same = tuple(range(len(axes)))
            # Keras' tensor is permuted in the same way, or ours is permuted to Keras' order.
            moved = tuple(axes.index(axis) for axis in order)
            return same if same in (order, moved) else Mixed(node.name)
        if getattr(node.layer, "axis", 1) != 1:
            return Mixed(node.name)
        row: list[Part] = order if isinstance(order, list) else [_block(shape, order)]
        if len(out) == 1:
            return row
        # The next layers need one order of axes; the default if there is no choice.
        usual = self._usual(node, out)
        assert isinstance(usual, tuple)
        free = any(isinstance(part, FreeUnits) for part in _resolved(row))
        kinds = [usual] if free else [usual, tuple(range(len(out))), (*range(1, len(out)), 0)]
        return next((axes for axes in kinds if _agree(row, [_block(out, axes)])), Mixed(node.name))


def _sources_first(nodes: Sequence[Any]) -> Iterator[Any]:
    done: set[int] = set()
    stack = list(reversed(nodes))
    while stack:
        node = stack[-1]
        missing = [source for source, _ in node.inputs if id(source) not in done]
        stack += missing
        if not missing:
            stack.pop()
            if id(node) not in done:
                done.add(id(node))
                yield node


def _signals(nodes: Sequence[Any]) -> set[int]:
    """Return the nodes where signals (C, L) start that reach a layer along one axis."""
    found: set[int] = set()
    stack = [node for node in nodes if _is_of_signals(node.layer)]
    seen = {id(node) for node in stack}
    while stack:
        for source, _ in stack.pop().inputs:
            if not source.inputs or isinstance(source.layer, Reshape):
                found.add(id(source))
            elif source.layer.out_shapes == source.layer.in_shapes and id(source) not in seen:
                seen.add(id(source))
                stack.append(source)
    return found


def _is_of_signals(layer: Any) -> bool:
    """Return whether the layer operates along one axis, after the channels."""
    windows = isinstance(layer, (Windowed, GlobalPooling, AdaptivePooling))
    return windows and layer._axes == 1 and layer.data_format != "channels_last"


def _listed(shapes: Any) -> list[Shape]:
    return shapes if isinstance(shapes, list) else [shapes]


def _refused(node: Any, received: str) -> ArgumentError:
    return ArgumentError(
        f"layer {node.name!r}, in Keras",
        expected="elements that Keras with channels last can have in the same order",
        received=received,
        advice="add Permute((2, 3, 1)) before the Flatten of images, pass data_format="
        "'channels_first' for a Keras model of that kind, or use another format",
    )
