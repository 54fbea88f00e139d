"""Rows of the table of a net, one for each use of a layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from singanet.summary.multiply_adds import multiply_adds
from singanet.types import Shape

if TYPE_CHECKING:
    from singanet.engine.net import Net
    from singanet.graph.nodes import Node


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
    for step in net.execution_plan().steps:
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
