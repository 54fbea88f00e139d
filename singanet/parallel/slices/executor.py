"""Steps and passes of a net whose large parameters are in slices on several ranks."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from singanet.base.origin import is_library
from singanet.engine.executor import Can, LayerByLayer, NetExecutor
from singanet.engine.fusion import fused
from singanet.engine.model import StepRequest
from singanet.engine.needs import away, backward_order, forward_needs
from singanet.engine.passes import Pass, WatchedPass
from singanet.engine.plan import ContextStore, Plan
from singanet.engine.recompute.by_layers import Recomputer
from singanet.optimizer.chain import UpdateChain
from singanet.parallel.slices.gathers import Gathers
from singanet.parallel.slices.storage import Slices
from singanet.params.gradients import LayerGradients
from singanet.params.param import Param
from singanet.types import Array

if TYPE_CHECKING:
    from singanet.engine.gradients import Asked


class Gathered(LayerByLayer):
    """Runs the layers one after the other, each with its parameters gathered a layer ahead.

    ``before`` is the executor of the net in memory.
    """

    can = Can(
        together=True,
        is_so="has parameters in slices on several ranks",
        way_back=Slices.way_back,
    )
    streams = True

    def __init__(self, gathers: Gathers, before: NetExecutor[Any]) -> None:
        super().__init__(Recomputer(getattr(before, "recompute", "none")))
        self.gathers, self.before = gathers, before

    def __deepcopy__(self, memo: dict[int, Any]) -> NetExecutor[Any]:
        """An executor for a net in memory, as a copy is."""
        return type(self.before)()

    def __reduce__(self) -> Any:
        return type(self.before), ()

    @property
    def notes(self) -> list[str]:
        """Why steps are not recorded."""
        return ["the net is in slices: its steps run by the layers, and are not recorded"]

    def evaluate(
        self,
        net: Any,
        feed: Mapping[str, Any],
        asked: tuple[str, ...],
        other: Plan | None = None,
    ) -> dict[str, Any]:
        """As `NetExecutor`; all ranks call it, with batches of their own."""
        plan = fused(other or net.execution_plan(), asked)
        groups = [_slices(needed) for needed in forward_needs(plan)]
        number = self.gathers.follow("an evaluation", groups)
        try:
            return super().evaluate(net, feed, asked, other)
        finally:
            self.gathers.end(number)

    def forward(
        self,
        net: Any,
        feed: Mapping[str, Any],
        asked: tuple[str, ...],
        starts: Callable[[Mapping[int, Array]], None] | None = None,
        store: ContextStore | None = None,
        other: Plan | None = None,
    ) -> Pass:
        """As `LayerByLayer`; all ranks call it, with batches of their own."""
        number = self._follow(fused(other or net.execution_plan(), asked))
        made = super().forward(net, feed, asked, starts, store, other)
        return WatchedPass(
            made, lambda walk: self._watched(walk, number), partial(self.gathers.end, number)
        )

    def step(self, net: Any, request: StepRequest) -> tuple[float, float | None]:
        """As `NetExecutor`; updates go to slices, and nothing is gathered for them."""
        stages = UpdateChain(request.optimizer).stages
        sliced = any(getattr(stage, "slices", False) for stage in stages)
        known = all(is_library(type(stage)) for stage in stages)
        self.gathers.put_back()
        self.gathers.by_slices = sliced and known and request.on_layer is None
        try:
            return super().step(net, request)
        finally:
            self.gathers.by_slices = False

    def gradients(
        self, net: Any, asked: Asked, store: ContextStore | None = None
    ) -> Iterator[LayerGradients]:
        """As `NetExecutor`; all ranks call it."""
        number = self._follow(net.execution_plan())
        return self._watched(super().gradients(net, asked, store), number)

    def _follow(self, plan: Plan) -> int:
        groups = [_slices(needed) for needed in forward_needs(plan)]
        goes_on = plan.backward(plan.slots_of(plan.outputs), ()).goes_on
        for i in backward_order(plan):
            # Else a layer needs no values, unless they are handed out.
            if goes_on[i] or not self.gathers.by_slices:
                groups.append(_slices(away(plan.steps[i])))
        return self.gathers.follow("a training forward", groups)

    def _watched(
        self, items: Iterable[LayerGradients], number: int
    ) -> Generator[LayerGradients, None, None]:
        """``items``, whose parameters are there while somebody has them."""
        try:
            for item in items:
                handed = [item]
                del item
                try:
                    # Nothing of the layer stays in this frame while the caller has it.
                    yield handed.pop()
                finally:
                    self.gathers.end_loans()
        finally:
            self.gathers.end(number)


def _slices(params: Iterable[Param]) -> tuple[Slices, ...]:
    return tuple(cast("Slices", param.storage) for param in params if param.storage.sliced)
