"""A stage's run, step and messages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from singanet.device import Device
from singanet.engine.backward import BackwardWalk, LayerPass
from singanet.engine.fusion import fused
from singanet.engine.holding import settled
from singanet.engine.model import StepRequest
from singanet.engine.step import (
    ByLayers,
    Counts,
    FiniteCheck,
    StepMetrics,
    expected_loss,
    gradients_of_loss,
    popped,
)
from singanet.errors import CallOrderError
from singanet.ops import ops_for
from singanet.ops.kernel import widened
from singanet.optimizer.chain import TwoPasses, UpdateChain, norm_of
from singanet.optimizer.hyper import in_type, is_one
from singanet.parallel.communicators.communicator import Communicator, Request
from singanet.parallel.pipeline.partition import StagePart
from singanet.parallel.pipeline.timetable import Op
from singanet.params.grads import LayerGradients
from singanet.types import Array, RowSparse, Shape

FORWARD, BACKWARD, SHARED, ASKED = range(4)
"""Tags: activations, their gradients, parameters of several stages, parameters asked for."""

_AXES = 8
"""Axes that an array has at most."""


class Wire:
    """Sends and receives lists of arrays of ``device``, in which some may be None.

    Sends do not block: two stages that send each other large arrays would wait forever. A number is
    sent with each list.
    """

    def __init__(self, comm: Communicator, device: Device) -> None:
        self.comm, self.device = comm, device
        self._pending: list[Request] = []

    def send(
        self, arrays: Sequence[Any], to: int, tag: int, what: str, number: float = 0.0
    ) -> None:
        """Start to send ``arrays``, which must not change before `settle`."""
        # A completed request frees its array.
        self._pending = [request for request in self._pending if not request.test()]
        header = np.zeros((len(arrays) + 1, 2 + _AXES), np.float64)
        header[0, 0] = number
        own = [None if each is None else self._on_host(each) for each in arrays]
        for row, array in zip(header[1:], own, strict=True):
            if array is not None:
                row[:2] = ord(array.dtype.char), array.ndim
                row[2 : 2 + array.ndim] = array.shape
        for array in [header, *own]:
            if array is not None:
                self._pending.append(self.comm._start_send(array, to, tag, what))

    def receive(
        self, count: int, source: int, tag: int, what: str, into: Sequence[Any] | None = None
    ) -> tuple[list[Any], float]:
        """Receive the ``count`` arrays that ``source`` has sent, and the number.

        They are written to ``into`` if given. Errors: arrays of other shapes or types.
        """
        header = np.empty((count + 1, 2 + _AXES), np.float64)
        self.comm.receive(header, source, tag, what)
        found: list[Any] = []
        for k, row in enumerate(header[1:]):
            kind, ndim, *shape = row.astype(int).tolist()
            form = (tuple(shape[:ndim]), np.dtype(chr(kind))) if kind else None
            if into is not None and form != form_of(into[k]):
                raise CallOrderError(
                    f"net.step, {what}",
                    expected=f"{form_of(into[k])}, as when the step was recorded",
                    received=str(form),
                    advice="set net.programs.enabled = False before parallel.Pipeline",
                )
            if form is None:
                found.append(None)
                continue
            array = np.empty(*form) if into is None else into[k]
            found.append(self.device.put(self.comm.receive(array, source, tag, what)))
        return found, float(header[0, 0])

    def settle(self) -> None:
        """Wait until all sends are complete."""
        while self._pending:
            self._pending.pop(0).wait()

    def _on_host(self, array: Any) -> Array:
        return np.ascontiguousarray(self.device.ops.host(array))


def form_of(array: Any) -> tuple[Shape, np.dtype[Any]] | None:
    """Shape and type of an array, None for None."""
    return None if array is None else (array.shape, array.dtype)


@dataclass
class Told:
    """Sums over the micro-batches of the last stage: losses, counts and the score.

    Scores are weighted by samples; without a score it is None.
    """

    losses: dict[str, tuple[float, float]] = field(default_factory=dict)
    score: float | None = 0.0
    samples: float = 0.0

    def add(self, loss: Any, seen: StepMetrics, counts: Counts) -> None:
        """Count a micro-batch."""
        for name, own in counts.losses(loss, seen.loss).items():
            before = self.losses.get(name, (0.0, 0.0))
            self.losses[name] = before[0] + own[0], before[1] + own[1]
        self.samples += counts.samples
        if seen.score is None or self.score is None:
            self.score = None
        else:
            self.score += float(seen.score) * counts.samples

    def as_array(self) -> Array:
        """The mean loss, and the mean score or NaN with a mark that there is none."""
        loss = sum(total / count for total, count in self.losses.values() if count)
        if self.score is None or not self.samples:
            return np.array([loss, 0.0, 0.0])
        return np.array([loss, self.score / self.samples, 1.0])


@dataclass
class StageBatch:
    """The batch of a stage's step: the ``feed`` of the whole net, and the ``request``.

    ``gather`` sums gradients within ``chain``. ``told`` has the results of the last stage,
    ``number`` the weight of the present micro-batch, NaN for sums.
    """

    feed: Mapping[str, Any]
    request: Any = None
    gather: Any = None
    chain: Any = None
    told: Told = field(default_factory=Told)
    whole: Counts | None = None
    number: float = 0.0
    loss: float = 0.0
    score: float | None = None

    def weigh(self, counts: Counts) -> None:
        """Set the weight of a micro-batch of these ``counts`` within the whole batch."""
        weight = counts.weight if self.whole is None else counts.weight_in(self.whole)
        self.number = np.nan if weight is None else weight

    def begin(self, number: float) -> None:
        """Pass the weight of the next micro-batch to the stages."""
        self.number = number
        self.chain.begin(None if np.isnan(number) else number)


class StageRun:
    """The run of the stage ``part`` over batches that are cut at ``cuts`` into micro-batches.

    ``ops`` are its passes in order. Contexts are freed when their micro-batch goes backward.
    ``joined`` is called with the summed gradients, as parameters may be on several stages. If
    gradients depend on the counts of the whole batch, on all processes, ``whole`` computes them
    from the counts of this stage's micro-batches: all go forward before the first goes backward.
    ``forms`` are the shapes and types of the arrays from other stages.
    """

    def __init__(
        self,
        part: StagePart,
        wire: Wire,
        cuts: Sequence[slice],
        ops: Sequence[Op] = (),
        joined: Callable[[StageRun, Any, list[LayerGradients]], None] | None = None,
        whole: Callable[[Counts], Counts] | None = None,
    ) -> None:
        self.part, self.wire, self.cuts, self.ops = part, wire, cuts, tuple(ops)
        self._joined = joined
        self.of_whole = whole
        self.batch: Any = None
        self._left: dict[int, tuple[dict[str, Any], list[Any]]] = {}
        net = part.net._execution_plan()
        below = net.backward(net.slots_of(net.outputs), ()).below
        places = {step.name: i for i, step in enumerate(net.steps)}
        # Only entries with a gradient are asked for.
        self.asked = tuple(name for name in part.plan.entries if below[places[name]])
        self.forms: dict[Any, list[Any]] = {}

    @property
    def is_last(self) -> bool:
        """Whether it has the outputs of the net."""
        return not self.part.plan.sent

    def walked(self, on: Any) -> Iterator[LayerGradients]:
        """Run all passes by the step ``on``; return the summed gradients of all micro-batches.

        They are in the type of the masters.
        """
        items: list[LayerGradients] = []
        self._left.clear()
        for op in self.ops:
            if op.kind == "forward":
                self.forward(on, op.micro_batch, True)
            else:
                items += self._backward(on, op.micro_batch)
        on.do("the loss", self._tell)
        if self._joined is not None:
            self._joined(self, on, items)
        items.reverse()
        return popped(items)

    def _tell(self) -> None:
        """Send the loss to all stages."""
        batch, row = self.batch, self.wire.comm
        told = row.broadcast(batch.told.as_array(), row.size - 1, "the loss")
        batch.loss, batch.score = float(told[0]), float(told[1]) if told[2] else None

    def forward(self, on: Any, i: int, train: bool, asked: Collection[str] = ()) -> dict[str, Any]:
        """Run micro-batch ``i`` on the received arrays, and send outputs to later stages.

        Returns the outputs of the net on this stage, and of the steps ``asked`` for. In training
        they stay for backward.
        """
        plan = self.part.plan
        given = {name: on.fed(partial(self._fed, name, i)) for name in plan.fed}
        for k, names in plan.received.items():
            given |= self._received(on, names, k, FORWARD, i, f"micro-batch {i} of stage {k}")
        # The same plan is used in backward, as nothing is asked for in training.
        keep = self.asked if train else ()
        wanted = {*plan.outputs, *asked}
        made, contexts = on.plan.forward(given, wanted, on.ops, on.rng, train, keep)
        del given
        for k, names in plan.sent.items():
            self._send(on, [made[name] for name in names], names, k, FORWARD, f"micro-batch {i}")
        outputs = {name: made[name] for name in ({*asked} if plan.sent else wanted)}
        if train:
            self._left[i] = outputs, contexts
        return outputs

    def _fed(self, name: str, i: int) -> Any:
        return cut(self.batch.feed[name], self.cuts[i])

    def _backward(self, on: Any, i: int) -> list[LayerGradients]:
        """Run micro-batch ``i`` backward; return the gradients that the accumulator passes on.

        Gradients of received arrays go to the earlier stages. The last stage starts with the loss.
        """
        plan = self.part.plan
        outputs, contexts = self._left.pop(i)
        starts: dict[int, list[Any]] = {}
        if self.is_last:
            of_loss = on.from_loss(i, outputs)
            starts = {slot: [grad] for slot, grad in of_loss.items()}
            del of_loss
        # As in a backward of the whole net: the last reader's gradient is added first.
        for k in sorted(plan.sent, reverse=True):
            what = f"gradients of micro-batch {i} from stage {k}"
            made = self._received(on, plan.sent[k], k, BACKWARD, i, what)
            for name, grads in made.items():
                for slot, grad in zip(plan.by_name[name].out_slots, _parts(grads), strict=True):
                    if grad is not None:
                        starts.setdefault(slot, []).append(grad)
            del made
        on.weigh()
        del outputs
        first = {slot: grads[0] for slot, grads in starts.items()}
        walk = BackwardWalk(on.plan, contexts, first, self.asked)
        for slot, grads in starts.items():
            walk.slot_grads[slot] += grads[1:]
        del starts, contexts
        ready: list[LayerGradients] = []
        back: Mapping[str, Any] = {}
        scaled = self.batch.chain.scaled
        for item in walk.run():
            exact = item.names, [*map(on.place, item.values)], item.grads
            if scaled is not None:
                exact = scaled.in_float32(*exact)
            for names, values, own, share in on.gather.take(*exact, 1.0):
                handed = [_scaled(grad, share) for grad in own]
                ready.append(LayerGradients(list(names), list(values), handed, item.layer))
            back = item.output_grads
            del item, exact
        for k, names in plan.received.items():
            self._send(on, [back.get(n) for n in names], names, k, BACKWARD, f"gradients {i}")
        return ready

    def update(self, on: Any, behind: UpdateChain, items: Iterable[LayerGradients]) -> None:
        """Update by the chain ``behind`` the loss scaling, which only rounds the updated values."""
        changed: list[str] = []
        look, scaled = self.batch.request.on_layer, self.batch.chain.scaled

        def seen(item: LayerGradients) -> None:
            changed.extend(item.names)
            if look is not None:
                look(item)

        if scaled is None:
            behind.apply(items, seen)
            return
        values = {param.name: on.place(param.value) for param in self.part.params()}

        def rounded() -> Iterator[LayerGradients]:
            """Yield ``items``; each is rounded after its update, before averages read it."""
            for item in items:
                yield item
                scaled.updated(item.names, [values[name] for name in item.names])

        behind.apply(rounded(), seen)
        # Values that a reducer has updated at its end.
        scaled.updated(changed, [values[name] for name in changed])

    def agree(self, taken: FiniteCheck) -> None:
        """Have ``taken`` decide with the other stages whether all gradients are finite."""
        mine = np.array(float(taken.refused))
        if self.wire.comm.all_reduce(mine, what="whether all gradients are finite"):
            taken.look("of another stage", np.array(False))
        taken.agree()

    def norm_of_all(self, own: float, due: bool = True) -> float | None:
        """The norm of the gradients of all stages, if it is ``due`` on any."""
        told = np.array([own**2, float(due)])
        squares, those = self.wire.comm.all_reduce(told, what="the norm of the gradients").tolist()
        return float(np.sqrt(squares)) if those else None

    def counts(self, i: int, outputs: Mapping[str, Any]) -> Counts:
        """The counts of micro-batch ``i`` with these ``outputs`` of the net."""
        out = outputs if len(self.part.plan.outputs) > 1 else outputs[self.part.plan.outputs[0]]
        return Counts.of(expected_loss(self.part), widened(out), self.targets(i).y)

    def count_all(self, outputs: Mapping[int, Mapping[str, Any]]) -> None:
        """Find the counts of the whole batch from the outputs of all micro-batches."""
        first, *rest = [self.counts(i, each) for i, each in outputs.items()]
        self.batch.whole = self.of_whole(sum(rest, first)) if self.of_whole else None

    def targets(self, i: int) -> StepRequest:
        """The request, with targets and weights of micro-batch ``i``."""
        asked: StepRequest = self.batch.request
        return asked._replace(y=cut(asked.y, self.cuts[i]), weight=cut(asked.weight, self.cuts[i]))

    def _send(
        self, on: Any, made: Sequence[Any], names: Sequence[str], k: int, tag: int, what: str
    ) -> None:
        arrays: list[Any] = []
        for name, each in zip(names, made, strict=True):
            slots = self.part.plan.by_name[name].out_slots
            arrays += [None] * len(slots) if each is None else _parts(each)
        self.send(on, arrays, k, tag, what)

    def send(self, on: Any, arrays: list[Any], k: int, tag: int, what: str) -> None:
        """Send ``arrays`` to stage ``k``; some may be None."""

        def send(arrays: list[Any]) -> None:
            self.wire.send(arrays, k, tag, f"{what} to stage {k}", self.batch.number)

        on.give("send", send, arrays)

    def _received(
        self, on: Any, names: Sequence[str], k: int, tag: int, i: int, what: str
    ) -> dict[str, Any]:
        steps = [self.part.plan.by_name[name] for name in names]
        arrays = self.receive(on, sum(len(s.out_slots) for s in steps), k, tag, what)
        found: dict[str, Any] = {}
        for step in steps:
            parts = [arrays.pop(0) for _ in step.out_slots]
            found[step.name] = parts if step.many_out else parts[0]
        return found

    def receive(self, on: Any, count: int, k: int, tag: int, what: str) -> list[Any]:
        """Receive the ``count`` arrays of stage ``k``; some may be None."""

        def receive(into: list[Any] | None = None) -> list[Any]:
            found, number = self.wire.receive(count, k, tag, what, into)
            if tag == BACKWARD:
                self.batch.number = number
            return found

        return on.made("receive", receive, what, self.forms)


def cut(data: Any, part: slice) -> Any:
    """``part`` of the samples of ``data``: an array, several in a list or a dict, or None."""
    if isinstance(data, Mapping):
        return {name: cut(each, part) for name, each in data.items()}
    if isinstance(data, (list, tuple)):
        return [cut(each, part) for each in data]
    return None if data is None else data[part]


def _parts(made: Any) -> list[Any]:
    return list(made) if isinstance(made, (list, tuple)) else [made]


def _scaled(grad: Any, share: Any) -> Any:
    """``grad`` times ``share``, in place if it is an array: the accumulator overwrites it later."""
    if is_one(share):
        return grad
    ops = ops_for(grad.rows if isinstance(grad, RowSparse) else grad)
    if isinstance(grad, RowSparse):
        return RowSparse(*ops.map_rows(_times, *grad, share))
    grad *= in_type(ops.xp, share, grad.dtype)
    return grad


def _times(grad: RowSparse, share: float) -> RowSparse:
    return RowSparse(grad.indices, grad.rows * grad.rows.dtype.type(share))


class MicroBatchedStep(ByLayers):
    """Runs the step ``batch`` of ``run`` now; a `Carrier`.

    Gradients are summed after loss scaling is undone, if any, in the form that the inner stages
    expect.
    """

    holds = True

    def __init__(self, run: StageRun, batch: StageBatch, asked: Collection[str] = ()) -> None:
        self._run, self._batch = run, batch
        run.batch = batch
        self.net: Any = run.part
        self.plan, self.rng = fused(self.net.plan, asked), self.net.rng
        self.ops = self.net.device.ops
        self.gather = batch.gather
        # The chain behind the loss scaling.
        self.chain = UpdateChain(self.gather and self.gather.optimizer)

    def norm(self) -> TwoPasses | None:
        """The clipping by norm; all stages find out together whether it is due."""
        norm = self.chain.norm
        return None if norm is None or norm.clip.knows else norm

    def rehearsed(self) -> AbstractContextManager[None]:
        """A block with no effect: nothing runs twice."""
        return nullcontext()

    def walked(self, again: bool) -> Iterator[LayerGradients]:
        """Run all passes."""
        return self._run.walked(self)

    # -- the interface to runs ------------------------------------------------------------------

    def fed(self, function: Callable[[], Any]) -> Any:
        """Return the inputs of the net."""
        return function()

    def made(
        self, name: str, function: Callable[[], list[Any]], key: Any, forms: dict[Any, list[Any]]
    ) -> list[Any]:
        """Return the arrays of ``function``, and store their ``forms`` under ``key``."""
        found = function()
        forms[key] = [*map(form_of, found)]
        return found

    def give(self, name: str, function: Callable[[list[Any]], object], arrays: list[Any]) -> None:
        """Pass ``arrays`` to ``function``."""
        function(arrays)

    def place(self, value: Array) -> Array:
        """The array of a parameter as it is read."""
        return value

    def from_loss(self, i: int, outputs: dict[str, Any]) -> dict[int, Array]:
        """The gradients of the loss of micro-batch ``i`` by slot."""
        run, net, batch = self._run, self.net, self._batch
        if run.of_whole is not None and batch.whole is None:
            run.count_all({i: outputs, **{k: left for k, (left, _) in run._left.items()}})
        asked, counts = run.targets(i), run.counts(i, outputs)
        seen = StepMetrics(asked.y, asked.measure, asked.weight, batch.whole)
        made = LayerPass(net.plan, dict(outputs), [])
        of_loss = gradients_of_loss(net, made, seen, batch.chain)
        batch.told.add(net.loss, seen, counts)
        batch.weigh(counts)
        return of_loss

    def weigh(self) -> None:
        """Pass the weight of the micro-batch to the stages."""
        if not self._run.is_last:
            self._batch.begin(self._batch.number)

    def only_now(self, why: str) -> None:
        """Do nothing, since it is not recorded."""

    # -- as `Carrier` -----------------------------------------------------------------------------

    def agree(self, taken: FiniteCheck) -> None:
        self._run.agree(taken)

    def knowing(
        self, norm: TwoPasses, items: Iterable[LayerGradients]
    ) -> AbstractContextManager[None]:
        """A block with the norm of the gradients of all stages."""
        # A stage without trained parameters learns from the others whether it is due.
        due = norm.due()
        own = float(norm_of(norm.previewed(items))) if due else 0.0
        known = self._run.norm_of_all(own, due)
        return nullcontext() if known is None else norm.clip.knowing(known)

    def update(self, items: Iterable[LayerGradients]) -> None:
        self._run.update(self, self.chain, settled(self.net, items))
