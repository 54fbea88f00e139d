"""The recording of one rehearsed step of a net."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.base.garbage import no_collections
from singanet.base.heap import small_pages
from singanet.engine.backward import BackwardWalk, arrays_in
from singanet.engine.fusion import fused
from singanet.engine.model import Measure
from singanet.engine.plan import Plan
from singanet.engine.step import tell
from singanet.engine.timeline import AllocationLog
from singanet.layers.kv_cache import KVCache
from singanet.layers.layer import Layer
from singanet.optimizer.chain import UpdateChain
from singanet.optimizer.reducer import Reduction
from singanet.params.grads import LayerGradients
from singanet.params.param import Param
from singanet.program.guard import Guard
from singanet.program.ir import (
    MarkName,
    NotRecordableError,
    Order,
    map_arrays,
    output_slots,
    zeros_in,
)
from singanet.program.trace.abstract import hollow
from singanet.program.trace.caches import ReplayCaches
from singanet.program.trace.foreign_code import expect_unpatched
from singanet.program.trace.kernels import recording_kernels
from singanet.program.trace.layers import RecordedLayer, own, recorded_plan
from singanet.program.trace.losses import (
    LossOfHead,
    LossStep,
    RecordedStep,
    RehearsedStep,
    by_slot,
    copies_shown,
    targets,
)
from singanet.program.trace.rules import Member, Numbers
from singanet.program.trace.sparse_rows import NarrowParameters, sources
from singanet.program.trace.tape import Tape, recording_on
from singanet.program.trace.updates import RecordedChain, watch_case
from singanet.program.trace.values import Draws
from singanet.types import Array, Shape

if TYPE_CHECKING:
    from singanet.engine.gradients import Asked
    from singanet.engine.net import Net
    from singanet.optimizer.optimizer import Optimizer
    from singanet.program.trace.stages import Master, StageLoss


Finish = Callable[[Mapping[str, Any], dict[str, Any]], dict[str, Any]]
"""A function of the feed and the outputs by name that makes the results for the caller."""


class Recorder:
    """The result of rehearsing a step: its tape, and the conditions of a replay.

    The net, its generator, its running state and its optimizer are unchanged afterwards. ``plan``,
    if given, is the part of the net's plan that is rehearsed.
    """

    def __init__(self, net: Net, plan: Plan | None = None) -> None:
        self.tape = Tape()
        xp = net.device.ops.xp
        self._arrays: type = xp.ndarray
        if xp is not np:
            from singanet.program.on_device.device_lowering import OnDevice

            self.tape.lowering = OnDevice(xp, self.tape.tokens, self.tape.folded)
        self.tape.ops = recording_kernels(net.device.ops, self.tape)
        self.tape.backend = net.device.ops
        # The net refers to its programs, so they have only a weak reference to it.
        proxy: Any = weakref.proxy(net)
        self.net: Net = proxy
        plan = plan or fused(net._execution_plan())
        for step in plan.steps:
            if step.layer.traits.sparse:
                raise NotRecordableError(
                    f"the sparse input {step.name!r}, whose entries are others in each batch"
                )
        self.plan: Plan = recorded_plan(plan, self.net, self.tape)
        self.numbers: list[Numbers] = []
        self.members: list[list[Member]] = []
        self.loss: LossStep | StageLoss | None = None
        self.reduction: Reduction | None = None
        self.caches: ReplayCaches | None = None
        self.of_loss = self.saw_values = False
        self.notes: list[str] = []
        self.shapes: dict[str, list[Shape]] = {}
        self.guard = Guard(net)
        params = net.params()
        self.held = NarrowParameters(self.net, params)
        with recording_on(self.tape), self.held.standing_in():
            self.params = [(param, param.value) for param in params]
        self.held.hold(self.tape)
        for param, value in self.params:
            if param.name not in self.held.by_name:
                self.tape.place(value)
            self.guard.param(param, value)
        for step in self.plan.steps:
            recorded: RecordedLayer = step.recorded  # type: ignore[attr-defined]
            layer = recorded.layer
            shared = any(id(param) in plan.apart for param in layer.params.values())
            # A layer must not look up rows again after their update.
            self.tape.wishes[step.owner] = False if shared else layer.recompute
            for one in recorded.inner:
                if isinstance(one, Layer):
                    self.guard.ties(one)

    @property
    def state(self) -> list[Param]:
        """The running state of the net."""
        return [param for param, _ in self.params if param.is_state and not param.is_constant]

    @property
    def undo_bytes(self) -> int:
        """Bytes of the copy of running state for a skipped step."""
        return 0 if self.loss is None else sum(param.nbytes for param in self.state)

    def evaluation(self, feed: Mapping[str, Any], finish: Finish | None = None) -> None:
        """Record a forward in evaluation and its outputs, converted by ``finish`` if given."""
        self._expect_unpatched()
        with self._running():
            given = self._fed(feed)
            outputs, _ = self.forward(given, train=False)
            self._hand_out(outputs if finish is None else finish(given, outputs))
        self.tape.drops_unread = True

    def read(
        self,
        feed: Mapping[str, Any],
        caches: Mapping[str, KVCache],
        last_of: Mapping[str, Collection[int]],
    ) -> None:
        """The next steps of sequences, whose earlier steps are in ``caches``, see `Plan.forward`.

        A replay reads and extends the caches that are in `caches` then.
        """
        self._expect_unpatched()
        self.caches = ReplayCaches(caches, self.tape)
        self.tape.ops.few = self.tape.few = True
        with self._running():
            given = self._fed(feed)
            outputs, _ = self.plan.forward(
                given,
                self.plan.outputs,
                self.tape.ops,
                self.draws(),
                False,
                pasts=self.caches.recorded(),  # type: ignore[arg-type]
                last_of=last_of,
            )
            self._hand_out(outputs)
        self.caches.forget()
        self.tape.drops_unread = True

    def step(self, feed: Mapping[str, Any], y: Any, weighted: Any, optimizer: Any) -> None:
        """A training step: forward, loss, backward with the updates."""
        self._expect_unpatched()
        chain = UpdateChain(optimizer)
        with recording_on(self.tape):
            updates = RecordedChain(self.tape, chain, self.guard, self._trained(), self.held)
        beside = targets(y, weighted, self._arrays)
        with self._running():
            given, beside = own(self.tape, (dict(feed), beside))
            self._take_in("feed", (given, beside))
            self.of_loss = True
            kind = LossStep if self.plan.head is None else LossOfHead
            self.loss = kind(self.net, self.plan, y, weighted)
            tell(RecordedStep(self, updates, given, beside), chain)
            # The batch is not kept; each replay has another.
            self.loss.seen.y = self.loss.seen.weight = None
        self.tape.drops_unread = chain._selects
        self._keep(updates)

    def stage_outputs(self, run: Any, asked: Collection[str]) -> None:
        """An evaluation by a pipeline's stage, which ``run`` carries out, of all micro-batches."""
        from singanet.program.trace.stages import StageCalls, StageLoss

        self._expect_unpatched()
        self.tape.is_blind = True
        with self._running():
            self._take_in("feed", ({},))
            on, count = StageCalls(self, run), range(len(run.cuts))
            self._hand_out({i: run.forward(on, i, False, asked) for i in count})
        self.loss = StageLoss(run)
        self.tape.drops_unread = True

    def stage(self, run: Any) -> None:
        """Record a step of a pipeline's stage, all its micro-batches; ``run`` carries it out."""
        from singanet.program.trace.stages import Master, RecordedStage

        self._expect_unpatched()
        told: UpdateChain = run.batch.chain
        chain = UpdateChain(run.batch.gather.optimizer)
        if run.batch.request.on_layer is not None:
            raise NotRecordableError("a caller's look at the gradients of each layer")
        if chain.norm is not None and not chain.norm.due():
            raise NotRecordableError("a step that is clipped later")
        # Arrays from other stages have no values here.
        self.tape.is_blind = True
        self.tape.wishes.clear()
        trained = self._trained()
        updated: list[Param | Master] = [*trained]
        if told.scaled is not None:
            watch_case(self.guard, told.scaled)
            # The stages behind have masters in the place of parameters.
            masters = [told.scaled.precision.settle(p.name, p.value) for p in trained]
            pairs = zip(trained, masters, strict=True)
            updated = [Master(param.name, array, param.storage) for param, array in pairs]
        with recording_on(self.tape):
            updates = RecordedChain(self.tape, chain, self.guard, updated, self.held)
        with self._running():
            self._take_in("feed", ({}, (None, None)))
            tell(RecordedStage(self, updates, run, updated), told)
        self.of_loss = run.is_last
        self.tape.drops_unread = chain._selects
        self._keep(updates)

    def rehearsed_step(self, feed: Mapping[str, Any], optimizer: Any) -> None:
        """Record a training step without targets, for its memory alone.

        The gradients of outputs are zeros; updates follow if there is an optimizer.
        """
        if optimizer is None:
            with self._running():
                for item in self.walked_by_zeros(self._fed(feed)):
                    del item
            return
        chain = UpdateChain(optimizer)
        with recording_on(self.tape):
            updates = RecordedChain(self.tape, chain, self.guard, self._trained(), self.held)
        with self._running():
            tell(RehearsedStep(self, updates, self._fed(feed)), chain)
        self.tape.drops_unread = chain._selects
        self._keep(updates)

    def _keep(self, updates: RecordedChain) -> None:
        self.numbers, self.members = updates.rule.numbers, updates.rule.members
        self.reduction = updates.reduction
        self.notes += updates.reasons

    def walked_by_zeros(self, fed: dict[str, Any]) -> Iterator[LayerGradients]:
        """Forward, and the walk back with gradients of zeros."""
        outputs, contexts = self.forward(fed, train=True)
        self.shapes = {
            step.name: [shape[1:] for shape in ctx.out_shapes]
            for step, ctx in zip(self.plan.steps, contexts, strict=True)
        }
        self.tape.layer, self.tape.phase = "", "loss"
        given = own(self.tape, map_arrays(outputs, self._no_gradient))
        self._take_in("dy", (given,), outputs)
        del outputs
        return self.backward(contexts, given)

    def count_copies(
        self, batch_size: int, extent: int | None, measure: Measure | None, recorded: bool
    ) -> None:
        """Count the copies of the outputs for a user's loss or ``measure``."""
        sizes = self.plan.slot_bytes(batch_size, self.net.dtype.itemsize, extent)
        shown = sum(sizes[slot] for slot in self.plan.slots_of(self.plan.outputs))
        self.tape.beside += copies_shown(measure, self.net.loss, recorded) * shown

    def _no_gradient(self, y: Array) -> Array:
        """Zeros in the form of the output ``y``, also for integers, which have no gradient."""
        dtype = y.dtype if y.dtype.kind == "f" else self.net.dtype
        return hollow(self.tape.like(y, dtype), 0)

    def passes(
        self, feed: Mapping[str, Any], orders: Mapping[int, Order], rule: Optimizer | None = None
    ) -> None:
        """Record a training forward and a backward, with a mark for every layer's gradients.

        ``orders`` are the layouts of the gradients of output slots. Raises `NotRecordableError` for
        a layer in Python: its context belongs to one forward, and a walk with other gradients runs
        the forward again.
        """
        self._expect_unpatched()
        self._expect_arrays()
        with self._running():
            outputs, contexts = self.forward(self._fed(feed), train=True)
            self._hand_out(outputs)
            # No kernel depends on values, so zeros are enough.
            slots = iter(output_slots(self.plan))
            dtype, by_name = self.net.dtype, self.plan.by_name
            floats = {n: y for n, y in outputs.items() if not by_name[n].gives_integers}
            zeros = map_arrays(floats, lambda y: zeros_in(orders[next(slots)], y.shape, dtype))
            given = own(self.tape, zeros)
            del outputs
            self._take_in("dy", (given,))
            for item in self.backward(contexts, given):
                grads, names = sources(item.grads), list(item.names)
                # The caller may update the parameters then, which no kernel may read afterwards.
                filled = [*item.values, *self._stored_state(rule, names)]
                self._mark("layer", (grads, item.layer, names), (grads,), filled)
                del item
        reasons = self._python_steps()
        if reasons:
            raise NotRecordableError(f"a caller's loop over {reasons[0]}")
        self.tape.interrupted = True

    def _stored_state(self, rule: Optimizer | None, names: list[str]) -> Iterator[Array]:
        """Yield the state of ``rule`` of the parameters ``names`` that is loaded as a whole."""
        for state in [] if rule is None else map(rule.state, names):
            self.tape.loads = max(self.tape.loads, state.part_bytes)
            if state.is_away and not state.rows:
                yield from (array for array in state.arrays if array.size)

    def gradients(self, asked: Asked) -> None:
        """Record the forward of a part of the net, and the backward with the ``asked`` gradients.

        Raises `NotRecordableError` for a layer in Python if the results are streamed: another
        request may come between them.
        """
        self._expect_unpatched()
        if asked.streamed:
            self._expect_arrays()
        plan, ops = self.plan, self.tape.ops
        with self._running():
            beside = targets(asked.targets, asked.weight, self._arrays)
            given, beside = own(self.tape, (dict(asked.feed), beside))
            self._take_in("feed", (given, beside))
            outputs, contexts = plan.forward(given, asked.seen, ops, self.draws(), asked.train)
            of_loss: dict[int, Array] = {}
            if asked.of_loss:
                self.of_loss = True
                self.loss = LossStep(self.net, plan, asked.targets, asked.weight)
                single = self.single({name: outputs[name] for name in plan.outputs})
                y, weight = beside
                dy = self.loss.record(self.tape, single, y, weight, looks=False)
                of_loss = by_slot(plan, dy)
                del single, dy
                self.loss.seen.y = self.loss.seen.weight = None
            shapes = [asked.shape_of(head, outputs) for head in asked.heads]
            made = [np.ones(shape, self.net.dtype) for shape in ((), *shapes)]
            scale, *dys = own(self.tape, made)
            self._take_in("dy", (scale, dys))
            start = asked.start(of_loss, scale, dys, ops)
            del outputs, of_loss, dys
            walk = BackwardWalk(plan, contexts, start, asked.wanted)
            del contexts
            for item in asked.answers(walk):
                grads, names = sources(item.grads), list(item.names)
                values = list(item.values) if asked.streamed else []
                found = grads, item.output_grads
                self._mark("layer", (grads, item.layer, names, item.output_grads), found, values)
                del item, found
        reasons = self._python_steps() if asked.streamed else []
        if reasons:
            raise NotRecordableError(f"a caller's loop over {reasons[0]}")
        self.tape.interrupted = asked.streamed
        self.tape.drops_unread = True

    def _expect_arrays(self) -> None:
        """Raises `NotRecordableError` if a caller would get a placeholder for an array."""
        if any(param.name in self.held for param in self._trained()):
            raise NotRecordableError("a caller's loop over weights that are held in fewer bits")

    def _python_steps(self) -> list[str]:
        """The layers that run in Python, and why."""
        layers: list[RecordedLayer] = [step.recorded for step in self.plan.steps]  # type: ignore[attr-defined]
        return [f"layer {one.name!r}, {one.reasons[0]}" for one in layers if one.reasons]

    def forget_params(self) -> None:
        """Keep no arrays of constants alive, which no replay asks for."""
        self.params, self.guard = [], Guard(self.net)

    def finish(self) -> frozenset[int]:
        """Collect notes and the guard's conditions; return the ids of the net's arrays.

        Call it once, since the kernels are dropped.
        """
        for step in self.plan.steps:
            recorded: RecordedLayer = step.recorded  # type: ignore[attr-defined]
            self.notes += [f"layer {step.owner!r}, {reason}" for reason in recorded.reasons]
            if not recorded.reasons:
                self.guard.part(recorded.layer, recorded.inner)
        loss = self.net.loss if self.of_loss else None
        if self.loss is not None and self.loss.note:
            self.notes.append(self.loss.note)
        elif loss is not None:
            self.guard.part(loss)
        self.tape.beside += self.held.lent
        # A step of two passes has recorded each layer twice.
        self.notes = list(dict.fromkeys(self.notes))
        # Kernels and tape refer to each other; dropping them here needs no garbage collector.
        self.saw_values = self.tape.values is not None
        self.tape.ops = self.tape.values = None
        self.tape.fed.clear()
        return frozenset((*(id(value) for _, value in self.params), *self.held.sizes()))

    def _expect_unpatched(self) -> None:
        for step in self.plan.steps:
            if not step.recorded.own:  # type: ignore[attr-defined]
                expect_unpatched(step.recorded.layer)  # type: ignore[attr-defined]

    @contextmanager
    def _running(self) -> Iterator[None]:
        # Trials on arbitrary values may overflow.
        with self.net.rehearsal(), recording_on(self.tape), np.errstate(all="ignore"):
            yield

    def _fed(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        given: dict[str, Any] = own(self.tape, dict(feed))
        self._take_in("feed", (given,))
        return given

    def forward(self, given: dict[str, Any], train: bool) -> tuple[dict[str, Any], list[Any]]:
        """Return outputs by name, and the layers' contexts."""
        outputs: Any = self.plan.outputs
        return self.plan.forward(given, outputs, self.tape.ops, self.draws(), train)

    def draws(self) -> Any:
        """Return the generator of layers."""
        return Draws(self.net)

    def single(self, outputs: dict[str, Any]) -> Any:
        """``outputs`` by name, or the array of the only one."""
        return outputs[self.plan.outputs[0]] if len(self.plan.outputs) == 1 else outputs

    def backward(self, contexts: list[Any], dy: Mapping[str, Any]) -> Iterator[LayerGradients]:
        """The walk back from the gradients ``dy`` of outputs by name."""
        return BackwardWalk(self.plan, contexts, by_slot(self.plan, dy), ()).run()

    def _trained(self) -> list[Param]:
        """The parameters that the walk back from the outputs trains."""
        slots = [slot for name in self.plan.outputs for slot in self.plan.by_name[name].out_slots]
        return self.plan._params_of(self.plan.backward(slots, ()))

    def _take_in(self, name: MarkName, given: Any, seen: Any = ()) -> None:
        """Add the mark at which the caller fills the arrays of ``given``, after ``seen``."""
        filled = arrays_in(given)
        if not all(array.size for array in filled):
            # Loops over samples that run no time leave arrays that nobody writes.
            raise NotRecordableError("a batch of no samples")
        self._mark(name, given, seen, filled)

    def _hand_out(self, given: Any) -> None:
        """Add the mark at which the caller reads the arrays of ``given``."""
        self._mark("outputs", (given,), (given,), [])

    def _mark(
        self, name: MarkName, payload: tuple[Any, ...], read: Any, filled: list[Array]
    ) -> None:
        call = self.tape.add(_nothing, (read,), {}, filled, "hidden", name=name)
        call.function = None
        call.arguments = map_arrays(payload, self.tape.ref)
        call.barrier = True


def rehearse(
    net: Net,
    record: Callable[[Recorder], None],
    plan: Plan | None = None,
    log: AllocationLog | None = None,
) -> Recorder:
    """Run ``record`` on a new recorder of ``net``.

    ``plan`` is a part of the net's, None for all of it; ``log`` notes the memory of a step by the
    layers. Raises `NotRecordableError`, and the net's own errors.
    """
    with no_collections():
        recorder = Recorder(net, plan)
        recorder.tape.log = log
        with small_pages(), recorder.held.standing_in():
            record(recorder)
    return recorder


def _nothing() -> None:
    """The function of a mark."""
