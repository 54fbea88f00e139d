"""Stages of a pipeline and the part of a net that each runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from singanet.base import terms
from singanet.engine.backward import BackwardWalk
from singanet.engine.model import PlanView
from singanet.engine.net import Net
from singanet.engine.plan import NodeStep, Plan, run_step
from singanet.errors import ArgumentError, CallOrderError, GraphError, brief
from singanet.graph.nodes import Node
from singanet.layers.counting import multiply_adds
from singanet.layers.shapes import Dummy
from singanet.params.param import Param
from singanet.params.storage import ParamStorage
from singanet.types import Array, Shape

WAYS = ("balance", "measure")
"""How the stages of a net are found: by counted work, or by times."""

_TOUCHED = 32.0
"""The multiply-adds in the time of reading or writing one element."""

_BACK = 2.0
"""The work of a backward, relative to a forward."""

_SAMPLES = 4
"""Samples of a measured pass, and of a counted micro-batch."""

_EXTENT = 8
"""The extent of open axes in measurements."""


class Cost(NamedTuple):
    """The cost of a layer for a sample: work forward and backward, and bytes that it leaves.

    Work is in seconds, or in multiply-adds. ``held`` are the bytes of its parameters, counted once.
    """

    work: float
    nbytes: float
    held: float


def assigned(
    net: Net,
    stages: Sequence[str] | str | None,
    alive: Sequence[int],
    memory: float | None,
    costs: Mapping[str, Callable[[], Sequence[Cost]]],
) -> list[int]:
    """The stage of each step of ``net``: see `Pipeline`; ``alive`` has the samples by stage.

    ``costs`` returns the costs of the steps by way, the same on all ranks. Errors: another number
    of stages than ``alive`` has.
    """
    way, steps = "balance" if stages is None else stages, net.planned().steps
    if stages is None and is_drawn(net):
        found = as_drawn(net)
    elif isinstance(way, str):
        if way not in WAYS:
            raise ArgumentError(
                "parallel.Pipeline, stages",
                expected="'balance', 'measure', or a list of layers",
                received=brief(stages),
                advice=f"write stages=[{stages!r}] for a stage that begins there",
            )
        own, every = [k for k, step in enumerate(steps) if not is_input(step)], costs[way]()
        of_layers = balanced([every[k] for k in own], len(alive), alive, memory)
        # An input is fed to its reader, so it is on the stage of the layer after it.
        places = np.searchsorted(own, range(len(steps))).clip(max=len(own) - 1)
        found = [of_layers[k] for k in places]
    else:
        found = by_names(net, way)
    computing = {k for k, step in zip(found, steps, strict=True) if not is_input(step)}
    if computing != set(range(len(alive))):
        raise ArgumentError(
            "parallel.Pipeline, stages",
            expected=f"{len(alive)} stages, one a rank, each with layers that compute",
            received=f"such layers on the stages {sorted(computing)}",
            advice="let each stage begin with a layer that computes, and start as many processes "
            "as there are stages, times replicas",
        )
    return found


def is_input(step: NodeStep) -> bool:
    """Whether a step is an input: it returns the array that is fed."""
    return step.fed and type(step.layer) is Dummy


def is_drawn(net: Net) -> bool:
    """Whether a layer was drawn on a stage."""
    return any(node.stage is not None for node in net.ordered())


def as_drawn(net: Net) -> list[int]:
    """The stage of each step, as drawn within ``with parallel.stage(k)``.

    A layer drawn outside has the stage of the layers that it reads, an input the stage of its first
    reader. Errors: no layer drawn on a stage; a layer that reads an output of a later stage.
    """
    nodes = net.ordered()
    if not is_drawn(net):
        raise ArgumentError(
            "parallel.Pipeline, stages",
            expected="layers drawn within `with parallel.stage(k):`",
            received="a net without any",
            advice="draw it so, pass the first layers of the later stages, or 'balance'",
        )
    found: dict[str, int] = {}
    for node in nodes:
        before = max((found[source.name] for source, _ in node.inputs), default=0)
        found[node.name] = before if node.stage is None else node.stage
    readers: dict[str, int] = {}
    for node in reversed(nodes):
        own = found[node.name]
        if node.stage is None and not node.inputs:
            own = found[node.name] = readers.get(node.name, own)
        for source, _ in node.inputs:
            readers[source.name] = min(own, readers.get(source.name, own))
            if found[source.name] > own and (source.inputs or source.stage is not None):
                raise GraphError(
                    f"layer {node.name!r}, stage {own}",
                    expected="layers of this stage or of earlier ones before it",
                    received=f"{source.name!r} of stage {found[source.name]}",
                    advice="draw it on that stage, or a later one",
                )
    return [found[node.name] for node in nodes]


def by_names(net: Net, firsts: Sequence[str]) -> list[int]:
    """The stage of each step; ``firsts`` are the first layers of stages 1, 2, ...

    The name of a nested net means the first of its layers. Errors: an unknown name, another order.
    """
    if not isinstance(firsts, Sequence):
        raise ArgumentError(
            "parallel.Pipeline, stages",
            expected="names of layers in a list, 'balance', or None for stages as drawn",
            received=brief(firsts),
            advice="there are as many stages as ranks, or as ranks by replicas",
        )
    names = [node.name for node in net.ordered()]
    starts = [names.index(net._use_of(str(name))[0]) for name in firsts]
    if sorted({0, *starts}) != [0, *starts]:
        raise ArgumentError(
            "parallel.Pipeline, stages",
            expected="layers in the order in which they are computed, none of them the net's first",
            received=str(list(firsts)),
            advice="name the first layer of each stage but stage 0: see net.summary()",
        )
    return [sum(at >= start for start in starts) for at in range(len(names))]


def balanced(
    costs: Sequence[Cost], stages: int, alive: Sequence[int], limit: float | None = None
) -> list[int]:
    """The stage of each step: contiguous, so that the slowest stage is as quick as can be.

    No stage takes more than ``limit`` bytes: its parameters, and for ``alive`` samples what its
    layers leave. Errors: fewer steps than stages, or a limit that no split keeps.
    """
    count = len(costs)
    if count < stages:
        raise _too_many(stages, count)
    sums = np.zeros((count + 1, 3))
    np.cumsum([list(cost) for cost in costs], axis=0, out=sums[1:])
    # best[j]: the slowest stage of the first j steps on the stages so far.
    best, cuts = np.full(count + 1, np.inf), []
    best[0] = 0.0
    for k in range(stages):
        after, cut = np.full(count + 1, np.inf), np.zeros(count + 1, int)
        for j in range(k + 1, count + 1):
            own = sums[j] - sums[:j]
            worse = np.maximum(best[:j], own[:, 0])
            if limit is not None:
                worse[own[:, 1] * alive[k] + own[:, 2] > limit] = np.inf
            cut[j] = int(worse.argmin())
            after[j] = worse[cut[j]]
        best = after
        cuts.append(cut)
    if not np.isfinite(best[count]):
        raise ArgumentError(
            "parallel.Pipeline, memory",
            expected="room for the layers of each stage, and for the contexts that it holds",
            received=f"{limit} bytes a stage",
            advice="use more stages, more micro-batches, or '1f1b', which holds fewer contexts",
        )
    end, found = count, [0] * count
    for k in reversed(range(stages)):
        start = int(cuts[k][end])
        found[start:end] = [k] * (end - start)
        end = start
    return found


def counted(net: Net) -> list[Cost]:
    """The cost of each step of ``net`` by its shapes alone, equal on all ranks and in all runs.

    Multiply-adds of products, as `summary.multiply_adds` has them, and elements read and written.
    """
    found = []
    for step in net._execution_plan().steps:
        ins: Any = step.layer.in_shapes
        reads, writes = _extents(ins if isinstance(ins, list) else [ins]), _extents(step.out_shapes)
        elements: float = sum(map(prod, reads)) + sum(map(prod, writes))
        # A micro-batch reads them once.
        elements += sum(prod(p.shape) for p in step.layer.params.values()) / _SAMPLES
        products = multiply_adds(step.layer, reads, writes) or 0
        # An input only passes its feed on.
        work = 0.0 if isinstance(step.layer, Dummy) else products + _TOUCHED * elements
        found.append(
            Cost(
                (1.0 + _BACK) * work,
                float(sum(map(prod, writes)) * net.dtype.itemsize),
                float(sum(p.nbytes for p in step.layer.params.values())),
            )
        )
    return found


def _extents(shapes: Sequence[Shape]) -> list[Shape]:
    """``shapes`` with a number in the place of any extent."""
    return [tuple(_EXTENT if n < 0 else n for n in shape) for shape in shapes]


def measured(net: Net) -> list[Cost]:
    """The measured cost of each step of ``net`` on zeros; unfilled parameters stay unfilled."""
    with net._unfilled(), net.rehearsal(), net.device.scope():
        plan = net._execution_plan()
        best = [float("inf")] * len(plan.steps)
        for _ in range(3):
            best = [min(pair) for pair in zip(best, _one_pass(net, plan), strict=True)]
    made = zip(counted(net), best, strict=True)
    return [cost._replace(work=seconds / _SAMPLES) for cost, seconds in made]


def _one_pass(net: Net, plan: Plan) -> list[float]:
    """Seconds of each step forward and backward."""
    keeps, seconds = plan.keeping(()), []
    arrays: dict[int, Any] = {}
    contexts: list[Any] = []
    for i, step in enumerate(plan.steps):
        shapes: Any = step.layer.in_shapes
        given = [arrays[slot] for slot in step.in_slots]
        if step.fed:
            given = [
                net.device.put(
                    np.zeros(
                        (_SAMPLES, *s),
                        step.fed_type(k),
                    )
                )
                for k, s in enumerate(_extents(shapes if isinstance(shapes, list) else [shapes]))
            ]
        x = given if step.many_in or isinstance(shapes, list) else given[0]
        began = perf_counter()
        y, ctx = run_step(step, x, {}, net.device.ops, net.rng, step.in_training, keeps[i])
        seconds.append(perf_counter() - began)
        parts = y if step.many_out else [y]
        arrays |= dict(zip(step.out_slots, parts, strict=True))
        contexts.append(ctx)
    places = {step.name: i for i, step in enumerate(plan.steps)}
    start = {slot: arrays[slot] for slot in plan.slots_of(plan.outputs)}
    began = perf_counter()
    for item in BackwardWalk(plan, contexts, start, ()).run():
        seconds[places[item.layer]] += perf_counter() - began
        began = perf_counter()
    return seconds


def _too_many(stages: int, steps: int) -> ArgumentError:
    return ArgumentError(
        "parallel.Pipeline, stages",
        expected=f"at most {steps} stages, as the net has layers that compute",
        received=str(stages),
        advice="start fewer processes, or give replicas=",
    )


class StagePlan(Plan):
    """The steps of ``whole`` that ``stage`` computes; ``stages`` has the stage of each step.

    Outputs of earlier stages enter like feeds, under the names of their steps: ``received`` has
    these names by stage, ``sent`` the names of the own steps that later stages read. The last stage
    has all outputs of the net. Inputs are fed to all their readers.
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
    """A step that is fed with the output of ``step`` on another stage."""
    layer = Dummy(step.name)
    layer.build(step.out_shapes if step.many_out else step.out_shapes[0])
    node = Node(step.name, layer, 0, (), out_shapes=layer.out_shapes)
    return NodeStep(node, [], step.out_slots, step.floats)


class StagePart(PlanView):
    """The part of ``net`` that is on this rank, as stages of optimizers see a net."""

    def __init__(self, net: Net, plan: StagePlan) -> None:
        super().__init__(net)
        # Rules that treat the first and the last layers otherwise ask it.
        self.whole = net
        self.plan, self.version = plan, net.version

    rehearsal = Net.rehearsal

    def _execution_plan(self) -> StagePlan:
        """The own steps."""
        return self.plan


class RemoteStorage(ParamStorage):
    """Another rank, of pipeline stage ``stage``.

    It can be read only while the others answer; its stage writes it.
    """

    __slots__ = ("_dtype", "ask", "name", "stage")

    takes = (terms.LAYERS,)
    place = "on another rank"
    way_back = "call pipeline.gather() first"

    def __init__(self, param: Param, stage: int) -> None:
        self.name, self._dtype, self.stage = param.name, np.dtype(param.array_type), stage
        self.ask: Callable[[], Array] | None = None

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._dtype

    def read(self) -> Array:
        """The array. Errors: `CallOrderError` if the other rank does not answer."""
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
        """The array, read-only, since changes would be lost."""
        array = self.read()
        array.flags.writeable = False
        return array

    def write(self, array: Array) -> None:
        """Do nothing: every rank gets the whole state and stores its own part."""
