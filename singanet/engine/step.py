"""The training step: forward, loss and metric, backward, and an update for each layer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from singanet.engine.counts import Counts, tells
from singanet.engine.feeds import check_gradients
from singanet.engine.head import start_of
from singanet.engine.model import Measure, NetCore, StepRequest
from singanet.engine.passes import Pass
from singanet.engine.plan import Plan
from singanet.engine.script import Taken, carry_out
from singanet.errors import ArgumentError, CallOrderError, SingaNetError, one_of
from singanet.layers.activation import Activation
from singanet.layers.softmax import Softmax
from singanet.loss.loss import counted_positions, losses_of
from singanet.loss.multi_loss import MultiLoss
from singanet.ops.kernel import widened
from singanet.optimizer.chain import TwoPasses, UpdateChain
from singanet.params.gradients import LayerGradients
from singanet.types import Array


def train_step(
    net: NetCore,
    forward: Callable[[], Pass],
    request: StepRequest,
    chain: UpdateChain,
    streams: bool = False,
) -> tuple[float, float | None]:
    """The step of ``request``, on what ``forward`` runs the net on; ``(loss, metric)`` before it.

    ``chain`` is that of the request's optimizer. With ``streams`` the gradients of more than a
    layer are never held.
    """
    step = ByLayers(net, forward, request, chain, streams)
    # A step that is not taken has told its loss.
    carry_out(step, chain)
    return step.seen.loss, step.seen.score


class ByLayers:
    """Carries a step out by passes over the layers, each made by ``forward``; a `Carrier`."""

    def __init__(
        self,
        net: NetCore,
        forward: Callable[[], Pass],
        request: StepRequest,
        chain: UpdateChain,
        streams: bool = False,
    ) -> None:
        self.net, self.chain = net, chain
        self.holds = chain.scaled is not None and not streams
        self.seen = Seen(request.y, request.measure, request.weight)
        self._forward, self._on_layer = forward, request.on_layer

    @property
    def updated(self) -> bool:
        """As `Carrier`."""
        return self.chain.updated

    def norm(self) -> TwoPasses | None:
        """As `Carrier`."""
        norm = self.chain.norm
        return None if norm is None or not norm.due() else norm

    def rehearsed(self) -> AbstractContextManager[None]:
        """As `Carrier`."""
        return self.net.rehearsal()

    def walked(self, again: bool) -> Iterator[LayerGradients]:
        """As `Carrier`."""
        made = self._forward()
        seen = Seen(self.seen.y, None, self.seen.weight) if again else self.seen
        return made.backward(self.net, gradients_of_loss(self.net, made, seen, self.chain), ())

    def do(self, name: str, function: Callable[[], object]) -> None:
        """As `Carrier`."""
        function()

    def look(self, taken: Taken, layer: str, finite: Array) -> None:
        """As `Carrier`."""
        taken.look(layer, finite)

    def agree(self, taken: Taken) -> None:
        """As `Carrier`."""
        taken.agree()

    def knowing(
        self, norm: TwoPasses, items: Iterable[LayerGradients]
    ) -> AbstractContextManager[None]:
        """As `Carrier`."""
        return norm.knowing(items)

    def update(self, items: Iterable[LayerGradients]) -> None:
        """As `Carrier`."""
        look, scaled = self._on_layer, self.chain.scaled
        if look is not None and scaled is not None:
            self.chain.apply(items, lambda item: look(scaled.unscaled(item)))
        else:
            self.chain.apply(items, look)


class Seen:
    """Looks at the loss of a batch with targets ``y``, and at the metric by ``measure``.

    A measure that says that it ``weighs`` gets the ``weight`` of the samples too. ``whole`` are
    the counts of a larger batch that this one is a part of, if they are known beforehand.
    """

    def __init__(
        self, y: Any, measure: Measure = None, weight: Any = None, whole: Counts | None = None
    ) -> None:
        self.y = y
        self.whole = whole
        self.weight = weight
        self.measure = measure
        self.loss = 0.0
        self.score: float | None = None

    def __call__(self, losses: Array, outputs: Any, found: Sequence[Array] | None = None) -> None:
        """Note the mean of ``losses`` and what is measured of ``outputs``."""
        # A rank without samples takes part in the others' step.
        self.loss = float(losses.mean()) if losses.size else 0.0
        self.measured(outputs, found)

    def measured(self, outputs: Any, found: Sequence[Array] | None = None) -> None:
        """Note what is measured of ``outputs``; of which metrics have ``found`` what they need."""
        measure: Any = self.measure
        if measure is None:
            self.score = None
            return
        weight = weights_for(self.weight) if getattr(measure, "weighs", False) else ()
        if found is None:
            self.score = measure(outputs, self.y, *weight)
        else:
            self.score = measure.gather(found, outputs, self.y, *weight)


def gradients_of_loss(
    net: NetCore,
    made: Pass,
    seen: Seen,
    chain: UpdateChain | None = None,
) -> dict[int, Array]:
    """The gradients of the loss by the slot of the output that each belongs to.

    The stages of ``chain`` are told how much these gradients weigh beside others; in mixed
    precision they are scaled.
    """
    outputs = made.hand_out()
    names = made.plan.outputs
    if made.plan.head is not None:
        return _gradients_of_headed(net, made.plan, outputs, seen, chain)
    out = widened(outputs[names[0]] if len(names) == 1 else outputs)
    loss = expected_loss(net)
    expect_scores(made.plan, loss)
    dy = differentiated(loss, out, seen.y, seen.weight, seen, names)
    plan = made.plan
    shares: Mapping[str, float] = {}
    if chain is not None and chain.weighs:
        shares = weighed(chain, exchanged(plan, loss), loss, out, seen)
    if chain is not None and chain.scaled is not None:
        dy = changed(dy, chain.scaled.precision.scaled)
    of_slots = check_gradients(plan, dy, made.shapes, net.device, net.dtype)
    for name, share in shares.items():
        for slot in plan.by_name[name].out_slots if name else of_slots:
            if share != 1.0:
                of_slots[slot] = of_slots[slot] * share
    return of_slots


def exchanged(plan: Plan, loss: Any) -> tuple[bool, bool]:
    """Whether processes exchange counts as layers are synchronized, and as outputs count apart."""
    return plan.settings().synchronized, tells(plan, loss)


def weighed(
    chain: UpdateChain, exchange: tuple[bool, bool], loss: Any, outputs: Any, seen: Seen
) -> Mapping[str, float]:
    """Tell the stages of ``chain`` what a batch weighs, and return its outputs' shares.

    ``exchange`` says whether layers are synchronized, and whether outputs count apart.
    """
    counts = Counts.of(loss, outputs, seen.y)
    whole = seen.whole or counts
    if seen.whole is None and any(exchange):
        whole = counts.of_all(chain, synchronized=exchange[0])
    if whole is counts:
        chain.begin(counts.weight)
        return {}
    chain.begin(counts.weight_in(whole))
    return counts.shares(whole)


def _gradients_of_headed(
    net: NetCore, plan: Plan, outputs: dict[str, Any], seen: Seen, chain: UpdateChain | None
) -> dict[int, Array]:
    """`gradients_of_loss` where the losses come out: what the forward was fed of them."""
    ((losses, *found),) = outputs.values()
    scores = plan.head.scores(seen.y)
    try:
        seen(losses, scores, found)
    except SingaNetError as error:
        raise of_output(error, plan.outputs) from None
    if chain is not None and chain.weighs:
        weighed(chain, exchanged(plan, net.loss), net.loss, scores, seen)
    start = start_of(len(losses), net.device.ops, net.dtype, chain)
    return {plan.slots_of(plan.outputs)[0]: start}


def differentiated(
    loss: Any,
    outputs: Any,
    y: Any,
    weight: Array | None,
    look: Callable[[Array, Any], object],
    names: Collection[str],
) -> Any:
    """The gradient of the loss by ``outputs``; ``look(losses, outputs)`` comes before it.

    Errors: what loss and metric refuse, with the ``names`` of the outputs.
    """
    # A user's own loss need not know of weights.
    given = (y,) if weight is None else (y, weight)
    try:
        look(loss.forward(True, outputs, *given), outputs)
    except SingaNetError as error:
        raise of_output(error, names) from None
    return loss.backward()


class NetMeasure:
    """The metric of a net as a measure of the positions that have a loss.

    It sees the outputs, or the loss's link of them.
    """

    __slots__ = ("_link", "_loss", "metric")

    def __init__(self, metric: Any, loss: Any) -> None:
        self.metric = metric
        # The loss whose link makes what the metric looks at.
        self._link = loss if getattr(metric, "linked", False) else None
        # A user's own loss, and a loss of several outputs, need not say which positions count.
        self._loss = loss if hasattr(loss, "where_counted") else None

    def __call__(self, outputs: Any, y: Any) -> Any:
        shown = outputs if self._link is None else self._link.link(outputs)
        there = None if self._loss is None else self._loss.where_counted(shown, y)
        if there is not None:
            shown, y = counted_positions(shown, y, there)
        return self.metric.evaluate(shown, y)

    @property
    def shows(self) -> Sequence[Any]:
        """The metrics that are shown outputs."""
        return (self.metric,)

    def gather(self, found: Sequence[Array], outputs: Any, y: Any) -> Any:
        """As called with ``outputs``, of which the metric has ``found`` what it needs by rows."""
        alone = self.metric.anew()
        loss: Any = self._loss
        alone.gather(*counted_positions(*found, y, loss.where_counted(outputs, y)))
        return alone.number()

    @property
    def seers(self) -> Sequence[Any]:
        """The metric and the losses, which are shown the outputs."""
        return (self.metric, *(() if self._link is None else losses_of(self._link)))


def measure_of(net: Any) -> NetMeasure | None:
    """The measure of ``net``, None if it has no metric."""
    return None if net.metric is None else NetMeasure(net.metric, net.loss)


def weights_for(weight: Array | None) -> tuple[Array, ...]:
    """The last arguments of a loss: a user's own need not know of weights."""
    return () if weight is None else (weight,)


def of_output(error: SingaNetError, names: Collection[str]) -> SingaNetError:
    """``error`` with the output's name, since losses and metrics know no layers."""
    return error.within(f"output of layer {one_of(names)}")


def expected_loss(net: Any) -> Any:
    """The loss of ``net``. Errors: it has none."""
    if net.loss is None:
        raise CallOrderError(
            "net.train",
            expected="a net with a loss",
            received="none",
            advice="build it with FeedForwardNet(loss), or use forward and backward",
        )
    return net.loss


_REPLACES = {
    "softmax": "CategoricalCrossEntropy() for probabilities",
    "sigmoid": "BinaryCrossEntropy() for probabilities",
}


def expect_scores(plan: Plan, loss: Any) -> None:
    """Refuse a loss that takes scores behind a layer that makes probabilities of them.

    Errors: `ArgumentError` for a softmax or sigmoid layer whose function ``loss`` applies again.
    """
    by_output = loss.losses if isinstance(loss, MultiLoss) else dict.fromkeys(plan.outputs, loss)
    for name, own in by_output.items():
        linked = getattr(own, "link_name", "")
        made, function = probabilities_of(plan, name) if linked else ("", "")
        if function == "softmax" or (function and linked == "sigmoid"):
            raise ArgumentError(
                f"output of layer {name!r}, loss {type(own).__name__}",
                expected=f"scores, of which the loss takes the {linked} itself",
                received=f"the probabilities of the {function} layer {made!r}",
                advice=f"leave that layer out, or use {_REPLACES[function]}",
            )


def probabilities_of(plan: Plan, output: str) -> tuple[str, str]:
    """The layer that makes the output of layer ``output``, moved at most, and its function.

    The function is "softmax" or "sigmoid", or "" where it yields no probabilities.
    """
    if output not in plan.by_name:
        return output, ""
    made = plan.by_name[output]
    while made.layer.traits.moves_only and len(made.in_slots) == 1:
        made = plan.steps[plan.producer[made.in_slots[0]]]
    layer: Any = made.layer
    if isinstance(layer, Softmax):
        return made.name, "softmax"
    sigmoid = isinstance(layer, Activation) and layer.mode == "sigmoid"
    return made.name, "sigmoid" if sigmoid else ""


def changed(dy: Any, change: Callable[[Array], Array] | None) -> Any:
    """``dy``, an array or a dict of them, with every one changed."""
    if change is None:
        return dy
    if isinstance(dy, Mapping):
        return {name: changed(part, change) for name, part in dy.items()}
    return change(dy)
