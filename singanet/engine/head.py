"""Steps whose net ends in a product: with its loss by blocks of rows, where nobody sees scores."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.engine.fusion import runs_as_written
from singanet.engine.model import NetCore, StepRequest, looks_of, metrics_of
from singanet.engine.plan import NodeStep, Plan, remember
from singanet.graph.nodes import Node
from singanet.layers.context import Context
from singanet.layers.dummy import Dummy
from singanet.loss.head_loss import (
    HeadBatch,
    HeadLoss,
    blocks,
    dense_of,
    score_type,
    unmade_scores,
)
from singanet.ops.interface import Ops
from singanet.types import Array

if TYPE_CHECKING:
    from singanet.optimizer.chain import UpdateChain

_METHODS = ("forward", "backward", "compute", "gradient", "of_samples", "averaged", "count")


class HeadOfStep(HeadLoss):
    """The head of a net with the net's loss, where the gradient of the losses is known beforehand.

    It comes after the labels. So the forward makes all gradients, and no scores twice: ``sends_on``
    and ``trained`` are which. What ``metrics`` find of the rows comes out, too.
    """

    def __init__(
        self, head: Any, loss: Any, sends_on: bool, trained: bool, metrics: Sequence[Any]
    ) -> None:
        super().__init__(head.name, head, loss)
        self.params = head.params
        self.in_shapes, self.out_shapes = head.in_shapes, ()
        self.sends_on, self.is_trained, self.metrics = sends_on, trained, tuple(metrics)
        # A second forward would make all gradients a second time.
        self.recompute = False

    def forward(self, ctx: Context, x: Any) -> Any:
        """Losses (N,), and (N, ...) of each metric."""
        features, y, dy, *weight = x
        given = weight[0] if weight else None
        batch = HeadBatch(self, ctx, features, y, given, self.metrics)
        if not ctx.keep:
            return [batch.losses(), *batch.found]
        losses = batch.differentiate(dy, self.sends_on, self.is_trained)
        ctx.save(dx=batch.dx, grads=batch.grads, inputs=len(x))
        return [losses, *batch.found]

    def backward(self, ctx: Context, dy: Any) -> tuple[Any, dict[str, Array]]:
        """The gradients that the forward made."""
        saved = ctx.saved
        return [saved["dx"], *[None] * (saved["inputs"] - 1)], saved["grads"]

    def scores(self, y: Array) -> Array:
        """A stand-in for the scores of labels ``y``, of which only the shape is read."""
        dense = dense_of(self.head)
        assert dense is not None
        assert self.in_shapes
        positions = y.shape[: len(self.in_shapes)]
        floats = score_type(dense.params["weight"].array_type)
        return unmade_scores((*positions, dense.num_output), floats)


def headed(net: NetCore, request: StepRequest) -> Plan | None:
    """The plan of ``net`` with the loss of a step in its last layer; None where it is not.

    So it is where loss, head or a metric are others than those that go by rows, and where all
    scores are about as many as a block of them.
    """
    y, looks = request.y, looks_of(request.measure)
    if looks is None:
        return None
    plan, loss, weight, kind = (
        net.execution_plan(),
        net.loss,
        request.weight,
        net.device.ops.xp.ndarray,
    )
    # Synchronized layers need the counts of other processes before the gradients here.
    if len(plan.outputs) != 1 or not isinstance(y, kind) or plan.settings().synchronized:
        return None
    step = plan.by_name[plan.outputs[0]]
    if not _are_many(step, y) or not (weight is None or isinstance(weight, kind)):
        return None
    if not (_is_head(plan, step) and runs_as_written(loss, _METHODS)):
        return None
    key = plan.settings().trained, y.ndim, None if weight is None else weight.ndim, looks
    made = plan.headed.get(key)
    if made is None or made.head.loss is not loss:
        metrics = [each.anew() for each in metrics_of(request.measure)]
        made = _with_loss(plan, step, loss, y, weight, metrics)
        remember(plan.headed, key, made)
    return made


def beside(
    plan: Plan, y: Any, weight: Any, ops: Ops, dtype: np.dtype[Any], chain: UpdateChain
) -> dict[str, Any]:
    """The feed of the head of ``plan``: targets, the gradient of the losses, weights if any."""
    given = y, start_of(len(y), ops, dtype, chain), *([] if weight is None else [weight])
    return dict(zip(plan.of_loss, given, strict=True))


def start_of(samples: int, ops: Ops, dtype: np.dtype[Any], chain: UpdateChain | None) -> Array:
    """The gradient of the mean of the losses of ``samples``; in mixed precision it is scaled."""
    made: Array = ops.xp.full((samples,), 1.0 / samples, score_type(dtype))
    scaled = None if chain is None else chain.scaled
    return made if scaled is None else scaled.precision.scaled(made)


def _are_many(step: NodeStep, y: Array) -> bool:
    """Whether ``y`` are labels of the output of ``step``, of more rows than a block has."""
    if y.dtype.kind not in "iu" or step.many_out or not step.out_shapes[0]:
        return False
    *positions, classes = step.out_shapes[0]
    fits = y.ndim == 1 + len(positions) or (y.ndim == 2 + len(positions) and y.shape[-1] == 1)
    return fits and len(blocks(y.size, classes, score_type(step.floats).itemsize)) > 1


def _is_head(plan: Plan, step: NodeStep) -> bool:
    """Whether ``step`` is a product as it was written, whose output nobody else reads."""
    layer = step.layer
    if dense_of(layer) is None or step.fed or step.foreign or step.frozen:
        return False
    if layer.recompute is not None or layer.shared is not None or not runs_as_written(layer):
        return False
    read = {slot for other in plan.steps for slot in other.in_slots}
    before = plan.steps[plan.producer[step.in_slots[0]]].layer
    return step.out_slots[0] not in read and not before.traits.sparse


def _with_loss(
    plan: Plan,
    step: NodeStep,
    loss: Any,
    y: Array,
    weight: Array | None,
    metrics: Sequence[Any],
) -> Plan:
    """``plan`` whose last step is a `HeadOfStep`, with inputs for what that reads beside."""
    trained, at = plan.settings().trained, plan.steps.index(step)
    useful = plan.useful(trained, ())
    sends_on = any(useful[k] for k in plan.sources[at])
    head = HeadOfStep(step.layer, loss, sends_on, trained[at], metrics)
    positions = step.out_shapes[0][:-1]
    beside = {"targets": (*positions, *(1,) * (y.ndim - 1 - len(positions))), "gradient": ()}
    if weight is not None:
        beside["weights"] = positions if weight.ndim > 1 else ()
    made = copy.copy(plan)
    made.slot_shapes = [*plan.slot_shapes]
    made.slot_shapes[step.out_slots[0]] = ()
    fed = []
    for name, shape in beside.items():
        # A name that no layer has.
        node = Node(f"{step.name}: {name}", Dummy(name, shape), 0, ())
        node.out_shapes = node.layer.build(shape)
        fed.append(NodeStep(node, [], [len(made.slot_shapes)], step.floats))
        made.slot_shapes.append(shape)
    last = copy.copy(step)
    last.layer, last.many_in, last.many_out = head, True, True
    last.out_shapes = [(), *[positions] * len(metrics)]
    last.out_slots = [
        *step.out_slots,
        *range(len(made.slot_shapes), len(made.slot_shapes) + len(metrics)),
    ]
    made.slot_shapes += last.out_shapes[1:]
    last.in_slots = [*step.in_slots, *(one.out_slots[0] for one in fed)]
    made.head, made.of_loss = head, [one.name for one in fed]
    return made.of_steps([*plan.steps[:at], *fed, last, *plan.steps[at + 1 :]])
