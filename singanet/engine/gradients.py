"""Gradients of any tensor by any other: the request, and its computation by layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from singanet.device import Device
from singanet.engine.backward import BackwardWalk, LayerPass, total
from singanet.engine.fusion import fused
from singanet.engine.model import NetCore, Part
from singanet.engine.step import StepMetrics, gradients_of_loss
from singanet.errors import ShapeError
from singanet.ops.interface import Ops
from singanet.params.grads import LayerGradients
from singanet.types import Array, Shape


@dataclass(frozen=True)
class Head:
    """The start of a gradient: output ``index`` of the step ``node``, with gradient ``dy`` or 1."""

    label: str
    node: str
    index: int
    slot: int
    dy: Any

    def fill(self, into: Array, device: Device) -> None:
        """Write the gradient into the array ``into``. Errors: it has another shape."""
        if self.dy is None:
            into[...] = 1
            return
        if tuple(np.shape(self.dy)) != into.shape:
            raise ShapeError(
                f"net.gradients, dys of {self.label}",
                expected=f"shape {into.shape}, as {self.label} has",
                received=f"shape {tuple(np.shape(self.dy))}",
                advice="pass the gradient by that output, or None for ones",
            )
        into[...] = device.put(self.dy)


@dataclass(frozen=True)
class Asked:
    """A request for gradients through ``part``; the result depends on ``key``.

    The gradients start at ``heads`` and, with a ``loss_scale``, at the loss of ``targets`` times
    this scale. ``wanted`` are the steps whose output gradients are returned. ``streamed`` means
    that the caller may change parameters between the results.
    """

    part: Part
    key: tuple[Any, ...]
    feed: Mapping[str, Any]
    heads: Sequence[Head]
    wanted: frozenset[str]
    train: bool
    streamed: bool
    loss_scale: Any = None
    targets: Any = None
    weight: Any = None

    @property
    def of_loss(self) -> bool:
        """Whether the loss is differentiated."""
        return self.loss_scale is not None

    @property
    def seen(self) -> set[str]:
        """The steps whose outputs loss and heads need."""
        return {*self.part.outputs, *(head.node for head in self.heads)}

    @property
    def plan(self) -> Part:
        """The part as it runs, fused except at the requested outputs."""
        return fused(self.part, {*self.seen, *self.wanted})

    def shape_of(self, head: Head, outputs: Mapping[str, Any]) -> Shape:
        """The shape of a head among the ``outputs`` of the forward."""
        y = outputs[head.node]
        return tuple((y[head.index] if isinstance(y, (list, tuple)) else y).shape)

    def start(
        self, of_loss: Mapping[int, Array], scale: Array, dys: Sequence[Array], ops: Ops
    ) -> dict[int, Array]:
        """Gradients at the start of the walk, by slot: ``of_loss`` times ``scale``, and ``dys``."""
        parts: dict[int, list[Array]] = {}
        for slot, grad in of_loss.items():
            parts.setdefault(slot, []).append(ops.multiply(grad, scale))
        for head, dy in zip(self.heads, dys, strict=True):
            parts.setdefault(head.slot, []).append(dy)
        return {slot: summed for slot, p in parts.items() if (summed := total(p, ops)) is not None}

    def answers(self, walk: BackwardWalk) -> Iterator[LayerGradients]:
        """The items of ``walk`` with a requested gradient, reduced to the requested ones."""
        for item in walk.run():
            outputs = item.output_grads
            mine = {item.layer: outputs.pop(item.layer)} if item.layer in outputs else {}
            if item.names or mine.get(item.layer) is not None:
                yield LayerGradients(*item, item.layer, mine)
            del item, mine


def by_layers(net: NetCore, asked: Asked) -> Iterator[LayerGradients]:
    """Yield the gradients layer by layer, from the last; their arrays are not shared."""
    part, ops, dtype = asked.plan, net.device.ops, net.dtype
    with net.device.scope():
        outputs, contexts = part.forward(asked.feed, asked.seen, ops, net.rng, asked.train)
        dys = []
        for head in asked.heads:
            dys.append(ops.xp.empty(asked.shape_of(head, outputs), dtype))
            head.fill(dys[-1], net.device)
        of_loss: dict[int, Array] = {}
        if asked.of_loss:
            made = LayerPass(part, {name: outputs[name] for name in part.outputs}, [])
            of_loss = gradients_of_loss(net, made, StepMetrics(asked.targets, None, asked.weight))
        start = asked.start(of_loss, ops.xp.asarray(asked.loss_scale or 0, dtype), dys, ops)
        del outputs, dys, of_loss
        walk = BackwardWalk(part, contexts, start, asked.wanted)
        del contexts
    for item in asked.answers(walk):
        # Layers hand arrays on that others have, too.
        copies = {name: _copied(grad) for name, grad in item.output_grads.items()}
        yield LayerGradients(*item, item.layer, copies)
        del item, copies


def _copied(grad: Any) -> Any:
    return [part.copy() for part in grad] if isinstance(grad, list) else grad.copy()
