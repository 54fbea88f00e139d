"""A training forward and the walk back that follows it, as one object."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, Protocol, TypeAlias

from singanet.engine.backward import BackwardWalk
from singanet.engine.feeds import shapes_of
from singanet.engine.memory import apart_from, roots_in
from singanet.engine.plan import ContextStore, Plan
from singanet.params.gradients import LayerGradients
from singanet.types import Array

Walk: TypeAlias = Generator[LayerGradients, None, None]


class Pass(Protocol):
    """The state after a training forward; ``shapes`` are the shapes of its outputs by name."""

    plan: Plan
    shapes: Mapping[str, Any]

    def hand_out(self) -> dict[str, Any]:
        """The outputs by name, which are the caller's from now on."""

    def backward(
        self, net: Any, slot_grads: dict[int, Array], asked: tuple[str, ...]
    ) -> Generator[LayerGradients, None, None]:
        """Yield once a visited layer, in reverse topological order; the pass is used up by it."""

    def release(self) -> None:
        """Let go of what the forward left, when no walk follows."""


class MethodPass(Pass):
    """A pass by the net's own methods, one of which its user has overridden or replaced."""

    def __init__(self, net: Any, x: Any) -> None:
        self.plan: Plan = net.execution_plan()
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
        """As `Pass`: the net has what there is."""


class LayerPass(Pass):
    """The contexts that layers left, one for every step of ``plan``.

    ``starts`` is told the gradients that a walk begins from; ``store`` has the contexts' arrays.
    """

    def __init__(
        self,
        plan: Plan,
        outputs: dict[str, Any],
        contexts: list[Any],
        starts: Callable[[Mapping[int, Array]], None] | None = None,
        store: ContextStore | None = None,
    ) -> None:
        self.plan = plan
        self.shapes: Mapping[str, Any] = {name: shapes_of(value) for name, value in outputs.items()}
        self._outputs = outputs
        self._contexts = contexts
        self._starts, self._store = starts, store

    def hand_out(self) -> dict[str, Any]:
        # Layers keep outputs as well, for backward, and a store may still be writing them.
        held = self._contexts if self._store is None else [self._contexts, self._outputs]
        outputs: dict[str, Any] = apart_from(self._outputs, roots_in(held))
        self._outputs = {}
        return outputs

    def backward(
        self, net: Any, slot_grads: dict[int, Array], asked: tuple[str, ...]
    ) -> Generator[LayerGradients, None, None]:
        """As `Pass`. Errors: the forward kept nothing where the walk has to go through."""
        if self._starts is not None:
            self._starts(slot_grads)
        walk = BackwardWalk(
            self.plan, self._contexts, slot_grads, asked, store=self._store, zeros=True
        )
        self._contexts = []
        return walk.run()

    def release(self) -> None:
        self._contexts = []


class WatchedPass(Pass):
    """The pass ``made``, whose walk back goes through ``watch``; ``released`` hears of its end."""

    def __init__(
        self,
        made: Pass,
        watch: Callable[[Walk], Walk],
        released: Callable[[], object] = lambda: None,
    ) -> None:
        self.plan: Plan = made.plan
        self.shapes: Mapping[str, Any] = made.shapes
        self._made, self._watch, self._released = made, watch, released

    def hand_out(self) -> dict[str, Any]:
        return self._made.hand_out()

    def backward(self, net: Any, slot_grads: dict[int, Array], asked: tuple[str, ...]) -> Walk:
        return self._watch(self._made.backward(net, slot_grads, asked))

    def release(self) -> None:
        self._made.release()
        self._released()
