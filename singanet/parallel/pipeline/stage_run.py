"""A stage's run, step and messages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from singanet.device import Device
from singanet.engine.backward import BackwardWalk, LayerPass
from singanet.engine.fusion import fused
from singanet.engine.model import StepRequest
from singanet.engine.step import (
    Counts,
    FiniteCheck,
    StepMetrics,
    expected_loss,
    gradients_of_loss,
    popped,
)
from singanet.ops.kernel import widened
from singanet.optimizer.accumulating import Accumulator
from singanet.optimizer.chain import TwoPasses, UpdateChain, norm_of
from singanet.optimizer.mixed_precision import ScaledUpdates
from singanet.parallel.communicators.communicator import Communicator, Request
from singanet.parallel.pipeline.partition import StagePart
from singanet.parallel.pipeline.timetable import Op
from singanet.params.grads import LayerGradients
from singanet.types import Array, RowSparse

FORWARD, BACKWARD, SHARED, ASKED = range(4)
"""Tags: activations, their gradients, parameters of several stages, parameters asked for."""

_AXES = 8
"""Axes that an array has at most."""


class Wire:
    """Sends and receives lists of arrays of ``device``, of which some may be None.

    Sends are begun and not waited for: two stages that send each other large arrays would wait
    for ever. A number goes with each list.
    """

    def __init__(self, comm: Communicator, device: Device) -> None:
        self.comm, self.device = comm, device
        self._pending: list[Request] = []

    def send(
        self, arrays: Sequence[Any], to: int, tag: int, what: str, number: float = 0.0
    ) -> None:
        """Begin to send ``arrays``, which nobody may change before `settle`."""
        # One that is done lets go of its array.
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

    def receive(self, count: int, source: int, tag: int, what: str) -> tuple[list[Any], float]:
        """The ``count`` arrays that ``source`` has sent, and the number."""
        header = np.empty((count + 1, 2 + _AXES), np.float64)
        self.comm.receive(header, source, tag, what)
        found: list[Any] = []
        for row in header[1:]:
            kind, ndim, *shape = row.astype(int).tolist()
            if not kind:
                found.append(None)
                continue
            array = np.empty(shape[:ndim], chr(kind))
            found.append(self.device.put(self.comm.receive(array, source, tag, what)))
        return found, float(header[0, 0])

    def settle(self) -> None:
        """Wait until all that was sent is gone."""
        while self._pending:
            self._pending.pop(0).wait()

    def _on_host(self, array: Any) -> Array:
        return np.ascontiguousarray(self.device.ops.host(array))


@dataclass
class Told:
    """Sums over the micro-batches that the last stage has seen: losses, counts and the score.

    Scores weigh by samples; without a score it is None.
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


class StageRun:
    """The run of the stage ``part`` over a batch, cut at ``cuts`` into micro-batches.

    ``feed`` has the inputs of the whole net. Contexts are let go of as their micro-batch goes
    back; ``alive`` is how many were there at once, ``told`` what the last stage has seen.
    If gradients depend on the counts of the whole batch, on all processes, ``whole`` makes these
    from the counts of this stage's micro-batches: all go forward before the first goes back.
    """

    def __init__(
        self,
        part: StagePart,
        wire: Wire,
        feed: Mapping[str, Any],
        cuts: Sequence[slice],
        whole: Callable[[Counts], Counts] | None = None,
    ) -> None:
        self.part, self._wire, self._feed, self._cuts = part, wire, feed, cuts
        self._of_whole = whole
        self._whole: Counts | None = None
        self._left: dict[int, tuple[dict[str, Any], list[Any]]] = {}
        net = part.net._execution_plan()
        below = net.backward(net.slots_of(net.outputs), ()).below
        places = {step.name: i for i, step in enumerate(net.steps)}
        # Of what takes no gradient none is asked for.
        self._asked = tuple(name for name in part.plan.entries if below[places[name]])
        self.alive = 0
        self.told = Told()

    def forward(self, i: int, train: bool, asked: Collection[str] = ()) -> dict[str, Any]:
        """Run micro-batch ``i`` on what came, and send on what later stages read.

        The outputs of the net that are here, and those of the steps ``asked`` for. In training
        they stay for `backward`.
        """
        net, plan = self.part.net, self.part.plan
        given = {name: cut(self._feed[name], self._cuts[i]) for name in plan.fed}
        for k, names in plan.received.items():
            given |= self._receive(names, k, FORWARD, f"micro-batch {i} of stage {k}")[0]
        keep = self._asked if train else ()
        wanted = {*plan.outputs, *asked}
        with net.device.scope():
            # It is the backward's, too, as nobody asks in training.
            made, contexts = fused(plan, asked).forward(
                given, wanted, net.device.ops, net.rng, train, keep
            )
        del given
        for k, names in plan.sent.items():
            self._send([made[name] for name in names], names, k, FORWARD, f"micro-batch {i}")
        outputs = {name: made[name] for name in ({*asked} if plan.sent else wanted)}
        if train:
            self._left[i] = outputs, contexts
            self.alive = max(self.alive, len(self._left))
        return outputs

    def backward(self, i: int, request: StepRequest, chain: UpdateChain) -> list[LayerGradients]:
        """Take micro-batch ``i`` back; what the gatherer of ``chain`` hands on of its gradients.

        Loss scaling stands before it, if at all. Gradients of what came from earlier stages go
        there. The last stage begins with the loss.
        """
        plan = self.part.plan
        gather: Any = next(stage for stage in chain.stages if stage.traits.gathers)
        outputs, contexts = self._left.pop(i)
        starts: dict[int, list[Any]] = {}
        if not plan.sent:
            count, of_loss = self._from_loss(i, outputs, request, chain)
            starts = {slot: [grad] for slot, grad in of_loss.items()}
            del of_loss
        # As in a walk through all: what reads an output last is added first.
        for k in sorted(plan.sent, reverse=True):
            what = f"gradients of micro-batch {i} from stage {k}"
            made, count = self._receive(plan.sent[k], k, BACKWARD, what)
            for name, grads in made.items():
                for slot, grad in zip(plan.by_name[name].out_slots, _parts(grads), strict=True):
                    if grad is not None:
                        starts.setdefault(slot, []).append(grad)
            del made
        if plan.sent:
            chain.begin(None if np.isnan(count) else count)
        del outputs
        with self.part.net.device.scope():
            walk = BackwardWalk(
                fused(plan), contexts, {s: g[0] for s, g in starts.items()}, self._asked
            )
            for slot, grads in starts.items():
                walk.slot_grads[slot] += grads[1:]
            del starts, contexts
            ready: list[LayerGradients] = []
            back: Mapping[str, Any] = {}
            for item in walk.run():
                exact: Any = item if chain.scaled is None else chain.scaled.in_float32(*item)
                for names, values, own, share in gather.take(*exact, 1.0):
                    scaled = [_scaled(grad, share) for grad in own]
                    ready.append(LayerGradients(list(names), list(values), scaled, item.layer))
                back = item.output_grads
                del item, exact
        for k, names in plan.received.items():
            self._send([back.get(n) for n in names], names, k, BACKWARD, f"gradients {i}", count)
        return ready

    def _from_loss(
        self, i: int, outputs: dict[str, Any], request: StepRequest, chain: UpdateChain
    ) -> tuple[float, dict[int, Array]]:
        """The weight of micro-batch ``i``, NaN for sums, and its gradients by slot."""
        part, counts = self.part, self._counts(i, outputs, request)
        if self._of_whole is not None and self._whole is None:
            rest = [self._counts(k, left, request) for k, (left, _) in self._left.items()]
            self._whole = self._of_whole(sum(rest, counts))
        y, weight = cut(request.y, self._cuts[i]), cut(request.weight, self._cuts[i])
        seen = StepMetrics(y, request.measure, weight, self._whole)
        made = LayerPass(part.plan, dict(outputs), [])
        of_loss = gradients_of_loss(part, made, seen, chain)
        self.told.add(part.loss, seen, counts)
        weighs = counts.weight if self._whole is None else counts.weight_in(self._whole)
        return np.nan if weighs is None else weighs, of_loss

    def _counts(self, i: int, outputs: dict[str, Any], request: StepRequest) -> Counts:
        out = outputs if len(self.part.plan.outputs) > 1 else outputs[self.part.plan.outputs[0]]
        y = cut(request.y, self._cuts[i])
        return Counts.of(expected_loss(self.part), widened(out), y)

    def _send(
        self, made: Sequence[Any], names: Sequence[str], k: int, tag: int, what: str, n: float = 0.0
    ) -> None:
        arrays: list[Any] = []
        for name, each in zip(names, made, strict=True):
            slots = self.part.plan.by_name[name].out_slots
            arrays += [None] * len(slots) if each is None else _parts(each)
        self._wire.send(arrays, k, tag, f"{what} to stage {k}", n)

    def _receive(
        self, names: Sequence[str], k: int, tag: int, what: str
    ) -> tuple[dict[str, Any], float]:
        steps = [self.part.plan.by_name[name] for name in names]
        arrays, number = self._wire.receive(sum(len(s.out_slots) for s in steps), k, tag, what)
        found: dict[str, Any] = {}
        for step in steps:
            parts = [arrays.pop(0) for _ in step.out_slots]
            found[step.name] = parts if step.many_out else parts[0]
        return found, number


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
    """``grad`` times ``share``, in its place: the accumulator fills that anew."""
    rows = grad.rows if isinstance(grad, RowSparse) else grad
    if share != 1.0:
        rows *= rows.dtype.type(share)
    return grad


class MicroBatchedStep:
    """Carries out what ``run`` does in the order ``ops``; a `Carrier`.

    Gradients are gathered by ``gather`` behind the loss scaling, if any, so that what comes of the
    walk is what the stages behind both take. ``joined`` is called with it: parameters may be on
    several stages.
    """

    holds = True

    def __init__(
        self,
        row: Communicator,
        run: StageRun,
        ops: Sequence[Op],
        request: StepRequest,
        gather: Accumulator,
        joined: Callable[[list[LayerGradients]], None],
    ) -> None:
        self._row, self._run, self._ops, self._request = row, run, ops, request
        self.net: Any = run.part
        self._joined = joined
        self._behind = UpdateChain(gather.optimizer)
        self._scaled = UpdateChain(request.optimizer).scaled
        around = gather if self._scaled is None else self._scaled.around(gather)
        self._chain = UpdateChain(around)
        self.loss = 0.0
        self.score: float | None = None

    @property
    def updated(self) -> bool:
        return self._behind.updated

    def norm(self) -> TwoPasses | None:
        """As `Carrier`; whether it is due all stages find out together."""
        norm = self._behind.norm
        return None if norm is None or norm.clip.knows else norm

    def rehearsed(self) -> AbstractContextManager[None]:
        """As `Carrier`: nothing comes twice."""
        return nullcontext()

    def walked(self, again: bool) -> Iterator[LayerGradients]:
        """As `Carrier`: what has been gathered of all micro-batches, as masters take it."""
        items: list[LayerGradients] = []
        for op in self._ops:
            if op.kind == "forward":
                self._run.forward(op.micro_batch, True)
            else:
                items += self._run.backward(op.micro_batch, self._request, self._chain)
        told = self._row.broadcast(self._run.told.as_array(), self._row.size - 1, "the loss")
        self.loss, self.score = float(told[0]), float(told[1]) if told[2] else None
        self._joined(items)
        items.reverse()
        return popped(items)

    def do(self, name: str, function: Callable[[], object]) -> None:
        function()

    def look(self, taken: FiniteCheck, layer: str, finite: Array) -> None:
        taken.look(layer, finite)

    def agree(self, taken: FiniteCheck) -> None:
        mine = np.array(float(taken.refused))
        if self._row.all_reduce(mine, what="whether all gradients are finite"):
            taken.look("of another stage", np.array(False))
        taken.agree()

    def knowing(
        self, norm: TwoPasses, items: Iterable[LayerGradients]
    ) -> AbstractContextManager[None]:
        """As `Carrier`: the norm of the gradients of all stages."""
        # A stage that trains nothing has gathered nothing, and knows by the others that it is due.
        due = norm.due()
        own = float(norm_of(norm.previewed(items))) ** 2 if due else 0.0
        told = np.array([own, float(due)])
        squares, those = self._row.all_reduce(told, what="the norm of the gradients").tolist()
        return norm.clip.knowing(float(np.sqrt(squares))) if those else nullcontext()

    def update(self, items: Iterable[LayerGradients]) -> None:
        """As `Carrier`: behind the loss scaling, which only rounds what was updated."""
        changed: list[str] = []

        def seen(item: LayerGradients) -> None:
            changed.extend(item.names)
            if self._request.on_layer is not None:
                self._request.on_layer(item)

        scaled = self._scaled
        if scaled is None:
            self._behind.apply(items, seen)
            return
        values = {param.name: param.value for param in self.net.params()}

        def rounded(scaled: ScaledUpdates) -> Iterator[LayerGradients]:
            """``items``, of which each is rounded once it was updated: averages follow that."""
            for item in items:
                yield item
                scaled.updated(item.names, [values[name] for name in item.names])

        self._behind.apply(rounded(scaled), seen)
        # What a reducer has updated in its end.
        scaled.updated(changed, [values[name] for name in changed])
