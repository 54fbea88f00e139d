"""A net's layers as rows, and their multiply-adds.

Counted are those of matrix products and convolutions, padding included, as published figures do;
biases, comparisons and element-wise functions are not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from singanet.base.elsewhere import is_library
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
from singanet.types import Shape

if TYPE_CHECKING:
    from singanet.engine.net import Net
    from singanet.graph.nodes import Node


Count = Callable[[Any, list[Shape], list[Shape]], int | None]


def multiply_adds(layer: Layer, in_shapes: list[Shape], out_shapes: list[Shape]) -> int | None:
    """The count for sample shapes that are known along every axis.

    A class outside singanet answers with its own method ``multiply_adds(in_shapes, out_shapes)``;
    without one the count is None, unknown, as it is where an axis is -1.
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
    """Each output is a product with one row of the weight."""
    return prod(out_shapes[0]) * layer.params["weight"].shape[1]


def _separable(layer: SeparableConvolution, in_shapes: list[Shape], out_shapes: list[Shape]) -> int:
    """Each position of an output by the rows of both weights."""
    weights = (layer.params["depthwise_weight"], layer.params["pointwise_weight"])
    return prod(out_shapes[0][1:]) * sum(prod(weight.shape) for weight in weights)


def _by_input(layer: Layer, in_shapes: list[Shape], out_shapes: list[Shape]) -> int:
    """Each input is spread by one row of the weight."""
    return prod(in_shapes[0]) * layer.params["weight"].shape[1]


def _matmul(layer: MatMul, in_shapes: list[Shape], out_shapes: list[Shape]) -> int:
    inner = in_shapes[0][-2 if layer.transpose_a else -1]
    return prod(out_shapes[0]) * inner


def _dot(layer: Dot, in_shapes: list[Shape], out_shapes: list[Shape]) -> int:
    return prod(in_shapes[0])


def _recurrent(layer: RNN, in_shapes: list[Shape], out_shapes: list[Shape]) -> int:
    """Every step multiplies by every matrix."""
    matrices = [p.shape for p in layer.params.values() if len(p.shape) == 2]
    return in_shapes[0][0] * sum(map(prod, matrices))


def _attention(layer: MultiHeadAttention, in_shapes: list[Shape], out_shapes: list[Shape]) -> int:
    """Projections, then scores and means for each query, key and head; a causal mask saves none."""
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
    """Each row by every matrix, those of low-rank pairs among them."""
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
    """One use of a layer.

    ``parameters`` and ``trained`` count elements that no row before has counted; ``shared_with``
    names the row whose parameters these are. ``multiply_adds`` is None if it is not known.
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
        """The output sample shape(s) in words; -1 is 'any'."""
        return ", ".join(shape_text(shape) for shape in self.out_shapes)


def layer_rows(net: Net, known: Mapping[str, list[Shape]] | None = None) -> list[Row]:
    """A `Row` for each use of a layer, in topological order.

    ``known`` gives the output sample shapes by name where the net leaves axes open.
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
    """``shape`` as Python writes it, with 'any' for -1."""
    inner = ", ".join("any" if axis == -1 else str(axis) for axis in shape)
    return f"({inner},)" if len(shape) == 1 else f"({inner})"
