"""The steps of a net in their order, and the forward walk over them."""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from singanet.base.described import changes
from singanet.engine.foreign import apart, run_forward
from singanet.errors import GraphError, ShapeError
from singanet.graph.nodes import Node
from singanet.layers.context import Context
from singanet.layers.joins import Combine
from singanet.layers.kv_cache import KVCache
from singanet.layers.layer import Layer
from singanet.layers.shapes import Dummy
from singanet.ops.interface import Ops
from singanet.params.param import Param
from singanet.types import Array, InputKind

if TYPE_CHECKING:
    from typing_extensions import Self

_CASES = 64
"""The maximum number of cases that a plan caches: nets with randomly switched layers have many."""

_Case = TypeVar("_Case")


class NodeStep:
    """One node with its inputs and outputs resolved to slots, numbered over the net.

    A fused step replaces several nodes, its ``members``, and has the name of the last. Its
    ``owner`` is the member with the parameters, if any.
    """

    __slots__ = (
        "broadcasts",
        "fed",
        "floats",
        "foreign",
        "frozen",
        "gives_integers",
        "in_slots",
        "integers",
        "kinds",
        "layer",
        "many_in",
        "many_out",
        "members",
        "name",
        "out_shapes",
        "out_slots",
        "owner",
        "unsure",
    )

    def __init__(
        self,
        node: Node,
        in_slots: list[int],
        out_slots: list[int],
        floats: np.dtype[Any],
        frozen: bool = False,
    ) -> None:
        self.name = self.owner = node.name
        self.members: tuple[str, ...] = (node.name,)
        self.floats = floats
        self.frozen = frozen
        self.layer: Layer = node.layer
        self.foreign = self.layer._foreign
        self.in_slots = in_slots
        self.out_slots = out_slots
        self.out_shapes = node.output_shapes()
        self.many_in = len(in_slots) > 1
        self.many_out = isinstance(node.out_shapes, list)
        self.fed = not in_slots
        self.kinds = [self.layer._input_kind(k) for k in range(self.in_count)]
        self.integers = frozenset(k for k, kind in enumerate(self.kinds) if kind == "integers")
        self.gives_integers = self.layer.traits.gives_integers
        # Whether the batch sizes of its inputs are known only at run time.
        self.unsure = False
        # Whether one sample broadcasts to the samples of the other inputs.
        self.broadcasts = isinstance(self.layer, Combine)

    @property
    def joins(self) -> bool:
        """Whether it reads several arrays that must have one batch size."""
        several = self.many_in or (self.fed and self.in_count > 1)
        return several and self.layer.traits.samples == "same"

    def samples(self, sizes: Sequence[int | None]) -> int | None:
        """The batch size of its outputs for inputs of ``sizes``; None if it is not known.

        Errors: `ShapeError` if the known sizes differ.
        """
        how = self.layer.traits.samples
        known = [size for size in sizes if size is not None]
        if how == "own":
            return None
        if how == "stacked":
            return sum(known) if len(known) == len(sizes) else None
        if len(set(known)) > 1:
            raise ShapeError(
                f"layer {self.name!r}",
                expected="inputs of one batch size",
                received=f"{known}",
                advice="feed arrays of as many samples each",
            )
        return known[0] if known and len(known) == len(sizes) else None

    @property
    def in_count(self) -> int:
        """The number of arrays that it reads, fed arrays included."""
        shapes = self.layer.in_shapes
        return len(shapes) if isinstance(shapes, list) else 1

    def fed_type(self, k: int) -> np.dtype[Any]:
        """The type of the feed for input ``k``."""
        if k not in self.integers:
            return self.floats
        declared = self.layer.dtype if isinstance(self.layer, Dummy) else None
        return declared or np.dtype(np.int64)

    @property
    def in_training(self) -> bool:
        """Whether a training forward runs the layer as in training, not as in evaluation."""
        return not self.frozen and not any(p.root.held for p in self.layer.params.values())

    def params(self) -> Mapping[str, Any]:
        """The live parameter arrays by suffix."""
        found = {}
        for suffix, param in self.layer.params.items():
            array = param.root.storage.array
            if array is None:
                storage = param.storage
                if not storage.in_memory and not (self.layer.traits.looks_up and storage.by_rows):
                    return StoredArrays(self.layer, self.foreign)
                array = param.value
            found[suffix] = array
        return found


class StoredArrays(Mapping[str, Any]):
    """The arrays of ``layer`` by suffix, read from their storage at each access.

    A context may refer to it until backward without any array in memory meanwhile. Layers whose
    kernels accept a `NarrowMatrix` may get one, but not ``foreign`` layers.
    """

    __slots__ = ("_matrices", "_params")

    def __init__(self, layer: Layer, foreign: bool) -> None:
        self._params = layer.params
        self._matrices = () if foreign else layer.matrices()

    def __getitem__(self, suffix: str) -> Any:
        param = self._params[suffix]
        return param.factor() if suffix in self._matrices else param.peek()

    def __iter__(self) -> Iterator[str]:
        return iter(self._params)

    def __len__(self) -> int:
        return len(self._params)


def _last_reads(steps: Sequence[NodeStep]) -> list[list[int]]:
    """For each step the slots that no later one reads."""
    last = {slot: i for i, step in enumerate(steps) for slot in step.in_slots}
    frees: list[list[int]] = [[] for _ in steps]
    for slot, i in last.items():
        frees[i].append(slot)
    return frees


def run_step(
    step: NodeStep,
    x: Any,
    feed: Mapping[str, Any],
    ops: Ops,
    rng: np.random.Generator,
    train: bool,
    keep: bool,
    layer: Layer | None = None,
    past: KVCache | None = None,
    params: Mapping[str, Array] | None = None,
) -> tuple[Any, Context]:
    """The output of ``step`` for ``x`` and its context; with ``train`` it runs as in training.

    ``layer`` and ``params`` may replace the step's own; ``past`` contains the earlier steps of the
    sequences.
    """
    if layer is None or layer is step.layer:
        layer, params = step.layer, step.params() if params is None else params
    else:
        params = {suffix: param.value for suffix, param in layer.params.items()}
    if step.unsure:
        sizes = [part.shape[0] for part in x if part is not None]
        # One sample, such as a mean over a batch, broadcasts.
        step.samples([size for size in sizes if size != 1] if step.broadcasts else sizes)
    ctx = Context(ops, rng, params, train, keep, step.floats)
    ctx.past = past
    if step.foreign:
        x = apart(x, feed.values())
        parts = [(-1, *shape[1:]) if shape else shape for shape in step.out_shapes]
        shapes = step.out_shapes if past is None else parts
        y = run_forward(step.owner, layer, ctx, x, shapes)
    else:
        y = layer.forward(ctx, x)
    ctx.out_shapes = [part.shape for part in y] if step.many_out else [y.shape]
    return y, ctx


class PlanSettings(NamedTuple):
    """The settings of parameters and layers at the change ``now``, one value per step of the plan.

    ``trained``: backward yields parameters of the step, ``params`` by suffix. ``in_training``: a
    training forward runs it as in training. ``recompute``: any step is run again. ``state`` are the
    parameters that forwards update, ``synchronized`` is whether any layer is synchronized.
    """

    now: int
    trained: tuple[bool, ...]
    params: tuple[Mapping[str, Param], ...]
    in_training: tuple[bool, ...]
    recompute: bool
    state: tuple[Param, ...]
    synchronized: bool


_UNKNOWN = PlanSettings(-1, (), (), (), False, (), False)


class Plan:
    """The sorted steps of a net, and the last reader of each slot.

    They compute with the type ``floats``. The nodes named in ``frozen`` run as in evaluation and
    are not trained. ``listed`` are the inputs in the order of a list of feeds.
    """

    listed: Sequence[str] = ()
    # If the plan ends in the loss (`singanet.engine.fusion`): the layer of this step, its inputs.
    head: Any = None
    of_loss: Sequence[str] = ()
    # By ids of parameters: the step that yields a gradient before the other uses, see
    # `by_each_use`.
    apart: Mapping[int, str] = MappingProxyType({})

    def __init__(
        self, order: list[Node], floats: np.dtype[Any], frozen: Collection[str] = ()
    ) -> None:
        self.steps: list[NodeStep] = []
        self.outputs = [node.name for node in order if node.consumers == 0]
        self.inputs = [node.name for node in order if not node.sources]
        self.by_name: dict[str, NodeStep] = {}
        self.slot_shapes: list[Any] = []
        first: dict[str, int] = {}
        for node in order:
            start = first[node.name] = len(self.slot_shapes)
            in_slots = [first[source.name] + index for source, index in node.inputs]
            self.steps.append(NodeStep(node, in_slots, [], floats, node.name in frozen))
            self.slot_shapes += self.steps[-1].out_shapes
            self.steps[-1].out_slots = list(range(start, len(self.slot_shapes)))
            self.by_name[node.name] = self.steps[-1]
        self._connect()
        self._mark_integers()

    def _expect_dense(self, name: str) -> None:
        """Errors: an output that is a sparse input."""
        if self.by_name[name].layer.traits.sparse:
            raise GraphError(
                f"net, output {name!r}",
                expected="arrays that layers have computed",
                received="a sparse input",
                advice="add a Dense layer after it",
            )

    def _connect(self) -> None:
        """Find writers and readers of each slot, and the steps that gradients come from."""
        for name in self.outputs:
            self._expect_dense(name)
        self.producer = [-1] * len(self.slot_shapes)
        for i, step in enumerate(self.steps):
            for slot in step.out_slots:
                self.producer[slot] = i
        read = {slot for step in self.steps for slot in step.in_slots}
        self.given = sorted(slot for slot in read if self.producer[slot] < 0)
        self.frees = _last_reads(self.steps)
        self.stops = any(step.layer.traits.stops_gradient for step in self.steps)
        # Batch sizes may differ among inputs, and after layers that change them.
        self.joins = any(step.joins for step in self.steps)
        self.stacks = any(step.layer.traits.samples != "same" for step in self.steps)
        if self.joins and self.stacks:
            self._mark_unsure()
        self.sources = [
            []
            if step.layer.traits.stops_gradient
            else sorted({self.producer[s] for s in step.in_slots if self.producer[s] >= 0})
            for step in self.steps
        ]
        self.holds_params = self._or_before([bool(step.layer.params) for step in self.steps])
        users: dict[int, int] = {}
        for layer in {id(step.layer): step.layer for step in self.steps}.values():
            for param in layer.params.values():
                users[id(param)] = users.get(id(param), 0) + 1
        uses_of_layer: dict[int, int] = {}
        for step in self.steps:
            uses_of_layer[id(step.layer)] = uses_of_layer.get(id(step.layer), 0) + 1
        self.has_shared = max([*users.values(), *uses_of_layer.values()], default=0) > 1
        self.parts: dict[Any, Any] = {}
        # Caches of `singanet.engine.fusion`.
        self.fused: dict[Any, Any] = {}
        self.headed: dict[Any, Plan] = {}
        self._settings = _UNKNOWN
        self._keeping: dict[Any, list[bool]] = {}
        self._backward: dict[Any, BackwardPlan] = {}

    def _mark_unsure(self) -> None:
        """Mark the steps that read several arrays, at least one after an "own" batch size."""
        unsure: set[int] = set()
        for step in self.steps:
            reads = not unsure.isdisjoint(step.in_slots)
            step.unsure = reads and step.joins
            if reads or step.layer.traits.samples == "own":
                unsure.update(step.out_slots)

    def __getstate__(self) -> dict[str, Any]:
        """Drop the caches, which refer to parameters by id."""
        fresh = {
            "_settings": _UNKNOWN,
            "_keeping": {},
            "_backward": {},
            "parts": {},
            "fused": {},
            "headed": {},
        }
        return {**vars(self), **fresh}

    def of_steps(self, steps: list[NodeStep]) -> Self:
        """A plan of other steps between the same inputs and outputs."""
        made = copy.copy(self)
        made.take(steps)
        made._connect()
        return made

    def part(self, names: Collection[str]) -> Self:
        """The plan of the steps ``names``.

        Its feeds also have the arrays of the slots ``given``, which other steps compute.
        """
        made = copy.copy(self)
        made.by_name = {name: step for name, step in self.by_name.items() if name in names}
        made.inputs = [name for name in self.inputs if name in names]
        made.outputs = [name for name in self.outputs if name in names]
        made.take([step for step in self.steps if step.name in names])
        made._connect()
        return made

    def summed(self) -> Self:
        """The plan in which gradients of all uses of a parameter are summed before its update."""
        made = copy.copy(self)
        made.apart, made.fused = {}, {}
        return made

    def take(self, steps: list[NodeStep]) -> None:
        """Replace the steps; names stay in their order, wherever fused steps are."""
        by_name = {name: step for step in steps for name in step.members}
        self.steps, self.by_name = steps, {name: by_name[name] for name in self.by_name}

    def _mark_integers(self) -> None:
        """Mark the steps that pass integers on, by their inputs or by what all readers require."""
        readers: dict[int, list[InputKind]] = {}
        for i, step in reversed(list(enumerate(self.steps))):
            wanted = {kind for kind in readers.get(i, ()) if kind != "any"}
            if step.layer.traits.moves_only and wanted == {"integers"}:
                step.integers = frozenset(range(step.in_count))
            for k, slot in enumerate(step.in_slots):
                kind = "integers" if k in step.integers else step.kinds[k]
                readers.setdefault(self.producer[slot], []).append(kind)
        for step in self.steps:
            if step.layer.traits.moves_only:
                step.gives_integers |= step.fed and bool(step.integers)
                for k, slot in enumerate(step.in_slots):
                    if step.kinds[k] == "any":
                        step.gives_integers |= self.steps[self.producer[slot]].gives_integers

    def _or_before(self, marks: list[bool]) -> list[bool]:
        """Mark each step that has a marked one before it, too."""
        for i, sources in enumerate(self.sources):
            if not marks[i]:
                for source in sources:
                    if marks[source]:
                        marks[i] = True
                        break
        return marks

    def trains(self, param: Param) -> bool:
        """Whether backward yields the gradient of ``param``."""
        return param.trainable

    def trained(self) -> Sequence[bool]:
        """For each step whether backward yields parameters of it."""
        return [not step.frozen and step.layer.trainable for step in self.steps]

    def settings(self) -> PlanSettings:
        """The settings of the steps, worked out anew after a change."""
        if self._settings.now != changes.now:
            trains, steps = self.trains, self.steps
            self._settings = PlanSettings(
                changes.now,
                tuple(self.trained()),
                tuple(
                    [{s: p for s, p in each.layer.params.items() if trains(p)} for each in steps]
                ),
                tuple([step.in_training for step in steps]),
                any(step.layer.recompute for step in steps),
                tuple(self._state()),
                any(step.layer.synchronized for step in steps),
            )
        return self._settings

    def _state(self) -> list[Param]:
        """The parameters that are running state, each once."""
        every = [param for step in self.steps for param in step.layer.params.values()]
        state = [param for param in every if param.is_state]
        return list({id(param): param for param in state}.values())

    def trained_params(self) -> Iterator[Param]:
        """The parameters that backward yields, a shared one once for each of its layers."""
        for step, trained in zip(self.steps, self.trained(), strict=True):
            if trained:
                yield from filter(self.trains, step.layer.params.values())

    def slots_of(self, names: Iterable[str]) -> list[int]:
        """The output slots of the steps ``names``."""
        return [slot for name in names for slot in self.by_name[name].out_slots]

    def slot_bytes(self, batch: int, itemsize: int, extent: int | None = None) -> list[int]:
        """Bytes of each slot, if all have elements of ``itemsize``; an open axis is ``extent``."""
        shapes = [[extent or 1 if n < 0 else n for n in shape] for shape in self.slot_shapes]
        return [batch * itemsize * math.prod(shape) for shape in shapes]

    def reached(self, slots: Iterable[int]) -> list[bool]:
        """For each step whether gradients of ``slots`` reach it, if all layers pass them on."""
        marks = [False] * len(self.steps)
        for slot in slots:
            marks[self.producer[slot]] = True
        for i in reversed(range(len(marks))):
            if marks[i]:
                for source in self.sources[i]:
                    marks[source] = True
        return marks

    def useful(self, trained: Sequence[bool], wanted: Collection[str]) -> list[bool]:
        """For each step whether it, or anything before it, is trained or ``wanted``."""
        if not wanted:
            return self._or_before(list(trained))
        asked = frozenset(wanted)
        return self._or_before(
            [t or not asked.isdisjoint(s.members) for s, t in zip(self.steps, trained, strict=True)]
        )

    def keeping(self, wanted: Collection[str]) -> list[bool]:
        """For each step whether a training forward saves its context.

        It does if a gradient has to pass, and if no earlier step has parameters: so an input
        gradient is available unless all parameters on its way are untrained.
        """
        trained = self.settings().trained
        key = trained, frozenset(wanted)
        keeps = self._keeping.get(key)
        if keeps is None:
            keeps = self.useful(trained, wanted)
            for i, holds in enumerate(self.holds_params):
                if not keeps[i] and not holds and not self.steps[i].frozen:
                    keeps[i] = True
            if self.stops:
                reached = self.reached(self.slots_of({*self.outputs, *wanted}))
                keeps = [keep and comes for keep, comes in zip(keeps, reached, strict=True)]
            remember(self._keeping, key, keeps)
        return keeps

    def backward(self, given: Collection[int], wanted: Collection[str]) -> BackwardPlan:
        """The walk from gradients of the slots ``given``, cached for the trained parameters."""
        trained = self.settings().trained
        key = trained, frozenset(given), frozenset(wanted)
        found = self._backward.get(key)
        if found is None:
            found = BackwardPlan(self, trained, given, wanted)
            remember(self._backward, key, found)
        return found

    def keeps(self, train: bool, asked: Collection[str]) -> list[bool]:
        """For each step whether a forward saves its context: `keeping`, none in evaluation."""
        return self.keeping(asked) if train else [False] * len(self.steps)

    def forward(
        self,
        feed: Mapping[Any, Any],
        wanted: Collection[str],
        ops: Ops,
        rng: np.random.Generator,
        train: bool,
        asked: Collection[str] = (),
        pasts: Mapping[str, KVCache] | None = None,
        last_of: Mapping[str, Collection[int]] = MappingProxyType({}),
    ) -> tuple[dict[str, Any], list[Any]]:
        """Run every layer; return the outputs of the ``wanted`` nodes, and the contexts.

        ``feed`` has the inputs by name, and the arrays of the slots ``given``, of which stored ones
        may be missing. An output is freed after its last reader. Contexts are saved for gradients
        down to the nodes ``asked`` for. To continue sequences, ``pasts`` contains the caches of the
        nodes. From the inputs ``last_of`` a node, by number, the node gets the last step only.
        """
        keeps, in_training = self.keeps(train, asked), self.settings().in_training
        slots: list[Any] = [None] * len(self.slot_shapes)
        for slot in self.given:
            slots[slot] = feed.get(slot)
        contexts: list[Any] = []
        results: dict[str, Any] = {}
        for step, frees, keep, trains in zip(
            self.steps, self.frees, keeps, in_training, strict=True
        ):
            if step.fed:
                x = feed[step.members[0]]
            elif step.many_in:
                x = [slots[slot] for slot in step.in_slots]
            else:
                x = slots[step.in_slots[0]]
            if step.name in last_of:
                x = _last_step(x, last_of[step.name], step.many_in)
            past = None if pasts is None else pasts.get(step.name)
            y, ctx = run_step(step, x, feed, ops, rng, train and trains, keep, past=past)
            del x
            if step.many_out:
                for slot, part in zip(step.out_slots, y, strict=True):
                    slots[slot] = part
            else:
                slots[step.out_slots[0]] = y
            if step.name in wanted:
                results[step.name] = y
            del y
            contexts.append(ctx)
            for slot in frees:
                slots[slot] = None
        if len(results) > 1:
            # A fused step may be before or after the position of its last layer.
            results = {name: results[name] for name in self.by_name if name in results}
        return results, contexts

    def _params_of(self, walk: BackwardPlan) -> list[Param]:
        """The parameters whose gradients ``walk`` yields, each once."""
        found = {
            id(param): param
            for i, step in enumerate(self.steps)
            if walk.visited[i] and walk.trained[i]
            for param in step.layer.params.values()
            if self.trains(param)
        }
        return list(found.values())


def _last_step(x: Any, which: Collection[int], many: bool) -> Any:
    """``x`` (N, t, ...), or ``which`` of several, at the last step: (N, 1, ...)."""
    parts = x if many else [x]
    cut = [part[:, -1:].copy() if k in which else part for k, part in enumerate(parts)]
    return cut if many else cut[0]


class BackwardPlan:
    """The work of a backward walk over ``plan`` at each step.

    ``visited`` are the steps that gradients of the ``given`` slots reach, ``goes_on`` the steps
    whose input gradients are needed, ``below`` the steps with a trained or wanted step at or before
    them. ``uses`` counts for each parameter (by id) the visited steps that train it.
    """

    __slots__ = ("below", "goes_on", "needs_context", "trained", "uses", "visited", "wanted")

    def __init__(
        self, plan: Plan, trained: Sequence[bool], given: Iterable[int], wanted: Collection[str]
    ) -> None:
        self.trained = trained
        self.wanted = frozenset(wanted)
        self.below = plan.useful(trained, wanted)
        self.goes_on = [any(self.below[k] for k in sources) for sources in plan.sources]
        reached = plan.reached(given)
        self.visited = [r and b for r, b in zip(reached, self.below, strict=True)]
        steps = range(len(plan.steps))
        self.needs_context = [
            i for i in steps if self.visited[i] and (self.trained[i] or self.goes_on[i])
        ]
        self.uses = self._uses(plan) if plan.has_shared else {}

    def _uses(self, plan: Plan) -> dict[int, int]:
        uses: dict[int, int] = {}
        for i, step in enumerate(plan.steps):
            for param in step.layer.params.values() if self.visited[i] and self.trained[i] else ():
                uses[id(param)] = uses.get(id(param), 0) + 1
        return uses


def remember(known: dict[Any, _Case], key: Any, case: _Case) -> None:
    """Cache ``case`` under ``key``; a full cache is emptied first."""
    if len(known) >= _CASES:
        known.clear()
    known[key] = case
