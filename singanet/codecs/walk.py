"""In which order Keras has the elements of each tensor of a net: from the inputs to the outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from singanet.codecs.orders import (
    FreeUnits,
    Mixed,
    Order,
    Part,
    Uses,
    agree,
    block_of,
    cut,
    plain,
    resolved,
)
from singanet.codecs.table import codec_of
from singanet.errors import ArgumentError
from singanet.layers import Permute, Reshape
from singanet.layers.adaptive_pooling import AdaptivePooling
from singanet.layers.geometry import Windowed
from singanet.layers.global_pooling import GlobalPooling
from singanet.types import Shape


def orders_of(nodes: Sequence[Any], images_last: bool) -> dict[int, Uses]:
    """The order of the input and output of each layer with parameters, by the layer's id.

    With ``images_last`` False Keras' tensors are ours. Errors: `ArgumentError` for a layer that
    reads what stands in another order in Keras, and for joins of different orders.
    """
    walk = _Walk(images_last, _signals(nodes))
    for node in _sources_first(nodes):
        walk.made[id(node)] = walk.outputs(node)
    return walk.uses


class _Walk:
    """Goes from the inputs to the outputs."""

    def __init__(self, images_last: bool, signals: set[int]) -> None:
        self.images_last = images_last
        self.signals = signals
        self.made: dict[int, list[Order]] = {}
        self.uses: dict[int, Uses] = {}

    def outputs(self, node: Any) -> list[Order]:
        """The orders of what ``node`` yields; of what it reads a note is taken."""
        layer = node.layer
        shapes, outs = _listed(layer.in_shapes), _listed(layer.out_shapes)
        read = [self.made[id(source)][index] for source, index in node.inputs]
        read = read or [self._usual(node, shape) for shape in shapes]
        for order in read:
            if layer.params and isinstance(order, Mixed):
                raise _refused(node, f"elements that {order.name!r} arranges otherwise there")
        made = self._made(node, read, shapes, outs)
        if layer.params:
            self._note(node, read[0], made[0])
        return made

    def _note(self, node: Any, read: Order, made: Order) -> None:
        before = self.uses.setdefault(id(node.layer), Uses(read, made))
        if not agree(before.read, read) or not agree(before.made, made):
            raise _refused(node, "two orders of elements in its uses")

    def _usual(self, node: Any, shape: Shape) -> Order:
        """The order of a tensor as layers make it: the channels, our first axis, are last there.

        Of two axes a signal's first are channels, and a sequence's are not.
        """
        rank = len(shape)
        if rank == 1:
            return [plain(shape[0])]
        signal = _is_of_signals(node.layer) or id(node) in self.signals
        if not self.images_last or (rank == 2 and not signal):
            return tuple(range(rank))
        return (*range(1, rank), 0)

    def _made(
        self, node: Any, read: list[Order], shapes: list[Shape], outs: list[Shape]
    ) -> list[Order]:
        layer, how = node.layer, codec_of(node.layer).elements
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
            return cut(first, [out[0] for out in outs], node.name)
        if how in ("joined", "in a row"):
            for order in read[1:]:
                if not agree(first, order):
                    raise _refused(node, "inputs whose elements stand in different orders there")
            return [first]
        if how in ("cut", "copied"):
            return [first] * len(outs)
        if outs == shapes and (not layer.params or how in ("features", "each")):
            return read
        return self._as_usual(node, read, shapes, outs)

    def _along_features(self, node: Any, read: Shape) -> Order:
        """Of a layer that works along one axis, which has to be the last one there."""
        axis = 0 if getattr(node.layer, "axis", -1) == 1 else len(read) - 1
        if self.images_last and read[-1] != axis:
            raise _refused(node, "another axis at the end")
        return read

    def _as_usual(
        self, node: Any, read: list[Order], shapes: list[Shape], outs: list[Shape]
    ) -> list[Order]:
        """Of a layer that knows its axes, and so must read them as it does in Keras."""
        # Positions are all the same to these, and two axes may be a signal's or a sequence's.
        reduced = isinstance(node.layer, GlobalPooling) and len(shapes[0]) == 2
        for order, shape in zip(read, shapes, strict=True):
            if not reduced and not agree(order, self._usual(node, shape)):
                if node.layer.params:
                    raise _refused(node, "elements in another order there")
                return [Mixed(node.name)] * len(outs)
        return [self._usual(node, out) for out in outs]

    def _moved(self, node: Any, order: Order, shape: Shape, out: Shape) -> Order:
        """Of layers that move elements only."""
        if isinstance(order, Mixed) or (shape == out and len(shape) == 1):
            return order
        if isinstance(node.layer, Permute) and not isinstance(order, list):
            axes = [axis - 1 for axis in node.layer.axes]
            same = tuple(range(len(axes)))
            # Keras' tensor is permuted alike, or stays what it is and ours is brought to it.
            moved = tuple(axes.index(axis) for axis in order)
            return same if same in (order, moved) else Mixed(node.name)
        if getattr(node.layer, "axis", 1) != 1:
            return Mixed(node.name)
        row: list[Part] = order if isinstance(order, list) else [block_of(shape, order)]
        if len(out) == 1:
            return row
        # One kind of axes is meant by what follows; without a choice the usual ones.
        usual = self._usual(node, out)
        assert isinstance(usual, tuple)
        free = any(isinstance(part, FreeUnits) for part in resolved(row))
        kinds = [usual] if free else [usual, tuple(range(len(out))), (*range(1, len(out)), 0)]
        return next((axes for axes in kinds if agree(row, [block_of(out, axes)])), Mixed(node.name))


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
    """Where signals (C, L) begin that reach a layer along one axis through what keeps the shape."""
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
    """Whether it works along one axis, behind the channels."""
    windows = isinstance(layer, (Windowed, GlobalPooling, AdaptivePooling))
    return windows and layer.axes == 1


def _listed(shapes: Any) -> list[Shape]:
    return shapes if isinstance(shapes, list) else [shapes]


def _refused(node: Any, received: str) -> ArgumentError:
    return ArgumentError(
        f"layer {node.name!r}, as one of Keras",
        expected="elements that a layer of Keras with channels last can have in the same order",
        received=received,
        advice="put Permute((2, 3, 1)) before the Flatten of images, pass data_format="
        "'channels_first' for a Keras model of that kind, or use another format",
    )
