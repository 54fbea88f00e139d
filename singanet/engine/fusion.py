"""Layers that run together: a rewriting of the plan."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from singanet.base.described import changes
from singanet.base.terms import AT_ONCE, SCORES, Terms
from singanet.engine.model import NetCore, StepRequest, looks_of, metrics_of
from singanet.engine.plan import NodeStep, Plan, remember
from singanet.graph.nodes import Node
from singanet.layers.activations import Activation
from singanet.layers.context import Context
from singanet.layers.layer import Layer
from singanet.layers.shapes import Dummy
from singanet.loss.head_loss import HeadBatch, HeadLoss, blocks, dense_of, score_type, unmade_scores
from singanet.ops.interface import Ops
from singanet.types import Array

if TYPE_CHECKING:
    from singanet.optimizer.chain import UpdateChain


_Plan = TypeVar("_Plan", bound=Plan)

_PASSES = ("forward", "backward", "forward_relu", "backward_relu")


@dataclass(frozen=True)
class Fusion:
    """A row of a table of fusions: consecutive steps, and the layer that replaces them.

    ``pattern`` has a condition for each step. Only the next step may read each of them, except the
    last. ``make`` returns the layer, which has the inputs of all of them.
    """

    pattern: Sequence[Callable[[NodeStep], bool]]
    make: Callable[..., Layer]


class FusedRelu(Layer):
    """A layer with the relu that follows it, by `forward_relu` and `backward_relu`."""

    def __init__(self, layer: Layer, relu: Layer) -> None:
        super().__init__(layer.name)
        self.inner: Any = layer
        # Programs watch the attributes of both.
        self.relu = relu
        self.params = layer.params

    @property
    def shared(self) -> Any:
        """The inner layer's ``shared``."""
        return self.inner.shared

    @property
    def synchronized(self) -> bool:
        """The inner layer's ``synchronized``."""
        return self.inner.synchronized

    def forward(self, ctx: Context, x: Any) -> Array:
        """Return the output of the relu, and save it."""
        y: Array = self.inner.forward_relu(ctx, x)
        ctx.save(relu=y)
        return y

    def backward(self, ctx: Context, dy: Array) -> tuple[Any, Any]:
        """Return the layer's gradients from the gradient of the relu's output."""
        made: tuple[Any, Any] = self.inner.backward_relu(ctx, dy)
        return made

    def between(self, ctx: Context, dy: Array) -> Array:
        """Return the gradient of the relu's input; `backward` accepts it like ``dy``."""
        made: Array = ctx.ops.activation_backward("relu", dy, ctx.saved["relu"])
        return made


def runs_as_written(part: Any, names: Sequence[str] = _PASSES) -> bool:
    """Whether no method ``names`` of ``part`` was replaced, on the object or in its class."""
    for name in names:
        kind = next((base for base in type(part).__mro__ if name in vars(base)), None)
        if kind is not None:
            # Even a function with another's name has the globals of its own module.
            scope = getattr(vars(kind)[name], "__globals__", {})
            if name in vars(part) or scope.get("__name__") != kind.__module__:
                return False
    return True


def does_relu(step: NodeStep) -> bool:
    """Whether the layer's own class, no base class, has `forward_relu` and `backward_relu`."""
    return {"forward_relu", "backward_relu"} <= vars(type(step.layer)).keys()


def is_relu(step: NodeStep) -> bool:
    """Whether the step is exactly a relu."""
    return type(step.layer) is Activation and step.layer.mode == "relu"


FUSIONS = (Fusion((does_relu, is_relu), lambda step, relu: FusedRelu(step.layer, relu.layer)),)
"""The fusions of training and evaluation; predictors have a longer table. Not included.

an activation in the memory of the preceding product, since recorded steps take the same time and
memory without it; a sum by blocks with the following layer norm, which makes oneDNN's kernels
slower and NumPy's no faster than blocks in the norm alone (`benchmarks/fusions.py`).
"""


def fused(plan: _Plan, asked: Collection[str] = ()) -> _Plan:
    """``plan`` with the `FUSIONS` whose inner outputs are not read or ``asked`` for.

    The result is computed again after a change of a layer, and is the same plan if no row has
    changed.
    """
    key, now = frozenset(asked), changes.now
    # An unchanged plan is not cached: a plan with a reference to itself would outlive its net.
    seen, rows, other = plan.fused.get(key) or (-1, None, None)
    if seen != now:
        # A layer with its own setting of recompute is a unit of its own.
        found = [
            (fusion, row)
            for fusion, row in fusions_of(plan, FUSIONS, key)
            if all(step.layer.recompute is None for step in row)
        ]
        if rows != [row for _, row in found]:
            rows = [row for _, row in found]
            other = rewritten(plan, found) if rows else None
        remember(plan.fused, key, (now, rows, other))
    return plan if other is None else other


def fusions_of(
    plan: Plan, table: Sequence[Fusion], asked: Collection[str] = ()
) -> list[tuple[Fusion, list[NodeStep]]]:
    """The steps that match rows of ``table``, each step once, for the first matching row.

    Outputs of the net and of the layers ``asked`` for stay, and so do layers with replaced passes.
    """
    readers: dict[int, list[NodeStep]] = {}
    for step in plan.steps:
        for slot in step.in_slots:
            readers.setdefault(slot, []).append(step)
    kept, taken = {*plan.outputs, *asked}, set[NodeStep]()
    found = []
    for step in plan.steps:
        for fusion in table:
            row = _row(fusion, step, readers, kept)
            if row is not None and taken.isdisjoint(row):
                taken.update(row)
                found.append((fusion, row))
                break
    return found


def _row(
    fusion: Fusion, first: NodeStep, readers: dict[int, list[NodeStep]], kept: Collection[str]
) -> list[NodeStep] | None:
    """The steps from ``first`` on that match ``fusion``."""
    row: list[NodeStep] = []
    for fits in fusion.pattern:
        if row:
            after = readers.get(row[-1].out_slots[0], [])
            if len(after) != 1 or row[-1].name in kept or (first.fed and after[0].many_in):
                return None
        row.append(after[0] if row else first)
        if not fits(row[-1]) or not runs_as_written(row[-1].layer):
            return None
    return row


def rewritten(plan: _Plan, found: Sequence[tuple[Fusion, list[NodeStep]]]) -> _Plan:
    """``plan`` with one step for each row of steps that was ``found``.

    The new step replaces the first step of the row, or the last one if that has further inputs.
    """
    places: dict[NodeStep, list[NodeStep]] = {}
    for fusion, row in found:
        made = _one_for(row, fusion.make(*row))
        places.update((step, []) for step in row)
        places[row[0] if made.in_slots == row[0].in_slots else row[-1]] = [made]
    steps = [new for step in plan.steps for new in places.get(step, [step])]
    return plan.of_steps(steps) if found else plan


def _one_for(row: Sequence[NodeStep], layer: Layer) -> NodeStep:
    """The step of ``layer``, which has the inputs of ``row`` and the outputs of its last step."""
    made, last = copy.copy(row[0]), row[-1]
    layer.in_shapes, layer.out_shapes = row[0].layer.in_shapes, last.layer.out_shapes
    made.layer, made.name, made.gives_integers = layer, last.name, last.gives_integers
    made.members = tuple(name for step in row for name in step.members)
    made.owner = next((step.owner for step in row if step.layer.params), made.owner)
    made.out_slots, made.out_shapes, made.many_out = last.out_slots, last.out_shapes, last.many_out
    inside = {slot for step in row for slot in step.out_slots}
    made.in_slots = [slot for step in row for slot in step.in_slots if slot not in inside]
    made.many_in = len(made.in_slots) > 1
    return made


HEAD = Terms(uses=(SCORES,), takes=(AT_ONCE,), keeps="rounding")
"""The terms of scores and their loss by blocks of rows."""
_METHODS = ("forward", "backward", "compute", "gradient", "of_samples", "averaged", "count")


class HeadOfStep(HeadLoss):
    """The head of a net with the net's loss, if the gradient of the losses is known beforehand.

    Its inputs include the labels, so the forward computes all gradients, and no scores twice.
    ``sends_on`` and ``trained`` select the gradients. The ``metrics`` of the rows are outputs too.
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
        """A placeholder for the scores of labels ``y``; only its shape is read."""
        dense = dense_of(self.head)
        assert dense is not None
        assert self.in_shapes
        positions = y.shape[: len(self.in_shapes)]
        floats = score_type(dense.params["weight"].array_type)
        return unmade_scores((*positions, dense.units), floats)


def headed(net: NetCore, request: StepRequest) -> Plan | None:
    """Return the plan of ``net`` with the loss of a step in its last layer, or None.

    None if loss, head or a metric cannot be computed by rows, and if all scores take about as much
    memory as one block of them.
    """
    y, looks = request.y, looks_of(request.measure)
    if looks is None:
        return None
    plan, loss, weight, kind = (
        net._execution_plan(),
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
    """Whether ``step`` is an unmodified product whose output no layer reads."""
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
    """``plan`` whose last step is a `HeadOfStep`, with inputs for targets, gradient and weights."""
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
