"""The part of a net on one rank of a pipeline: its steps, its parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from singanet.engine.net import Net
from singanet.engine.plan import NodeStep, Plan
from singanet.errors import CallOrderError
from singanet.graph.nodes import Node
from singanet.layers.dummy import Dummy
from singanet.layers.layer import Layer
from singanet.parallel.pipeline.partition import is_input
from singanet.params.param import Param, ParamSpec
from singanet.params.storage import ParamStorage
from singanet.types import Array


class StagePlan(Plan):
    """The steps of ``whole`` that ``stage`` computes, where ``stages`` are those of each step.

    What earlier stages make enters as if it were fed, under the names of the steps that made it:
    ``received`` has these names by stage, ``sent`` the names of the own steps that later stages
    read. All outputs of the net come to the last stage. Inputs are fed wherever they are read.
    """

    def __init__(self, whole: Plan, stages: Sequence[int], stage: int) -> None:
        names = [step.name for step in whole.steps]
        entering = {k: _entering(whole, stages, k) for k in range(max(stages) + 1)}
        self.slot_shapes = list(whole.slot_shapes)
        read = _read(whole, stages, stage)
        self.received = _by_stage(names, stages, entering[stage])
        self.sent = {
            k: [names[i] for i in found if stages[i] == stage]
            for k, found in entering.items()
            if any(stages[i] == stage for i in found)
        }
        self.entries = [names[i] for i in entering[stage]]
        self.own = [
            step
            for i, step in enumerate(whole.steps)
            if stages[i] == stage or (i in read and is_input(step))
        ]
        self.steps = [_entry(whole.steps[i]) for i in entering[stage]] + self.own
        self.by_name = {step.name: step for step in self.steps}
        self.inputs = [step.name for step in self.steps if step.fed]
        self.fed = [step.name for step in self.own if step.fed]
        self.outputs = list(whole.outputs)
        if stage != max(stages):
            self.outputs = list(dict.fromkeys(name for sent in self.sent.values() for name in sent))
        self._connect()


def _read(whole: Plan, stages: Sequence[int], k: int) -> set[int]:
    """The steps whose outputs stage ``k`` reads."""
    here = [step for step, own in zip(whole.steps, stages, strict=True) if own == k]
    slots = {slot for step in here for slot in step.in_slots}
    if k == max(stages):
        slots.update(whole.slots_of(whole.outputs))
    return {whole.producer[slot] for slot in slots}


def _entering(whole: Plan, stages: Sequence[int], k: int) -> list[int]:
    """The steps of earlier stages whose outputs stage ``k`` reads."""
    read = sorted(_read(whole, stages, k))
    return [i for i in read if stages[i] != k and not is_input(whole.steps[i])]


def _by_stage(
    names: Sequence[str], stages: Sequence[int], steps: Sequence[int]
) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for i in steps:
        found.setdefault(stages[i], []).append(names[i])
    return found


def _entry(step: NodeStep) -> NodeStep:
    """A step that is fed with what ``step`` has made elsewhere."""
    layer = Dummy(step.name)
    layer.build(step.out_shapes if step.many_out else step.out_shapes[0])
    node = Node(step.name, layer, 0, (), out_shapes=layer.out_shapes)
    return NodeStep(node, [], step.out_slots, step.floats)


class StagePart:
    """The part of ``net`` that is on this rank, as stages of optimizers see a net."""

    passes_are_its_own = True

    def __init__(self, net: Net, plan: StagePlan) -> None:
        self.net, self.plan = net, plan
        self.version = net.version

    def __getattr__(self, name: str) -> Any:
        return getattr(self.net, name)

    @property
    def layers(self) -> list[Layer]:
        """The own layers, each once."""
        return list({id(step.layer): step.layer for step in self.plan.own}.values())

    def execution_plan(self) -> Plan:
        """The own steps."""
        return self.plan

    def params(self) -> list[Param]:
        """The own parameters, and those shared with other stages."""
        found = {id(p): p for step in self.plan.own for p in step.layer.params.values()}
        return list(found.values())

    def param_specs(self) -> list[ParamSpec]:
        """Their training settings."""
        return [param.spec for param in self.params()]


class Elsewhere(ParamStorage):
    """Another rank, of pipeline stage ``stage``.

    It is asked for only where the others answer; what is written to it is that stage's to write.
    """

    __slots__ = ("_dtype", "ask", "name", "stage")

    place = "on another rank"
    way_back = "call pipeline.gather() first"

    def __init__(self, param: Param, stage: int) -> None:
        self.name, self._dtype, self.stage = param.name, np.dtype(param.array_type), stage
        self.ask: Callable[[], Array] | None = None

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._dtype

    def read(self) -> Array:
        """The array. Errors: `CallOrderError` where nobody answers."""
        if self.ask is None:
            raise CallOrderError(
                f"parameter {self.name!r}",
                expected=f"stage {self.stage} of the pipeline, which has it",
                received="another rank, which has no array for it",
                advice="read it within pipeline.on_first(work), as "
                "pipeline.on_first(lambda: net.save('net.npz'))",
            )
        return self.ask()

    def lend(self) -> Array:
        """As `read`, of which a change would be lost."""
        array = self.read()
        array.flags.writeable = False
        return array

    def write(self, array: Array) -> None:
        """Do nothing, as every rank is given the whole state and takes what is its own."""
