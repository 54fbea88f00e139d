"""One pass over a net: the forward walk, and the backward walk that hands gradients out."""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from typing import Any

import numpy as np

from singanet.context import Context
from singanet.errors import CallOrderError, ShapeError
from singanet.gradient import add_gradients
from singanet.graph import Node
from singanet.layers.activation import Activation
from singanet.layers.layer import Layer
from singanet.ops import NumpyOps
from singanet.parameter import Param
from singanet.types import Array, Gradient


class LayerGradients(tuple[list[str], list[Array], list[Gradient]]):
    """What backward yields for a layer; unpacks as ``names, values, grads``.

    ``values`` are the live parameter arrays; a gradient may be `RowSparse`. ``output_grads``
    maps each layer that was asked for and passed so far to the gradient of its output; ``layer``
    is the name of this one.
    """

    layer: str
    output_grads: dict[str, Any]

    def __new__(
        cls,
        names: list[str],
        values: list[Array],
        grads: list[Gradient],
        layer: str = "",
        output_grads: dict[str, Any] | None = None,
    ) -> LayerGradients:
        """``names``, ``values`` and ``grads`` have equal length."""
        item = super().__new__(cls, (names, values, grads))
        item.layer = layer
        item.output_grads = {} if output_grads is None else output_grads
        return item

    def __getnewargs__(self) -> tuple[list[str], list[Array], list[Gradient]]:
        return (self[0], self[1], self[2])

    @property
    def names(self) -> list[str]:
        """Parameter names."""
        return self[0]

    @property
    def values(self) -> list[Array]:
        """Live parameter arrays."""
        return self[1]

    @property
    def grads(self) -> list[Gradient]:
        """Their gradients."""
        return self[2]


class Step:
    """One node with its inputs and outputs resolved to slots, numbered over the net."""

    __slots__ = (
        "fed",
        "frozen",
        "in_slots",
        "keeps_integers",
        "layer",
        "many_in",
        "many_out",
        "name",
        "out_slots",
        "relu",
        "relu_of",
    )

    def __init__(
        self, node: Node, in_slots: list[int], out_slots: list[int], frozen: bool = False
    ) -> None:
        self.name = node.name
        self.frozen = frozen
        self.layer: Layer = node.layer
        self.in_slots = in_slots
        self.out_slots = out_slots
        self.many_in = len(in_slots) > 1
        self.many_out = isinstance(node.out_shapes, list)
        self.fed = not in_slots
        self.keeps_integers = self.layer.integer_input
        self.relu = False
        self.relu_of = ""

    def params(self) -> dict[str, Array]:
        """The live parameter arrays by suffix."""
        return {suffix: param.value for suffix, param in self.layer.params.items()}


class Plan:
    """The sorted steps of a net, and where each slot is read for the last time.

    The nodes named in ``frozen`` run as in evaluation and are not trained.
    """

    def __init__(self, order: list[Node], frozen: Collection[str] = ()) -> None:
        self.steps: list[Step] = []
        self.outputs = [node.name for node in order if node.consumers == 0]
        self.inputs = [node.name for node in order if not node.sources]
        self.by_name: dict[str, Step] = {}
        self.slot_shapes: list[Any] = []
        first: dict[str, int] = {}
        for node in order:
            first[node.name] = len(self.slot_shapes)
            out_slots = list(range(first[node.name], first[node.name] + len(node.output_shapes())))
            in_slots = [first[source.name] + index for source, index in node.inputs]
            self.slot_shapes += node.output_shapes()
            self.steps.append(Step(node, in_slots, out_slots, node.name in frozen))
            self.by_name[node.name] = self.steps[-1]
        self.producer = [i for i, step in enumerate(self.steps) for _ in step.out_slots]
        last = {slot: i for i, step in enumerate(self.steps) for slot in step.in_slots}
        self.frees: list[list[int]] = [[] for _ in self.steps]
        for slot, i in last.items():
            self.frees[i].append(slot)
        self._let_integers_through()
        self._pair_relus()
        self.sources = [sorted({self.producer[s] for s in step.in_slots}) for step in self.steps]
        self.holds_params = self._or_before([bool(step.layer.params) for step in self.steps])
        users: dict[int, int] = {}
        for layer in {id(step.layer): step.layer for step in self.steps}.values():
            for param in layer.params.values():
                users[id(param)] = users.get(id(param), 0) + 1
        uses_of_layer: dict[int, int] = {}
        for step in self.steps:
            uses_of_layer[id(step.layer)] = uses_of_layer.get(id(step.layer), 0) + 1
        self.has_shared = max([*users.values(), *uses_of_layer.values()], default=0) > 1

    def _let_integers_through(self) -> None:
        """Mark the steps that only move indices to layers that want them."""
        readers: dict[int, list[Step]] = {}
        for i, step in reversed(list(enumerate(self.steps))):
            if step.layer.moves_only and i in readers:
                step.keeps_integers = all(reader.keeps_integers for reader in readers[i])
            for slot in step.in_slots:
                readers.setdefault(self.producer[slot], []).append(step)

    def _pair_relus(self) -> None:
        """Mark the steps whose kernel can do the relu after them, which is their only reader."""
        readers: dict[int, list[Step]] = {}
        for step in self.steps:
            for slot in step.in_slots:
                readers.setdefault(slot, []).append(step)
        for step in self.steps:
            follows = [reader for slot in step.out_slots for reader in readers.get(slot, [])]
            if vars(type(step.layer)).get("can_relu") and len(follows) == 1:
                layer = follows[0].layer
                if type(layer) is Activation and layer.mode == "relu" and not follows[0].many_in:
                    step.relu, follows[0].relu_of = True, step.name

    def _or_before(self, marks: list[bool]) -> list[bool]:
        """Mark each step that has a marked one before it, too."""
        # A plain loop: this runs twice a training step, and small nets feel it.
        for i, sources in enumerate(self.sources):
            if not marks[i]:
                for source in sources:
                    if marks[source]:
                        marks[i] = True
                        break
        return marks

    def trained(self) -> list[bool]:
        """For each step whether backward yields parameters of it."""
        return [not step.frozen and step.layer.trainable for step in self.steps]

    def useful(self, trained: list[bool], wanted: Collection[str]) -> list[bool]:
        """For each step whether it, or anything before it, is trained or ``wanted``."""
        if not wanted:
            return self._or_before(trained.copy())
        marks = [t or step.name in wanted for step, t in zip(self.steps, trained, strict=True)]
        return self._or_before(marks)

    def keeping(self, wanted: Collection[str]) -> list[bool]:
        """For each step whether a training forward keeps its context.

        It does where a gradient has to pass, and where nothing yet has parameters: so an input
        gradient can always be asked for, unless parameters on its way are all untrained.
        """
        keeps = self.useful(self.trained(), wanted)
        for i, holds in enumerate(self.holds_params):
            if not keeps[i] and not holds and not self.steps[i].frozen:
                keeps[i] = True
        return keeps

    def forward(
        self,
        feed: Mapping[str, Any],
        wanted: Collection[str],
        ops: NumpyOps,
        rng: np.random.Generator,
        train: bool,
        asked: Collection[str] = (),
    ) -> tuple[dict[str, Any], list[Any]]:
        """Run every layer; return the outputs of the ``wanted`` nodes, and the contexts.

        An output is dropped as soon as the last layer that reads it has run. Contexts are kept
        for gradients that go as far down as the nodes ``asked`` for.
        """
        keeps = self.keeping(asked) if train else [False] * len(self.steps)
        slots: list[Any] = [None] * len(self.slot_shapes)
        contexts: list[Any] = []
        results: dict[str, Any] = {}
        for step, frees, keep in zip(self.steps, self.frees, keeps, strict=True):
            if step.fed:
                x = feed[step.name]
            elif step.many_in:
                x = [slots[slot] for slot in step.in_slots]
            else:
                x = slots[step.in_slots[0]]
            ctx = Context(ops, rng, step.params(), train and not step.frozen, keep)
            # Where the output between the two is asked for, each does its own part.
            ctx.relu = step.relu and step.name not in wanted
            ctx.through = bool(step.relu_of) and step.relu_of not in wanted
            y = step.layer.forward(ctx, x)
            del x
            if step.many_out:
                ctx.out_shapes = [part.shape for part in y]
                for slot, part in zip(step.out_slots, y, strict=True):
                    slots[slot] = part
            else:
                slots[step.out_slots[0]] = y
            if step.name in wanted:
                results[step.name] = y
            del y
            if train:
                contexts.append(ctx)
            for slot in frees:
                slots[slot] = None
        return results, contexts


class BackwardWalk:
    """The state of one backward pass; it owns the contexts and the gradients under way."""

    def __init__(
        self,
        plan: Plan,
        contexts: list[Any],
        slot_grads: dict[int, Array],
        wanted: Collection[str],
    ) -> None:
        self.plan = plan
        self.contexts = contexts
        self.slot_grads = slot_grads
        self.wanted = wanted
        self.output_grads: dict[str, Any] = {}
        self.owned: set[int] = set()
        self.trained = plan.trained()
        self.below = plan.useful(self.trained, wanted)
        self.goes_on = [any(self.below[k] for k in sources) for sources in plan.sources]
        self.visited = self._reached()
        self._expect_contexts()
        self.uses_left = self._uses() if plan.has_shared else {}
        self.partial: dict[int, Gradient] = {}

    def _reached(self) -> list[bool]:
        """For each step whether the walk visits it: it is of use and a gradient arrives."""
        producer = self.plan.producer
        reached = [False] * len(self.plan.steps)
        for slot in self.slot_grads:
            reached[producer[slot]] = True
        for i in reversed(range(len(reached))):
            reached[i] = reached[i] and self.below[i]
            if reached[i]:
                for slot in self.plan.steps[i].in_slots:
                    reached[producer[slot]] = True
        return reached

    def _uses(self) -> dict[int, int]:
        """How many visited steps use each trained parameter."""
        uses: dict[int, int] = {}
        for i, step in enumerate(self.plan.steps):
            for param in step.layer.params.values() if self.visited[i] and self.trained[i] else ():
                uses[id(param)] = uses.get(id(param), 0) + 1
        return uses

    def _expect_contexts(self) -> None:
        """Refuse to walk through steps of which the forward kept nothing."""
        for i, ctx in enumerate(self.contexts):
            if not ctx.keep and self.visited[i] and (self.trained[i] or self.goes_on[i]):
                raise CallOrderError(
                    f"net.backward, layer {self.plan.steps[i].name!r}",
                    expected="a layer whose context the training forward kept",
                    received="one that was frozen or had nothing trained before it",
                    advice="name the layers whose gradients you want in the output of forward too",
                )

    def run(self) -> Generator[LayerGradients, None, None]:
        """Yield once a visited layer, in reverse topological order."""
        for i in reversed(range(len(self.plan.steps))):
            if self.visited[i]:
                # Nothing of the step stays in this frame while the caller holds the item.
                yield self._backward(i)
            self.contexts[i] = None

    def _backward(self, i: int) -> LayerGradients:
        """Run one step backward, releasing its context and incoming gradient."""
        step = self.plan.steps[i]
        ctx = self.contexts[i]
        self.contexts[i] = None
        dy = self._take_gradient(step, ctx)
        if step.name in self.wanted:
            self.output_grads[step.name] = dy
        sources_useful, trained = self.goes_on[i], self.trained[i]
        item = LayerGradients([], [], [], step.name, self.output_grads)
        if not sources_useful and not trained:
            return item
        by_suffix: Mapping[str, Gradient] | None = None
        # None where all that read this output take no gradient, as indices do.
        if dy is not None:
            ctx.needs_input_grad = sources_useful
            if step.relu_of in self.wanted:
                # Doing it here as well makes the gradient between the two right, and no other.
                ctx.through = False
            dx, by_suffix = step.layer.backward(ctx, dy)
            if sources_useful:
                self._pass_on(step, dx, ctx.ops)
        for suffix, param in step.layer.params.items() if trained else ():
            if not param.trainable:
                continue
            part = None if by_suffix is None else _gradient(step, suffix, by_suffix)
            grad = self._complete(param, part, ctx.ops)
            if grad is not None:
                item.names.append(param.name)
                item.values.append(param.value)
                item.grads.append(grad)
        return item

    def _take_gradient(self, step: Step, ctx: Context) -> Any:
        """The gradient of the step's output(s), or None; of several, zeros where none came."""
        parts = [self.slot_grads.pop(slot, None) for slot in step.out_slots]
        if not step.many_out:
            return parts[0]
        like = next((part for part in parts if part is not None), None)
        if like is None:
            return None
        return [
            ctx.ops.zeros(shape, like) if part is None else part
            for part, shape in zip(parts, ctx.out_shapes, strict=True)
        ]

    def _pass_on(self, step: Step, dx: Any, ops: NumpyOps) -> None:
        """Add the input gradient(s) to what other consumers left at the same outputs."""
        for slot, grad in zip(step.in_slots, dx if step.many_in else (dx,), strict=True):
            if grad is None or not self.below[self.plan.producer[slot]]:
                continue
            before = self.slot_grads.get(slot)
            if before is None:
                self.slot_grads[slot] = grad
            elif slot in self.owned:
                ops.add(before, grad, out=before)
            else:
                # The first sum is a new array, since layers may hand one array to several inputs.
                self.slot_grads[slot] = ops.add(before, grad)
                self.owned.add(slot)

    def _complete(self, param: Param, grad: Gradient | None, ops: NumpyOps) -> Gradient | None:
        """``grad``, summed over all uses of a shared parameter at its last use, else None."""
        key = id(param)
        left = self.uses_left.get(key, 1) - 1
        before = self.partial.pop(key, None)
        if before is not None:
            grad = before if grad is None else add_gradients(ops, before, grad)
        if left == 0:
            return grad
        self.uses_left[key] = left
        if grad is not None:
            self.partial[key] = grad
        return None


def _gradient(step: Step, suffix: str, by_suffix: Mapping[str, Gradient]) -> Gradient:
    grad = by_suffix.get(suffix)
    if grad is None:
        raise ShapeError(
            f"layer {step.name!r}",
            expected=f"backward to return a gradient for the parameter {suffix!r}",
            received=f"gradients for {sorted(by_suffix)}",
            advice="return it, or set the parameter's trainable to False",
        )
    return grad
