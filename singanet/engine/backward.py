"""The backward walk over a net, which hands gradients out layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from typing import Any

from singanet.engine.foreign import run_backward
from singanet.engine.plan import ContextStore, NodeStep, Plan
from singanet.errors import CallOrderError, ShapeError
from singanet.layers.context import Context
from singanet.ops.interface import Ops
from singanet.params.gradients import LayerGradients, add_gradients
from singanet.params.param import Param
from singanet.types import Array, Gradient


class BackwardWalk:
    """The state of one backward pass; it owns the contexts and the gradients under way.

    ``before`` is called with the number of each step before it goes backward, visited or not.
    ``store`` has the arrays of the contexts, None if they are in memory. With ``zeros`` a layer
    among the ``wanted`` to which no gradient comes gets zeros, else None.
    """

    def __init__(
        self,
        plan: Plan,
        contexts: list[Any],
        slot_grads: dict[int, Array],
        wanted: Collection[str],
        before: Callable[[int], None] | None = None,
        store: ContextStore | None = None,
        zeros: bool = False,
    ) -> None:
        self.plan = plan
        self.zeros = zeros
        self.store = store
        self.before = before
        self.contexts = contexts
        self.slot_grads = {slot: [grad] for slot, grad in slot_grads.items()}
        slot_grads.clear()
        self.steps = plan.backward(self.slot_grads.keys(), wanted)
        self.output_grads: dict[str, Any] = {}
        self.params = plan.settings().params
        self.uses_left = dict(self.steps.uses)
        # What uses of shared parameters have summed up, and whether it may be changed.
        self.partial: dict[int, tuple[Gradient, bool]] = {}
        self._expect_contexts()

    def _expect_contexts(self) -> None:
        """Refuse to walk through steps of which the forward kept nothing."""
        for i in self.steps.needs_context:
            if not self.contexts[i].keep:
                raise CallOrderError(
                    f"net.backward, layer {self.plan.steps[i].owner!r}",
                    expected="a layer whose context the training forward kept",
                    received="one that was frozen or had nothing trained before it",
                    advice="name the layers whose gradients you want in the output of forward too",
                )

    def run(self) -> Generator[LayerGradients, None, None]:
        """Yield once a visited layer, in reverse topological order."""
        for i in reversed(range(len(self.plan.steps))):
            if self.before is not None:
                self.before(i)
            if self.steps.visited[i]:
                # Nothing of the step stays in this frame while the caller holds the item.
                made, step = [self._backward(i)], self.plan.steps[i]
                for name in reversed(step.members):
                    if name == step.owner:
                        yield made.pop()
                    else:
                        yield LayerGradients([], [], [], name, self.output_grads)
            elif self.zeros:
                step = self.plan.steps[i]
                for name in [name for name in reversed(step.members) if name in self.steps.wanted]:
                    self._answer(name, step, self.contexts[i], None)
                    yield LayerGradients([], [], [], name, self.output_grads)
            self.contexts[i] = None

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
        # None where all that read this output take no gradient, as indices do.
        if dy is not None:
            if self.store is not None:
                self.store.bring(ctx)
            ctx.needs_input_grad = sources_useful
            # A user's subclass may look at what the layer it overrides gives.
            ctx.needs_param_grads = trained or step.foreign
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
        """Put the gradients of step ``i`` that have all their parts into ``item``.

        Errors: the layer gave none of a parameter.
        """
        names, values, grads = item
        for suffix, param in self.params[i].items():
            grad = None if by_suffix is None else by_suffix.get(suffix)
            if grad is None and by_suffix is not None:
                raise _missing(self.plan.steps[i], suffix, by_suffix)
            step = self.plan.steps[i]
            if self.plan.apart.get(id(param)) == step.name and self.uses_left.get(id(param), 1) > 1:
                self.uses_left[id(param)] -= 1
                item.unfinished = (*item.unfinished, param.name)
            elif self.uses_left:
                own = step.layer.traits.owns_gradients and not step.foreign
                grad = self._complete(param, grad, ops, own)
            if grad is not None:
                array = param.root.storage.array
                names.append(param.name)
                values.append(param.value if array is None else array)
                grads.append(grad)

    def _take_gradient(self, step: NodeStep, ctx: Context) -> Any:
        """The gradient of the step's output(s), or None; of several, zeros where none came."""
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
        """Lay the input gradient(s) beside what other consumers left at the same outputs."""
        for slot, grad in zip(step.in_slots, dx if step.many_in else (dx,), strict=True):
            if grad is not None and self.steps.below[self.plan.producer[slot]]:
                self.slot_grads.setdefault(slot, []).append(grad)

    def _complete(
        self, param: Param, grad: Gradient | None, ops: Ops, own: bool
    ) -> Gradient | None:
        """``grad``, summed over all uses of a shared parameter at its last use, else None.

        One that is the walk's ``own`` may be changed, as a sum may.
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
