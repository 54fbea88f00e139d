"""Executors, which run the passes and steps of a net."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from singanet.base.described import changes
from singanet.base.terms import FLOATS, KEPT, RECORDED, SHAPES, WHOLE, Terms
from singanet.engine.backward import LayerPass, MethodPass, Pass
from singanet.engine.feeds import check_feed
from singanet.engine.fusion import fused
from singanet.engine.model import NetCore, Placed, StepRequest
from singanet.engine.plan import Plan
from singanet.engine.recompute.recomputer import Recomputer
from singanet.loss import head_loss
from singanet.params.grads import LayerGradients
from singanet.types import Array

if TYPE_CHECKING:
    from singanet.engine.gradients import Asked
    from singanet.optimizer.chain import UpdateChain

N_contra = TypeVar("N_contra", contravariant=True)


RECORDING = Terms(uses=(WHOLE, SHAPES), exact=(KEPT,), keeps="bits", received="a net in memory")
"""The terms of recorded steps."""
_BY_LAYERS = Terms(
    takes=(RECORDED,),
    received="a net that runs by its layers alone",
    remedy="build a singanet.FeedForwardNet",
)


@dataclass(frozen=True)
class Capabilities:
    """The capabilities of an executor, apart from steps and evaluations.

    ``terms`` are the terms of the executor in a training. ``coarse`` is the relative difference of
    kernels for different numbers of rows, if it is more than rounding. ``together``: all ranks that
    train the net make each pass together, each on its own batch.
    """

    terms: Terms = _BY_LAYERS
    coarse: float = 0.0
    together: bool = False

    @cached_property
    def records(self) -> bool:
        """Whether steps and passes become programs, which can be planned, tuned and looked at."""
        return RECORDED not in self.terms.takes

    @cached_property
    def holds(self) -> bool:
        """Whether weights are held in fewer bits."""
        return FLOATS in self.terms.takes


class NetExecutor(Protocol[N_contra]):
    """Runs the calls of a kind of net; ``asked`` names inner layers whose outputs are returned.

    ``placed`` is the executor itself if the net's layers are on several ranks, else None.
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
        """The outputs by name, and the outputs of the layers ``asked`` for."""

    def forward(self, net: N_contra, feed: Mapping[str, Any], asked: tuple[str, ...]) -> Pass:
        """Run a training forward; return the state that its backward needs."""

    def step(self, net: N_contra, request: StepRequest) -> tuple[float, float | None]:
        """One training step; ``(loss, metric)`` from before it."""

    def gradients(self, net: N_contra, asked: Asked) -> Iterator[LayerGradients]:
        """The gradients ``asked`` for, the last layer's first; the arrays are the caller's."""


class LayerByLayer:
    """Runs the layers one after the other.

    If it ``streams``, the gradients of a whole step are never in memory: steps that need them all
    run backward twice.
    """

    can: ClassVar[Capabilities] = Capabilities()
    placed: ClassVar[None] = None
    streams: ClassVar[bool] = False

    def __init__(self, recompute: Recomputer | None = None) -> None:
        self._chain: UpdateChain | None = None
        # The optimizer of the chain, and the versions of net and settings at its registration.
        self._met: tuple[object, int, int] = (None, -1, -1)
        self._recompute = recompute or Recomputer()

    def evaluate(
        self,
        net: NetCore,
        feed: Mapping[str, Any],
        asked: tuple[str, ...],
        other: Plan | None = None,
    ) -> dict[str, Any]:
        """Return the outputs by name; ``other`` is a plan that replaces the net's."""
        return self._run(net, other or net._execution_plan(), feed, False, asked)[1]

    def forward(
        self,
        net: NetCore,
        feed: Mapping[str, Any],
        asked: tuple[str, ...],
        starts: Callable[[Mapping[int, Array]], None] | None = None,
        other: Plan | None = None,
    ) -> Pass:
        """Run a training forward; ``starts`` is called with the first gradients of the walk.

        ``other`` is a plan that replaces the net's.
        """
        plan = other or net._execution_plan()
        if plan.apart and (self.streams or self._recompute.asked(plan)):
            # A folder is written once a step, and a recomputed layer may look up rows again.
            plan = plan.summed()
        if self._recompute.asked(plan):
            made = self._recompute.forward(net, feed, asked, starts, plan)
            if made is not None:
                return made
        return LayerPass(*self._run(net, plan, feed, True, asked), starts)

    def step(self, net: NetCore, request: StepRequest) -> tuple[float, float | None]:
        """Run a step, by the net's methods if they are overridden."""
        feed = check_feed(net._execution_plan(), request.x, net.device, net.dtype)
        executor = net.executor
        chain = self.register(net, request.optimizer)
        if net.executor is not executor:
            # A stage has given the net another executor.
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
        """Run `singanet.engine.step.train_step`, imported late as it needs the optimizers."""
        from singanet.engine.step import train_step

        with self._recompute.within_step():
            return train_step(net, forward, request, chain, self.streams)

    def gradients(self, net: NetCore, asked: Asked) -> Iterator[LayerGradients]:
        """Return the gradients by `singanet.engine.gradients`, imported late as it needs `step`."""
        from singanet.engine.gradients import by_layers

        return by_layers(net, asked)

    def register(self, net: NetCore, optimizer: Any) -> UpdateChain:
        """Return the chain of ``optimizer``, registered again after changes of ``net``."""
        if self._chain is None or self._met != (optimizer, net.version, changes.now):
            from singanet.optimizer.chain import UpdateChain

            chain = UpdateChain(optimizer)
            chain.meet(net)
            if chain.rests:
                optimizer.resume(net._execution_plan().trained_params())
            # Counted afterwards, as meeting changes parameters' settings itself.
            self._chain, self._met = chain, (optimizer, net.version, changes.now)
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
    ) -> tuple[Plan, dict[str, Any], list[Any]]:
        plan = fused(plan, asked)
        wanted = {*plan.outputs, *asked} if asked else plan.outputs
        with net.device.scope():
            left = plan.forward(feed, wanted, net.device.ops, net.rng, train, asked)
            return plan, *left


def plan_of_step(net: NetCore, request: StepRequest) -> Plan | None:
    """Return a plan that includes the loss, if that saves the unread scores, else None.

    Shared parameters are updated at each use if the rule says so.
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
