"""The part of a net that lies between some outputs and what their gradients are asked of."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from singanet.engine.plan import BackwardPlan, Plan, Step
from singanet.graph.nodes import Node
from singanet.layers.dummy import Dummy
from singanet.params.param import Param

INPUT = "/input"
"""What follows a layer's name in that of the arrays it is fed with."""


class Part(Plan):
    """The steps of ``whole`` that gradients of the slots ``heads`` go through, down to what is asked.

    Forward runs what the heads depend on, and keeps the contexts that lie above the steps
    ``wanted``, whose output gradients are asked for, or above uses of ``params``. Of the steps in
    ``fed`` the arrays that they are fed with are outputs of a step in front, so that their
    gradients can be ``wanted`` too. ``outputs`` are those that a loss reads, if any.
    """

    def __init__(
        self,
        whole: Plan,
        heads: Collection[int],
        outputs: Iterable[str],
        fed: Collection[str],
        wanted: Iterable[str],
        params: Iterable[Param],
    ) -> None:
        self.steps: list[Step] = []
        self.slot_shapes = list(whole.slot_shapes)
        for step in _before(whole, heads):
            self.steps += self._with_input(step) if step.name in fed else [step]
        self.by_name = {step.name: step for step in self.steps}
        self.inputs = [step.name for step in self.steps if step.fed]
        self.outputs = list(outputs)
        self._connect()
        # The parameters themselves, so that no other has their ids.
        self.params = {id(param): param for param in params}
        trained = [self._trains_any(step) for step in self.steps]
        self._trained = trained
        self._walk = BackwardPlan(self, trained, heads, frozenset(wanted))
        kept = frozenset(self._walk.needs_context)
        self._kept = [i in kept for i in range(len(trained))]

    def _with_input(self, step: Step) -> list[Step]:
        """``step``, which is fed, behind one that passes on what it is fed with."""
        layer = Dummy(step.name + INPUT)
        layer.build(step.layer.in_shapes or ())
        node = Node(layer.name, layer, 0, (), out_shapes=layer.out_shapes)
        shapes = node.output_shapes()
        slots = list(range(len(self.slot_shapes), len(self.slot_shapes) + len(shapes)))
        self.slot_shapes += shapes
        entry, reader = Step(node, [], slots), copy.copy(step)
        entry.keeps_integers = step.keeps_integers
        reader.in_slots, reader.fed, reader.many_in = slots, False, entry.many_out
        return [entry, reader]

    def _trains_any(self, step: Step) -> bool:
        return any(id(param) in self.params for param in step.layer.params.values())

    def trains(self, param: Param) -> bool:
        """Whether it was asked for, trained or not."""
        return id(param) in self.params

    def trained(self) -> list[bool]:
        """Whether a parameter of the step was asked for."""
        return self._trained

    def keeps(self, train: bool, asked: Collection[str]) -> list[bool]:
        """What the walk back goes through, in training or evaluation."""
        return self._kept

    def backward(self, given: Collection[int], wanted: Collection[str]) -> BackwardPlan:
        """The one walk that this part is for."""
        return self._walk

    def holding(self, values: Mapping[int, Param]) -> Part:
        """The same part with the parameters of ``values``, by the ids of those they stand for."""
        made = copy.copy(self)
        layers: dict[int, Any] = {}
        made.steps = []
        for step in self.steps:
            if id(step.layer) not in layers:
                layer = copy.copy(step.layer)
                layer.params = {s: values[id(p)] for s, p in step.layer.params.items()}
                layers[id(step.layer)] = layer
            other = copy.copy(step)
            other.layer = layers[id(step.layer)]
            made.steps.append(other)
        made.by_name = {step.name: step for step in made.steps}
        made.params = {id(values[key]): values[key] for key in self.params}
        made._connect()
        made._walk = copy.copy(self._walk)
        made._walk.uses = {id(values[key]): count for key, count in self._walk.uses.items()}
        return made


def _before(plan: Plan, slots: Iterable[int]) -> list[Step]:
    """The steps that ``slots`` depend on, in their order."""
    needed = {plan.producer[slot] for slot in slots}
    for i in reversed(range(len(plan.steps))):
        if i in needed:
            needed.update(plan.producer[slot] for slot in plan.steps[i].in_slots)
    return [plan.steps[i] for i in sorted(needed)]


def carrying(plan: Plan, heads: Iterable[int]) -> tuple[set[int], list[bool]]:
    """The slots from which a gradient goes on to one of ``heads``, and which steps these come from.

    That of a layer that stops gradients is no way, nor are indices.
    """
    slots, steps = set(heads), [False] * len(plan.steps)
    for i in reversed(range(len(steps))):
        step = plan.steps[i]
        steps[i] = not slots.isdisjoint(step.out_slots)
        if steps[i] and not step.layer.stops_gradient:
            slots.update(step.in_slots)
    return slots, steps
