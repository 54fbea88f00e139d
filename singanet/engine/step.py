"""The order of one training step, for every way to run it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from singanet.engine.backward import Pass
from singanet.engine.feeds import check_gradients
from singanet.engine.fusion import start_of
from singanet.engine.model import Measure, NetCore, StepRequest
from singanet.engine.plan import NodeStep, Plan, remember
from singanet.errors import ArgumentError, CallOrderError, SingaNetError, one_of
from singanet.layers.activations import Activation, Softmax
from singanet.loss.head_loss import MultiLoss
from singanet.loss.loss import counted, counted_positions, losses_of
from singanet.ops import ops_for
from singanet.ops.kernel import widened
from singanet.optimizer.chain import TwoPasses, UpdateChain
from singanet.optimizer.mixed_precision import NotFiniteError
from singanet.params.grads import LayerGradients
from singanet.params.param import Param
from singanet.types import Array


class Carrier(Protocol):
    """Runs the events of a step, or records them.

    If it does not store all gradients, it runs backward twice for stages that need them all.
    """

    @property
    def net(self) -> NetCore:
        """The net of the step, or its part."""

    @property
    def holds(self) -> bool:
        """Whether all gradients of the step are stored before the first update."""

    @property
    def updated(self) -> bool:
        """Whether any update of the step was made."""

    def norm(self) -> TwoPasses | None:
        """The clipping that needs the norm of this step before its first update."""

    def rehearsed(self) -> AbstractContextManager[None]:
        """A block after which draws and running state of its forward are undone."""

    def walked(self, again: bool) -> Iterator[LayerGradients]:
        """Forward, loss and backward; loss and metric are noted unless it runs ``again``."""

    def do(self, name: str, function: Callable[[], object]) -> None:
        """Call ``function``, which computes nothing."""

    def look(self, taken: FiniteCheck, layer: str, finite: Array) -> None:
        """Pass to ``taken`` whether gradients of ``layer`` are ``finite``."""

    def agree(self, taken: FiniteCheck) -> None:
        """Have ``taken`` decide with other processes, after all gradients."""

    def knowing(
        self, norm: TwoPasses, items: Iterable[LayerGradients]
    ) -> AbstractContextManager[None]:
        """A block in which the clipping has the norm of ``items``."""

    def update(self, items: Iterable[LayerGradients]) -> None:
        """Update by ``items``, each freed before the next one comes; then end the updates."""


def tell(step: Carrier, chain: UpdateChain) -> None:
    """Run a step whose gradients go through ``chain``.

    If a norm is needed first, forward and backward run twice, with the same draws; in mixed
    precision nothing is updated unless all gradients are finite. Raises `NotFiniteError`, now or at
    the replay, if the step is skipped; `carry_out` undoes it then.
    """
    norm = step.norm()
    taken = None if chain.scaled is None else FiniteCheck(chain)
    if taken is not None:
        step.do("begin", taken.begin)
    if step.holds:
        held = [*_checked(step, taken, step.walked(again=False))]
        held.reverse()
        if taken is not None:
            step.agree(taken)
        with nullcontext() if norm is None else step.knowing(norm, reversed(held)):
            step.update(popped(held))
    else:
        known: AbstractContextManager[None] = nullcontext()
        if norm is not None or taken is not None:
            with step.rehearsed():
                # The block announces the counts of the loss before a reducer asks for the first
                # item. A skipped step has noted its loss.
                items = _checked(step, taken, step.walked(again=taken is None))
                if norm is not None:
                    known = step.knowing(norm, items)
                for item in items:
                    del item
            if taken is not None:
                step.agree(taken)
        with known:
            step.update(step.walked(again=taken is not None))
    if taken is not None:
        step.do("count", taken._succeeded)


def _checked(
    step: Carrier, taken: FiniteCheck | None, items: Iterable[LayerGradients]
) -> Iterator[LayerGradients]:
    """Yield ``items``, checked first if the step may be skipped."""
    for item in items:
        if taken is not None:
            for grad in item.grads:
                array: Any = grad[1] if isinstance(grad, tuple) else grad
                step.look(taken, item.layer, ops_for(array).xp.isfinite(array).all())
                del grad, array
        yield item
        # Like the walk, it frees one layer's gradients before the next layer's exist.
        del item


def popped(held: list[LayerGradients]) -> Iterator[LayerGradients]:
    """Yield the last of ``held`` first, without keeping a reference."""
    while held:
        yield held.pop()


class FiniteCheck:
    """Checks all gradients before ``chain`` applies them.

    Raises `NotFiniteError` if a gradient is not finite, here or on another process. All processes
    finish the walk before, as layers may need the others on the way.
    """

    def __init__(self, chain: UpdateChain) -> None:
        self._chain = chain
        # The first layer whose gradients are not finite.
        self._refused: str | None = None

    @property
    def refused(self) -> bool:
        """Whether gradients of this process are not finite."""
        return self._refused is not None

    def begin(self) -> None:
        """Start the check of a step."""
        self._refused = None

    def look(self, layer: str, finite: Array) -> None:
        """Note whether the gradients of ``layer`` are finite."""
        if not finite:
            self._refused = self._refused or layer

    def agree(self) -> None:
        """Skip the step if gradients are not finite, here or on another process."""
        refused = self._chain.agree(self._refused)
        if refused is not None:
            self._chain._conclude(refused)
            raise NotFiniteError(refused)

    def _succeeded(self) -> None:
        """Note that the step was applied."""
        self._chain._conclude(None)


class Before:
    """A copy of the arrays that a forward of ``net`` changes.

    its ``state``, and with ``draws`` its generator.

    It is made now and at each `remember`, and restored into the present arrays of ``state``.
    """

    __slots__ = ("_copies", "_draws", "_draws_too", "_groups", "_net", "_xp")

    def __init__(self, net: NetCore, state: Iterable[Param], draws: bool = True) -> None:
        self._net, self._draws_too = net, draws
        groups: dict[Any, list[Array]] = {}
        for param in state:
            value = param.value
            # Read-only arrays stay as they are; a device's arrays can always be written.
            if not isinstance(value, np.ndarray) or value.flags.writeable:
                groups.setdefault(value.dtype, []).append(value)
        self._groups = list(groups.values())
        self._xp: Any = net.device.ops.xp
        self._copies = [
            self._xp.empty(sum(value.size for value in group), dtype)
            for dtype, group in groups.items()
        ]
        self.remember()

    def remember(self) -> None:
        """Copy the present state, in place of the copy before."""
        # Reading the generator's state takes two microseconds.
        self._draws = self._net.rng.bit_generator.state if self._draws_too else None
        # One copy of all arrays takes much less time than one copy each.
        for group, kept in zip(self._groups, self._copies, strict=True):
            self._xp.concatenate(group, axis=None, out=kept)

    def restore(self) -> None:
        """Write the copy back."""
        if self._draws is not None:
            self._net.rng.bit_generator.state = self._draws
        for group, kept in zip(self._groups, self._copies, strict=True):
            start = 0
            for value in group:
                value[...] = kept[start : start + value.size].reshape(value.shape)
                start += value.size


def carry_out(step: Carrier, chain: UpdateChain) -> None:
    """Run the step by `tell`, and undo it if it fails before its first update.

    A skipped step is undone too, and raises nothing.
    """
    before = Before(step.net, step.net._execution_plan().settings().state)
    chain.updated = False
    try:
        tell(step, chain)
    except NotFiniteError:
        before.restore()
    except BaseException:
        if not step.updated:
            before.restore()
            chain.refused()
        raise


@dataclass(frozen=True, slots=True)
class Counts:
    """The ``samples`` of a batch, and by output the number of positions that have a loss.

    The losses of the outputs in ``sums`` are sums, the others means over these positions. If
    outputs count ``apart``, no one weight is right for all of them: the batch weighs by its
    samples then, and each output has a share.
    """

    samples: float
    by_output: Mapping[str, float]
    sums: frozenset[str] = frozenset()
    apart: bool = False

    @classmethod
    def of(cls, loss: Any, outputs: Any, y: Any) -> Counts:
        """The counts of ``loss`` for ``outputs`` with targets ``y``."""
        by_output = counted(loss, outputs, y)
        several = isinstance(outputs, Mapping)
        samples = float(len(next(iter(outputs.values())) if several else outputs))
        losses = loss.losses if isinstance(loss, MultiLoss) else dict.fromkeys(by_output, loss)
        sums = [n for n, own in losses.items() if getattr(own, "reduction", "mean") == "sum"]
        return cls(samples, by_output, frozenset(sums), getattr(loss, "_counts_apart", False))

    def __add__(self, other: Counts) -> Counts:
        return self.with_numbers(self.numbers + other.numbers)

    def of_all(self, chain: UpdateChain, synchronized: bool) -> Counts:
        """The counts of the batch that the processes of ``chain`` share; all of them call it.

        Returns these counts if gradients are sums, or if each process updates by itself and no
        layer is ``synchronized``.
        """
        reducer = next(iter(chain.reducers), None)
        if reducer is None or reducer._alone or self.weight is None:
            return self
        if reducer._by_itself and not synchronized:
            return self
        return self.with_numbers(reducer._totals(self.numbers))

    @property
    def numbers(self) -> Array:
        """The samples and the counts, which add up over the parts of a batch."""
        return np.array([self.samples, *self.by_output.values()], np.float64)

    def with_numbers(self, numbers: Array) -> Counts:
        """Counts of the same outputs, with other ``numbers``."""
        samples, *counts = numbers.tolist()
        return replace(
            self, samples=samples, by_output=dict(zip(self.by_output, counts, strict=True))
        )

    @property
    def weight(self) -> float | None:
        """The weight of the batch's gradients relative to other batches; None for sums."""
        if len(self.sums) == len(self.by_output):
            return None
        counts = {*self.by_output.values()}
        return self.samples if self.apart or len(counts) > 1 else counts.pop()

    def weight_in(self, whole: Counts) -> float | None:
        """The weight as a part of ``whole``, for gradients multiplied by their `shares`.

        It is above 0 if there are samples, as losses of other parts may depend on them.
        """
        weight = whole.weight
        return None if weight is None else self.samples * weight / (whole.samples or 1.0)

    def shares(self, whole: Counts) -> dict[str, float]:
        """The factors of the outputs' gradients as a part of ``whole``.

        The mean of all parts' gradients, weighed by `weight_in`, is then the gradient of the whole.
        """
        rest = whole.samples / self.samples if self.samples else 0.0
        return {
            name: rest * (1.0 if name in self.sums else count / (whole.by_output[name] or 1.0))
            for name, count in self.by_output.items()
        }

    def losses(self, loss: Any, mean: float) -> dict[str, tuple[float, float]]:
        """By output the sum of its losses and their count; ``mean`` is the loss of the batch."""
        parts = {"": mean}
        if isinstance(loss, MultiLoss):
            weights = loss.weights
            parts = {
                n: float(p.mean()) * weights[n] if p.size else 0.0 for n, p in loss.parts.items()
            }
        return {
            n: (p * count if (count := self.by_output[n]) else 0.0, count) for n, p in parts.items()
        }


def tells(plan: Plan, loss: Any) -> bool:
    """Whether parts of a batch have to exchange the counts of several outputs' losses.

    Outputs over sequences do, as the length of each part is its longest sequence's.
    """
    if not isinstance(loss, MultiLoss) or len(loss.losses) < 2 or loss.reduction == "sum":
        return False
    slots = plan.slots_of(loss.losses)
    return loss._counts_apart or any(-1 in plan.slot_shapes[slot] for slot in slots)


def train_step(
    net: NetCore,
    forward: Callable[[], Pass],
    request: StepRequest,
    chain: UpdateChain,
    streams: bool = False,
) -> tuple[float, float | None]:
    """Run the step of ``request`` on the pass that ``forward`` makes; return ``(loss, metric)``.

    ``chain`` is the chain of the request's optimizer. With ``streams`` the gradients of more than
    one layer are never in memory together.
    """
    step = ByLayers(net, forward, request, chain, streams)
    # A skipped step has noted its loss.
    carry_out(step, chain)
    return step.seen.loss, step.seen.score


class ByLayers:
    """Runs a step by passes over the layers, each made by ``forward``; a `Carrier`."""

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
        self.seen = StepMetrics(request.y, request.measure, request.weight)
        self._forward, self._on_layer = forward, request.on_layer

    @property
    def updated(self) -> bool:
        return self.chain.updated

    def norm(self) -> TwoPasses | None:
        norm = self.chain.norm
        return None if norm is None or not norm.due() else norm

    def rehearsed(self) -> AbstractContextManager[None]:
        return self.net.rehearsal()

    def walked(self, again: bool) -> Iterator[LayerGradients]:
        made = self._forward()
        seen = StepMetrics(self.seen.y, None, self.seen.weight) if again else self.seen
        return made.backward(self.net, gradients_of_loss(self.net, made, seen, self.chain), ())

    def do(self, name: str, function: Callable[[], object]) -> None:
        function()

    def look(self, taken: FiniteCheck, layer: str, finite: Array) -> None:
        taken.look(layer, finite)

    def agree(self, taken: FiniteCheck) -> None:
        taken.agree()

    def knowing(
        self, norm: TwoPasses, items: Iterable[LayerGradients]
    ) -> AbstractContextManager[None]:
        return norm.knowing(items)

    def update(self, items: Iterable[LayerGradients]) -> None:
        look, scaled = self._on_layer, self.chain.scaled
        if look is not None and scaled is not None:
            self.chain.apply(items, lambda item: look(scaled.unscaled(item)))
        else:
            self.chain.apply(items, look)


class StepMetrics:
    """Notes the loss of a batch with targets ``y``, and the metric by ``measure``.

    A measure with ``_weighs`` gets the ``weight`` of the samples too. ``whole`` are the counts of
    the larger batch that contains this one, if they are known beforehand.
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
        """Note the mean of ``losses`` and the metric of ``outputs``."""
        # A rank without samples takes part in the others' step.
        self.loss = float(losses.mean()) if losses.size else 0.0
        self.measured(outputs, found)

    def measured(self, outputs: Any, found: Sequence[Array] | None = None) -> None:
        """Note the metric of ``outputs``; ``found`` are results by rows, if they are known."""
        measure: Any = self.measure
        if measure is None:
            self.score = None
            return
        weight = weights_for(self.weight) if getattr(measure, "_weighs", False) else ()
        if found is None:
            self.score = measure(outputs, self.y, *weight)
        else:
            self.score = measure.gather(found, outputs, self.y, *weight)


def gradients_of_loss(
    net: NetCore,
    made: Pass,
    seen: StepMetrics,
    chain: UpdateChain | None = None,
) -> dict[int, Array]:
    """The gradients of the loss by the slot of the output that each belongs to.

    The stages of ``chain`` get the weight of these gradients; in mixed precision they are scaled.
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
    if chain is not None and chain._weighs:
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
    chain: UpdateChain, exchange: tuple[bool, bool], loss: Any, outputs: Any, seen: StepMetrics
) -> Mapping[str, float]:
    """Pass the weight of a batch to the stages of ``chain``, and return its outputs' shares.

    ``exchange`` are whether layers are synchronized, and whether outputs count apart.
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
    net: NetCore, plan: Plan, outputs: dict[str, Any], seen: StepMetrics, chain: UpdateChain | None
) -> dict[int, Array]:
    """`gradients_of_loss` for a plan that ends in the loss: the gradients in the feed."""
    ((losses, *found),) = outputs.values()
    scores = plan.head.scores(seen.y)
    try:
        seen(losses, scores, found)
    except SingaNetError as error:
        raise of_output(error, plan.outputs) from None
    if chain is not None and chain._weighs:
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
    """The gradient of the loss by ``outputs``; ``look(losses, outputs)`` is called before it.

    Errors: as loss and metric raise, with the ``names`` of the outputs.
    """
    # A user's loss may lack the weights.
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
        # The loss whose link converts outputs for the metric.
        self._link = loss if getattr(metric, "linked", False) else None
        # A user's loss, and a loss of several outputs, may lack this method.
        self._loss = loss if hasattr(loss, "_where_counted") else None

    def __call__(self, outputs: Any, y: Any) -> Any:
        shown = outputs if self._link is None else self._link.link(outputs)
        there = None if self._loss is None else self._loss._where_counted(shown, y)
        if there is not None:
            shown, y = counted_positions(shown, y, there)
        return self.metric.evaluate(shown, y)

    @property
    def shows(self) -> Sequence[Any]:
        """The metrics that get the outputs."""
        return (self.metric,)

    def gather(self, found: Sequence[Array], outputs: Any, y: Any) -> Any:
        """The measure of ``outputs``, from the metric's results by rows ``found``."""
        alone = self.metric.anew()
        loss: Any = self._loss
        alone.gather(*counted_positions(*found, y, loss._where_counted(outputs, y)))
        return alone.number()

    @property
    def seers(self) -> Sequence[Any]:
        """The metric and the losses, which get the outputs."""
        return (self.metric, *(() if self._link is None else losses_of(self._link)))


def measure_of(net: Any) -> NetMeasure | None:
    """The measure of ``net``, None if it has no metric."""
    return None if net.metric is None else NetMeasure(net.metric, net.loss)


def weights_for(weight: Array | None) -> tuple[Array, ...]:
    """The last arguments of a loss: none without weights, as a user's loss may lack them."""
    return () if weight is None else (weight,)


def of_output(error: SingaNetError, names: Collection[str]) -> SingaNetError:
    """``error`` with the output's name, which losses and metrics do not know."""
    return error.within(f"output of layer {one_of(names)}")


def expected_loss(net: Any) -> Any:
    """The loss of ``net``. Errors: it has none."""
    if net.loss is None:
        raise CallOrderError(
            "net",
            expected="a net with a loss",
            received="none",
            advice="call net.compile(optimizer, loss) first, or use forward and backward",
        )
    return net.loss


_REPLACES = {
    "softmax": "CategoricalCrossEntropy() for probabilities",
    "sigmoid": "BinaryCrossEntropy() for probabilities",
}


def expect_scores(plan: Plan, loss: Any) -> None:
    """Refuse a loss of scores after a layer that makes probabilities of them.

    Errors: `ArgumentError` for a softmax or sigmoid layer whose function ``loss`` applies again.
    """
    by_output = loss.losses if isinstance(loss, MultiLoss) else dict.fromkeys(plan.outputs, loss)
    for name, own in by_output.items():
        linked = getattr(own, "link_name", "")
        made, function = probabilities_of(plan, name) if linked else ("", "")
        if function == "softmax" or (function and linked == "sigmoid"):
            raise ArgumentError(
                f"output of layer {name!r}, loss {type(own).__name__}",
                expected=f"scores: the loss applies the {linked} itself",
                received=f"the probabilities of the {function} layer {made!r}",
                advice=f"remove that layer, or use {_REPLACES[function]}",
            )


def probabilities_of(plan: Plan, output: str) -> tuple[str, str]:
    """The layer that computes the output of layer ``output``, and its function.

    Layers that only move elements are skipped. The function is "softmax", "sigmoid", or "".
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


def by_each_use(plan: Plan, chain: UpdateChain) -> Plan:
    """``plan``, or a plan whose walks yield some shared parameters at their first use.

    ``chain`` updates these parameters at each use, and their other uses look up rows: they read no
    value in backward.
    """
    uses: dict[int, tuple[Param, list[NodeStep]]] = {}
    for step, trained in zip(plan.steps, plan.settings().trained, strict=True):
        for param in step.layer.params.values() if trained else ():
            uses.setdefault(id(param), (param, []))[1].append(step)
    apart = {}
    for key, (param, steps) in uses.items():
        *others, last = steps
        looked_up = all(step.layer.traits.looks_up and not step.foreign for step in others)
        reads = bool(others) and looked_up and not last.layer.traits.looks_up
        trained = param.trainable and param.storage.in_memory
        if reads and trained and chain.updates_by_each_use(param):
            apart[key] = last.name
    if not apart:
        return plan
    known = "each use", *apart.items()
    made: Plan | None = plan.fused.get(known)
    if made is None:
        made = copy.copy(plan)
        made.apart, made.fused, made.headed = apart, {}, {}
        remember(plan.fused, known, made)
    return made


def away(step: NodeStep) -> list[Param]:
    """The parameters of ``step`` that are not in memory."""
    return [param for param in step.layer.params.values() if not param.storage.in_memory]


def forward_needs(plan: Plan) -> list[list[Param]]:
    """The stored parameters of each step, in the order of a forward."""
    return [away(step) for step in plan.steps]


def backward_order(plan: Plan) -> Iterator[int]:
    """The steps that a walk back from all outputs goes through, the last first."""
    return reversed(plan.backward(plan.slots_of(plan.outputs), ()).needs_context)
