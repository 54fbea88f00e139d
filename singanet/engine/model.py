"""The parts of a net that executors and a training need, and parts of its plan."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from singanet.base.collectives import Collectives
from singanet.device import Device
from singanet.engine.plan import BackwardPlan, NodeStep, Plan
from singanet.graph.nodes import Node
from singanet.layers.layer import Layer
from singanet.layers.shapes import Dummy
from singanet.params.grads import LayerGradients
from singanet.params.param import Param, ParamSpec

Measure: TypeAlias = Callable[..., Any] | None
"""``measure(output, y)``: a metric of a batch, or its gatherer. See `StepMetrics` for weights."""

OnLayer: TypeAlias = Callable[[LayerGradients], None] | None
"""A function of each layer's gradients, called before they are applied."""


def metrics_of(measure: Measure) -> Sequence[Any]:
    """The metrics that see outputs through ``measure``; empty if it has no ``shows``."""
    return () if measure is None else tuple(getattr(measure, "shows", ()))


def looks_of(measure: Measure) -> tuple[Hashable, ...] | None:
    """The settings of the metrics of a ``measure`` that are computed by rows.

    None if outputs are read by anything but such metrics.
    """
    if measure is None:
        return ()
    shown = getattr(measure, "shows", None)
    if shown is None:
        return None
    found = []
    for metric in shown:
        # A user's metric of single batches lacks this method.
        settings = metric._row_settings() if hasattr(metric, "_row_settings") else None
        if settings is None:
            return None
        found.append(settings)
    return tuple(found)


class StepRequest(NamedTuple):
    """A training step to run: inputs ``x``, not yet checked, and targets ``y``.

    ``weight`` has one number per sample.
    """

    x: Any
    y: Any
    optimizer: Any
    weight: Any = None
    measure: Measure = None
    on_layer: OnLayer = None


class Placed(Protocol):
    """An executor of a net whose layers are on several ranks, as seen by a training.

    ``comm`` includes all of them. The rank reads the part ``share`` = (number, count) of each
    batch; only the ranks ``measuring`` see outputs in training. ``part`` contains the layers of
    this rank, ``places`` the stage of each layer.
    """

    comm: Collectives
    share: tuple[int, int]
    measuring: Sequence[int]
    places: dict[str, int]

    @property
    def part(self) -> Any:
        """Layers and parameters of this rank, as a net."""

    @property
    def exchanged(self) -> tuple[int, int]:
        """The bytes that this process has sent and received."""

    def on_first(self, work: Callable[[], Any]) -> Any:
        """Run ``work()`` on rank 0, which can read all parameters meanwhile. All ranks call it."""

    def _can_move(self, places: Mapping[str, int]) -> bool:
        """Whether the layers may move to ``places``."""

    def move(self, places: Mapping[str, int]) -> None:
        """Move the layers to ``places``. All ranks call it."""

    def owner(self, name: str) -> int:
        """The rank that updates the parameter, the first of several."""


def placed_by(net: Any) -> Placed | None:
    """The executor of ``net`` if the net's layers are on several ranks, else None."""
    found: Placed | None = net.executor.placed if hasattr(net, "executor") else None
    return found


def makes_passes_together(net: Any) -> bool:
    """Whether all ranks that train ``net`` make each of its passes together."""
    return hasattr(net, "executor") and bool(net.executor.can.together)


class NetCore(Protocol):
    """The part of a `Net` that executors need."""

    loss: Any
    device: Device
    dtype: np.dtype[Any]
    rng: np.random.Generator
    executor: Any

    @property
    def version(self) -> int:
        """A number that changes with each change of the graph."""

    @property
    def _passes_are_its_own(self) -> bool:
        """Whether `forward` and `backward` are not overridden."""

    def _execution_plan(self) -> Plan:
        """The sorted steps, with every parameter filled."""

    def params(self) -> list[Param]:
        """All parameters, a shared one once."""

    def param_specs(self) -> list[ParamSpec]:
        """Their training settings."""

    def rehearsal(self, only_failed: bool = False) -> AbstractContextManager[None]:
        """A block after which draws and running state of its forwards are undone."""


class PlanView:
    """A `NetCore` of the steps that `_execution_plan` gives, with the settings of ``net``."""

    _passes_are_its_own = True

    def __init__(self, net: Any) -> None:
        self.net = net

    def __getattr__(self, name: str) -> Any:
        if name == "net":
            # A copy under way has none yet.
            raise AttributeError(name)
        return getattr(self.net, name)

    def _execution_plan(self) -> Plan:
        raise NotImplementedError

    @property
    def layers(self) -> list[Layer]:
        """The layers of the steps, each once."""
        return list({id(step.layer): step.layer for step in self._execution_plan().steps}.values())

    def params(self) -> list[Param]:
        """All parameters of the layers, a shared one once."""
        every = [param for layer in self.layers for param in layer.params.values()]
        return list({id(param): param for param in every}.values())

    def param_specs(self) -> list[ParamSpec]:
        """Their training settings."""
        return [param.spec for param in self.params()]


INPUT = "/input"
"""The suffix of a layer's name for the arrays that it is fed with."""


class Part(Plan):
    """The steps of ``whole`` that gradients of the slots ``heads`` go through.

    Forward runs the steps that the heads depend on. It saves the contexts above the ``wanted``
    steps, whose output gradients are returned, and above uses of ``params``. The inputs of the
    steps in ``fed`` become outputs of an added step, so that their gradients can be ``wanted``.
    ``outputs`` are read by a loss or a caller, if any.
    Unless ``through_frozen``, uses of ``params`` in frozen steps give no gradients.
    """

    def __init__(
        self,
        whole: Plan,
        heads: Collection[int],
        outputs: Collection[str],
        fed: Collection[str],
        wanted: Iterable[str],
        params: Iterable[Param],
        through_frozen: bool = True,
    ) -> None:
        self._through_frozen = through_frozen
        self.steps: list[NodeStep] = []
        self.slot_shapes = list(whole.slot_shapes)
        for step in _before(whole, {*heads, *whole.slots_of(outputs)}):
            self.steps += self._with_input(step) if step.name in fed else [step]
        self.by_name = {step.name: step for step in self.steps}
        self.inputs = [step.name for step in self.steps if step.fed]
        self.outputs = list(outputs)
        self.heads, self.wanted = list(heads), frozenset(wanted)
        # The parameters themselves, so that no other has their ids.
        self.params = {id(param): param for param in params}
        self._connect()

    def _connect(self) -> None:
        """Connect the steps; compute the walk from the heads to the wanted steps and parameters."""
        super()._connect()
        self._trained = [self._trains_any(step) for step in self.steps]
        self._walk = BackwardPlan(self, self._trained, self.heads, self.wanted)
        kept = frozenset(self._walk.needs_context)
        self._kept = [i in kept for i in range(len(self.steps))]

    def _with_input(self, step: NodeStep) -> list[NodeStep]:
        """``step`` preceded by an identity input step."""
        layer = Dummy(step.name + INPUT)
        layer.build(step.layer.in_shapes or ())
        node = Node(layer.name, layer, 0, (), out_shapes=layer.out_shapes)
        shapes = node.output_shapes()
        slots = list(range(len(self.slot_shapes), len(self.slot_shapes) + len(shapes)))
        self.slot_shapes += shapes
        entry, reader = NodeStep(node, [], slots, step.floats), copy.copy(step)
        entry.integers, entry.gives_integers = step.integers, bool(step.integers)
        reader.in_slots, reader.fed, reader.many_in = slots, False, entry.many_out
        return [entry, reader]

    def _trains_any(self, step: NodeStep) -> bool:
        asked = any(id(param) in self.params for param in step.layer.params.values())
        return asked and (self._through_frozen or not step.frozen)

    def trains(self, param: Param) -> bool:
        """Whether the gradient of ``param`` is requested."""
        return id(param) in self.params

    def trained(self) -> Sequence[bool]:
        """Whether a parameter gradient of each step is requested."""
        return self._trained

    def keeps(self, train: bool, asked: Collection[str]) -> list[bool]:
        """For each step whether the walk visits it, in training or evaluation."""
        return self._kept

    def backward(self, given: Collection[int], wanted: Collection[str]) -> BackwardPlan:
        """The one walk that this part is for."""
        return self._walk

    def with_params(self, values: Mapping[int, Param], behind: Mapping[str, Layer]) -> Part:
        """A copy with other parameters, ``values`` by the ids of the replaced ones.

        The layers ``behind`` change the outputs of the steps of these names.
        """
        made = copy.copy(self)
        layers: dict[int, Any] = {}
        made.steps = []
        made.slot_shapes = list(self.slot_shapes)
        for step in self.steps:
            if id(step.layer) not in layers:
                layer = copy.copy(step.layer)
                layer.params = {s: values[id(p)] for s, p in step.layer.params.items()}
                layers[id(step.layer)] = layer
            other = copy.copy(step)
            other.layer = layers[id(step.layer)]
            made.steps.append(other)
            if step.name in behind:
                made.steps.append(made._behind(other, behind[step.name]))
        made.by_name = {step.name: step for step in made.steps}
        made.inputs = [step.name for step in made.steps if step.fed]
        made.params = {id(values[key]): values[key] for key in self.params}
        made._connect()
        return made

    def _behind(self, step: NodeStep, layer: Layer) -> NodeStep:
        """A step that gets the name and outputs of ``step``, which gets new outputs."""
        shapes = [self.slot_shapes[slot] for slot in step.out_slots]
        slots = list(range(len(self.slot_shapes), len(self.slot_shapes) + len(shapes)))
        self.slot_shapes += shapes
        node = Node(step.name, layer, 0, (), out_shapes=shapes if step.many_out else shapes[0])
        made = NodeStep(node, slots, step.out_slots, step.floats)
        made.many_in = step.many_out
        step.name, step.out_slots = f"{step.name}, unchanged", slots
        step.owner, step.members = step.name, (step.name,)
        return made


def _before(plan: Plan, slots: Iterable[int]) -> list[NodeStep]:
    """The steps that ``slots`` depend on, in their order."""
    needed = {plan.producer[slot] for slot in slots}
    for i in reversed(range(len(plan.steps))):
        if i in needed:
            needed.update(plan.producer[slot] for slot in plan.steps[i].in_slots)
    return [plan.steps[i] for i in sorted(needed)]


def carrying(plan: Plan, heads: Iterable[int]) -> tuple[set[int], list[bool]]:
    """The slots whose gradient reaches one of ``heads``, and which steps produce them.

    Gradients stop at layers that stop them and at indices.
    """
    slots, steps = set(heads), [False] * len(plan.steps)
    for i in reversed(range(len(steps))):
        step = plan.steps[i]
        steps[i] = not slots.isdisjoint(step.out_slots)
        if steps[i] and not step.layer.traits.stops_gradient:
            slots.update(slot for k, slot in enumerate(step.in_slots) if k not in step.integers)
    return slots, steps
