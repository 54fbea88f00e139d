"""One stage's part of a step: micro-batches forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from singanet.engine.backward import BackwardWalk
from singanet.engine.counts import Counts
from singanet.engine.fusion import fused
from singanet.engine.model import StepRequest
from singanet.engine.passes import LayerPass
from singanet.engine.step import Seen, expected_loss, gradients_of_loss
from singanet.ops.kernel import widened
from singanet.optimizer.chain import UpdateChain
from singanet.parallel.pipeline.part import StagePart
from singanet.parallel.pipeline.wire import BACKWARD, FORWARD, Wire
from singanet.params.gradients import LayerGradients
from singanet.types import Array, RowSparse


@dataclass
class Told:
    """Sums over the micro-batches that the last stage has seen: losses, counts and the score.

    Scores weigh by samples; without a score it is None.
    """

    losses: dict[str, tuple[float, float]] = field(default_factory=dict)
    score: float | None = 0.0
    samples: float = 0.0

    def add(self, loss: Any, seen: Seen, counts: Counts) -> None:
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
        net = part.net.execution_plan()
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
        gather: Any = next(stage for stage in chain.stages if stage.gathers)
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
        seen = Seen(y, request.measure, weight, self._whole)
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
