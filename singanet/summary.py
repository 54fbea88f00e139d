"""Tables of a net: its layers, parameters, multiply-adds, memory of a step.

Multiply-adds count matrix products and convolutions, padding included, as published figures do;
biases, comparisons and elementwise functions are not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.base.elsewhere import is_library, names_of
from singanet.engine.backward import BackwardWalk, arrays_in, ones, roots_in
from singanet.engine.peak_memory import PeakMemory
from singanet.engine.plan import Plan
from singanet.engine.recompute.units import Unit, Units
from singanet.layers import (
    RNN,
    Dense,
    Dot,
    GatedUnit,
    Layer,
    MatMul,
    MultiHeadAttention,
    TimeDistributed,
)
from singanet.layers.convolution import (
    Convolution,
    DepthwiseConvolution,
    SeparableConvolution,
    TransposedConvolution,
)
from singanet.ops.interface import Ops
from singanet.types import Shape

if TYPE_CHECKING:
    from singanet.engine.net import Net
    from singanet.graph.nodes import Node

__all__ = [
    "Footprint",
    "Row",
    "layer_rows",
    "measure",
    "multiply_adds",
    "summary_table",
]

if not TYPE_CHECKING:  # else type checkers accept any name
    __getattr__, __dir__ = names_of(__name__, __all__)


Count = Callable[[Any, list[Shape], list[Shape]], int | None]


def multiply_adds(layer: Layer, in_shapes: list[Shape], out_shapes: list[Shape]) -> int | None:
    """Return the multiply-adds of ``layer`` for a sample, or None if they are unknown.

    A class outside singanet may define ``multiply_adds(in_shapes, out_shapes)``. Without it, or if
    an axis is -1, the count is None.

    Args:
        layer: A layer with parameters.
        in_shapes: The shapes of its inputs, without the batch axis.
        out_shapes: The shapes of its outputs, without the batch axis.
    """
    if any(axis < 0 for shape in (*in_shapes, *out_shapes) for axis in shape):
        return None
    own = getattr(layer, "multiply_adds", None)
    if callable(own):
        return int(own(in_shapes, out_shapes))
    for kind in type(layer).__mro__:
        if kind in _COUNTS:
            return _COUNTS[kind](layer, in_shapes, out_shapes)
    return 0 if is_library(type(layer)) else None


def _by_output(layer: Layer, in_shapes: list[Shape], out_shapes: list[Shape]) -> int:
    """Count one row of the weight per output."""
    return prod(out_shapes[0]) * layer.params["weight"].shape[1]


def _separable(layer: SeparableConvolution, in_shapes: list[Shape], out_shapes: list[Shape]) -> int:
    """Count the rows of both weights per position of an output."""
    weights = (layer.params["depthwise_weight"], layer.params["pointwise_weight"])
    return prod(out_shapes[0]) // layer.filters * sum(prod(weight.shape) for weight in weights)


def _by_input(layer: Layer, in_shapes: list[Shape], out_shapes: list[Shape]) -> int:
    """Count one row of the weight per input."""
    return prod(in_shapes[0]) * layer.params["weight"].shape[1]


def _matmul(layer: MatMul, in_shapes: list[Shape], out_shapes: list[Shape]) -> int:
    inner = in_shapes[0][-2 if layer.transpose_a else -1]
    return prod(out_shapes[0]) * inner


def _dot(layer: Dot, in_shapes: list[Shape], out_shapes: list[Shape]) -> int:
    return prod(in_shapes[0])


def _recurrent(layer: RNN, in_shapes: list[Shape], out_shapes: list[Shape]) -> int:
    """Count every matrix in every step."""
    matrices = [p.shape for p in layer.params.values() if len(p.shape) == 2]
    return in_shapes[0][0] * sum(map(prod, matrices))


def _attention(layer: MultiHeadAttention, in_shapes: list[Shape], out_shapes: list[Shape]) -> int:
    """Count projections, then scores and means for each query, key and head; masks save nothing."""
    queries, keys = in_shapes[0][0], in_shapes[layer.given - 1][0]
    rows = {"query": queries, "value": keys, "key": keys, "output": queries}
    projections = sum(
        n * prod(param.shape)
        for part, n in rows.items()
        for suffix, param in layer.params.items()
        if suffix.startswith(f"{part}_weight")
    )
    per_pair = layer.num_heads * (layer.dims["key"] + layer.dims["value"])
    return projections + queries * keys * per_pair


def _by_rows(layer: Layer, in_shapes: list[Shape], out_shapes: list[Shape]) -> int:
    """Count each row times every matrix, low-rank pairs included."""
    matrices = [p.shape for p in layer.params.values() if len(p.shape) == 2]
    return prod(in_shapes[0][:-1]) * sum(map(prod, matrices))


def _each_step(
    layer: TimeDistributed, in_shapes: list[Shape], out_shapes: list[Shape]
) -> int | None:
    once = multiply_adds(layer.layer, [in_shapes[0][1:]], [out_shapes[0][1:]])
    return None if once is None else in_shapes[0][0] * once


_COUNTS: dict[type, Count] = {
    Convolution: _by_output,
    Dense: _by_rows,
    DepthwiseConvolution: _by_output,
    Dot: _dot,
    GatedUnit: _by_rows,
    MatMul: _matmul,
    MultiHeadAttention: _attention,
    RNN: _recurrent,
    SeparableConvolution: _separable,
    TimeDistributed: _each_step,
    TransposedConvolution: _by_input,
}


@dataclass(frozen=True)
class Row:
    """One use of a layer, a row of the summary.

    Args:
        name: The layer's name.
        kind: The name of its class.
        out_shapes: The shapes of its outputs, without the batch axis; -1 for any extent.
        parameters: The number of elements of parameters that no row before has counted.
        trained: The number of these that are trained.
        multiply_adds: The multiply-adds for a sample, None if unknown.
        sources: The names of the layers that it reads.
        shared_with: The name of the row whose parameters these are, or None.
        frozen: Whether it is frozen.
    """

    name: str
    kind: str
    out_shapes: list[Shape]
    parameters: int
    trained: int
    multiply_adds: int | None
    sources: list[str]
    shared_with: str | None = None
    frozen: bool = False

    @property
    def output_shape(self) -> str:
        """The output sample shapes as text; -1 is 'any'."""
        return ", ".join(shape_text(shape) for shape in self.out_shapes)


def layer_rows(net: Net, known: Mapping[str, list[Shape]] | None = None) -> list[Row]:
    """Return a `Row` for each use of a layer, in topological order.

    Args:
        net: The net.
        known: Dict of the outputs' sample shapes by layer name, for nets with unknown axes.
    """
    rows: list[Row] = []
    owner: dict[int, str] = {}
    nodes = {node.name: node for node in net.nodes()}
    for step in net._execution_plan().steps:
        node = nodes[step.name]
        params = list(step.layer.params.values())
        fresh = [p for p in params if id(p) not in owner]
        shared = next((owner[id(p)] for p in params if id(p) in owner), None)
        owner.update((id(p), step.name) for p in fresh)
        ins, outs = _shapes(node, known or {})
        rows.append(
            Row(
                name=step.name,
                kind=type(step.layer).__name__,
                out_shapes=outs,
                parameters=sum(prod(p.shape) for p in fresh),
                trained=sum(prod(p.shape) for p in fresh if p.trainable and not step.frozen),
                multiply_adds=multiply_adds(step.layer, ins, outs),
                sources=[_source_text(source, index) for source, index in node.inputs],
                shared_with=shared,
                frozen=step.frozen,
            )
        )
    return rows


def _shapes(node: Node, known: Mapping[str, list[Shape]]) -> tuple[list[Shape], list[Shape]]:
    ins = [known.get(source.name, source.output_shapes())[index] for source, index in node.inputs]
    outs = known.get(node.name, node.output_shapes())
    if not ins:
        declared = node.layer.in_shapes
        ins = declared if isinstance(declared, list) else [declared or ()]
        ins = outs if any(axis < 0 for shape in ins for axis in shape) else ins
    return ins, outs


def _source_text(source: Node, index: int) -> str:
    return source.name if len(source.output_shapes()) == 1 else f"{source.name}[{index}]"


def shape_text(shape: Shape) -> str:
    """Return ``shape`` as Python writes it, with 'any' for -1."""
    inner = ", ".join("any" if axis == -1 else str(axis) for axis in shape)
    return f"({inner},)" if len(shape) == 1 else f"({inner})"


_BATCHES = (2, 3)
"""Not 1, for which kernels may return views instead of copies."""


@dataclass(frozen=True)
class Footprint:
    """The memory of a training step for any batch size; each sample adds the same amount.

    `measure` makes it.

    Args:
        shapes: The outputs' sample shapes by layer name, with every axis known.
        small: The measured step of 2 samples.
        large: The measured step of 3 samples.
    """

    shapes: dict[str, list[Shape]]
    small: _MeasuredStep
    large: _MeasuredStep

    def kept(self, name: str, batch_size: int = 1) -> int:
        """Return the bytes that the layer ``name`` stores for backward, of ``batch_size`` samples.

        Arrays of the caller and of earlier layers are not counted.
        """
        return _line(self.small.kept[name], self.large.kept[name], batch_size)

    def all_kept(self, batch_size: int = 1) -> int:
        """Return the sum of `kept` over all layers for ``batch_size`` samples."""
        return sum(self.kept(name, batch_size) for name in self.small.kept)

    def fed(self, batch_size: int) -> int:
        """Return the bytes of the inputs for ``batch_size`` samples."""
        return _line(self.small.fed, self.large.fed, batch_size)

    def peak(self, batch_size: int) -> tuple[int, str]:
        """Return the peak bytes beyond parameters and inputs, and the layer at the peak.

        They are stored activations, activations still to be read, and gradients of ``batch_size``
        samples. Scratch memory of kernels and the state of the optimizer are not included.
        """
        units, ops = self.small.units, self.small.units.kept()
        moments = zip(units.live(ops), self.large.units.live(ops), strict=True)
        sizes = [_line(low, high, batch_size) for low, high in moments]
        most = max(range(len(sizes)), key=sizes.__getitem__)
        return sizes[most], units.units[ops[most].unit].name


def measure(net: Net, extent: int | None = None) -> Footprint:
    """Run two training steps, of 2 and 3 samples of ones, and measure their memory.

    The net's generator and running state are restored. Errors: axes of any extent without
    ``extent``; errors of layers in their computation.

    Args:
        net: The net.
        extent: Positive int that replaces axes of any extent.
    """
    plan, device = net._execution_plan(), net.device
    params = roots_in([param.value for param in net.params()])
    feeds = [ones(plan, size, device, extent) for size in _BATCHES]
    with net.rehearsal(), device.scope(), np.errstate(all="ignore"):
        (small, shapes), (large, _) = (_measured(plan, feed, params, device.ops) for feed in feeds)
    return Footprint(shapes, small, large)


def _line(low: int, high: int, batch_size: int) -> int:
    return low + (high - low) * (batch_size - _BATCHES[0])


@dataclass(frozen=True)
class _MeasuredStep:
    """The ``units`` of a step, one per layer and the loss, and the ``fed`` bytes."""

    units: Units
    fed: int

    @property
    def kept(self) -> dict[str, int]:
        """The bytes that each layer stores and no earlier layer has stored."""
        found, before = {}, frozenset[int]()
        for unit in self.units.units[:-1]:
            found[unit.name] = self.units.bytes_of(unit.wants - before)
            before |= unit.wants
        return found


class _Values:
    """Numbers of arrays that own memory, except arrays ``outside``."""

    def __init__(self, outside: Mapping[int, Any]) -> None:
        self.outside = outside
        self._numbers: dict[int, int] = {}
        # References, so that no other array gets the same identity.
        self._arrays: list[Any] = []

    @property
    def sizes(self) -> list[int]:
        """The bytes of each value."""
        return [int(array.nbytes) for array in self._arrays]

    def of(self, thing: Any) -> frozenset[int]:
        """Return the values that the arrays in ``thing`` are stored in."""
        found = set()
        for key, array in roots_in(thing).items():
            if key not in self.outside:
                number = self._numbers.setdefault(key, len(self._arrays))
                self._arrays += [array] * (number == len(self._arrays))
                found.add(number)
        return frozenset(found)

    def beside(self, there: Mapping[int, Any], values: frozenset[int]) -> int:
        """Return the bytes of the arrays ``there`` that are not in ``values``."""
        new = (key for key in there if self._numbers.get(key) not in values)
        return sum(int(there[key].nbytes) for key in new if key not in self.outside)


def _measured(
    plan: Plan, feed: Mapping[str, Any], params: Mapping[int, Any], ops: Ops
) -> tuple[_MeasuredStep, dict[str, list[Shape]]]:
    """Run a step on ``feed``, and return it with the output sample shapes by name."""
    fed = {key: array for key, array in roots_in(feed).items() if key not in params}
    values = _Values({**params, **fed})
    names = {step.name: i for i, step in enumerate(plan.steps)}
    results, contexts = plan.forward(feed, names, ops, np.random.default_rng(0), True, ())
    slots: dict[int, Any] = {}
    for step in plan.steps:
        slots |= zip(step.out_slots, arrays_in(results[step.name]), strict=True)
    shapes = {step.name: [slots[k].shape[1:] for k in step.out_slots] for step in plan.steps}
    read = {slot for step in plan.steps for slot in step.in_slots}
    made, waiting = frozenset[int](), [frozenset[int]()]
    units = []
    for step, context in zip(plan.steps, contexts, strict=True):
        wants = values.of(context)
        own = wants | values.of([slots[slot] for slot in step.out_slots])
        reads = values.of([slots[slot] for slot in step.in_slots])
        units.append(Unit(step.name, 0.0, reads, own - made, wants))
        made |= own
        waiting.append(waiting[-1] | wants)
    # Values without a reader live until the last layer has run.
    units[-1] = units[-1]._replace(
        reads=units[-1].reads | values.of([slots[k] for k in slots.keys() - read])
    )
    outputs = {slot: slots[slot] for slot in plan.slots_of(plan.outputs)}
    dy = {slot: part * 0 + 1 for slot, part in outputs.items()}
    arrived = roots_in(dy)
    loss = Unit(
        plan.outputs[-1], 0.0, values.of(outputs), forward_bytes=values.beside(arrived, made)
    )
    walk = BackwardWalk(plan, contexts, dy, ())
    for item in walk.run():
        i = names[item.layer]
        passed = roots_in([walk.slot_grads, walk.partial])
        there = {**arrived, **roots_in(item.grads), **passed}
        units[i] = units[i]._replace(backward_bytes=values.beside(there, waiting[i + 1]))
        arrived = passed
        del item, there
    total = sum(int(array.nbytes) for array in fed.values())
    return _MeasuredStep(Units([*units, loss], values.sizes), total), shapes


_RIGHT = ("parameters", "kept bytes", "multiply-adds")


def summary_table(
    net: Net, batch_size: int | None = None, extent: int | None = None, planned: object = None
) -> str:
    """Return one line per layer, then totals; `FeedForwardNet.summary` calls it.

    Args:
        net: The net.
        batch_size: Positive int, the samples of a training step whose memory is added; None for
            none.
        extent: Positive int that replaces axes of any extent.
        planned: The `PeakMemory` of a recorded step, which is added to the totals; None for none.
    """
    rows, footprint = _look_at(net, batch_size, extent)
    table = [list(columns(footprint)), *cells(rows, footprint)]
    widths = [max(len(line[k]) for line in table) for k in range(len(table[0]))]
    lines = [
        "  ".join(
            cell.rjust(width) if title in _RIGHT else cell.ljust(width)
            for cell, width, title in zip(line, widths, table[0], strict=True)
        ).rstrip()
        for line in table
    ]
    lines.insert(1, "-" * max(map(len, lines)))
    return "\n".join([*lines, *totals(net, rows, footprint, batch_size, planned)])


def summary_html(net: Net) -> str:
    """Return the table as HTML; names are escaped."""
    rows, _ = _look_at(net, None, None)
    head = "".join(f"<th>{escape(title)}</th>" for title in columns(None))
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>"
        for line in cells(rows, None)
    )
    foot = "<br>".join(escape(line) for line in totals(net, rows, None, None, None))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{foot}</p>"


def _look_at(
    net: Net, batch_size: int | None, extent: int | None
) -> tuple[list[Row], Footprint | None]:
    if batch_size is None:
        return layer_rows(net), None
    footprint = measure(net, extent)
    return layer_rows(net, footprint.shapes), footprint


def columns(footprint: Footprint | None) -> tuple[str, ...]:
    """Return the titles."""
    kept = () if footprint is None else ("kept bytes",)
    return ("name", "layer", "output shape", "parameters", *kept, "multiply-adds", "from")


def cells(rows: list[Row], footprint: Footprint | None) -> list[list[str]]:
    """Return the cells under the `columns`."""
    return [
        [
            row.name,
            row.kind if row.shared_with is None else f"{row.kind} (shares {row.shared_with})",
            row.output_shape,
            f"{row.parameters:,}",
            *([] if footprint is None else [f"{footprint.kept(row.name):,}"]),
            "?" if row.multiply_adds is None else f"{row.multiply_adds:,}",
            ", ".join(row.sources),
        ]
        for row in rows
    ]


def totals(
    net: Net,
    rows: list[Row],
    footprint: Footprint | None,
    batch_size: int | None,
    planned: object,
) -> list[str]:
    """Return the lines below the table."""
    parameters, trained = sum(row.parameters for row in rows), sum(row.trained for row in rows)
    known = [row.multiply_adds for row in rows if row.multiply_adds is not None]
    at_least = "" if len(known) == len(rows) else "at least "
    lines = [
        f"{parameters:,} parameters, {trained:,} trained, {parameters - trained:,} not",
        f"{at_least}{sum(known):,} multiply-adds a sample",
    ]
    if footprint is not None and batch_size is not None:
        beside, layer = footprint.peak(batch_size)
        memory = PeakMemory(
            {
                "parameters": sum(param.nbytes for param in net.params()),
                "inputs": footprint.fed(batch_size),
                "activations and gradients": beside,
            }
        )
        lines += [
            f"{footprint.all_kept():,} bytes a sample kept for backward",
            f"a training step of {batch_size:,} samples, at its peak at layer {layer!r}: {memory}",
        ]
        if planned is not None:
            lines.append(f"recorded, as steps are from the second on: {planned}")
        lines.append(
            "the optimizer's state comes on top, and scratch of the kernels to a step by the layers"
        )
    return lines
