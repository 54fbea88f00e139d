"""The forward and backward passes, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import fields
from typing import Any, Protocol, TypeAlias

import numpy as np

from singanet.base.terms import SHAPES, Terms, expect_met
from singanet.base.tracebacks import shorten
from singanet.device import Device
from singanet.engine.feeds import shapes_of
from singanet.engine.foreign import run_backward
from singanet.engine.plan import NodeStep, Plan
from singanet.errors import ArgumentError, CallOrderError, ShapeError
from singanet.layers.context import Context
from singanet.ops.interface import Ops
from singanet.params.grads import LayerGradients, add_gradients
from singanet.params.param import Param
from singanet.types import Array, CSRMatrix, Gradient, Shape


class BackwardWalk:
    """The state of one backward pass; it owns the contexts and the pending gradients.

    ``before`` is called with the number of each step before it goes backward, visited or not.
    With ``zeros`` a ``wanted`` layer without an incoming gradient gets zeros, else None.
    """

    def __init__(
        self,
        plan: Plan,
        contexts: list[Any],
        slot_grads: dict[int, Array],
        wanted: Collection[str],
        before: Callable[[int], None] | None = None,
        zeros: bool = False,
    ) -> None:
        self.plan = plan
        self.zeros = zeros
        self.before = before
        self.contexts = contexts
        self.slot_grads = {slot: [grad] for slot, grad in slot_grads.items()}
        slot_grads.clear()
        self.steps = plan.backward(self.slot_grads.keys(), wanted)
        self.output_grads: dict[str, Any] = {}
        self.params = plan.settings().params
        self.uses_left = dict(self.steps.uses)
        # Partial sums of gradients of shared parameters, and whether they may be changed.
        self.partial: dict[int, tuple[Gradient, bool]] = {}
        self._expect_contexts()

    def _expect_contexts(self) -> None:
        """Refuse to visit steps whose contexts the forward did not save."""
        for i in self.steps.needs_context:
            if not self.contexts[i].keep:
                raise CallOrderError(
                    f"net.backward, layer {self.plan.steps[i].owner!r}",
                    expected="a layer whose context the training forward saved",
                    received="a layer that was frozen or had no trained layer before it",
                    advice="name the layers whose gradients you want in the output of forward too",
                )

    def run(self) -> Generator[LayerGradients, None, None]:
        """Yield once a visited layer, in reverse topological order."""
        try:
            for i in reversed(range(len(self.plan.steps))):
                if self.before is not None:
                    self.before(i)
                if self.steps.visited[i]:
                    # This frame has no reference to the step while the caller uses the item.
                    made, step = [self._backward(i)], self.plan.steps[i]
                    for name in reversed(step.members):
                        if name == step.owner:
                            yield made.pop()
                        else:
                            yield LayerGradients([], [], [], name, self.output_grads)
                elif self.zeros:
                    step = self.plan.steps[i]
                    for name in [
                        name for name in reversed(step.members) if name in self.steps.wanted
                    ]:
                        self._answer(name, step, self.contexts[i], None)
                        yield LayerGradients([], [], [], name, self.output_grads)
                self.contexts[i] = None
        except BaseException as error:
            # A loop of the user's own calls this generator.
            shorten(error)
            raise

    def _answer(self, name: str, step: NodeStep, ctx: Context, dy: Any) -> None:
        """Note ``dy`` as the gradient of the output of the layer ``name``, a member of ``step``."""
        if dy is None and self.zeros and not step.gives_integers:
            zeros = [ctx.ops.xp.zeros(shape, step.floats) for shape in ctx.out_shapes]
            dy = zeros if step.many_out else zeros[0]
        self.output_grads[name] = dy

    def _backward(self, i: int) -> LayerGradients:
        """Run one step backward, releasing its context and incoming gradient."""
        step = self.plan.steps[i]
        ctx = self.contexts[i]
        self.contexts[i] = None
        dy = self._take_gradient(step, ctx)
        if step.name in self.steps.wanted:
            self._answer(step.name, step, ctx, dy)
        if len(step.members) > 1 and step.members[0] in self.steps.wanted:
            dy = None if dy is None else step.layer.between(ctx, dy)  # type: ignore[attr-defined]
            self._answer(step.members[0], step, ctx, dy)
        sources_useful, trained = self.steps.goes_on[i], self.steps.trained[i]
        item = LayerGradients([], [], [], step.owner, self.output_grads)
        if not sources_useful and not trained:
            return item
        by_suffix: Mapping[str, Gradient] | None = None
        # None if no reader of this output gives a gradient, such as a reader of indices.
        if dy is not None:
            ctx.needs_input_grad = sources_useful
            # A user's subclass may read the gradients of the layer it overrides.
            ctx._needs_param_grads = trained or step.foreign
            if step.foreign:
                in_shapes = [self.plan.slot_shapes[slot] for slot in step.in_slots]
                dx, by_suffix = run_backward(step.owner, step.layer, ctx, dy, in_shapes)
            else:
                ctx.wanted = self.params[i]
                dx, by_suffix = step.layer.backward(ctx, dy)
            if sources_useful:
                self._pass_on(step, dx)
        if trained:
            self._fill(item, i, by_suffix, ctx.ops)
        return item

    def _fill(
        self,
        item: LayerGradients,
        i: int,
        by_suffix: Mapping[str, Gradient] | None,
        ops: Ops,
    ) -> None:
        """Put the complete gradients of step ``i`` into ``item``.

        Errors: the layer returned no gradient of a parameter.
        """
        names, values, grads = item
        for suffix, param in self.params[i].items():
            grad = None if by_suffix is None else by_suffix.get(suffix)
            if grad is None and by_suffix is not None:
                raise _missing(self.plan.steps[i], suffix, by_suffix)
            step = self.plan.steps[i]
            if self.plan.apart.get(id(param)) == step.name and self.uses_left.get(id(param), 1) > 1:
                self.uses_left[id(param)] -= 1
                item._unfinished = (*item._unfinished, param.name)
            elif self.uses_left:
                own = step.layer.traits.owns_gradients and not step.foreign
                grad = self._complete(param, grad, ops, own)
            if grad is not None:
                array = param.root.storage.array
                names.append(param.name)
                values.append(param.value if array is None else array)
                grads.append(grad)

    def _take_gradient(self, step: NodeStep, ctx: Context) -> Any:
        """The gradient of the step's output(s), or None; zeros for outputs without one."""
        if not step.many_out:
            only = self.slot_grads.pop(step.out_slots[0], ())
            return only[0] if len(only) == 1 else total(only, ctx.ops)
        parts = [total(self.slot_grads.pop(slot, ()), ctx.ops) for slot in step.out_slots]
        like = next((part for part in parts if part is not None), None)
        if like is None:
            return None
        return [
            ctx.ops.zeros(shape, like) if part is None else part
            for part, shape in zip(parts, ctx.out_shapes, strict=True)
        ]

    def _pass_on(self, step: NodeStep, dx: Any) -> None:
        """Add the input gradient(s) to the gradients of the other readers of these outputs."""
        for slot, grad in zip(step.in_slots, dx if step.many_in else (dx,), strict=True):
            if grad is not None and self.steps.below[self.plan.producer[slot]]:
                self.slot_grads.setdefault(slot, []).append(grad)

    def _complete(
        self, param: Param, grad: Gradient | None, ops: Ops, own: bool
    ) -> Gradient | None:
        """``grad``, summed over all uses of a shared parameter at its last use, else None.

        The sum may be changed; ``grad`` may be if it is the walk's ``own``.
        """
        key = id(param)
        left = self.uses_left.get(key, 1) - 1
        before = self.partial.pop(key, None)
        if before is not None:
            if grad is None:
                grad, own = before
            else:
                grad, own = add_gradients(ops, before[0], grad, over=before[1]), True
        if left == 0:
            return grad
        self.uses_left[key] = left
        if grad is not None:
            self.partial[key] = grad, own
        return None


def total(parts: Sequence[Array], ops: Ops) -> Array | None:
    """The sum of the gradients from all readers of one output, by one addition."""
    if len(parts) < 2:
        return parts[0] if parts else None
    return ops.add_all(parts)


def _missing(step: NodeStep, suffix: str, by_suffix: Mapping[str, Gradient]) -> ShapeError:
    return ShapeError(
        f"layer {step.owner!r}",
        expected=f"backward to return a gradient for the parameter {suffix!r}",
        received=f"gradients for {sorted(by_suffix)}",
        advice="return it, or set the parameter's trainable to False",
    )


SPARSE = Terms(
    takes=(SHAPES,),
    received="a sparse input, whose entries are others in each batch",
    remedy="ask the net that reads arrays in its place: leave sparse out",
)
"""The terms of sparse inputs."""


def ones(plan: Plan, batch: int, device: Device, extent: int | None) -> dict[str, Any]:
    """Ones for every input, but zeros for indices and whole lengths for lengths."""
    feed: dict[str, Any] = {}
    for name in plan.inputs:
        step = plan.by_name[name]
        if step.layer.traits.sparse:
            expect_met(f"net, layer {name!r}", (SHAPES,), SPARSE, kind=ArgumentError)
        declared = step.layer.in_shapes or ()
        shapes = declared if isinstance(declared, list) else [declared]
        shapes = [_closed(step, shape, extent) for shape in shapes]
        value = 1
        if shapes in ([()], [(1,)]) and not step.integers:
            value = _steps_beside(plan, step, extent)
        arrays = [
            device.put(np.full((batch, *shape), value * (k not in step.integers), step.fed_type(k)))
            for k, shape in enumerate(shapes)
        ]
        feed[name] = arrays if isinstance(declared, list) else arrays[0]
    return feed


def _closed(step: NodeStep, shape: Shape, extent: int | None) -> Shape:
    if -1 in shape and extent is None:
        raise ArgumentError(
            f"net, layer {step.name!r}",
            expected="extent, since its input has an axis of any extent",
            received="a batch_size alone",
            advice="pass for example extent=100",
        )
    return tuple(extent if axis == -1 and extent is not None else axis for axis in shape)


def _steps_beside(plan: Plan, lengths: NodeStep, extent: int | None) -> int:
    """The number of steps of the sequences read together with ``lengths``; 1 for other numbers."""
    for step in plan.steps:
        if lengths.out_slots[0] in step.in_slots[1:]:
            first = plan.slot_shapes[step.in_slots[0]]
            if len(first) > 1:
                return extent or 1 if first[0] == -1 else int(first[0])
    return 1


def arrays_in(value: Any) -> list[Any]:
    """The arrays in ``value``, in their order.

    Lists, tuples, mappings, contexts and data classes are looked into, as layers save them.
    """
    found, left = [], [value]
    while left:
        part = left.pop()
        if type(part) is np.ndarray:
            found.append(part)  # nearly all: asking for abstract classes takes long
            continue
        if type(part) is Context:
            part = part.saved
        if isinstance(part, (list, tuple)):
            left += part[::-1]
        elif isinstance(part, dict):
            left += [*part.values()][::-1]
        elif hasattr(part, "nbytes") and hasattr(part, "strides"):
            if not isinstance(part, np.generic):
                found.append(part)
        elif isinstance(part, Mapping):
            left += [*part.values()][::-1]
        elif hasattr(type(part), "__dataclass_fields__"):
            left += [getattr(part, field.name, None) for field in fields(part)][::-1]
    return found


def base_of(array: Any) -> Any:
    """The array whose memory ``array`` is a view of; None if it has memory of its own."""
    base = getattr(array, "base", None)
    # An array's interface is made anew when asked for; strided views have another base.
    if base is None or isinstance(base, np.ndarray) or hasattr(base, "__array_interface__"):
        return base
    return base if hasattr(type(base), "__cuda_array_interface__") else None


def root_of(array: Any) -> Any:
    """The array that owns the memory of ``array``."""
    while (base := base_of(array)) is not None:
        array = base
    return array


def roots_in(value: Any) -> dict[int, Any]:
    """The arrays that own the memory of all arrays in ``value``, by identity."""
    roots = {}
    for array in arrays_in(value):
        # Most own their memory.
        root = array if array.base is None else root_of(array)
        roots[id(root)] = root
    return roots


def apart_from(value: Any, roots: Collection[int]) -> Any:
    """``value``, a feed or outputs, with copies of the arrays in the memory of ``roots``.

    Sparse matrices are always copied, as they are small.
    """
    if isinstance(value, Mapping):
        return {name: apart_from(part, roots) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        parts = (apart_from(part, roots) for part in value)
        return list(parts) if isinstance(value, list) else tuple(parts)
    if type(value) is CSRMatrix:
        return value.mapped(lambda array: array.copy(), value.dtype)
    root = value if value.base is None else root_of(value)
    return value.copy(order="K") if id(root) in roots else value


Walk: TypeAlias = Generator[LayerGradients, None, None]


class Pass(Protocol):
    """The state after a training forward; ``shapes`` are the shapes of its outputs by name."""

    plan: Plan
    shapes: Mapping[str, Any]

    def hand_out(self) -> dict[str, Any]:
        """The outputs by name; the caller owns them."""

    def backward(
        self, net: Any, slot_grads: dict[int, Array], asked: tuple[str, ...]
    ) -> Generator[LayerGradients, None, None]:
        """Yield once for each visited layer, in reverse topological order, and use up the pass."""

    def release(self) -> None:
        """Free the contexts of the forward if no walk follows."""


class MethodPass(Pass):
    """A pass by the net's own methods, if a user has overridden or replaced one."""

    def __init__(self, net: Any, x: Any) -> None:
        self.plan: Plan = net._execution_plan()
        self.shapes: Mapping[str, Any] = {}
        self._net, self._x = net, x

    def hand_out(self) -> dict[str, Any]:
        made = self._net.forward(True, self._x)
        outputs = dict(made) if isinstance(made, Mapping) else {self.plan.outputs[0]: made}
        self.shapes = {name: shapes_of(value) for name, value in outputs.items()}
        return outputs

    def backward(
        self, net: Any, slot_grads: dict[int, Array], asked: tuple[str, ...]
    ) -> Generator[LayerGradients, None, None]:
        dy: dict[str, Any] = {}
        for name in self.shapes:
            step = self.plan.by_name[name]
            parts = [slot_grads.pop(slot) for slot in step.out_slots if slot in slot_grads]
            if parts:
                dy[name] = parts if step.many_out else parts[0]
        # A user's own backward need not know of inner outputs, nor of dicts.
        single = next(iter(dy.values())) if len(self.plan.outputs) == 1 else dy
        walk: Generator[LayerGradients, None, None] = net.backward(
            single, *((asked,) * bool(asked))
        )
        return walk

    def release(self) -> None:
        """Do nothing: the net owns the contexts."""


class LayerPass(Pass):
    """The contexts of all steps of ``plan``.

    ``starts`` is called with the first gradients of a walk.
    """

    def __init__(
        self,
        plan: Plan,
        outputs: dict[str, Any],
        contexts: list[Any],
        starts: Callable[[Mapping[int, Array]], None] | None = None,
    ) -> None:
        self.plan = plan
        self.shapes: Mapping[str, Any] = {name: shapes_of(value) for name, value in outputs.items()}
        self._outputs = outputs
        self._contexts = contexts
        self._starts = starts

    def hand_out(self) -> dict[str, Any]:
        # Layers save outputs for backward.
        outputs: dict[str, Any] = apart_from(self._outputs, roots_in(self._contexts))
        self._outputs = {}
        return outputs

    def backward(
        self, net: Any, slot_grads: dict[int, Array], asked: tuple[str, ...]
    ) -> Generator[LayerGradients, None, None]:
        """Walk backward. Errors: a visited step without a saved context."""
        if self._starts is not None:
            self._starts(slot_grads)
        walk = BackwardWalk(self.plan, self._contexts, slot_grads, asked, zeros=True)
        self._contexts = []
        return walk.run()

    def release(self) -> None:
        self._contexts = []


class WatchedPass(Pass):
    """The pass ``made``, whose walk goes through ``watch``; ``released`` is called at its end."""

    def __init__(
        self,
        made: Pass,
        watch: Callable[[Walk], Walk],
        released: Callable[[], object] = lambda: None,
    ) -> None:
        self.plan: Plan = made.plan
        self.shapes: Mapping[str, Any] = {}
        self._made, self._watch, self._released = made, watch, released

    def hand_out(self) -> dict[str, Any]:
        outputs = self._made.hand_out()
        self.shapes = self._made.shapes
        return outputs

    def backward(self, net: Any, slot_grads: dict[int, Array], asked: tuple[str, ...]) -> Walk:
        return self._watch(self._made.backward(net, slot_grads, asked))

    def release(self) -> None:
        self._made.release()
        self._released()
