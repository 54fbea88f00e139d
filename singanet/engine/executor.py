"""Executors, which carry out the passes and steps of a net."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from singanet.base.described import changes
from singanet.engine.backward import LayerPass, MethodPass, Pass
from singanet.engine.feeds import check_feed
from singanet.engine.fusion import fused
from singanet.engine.model import NetCore, Placed, StepRequest
from singanet.engine.plan import ContextStore, Plan
from singanet.engine.recompute.by_layers import Recomputer
from singanet.loss import head_loss
from singanet.params.grads import LayerGradients
from singanet.types import Array

if TYPE_CHECKING:
    from singanet.engine.gradients import Asked
    from singanet.optimizer.chain import UpdateChain

N_contra = TypeVar("N_contra", contravariant=True)


@dataclass(frozen=True)
class Capabilities:
    """The capabilities of an executor beside steps and evaluations.

    ``records``: steps and passes become programs, which can be planned, tuned and looked at.
    ``parts``: it carries out the parts of the net that named programs are. What it refuses is told
    by what ``is_so`` of the net, and by the ``way_back``. ``holds``: its weights are held in fewer
    bits. ``coarse`` is by how much, relatively, kernels may differ by how many rows they are given
    at a time, where that is more than rounding. ``together``: every pass is made by all ranks that
    train the net, on a batch of its own each.
    """

    records: bool = False
    parts: bool = True
    holds: bool = False
    coarse: float = 0.0
    together: bool = False
    is_so: str = "runs by its layers alone"
    way_back: str = "build a singanet.FeedForwardNet"


class NetExecutor(Protocol[N_contra]):
    """Carries out the calls of a kind of net; ``asked`` names inner layers to be given as well.

    ``placed`` is itself where the net's layers lie on several ranks, else None.
    """

    @property
    def can(self) -> Capabilities:
        """Its capabilities."""

    @property
    def placed(self) -> Placed | None:
        """The object that places layers on several ranks, None if all are on this one."""

    def evaluate(
        self, net: N_contra, feed: Mapping[str, Any], asked: tuple[str, ...]
    ) -> dict[str, Any]:
        """The outputs by name, with those of the layers ``asked`` for."""

    def forward(self, net: N_contra, feed: Mapping[str, Any], asked: tuple[str, ...]) -> Pass:
        """A training forward, and what its walk back needs."""

    def step(self, net: N_contra, request: StepRequest) -> tuple[float, float | None]:
        """One training step; ``(loss, metric)`` from before it."""

    def gradients(self, net: N_contra, asked: Asked) -> Iterator[LayerGradients]:
        """The gradients ``asked`` for, the last layer's first; the arrays are the caller's."""


class LayerByLayer:
    """Runs the layers one after the other.

    One that ``streams`` never holds the gradients of a whole step: steps that need them walk twice.
    """

    can: ClassVar[Capabilities] = Capabilities()
    placed: ClassVar[None] = None
    streams: ClassVar[bool] = False

    def __init__(self, recompute: Recomputer | None = None) -> None:
        self._chain: UpdateChain | None = None
        # The optimizer that the chain is of, and the net and its settings that it has met.
        self._met: tuple[object, int, int] = (None, -1, -1)
        self._recompute = recompute or Recomputer()

    def evaluate(
        self,
        net: NetCore,
        feed: Mapping[str, Any],
        asked: tuple[str, ...],
        other: Plan | None = None,
    ) -> dict[str, Any]:
        """As `NetExecutor`; ``other`` is a plan that takes the place of the net's."""
        return self._run(net, other or net._execution_plan(), feed, False, asked)[1]

    def forward(
        self,
        net: NetCore,
        feed: Mapping[str, Any],
        asked: tuple[str, ...],
        starts: Callable[[Mapping[int, Array]], None] | None = None,
        store: ContextStore | None = None,
        other: Plan | None = None,
    ) -> Pass:
        """As `NetExecutor`; ``starts`` is told the gradients that the walk begins from.

        The arrays of contexts are in ``store``, if any; none of these is recomputed. ``other`` is
        a plan that takes the place of the net's.
        """
        plan = other or net._execution_plan()
        if plan.apart and (self.streams or self._recompute.asked(plan)):
            # A folder is written once a step, and what runs again may look up rows once more.
            plan = plan.summed()
        if store is None and self._recompute.asked(plan):
            made = self._recompute.forward(net, feed, asked, starts, plan)
            if made is not None:
                return made
        return LayerPass(*self._run(net, plan, feed, True, asked, store), starts, store)

    def step(self, net: NetCore, request: StepRequest) -> tuple[float, float | None]:
        """As `NetExecutor`, by the net's methods where they are overridden."""
        feed = check_feed(net._execution_plan(), request.x, net.device, net.dtype)
        executor = net.executor
        chain = self.register(net, request.optimizer)
        if net.executor is not executor:
            # A stage has put the net where another one carries it out.
            return net.executor.step(net, request)
        run: Callable[[], Pass] = partial(MethodPass, net, request.x)
        if net._passes_are_its_own:
            run = forward_of_step(self.forward, net, feed, request, chain)
        return self.train(net, run, request, chain)

    def train(
        self,
        net: NetCore,
        forward: Callable[[], Pass],
        request: StepRequest,
        chain: UpdateChain,
    ) -> tuple[float, float | None]:
        """`singanet.engine.step.train_step`, which brings the optimizers and so is loaded late."""
        from singanet.engine.step import train_step

        with self._recompute.within_step():
            return train_step(net, forward, request, chain, self.streams)

    def gradients(
        self, net: NetCore, asked: Asked, store: ContextStore | None = None
    ) -> Iterator[LayerGradients]:
        """As `NetExecutor`; `singanet.engine.gradients` is loaded late, as it knows the step."""
        from singanet.engine.gradients import by_layers

        return by_layers(net, asked, store)

    def register(self, net: NetCore, optimizer: Any) -> UpdateChain:
        """The chain of ``optimizer``, which is told the settings of ``net`` where any changed."""
        as_it_is = optimizer, net.version, changes.now
        if self._chain is None or self._met != as_it_is:
            from singanet.optimizer.chain import UpdateChain

            chain = UpdateChain(optimizer)
            chain.meet(net)
            if chain.rests:
                optimizer.resume(net._execution_plan().trained_params())
            self._chain, self._met = chain, as_it_is
        elif self._chain.owners.net() is not net:
            # Another net was trained since.
            self._chain.meet(net) if self._chain.reducers else self._chain.turn(net)
        return self._chain

    def _run(
        self,
        net: NetCore,
        plan: Plan,
        feed: Mapping[str, Any],
        train: bool,
        asked: tuple[str, ...],
        store: ContextStore | None = None,
    ) -> tuple[Plan, dict[str, Any], list[Any]]:
        plan = fused(plan, asked)
        wanted = {*plan.outputs, *asked} if asked else plan.outputs
        with net.device.scope():
            left = plan.forward(feed, wanted, net.device.ops, net.rng, train, asked, store)
            return plan, *left


def plan_of_step(net: NetCore, request: StepRequest) -> Plan | None:
    """A plan with the loss in it, where that saves the scores and nobody sees them.

    And with shared parameters that are updated by each use, where the rule says so; else None.
    """
    plan: Plan | None = None
    if getattr(net.loss, "_goes_by_rows", False):
        from singanet.engine.fusion import headed

        plan = headed(net, request)
    if request.on_layer is not None or not getattr(request.optimizer, "each_use", False):
        return plan
    from singanet.engine.step import by_each_use
    from singanet.optimizer.chain import UpdateChain

    whole = plan or net._execution_plan()
    made = by_each_use(whole, UpdateChain(request.optimizer))
    return plan if made is whole else made


def forward_of_step(
    forward: Callable[..., Pass],
    net: NetCore,
    feed: Mapping[str, Any],
    request: StepRequest,
    chain: UpdateChain,
) -> Callable[[], Pass]:
    """``forward`` of a step of ``net`` by its plan, or by `plan_of_step`."""
    # The quickest question first: most steps are small.
    many = getattr(request.y, "size", 0) > head_loss.FEWEST_ROWS
    asked = many or getattr(request.optimizer, "each_use", False)
    plan = plan_of_step(net, request) if asked else None
    if plan is None:
        return partial(forward, net, feed, ())
    if plan.head is not None:
        from singanet.engine.fusion import beside

        given = beside(plan, request.y, request.weight, net.device.ops, net.dtype, chain)
        feed = {**feed, **given}
    return partial(forward, net, feed, (), other=plan)
