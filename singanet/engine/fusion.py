"""Fusion: a plan rewritten so that one step does what stands in it as several."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from singanet.base.edits import changes
from singanet.engine.plan import NodeStep, Plan, remember
from singanet.layers.activation import Activation
from singanet.layers.context import Context
from singanet.layers.layer import Layer
from singanet.types import Array

_Plan = TypeVar("_Plan", bound=Plan)

_PASSES = ("forward", "backward", "forward_relu", "backward_relu")


@dataclass(frozen=True)
class Fusion:
    """A row of a table of fusions: steps in a row, and the layer that does what they do.

    ``pattern`` has a question for each of the steps, every one of which but the last is read by
    the next alone; ``make`` gives the layer for them, which takes the inputs of all of them.
    """

    pattern: Sequence[Callable[[NodeStep], bool]]
    make: Callable[..., Layer]


class FusedRelu(Layer):
    """A layer by its `forward_relu` and `backward_relu`: with the relu that follows it."""

    def __init__(self, layer: Layer) -> None:
        super().__init__(layer.name)
        self.inner: Any = layer
        self.params = layer.params

    @property
    def shared(self) -> Any:
        """As the layer's."""
        return self.inner.shared

    @property
    def synchronized(self) -> bool:
        """As the inner layer's."""
        return self.inner.synchronized

    def forward(self, ctx: Context, x: Any) -> Array:
        """The output of the relu, which is kept."""
        y: Array = self.inner.forward_relu(ctx, x)
        ctx.save(relu=y)
        return y

    def backward(self, ctx: Context, dy: Array) -> tuple[Any, Any]:
        """As the layer's, from the gradient of the relu's output."""
        made: tuple[Any, Any] = self.inner.backward_relu(ctx, dy)
        return made

    def between(self, ctx: Context, dy: Array) -> Array:
        """The gradient of what the relu reads; `backward` makes the same of it as of ``dy``."""
        made: Array = ctx.ops.activation_backward("relu", dy, ctx.saved["relu"])
        return made


def runs_as_written(part: Any, names: Sequence[str] = _PASSES) -> bool:
    """Whether nothing replaced the methods ``names`` of ``part``, on it or in the class with it."""
    for name in names:
        kind = next((base for base in type(part).__mro__ if name in vars(base)), None)
        if kind is not None:
            # Even what goes by another's name has the variables of its own module.
            scope = getattr(vars(kind)[name], "__globals__", {})
            if name in vars(part) or scope.get("__name__") != kind.__module__:
                return False
    return True


def does_relu(step: NodeStep) -> bool:
    """Whether the layer's class, and none that it inherits from, has a relu after it in passes."""
    return {"forward_relu", "backward_relu"} <= vars(type(step.layer)).keys()


def is_relu(step: NodeStep) -> bool:
    """Whether the step is a relu and nothing else."""
    return type(step.layer) is Activation and step.layer.mode == "relu"


FUSIONS = (Fusion((does_relu, is_relu), lambda step, _: FusedRelu(step.layer)),)
"""What training and evaluation have by one kernel; predictors have a longer table.

An activation in the memory of the product before it is no row: recorded steps take as long and as
much memory without. Nor is a sum by blocks with the layer norm after it: oneDNN's kernels are
slower so, NumPy's no faster than with blocks in the norm alone (`benchmarks/fusions.py`).
"""


def fused(plan: _Plan, asked: Collection[str] = ()) -> _Plan:
    """``plan`` with the `FUSIONS` whose inner outputs nobody wants: none are ``asked`` for.

    It is worked out anew after a change of a layer, and is the same plan if no row has changed.
    """
    key, now = frozenset(asked), changes.now
    # Of a plan that stays as it is none is kept: one that held itself would outlive its net.
    seen, rows, other = plan.fused.get(key) or (-1, None, None)
    if seen != now:
        # A layer that says whether it is recomputed is a unit of its own.
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
    """The steps that rows of ``table`` fit, each step once, for the first row that does.

    Outputs of the net and of the layers ``asked`` for stay, as do layers of which a pass was
    replaced.
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
    """The steps from ``first`` on that ``fusion`` fits."""
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

    It stands where the first of them did, or where the last one did if that reads more.
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
