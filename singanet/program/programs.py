"""A net's programs: recorded at the second call of a shape, replayed from then on."""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from typing import TYPE_CHECKING, Any, cast

from singanet.base.described import changes, shown
from singanet.base.heap import large_arrays_apart, trim
from singanet.base.processes import free_in_children
from singanet.base.terms import RECORDED, expect_met
from singanet.engine.backward import Pass
from singanet.engine.executor import (
    RECORDING,
    Capabilities,
    LayerByLayer,
    forward_of_step,
    plan_of_step,
)
from singanet.engine.feeds import check_feed
from singanet.engine.fusion import fused
from singanet.engine.model import StepRequest, looks_of
from singanet.engine.recompute.recomputer import Recomputer
from singanet.errors import CallOrderError
from singanet.layers.kv_cache import most
from singanet.loss.head_loss import FEWEST_ROWS
from singanet.params.grads import LayerGradients
from singanet.program.ir import Order, is_dense, order_of, output_slots
from singanet.program.replay.shared_arena import SharedArena, WarmUpPolicy, facts, facts_of_feed
from singanet.types import Array

if TYPE_CHECKING:
    from singanet.engine.gradients import Asked
    from singanet.engine.net import Net
    from singanet.engine.plan import Plan
    from singanet.layers.kv_cache import KVCache
    from singanet.optimizer.chain import UpdateChain
    from singanet.optimizer.optimizer import Optimizer
    from singanet.params.narrow import NarrowWeights
    from singanet.program.loads import ArrayStore
    from singanet.program.recompute import Recompute
    from singanet.program.replay.replay import Replay
    from singanet.program.report import ProgramReport
    from singanet.program.trace.recorder import Recorder

_NO_WAIT = WarmUpPolicy()
_RECORDS = Capabilities(RECORDING)
CAPACITY = 8
"""The maximum number of programs of a net.

They are for full and last batches, in training, validation and inference. A decoder's reads may be
four times as many.
"""


def programs_of(net: Net) -> Programs:
    """The programs of ``net``. Errors: `CallOrderError` for a net of another executor."""
    expect_met("net.programs", (RECORDED,), net.executor.can.terms)
    return cast("Programs", net.executor)


class Programs:
    """Recorded programs of a net by their arguments, and one arena that they use in turn.

    A call is recorded at its second run, or at its first with ``at_once``, which saves the memory
    of a first run by the layers.

    Args:
        enabled: Whether to record. If False, every call runs the layers.
        recompute: Recomputation in training, see `FeedForwardNet.record`.
        held: Whether the net's weights are quantized or bfloat16.
    """

    placed = None

    def __init__(
        self, enabled: bool = True, recompute: Recompute = "none", held: bool = False
    ) -> None:
        self.enabled = enabled
        self.at_once = False
        self.spills: ArrayStore | None = None
        self._recomputer = Recomputer(recompute)
        # By kind of call and arrays. An accumulating optimizer has several programs per key: their
        # guards select one.
        self._known: dict[Any, list[Replay]] = {}
        self._uses = count()
        # The calls so far, and whether each has run only once.
        self._seen: OrderedDict[Any, bool] = OrderedDict()
        self._refused: dict[Any, tuple[str, int | None]] = {}
        self._waits: dict[Any, WarmUpPolicy] = {}
        self._arena = SharedArena()
        self._backend: type | None = None
        self._layers = LayerByLayer(self._recomputer)
        self.can = _RECORDS
        # The forms of the arrays that other stages send, by the step's key and the array's name.
        self._forms: dict[Any, dict[Any, list[Any]]] = {}
        self.hold(held)
        self._orders: dict[int, Order] = {}
        self._held: list[NarrowWeights] = []
        self._held_at: tuple[int, int] = (-1, -1)
        # The lock for changes of the caches: threads may predict with one net.
        self._changing = free_in_children(threading.Lock())
        # The thread that runs a step: functions that the step calls, such as a measure, cannot
        # step.
        self._stepping: int | None = None

    def __repr__(self) -> str:
        count = sum(map(len, self._known.values()))
        settings = {"enabled": self.enabled, "recompute": self.recompute}
        return shown("Programs", settings, f"{count} recorded")

    def __deepcopy__(self, memo: dict[int, Any]) -> Programs:
        """Return programs without recordings, which belong to the arrays of the copied net."""
        made = Programs(self.enabled, self.recompute, self.can.holds)
        made.at_once = self.at_once
        return made

    def __reduce__(self) -> Any:
        return (Programs, (self.enabled, self.recompute, self.can.holds))

    def hold(self, held: bool) -> None:
        """Run a net with narrow weights if ``held``, else one whose weights are arrays."""
        if held == self.can.holds:
            return
        if held:
            from singanet.engine.holding import Holding

            self._layers = Holding(self._recomputer)
        else:
            self._layers = LayerByLayer(self._recomputer)
        self.can = self._layers.can if held else _RECORDS
        self.clear()

    @property
    def recompute(self) -> Recompute:
        """The level of recomputation of training steps, see `FeedForwardNet.record`.

        Errors: an unknown level.
        """
        return self._recomputer.level

    @recompute.setter
    def recompute(self, value: Recompute) -> None:
        self._recomputer.level = self.level("net.programs", value)

    def follow(self, other: Programs) -> None:
        """Copy the settings of ``other``."""
        self.enabled, self._recomputer.level = other.enabled, other._recomputer.level
        self.hold(other.can.holds)

    def level(self, where: str, value: Recompute | None) -> Recompute:
        """Return ``value``, or for None the level of these programs.

        Errors name the argument ``where``. Errors: `ArgumentError` for another level.
        """
        from singanet.program.recompute import checked_recompute

        return self.recompute if value is None else checked_recompute(where, value)

    def _records_at_once(self, net: Net) -> bool:
        """Whether a call is recorded at its first run."""
        # The layers would not round the arrays that programs store in bfloat16.
        return self.at_once or getattr(net.device.ops, "stores", False)

    def evaluate(
        self,
        net: Net,
        feed: Mapping[str, Any],
        asked: tuple[str, ...],
        other: Plan | None = None,
    ) -> dict[str, Any]:
        """Compute outputs of ``net`` and of layers ``asked`` for ``feed``, by a program or layers.

        With a plan ``other`` than the net's, the layers run.
        """
        if other is not None and self.at_once:
            # The layers' arrays would be in memory in addition to the arena of the steps.
            self._let_go()
            self._arena.clear()
            trim()
        if asked or other is not None:
            return self._layers.evaluate(net, feed, asked, other)
        found = self._program_of_evaluation(net, feed)
        if found is None:
            with self._before_recording(self._was_first(self._key_of_evaluation(net, feed))):
                return self._layers.evaluate(net, feed, asked)
        arena = self.take(found)
        try:
            outputs: dict[str, Any] = found.outputs(arena, feed)
            return outputs
        finally:
            self.give_back(arena)

    def read(
        self,
        net: Net,
        plan: Plan,
        feed: Mapping[Any, Any],
        caches: Mapping[str, KVCache],
        last_of: Mapping[str, Collection[int]],
    ) -> dict[str, Any] | None:
        """Compute outputs of ``net`` at the next steps ``feed`` by a program; None without one.

        ``caches`` have the earlier steps of the sequences, and are extended. ``plan`` and
        ``last_of`` are as in `Plan.forward`.
        """
        ops, starts = net.device.ops, next(iter(caches.values())).starts
        if not ops.on_host or getattr(ops, "stores", False):
            return None
        kind = isinstance(starts, int), most(starts) > 0, frozenset(last_of.items())
        key = self._key(net, "read", *kind, frozenset(feed), facts_of_feed(feed))
        found = self._find(net, key, lambda r: r.read(feed, caches, last_of), plan=plan)
        if found is None:
            return None
        arena = self.take(found)
        try:
            return found.read(arena, feed, caches)
        finally:
            self.give_back(arena)

    def _key_of_evaluation(self, net: Net, feed: Mapping[str, Any]) -> Any:
        return self._key(net, "evaluation", facts_of_feed(feed))

    def _program_of_evaluation(self, net: Net, feed: Mapping[str, Any]) -> Replay | None:
        """Return the program that computes the outputs for ``feed``, None if there is none."""
        return self._find(net, self._key_of_evaluation(net, feed), lambda r: r.evaluation(feed))

    def forward(
        self,
        net: Net,
        feed: Mapping[str, Any],
        asked: tuple[str, ...],
        other: Plan | None = None,
    ) -> Pass:
        """Run a training forward of ``net`` on ``feed``, by a program if one exists.

        With layers ``asked``, or a plan ``other`` than the net's, the layers run.
        """
        made = None if other is not None or asked else self._passes(net, feed)
        if made is not None:
            return made
        walked = self._walked if other is None else None
        return self._layers.forward(net, feed, asked, walked, other=other)

    def _passes(
        self,
        net: Net,
        feed: Mapping[str, Any],
        turn: Callable[[], AbstractContextManager[object]] = nullcontext,
        rule: Optimizer | None = None,
    ) -> Pass | None:
        """Return the pass of a training forward of ``net`` on ``feed``; None without a program.

        Each item's calls are made in one ``turn``. Stored state of ``rule`` is loaded while the
        caller uses a layer's gradients.
        """
        # The order of sums, and so the last bit, depends on the layout of gradients.
        orders = {slot: self._orders.get(slot) for slot in output_slots(net._execution_plan())}
        found = self._find(
            net,
            self._key(net, "passes", self.recompute, *orders.values(), facts_of_feed(feed)),
            lambda r: r.passes(feed, orders, rule),
            recompute=self.recompute,
        )
        if found is None:
            return None
        from singanet.program.replay.passes import ReplayedPass

        arena = self.take(found)
        return ReplayedPass(net, found, arena, feed, orders, self.give_back, self._walked, turn)

    def _walked(self, slot_grads: Mapping[int, Array]) -> None:
        """Store the layouts of the gradients that a walk by the layers started from."""
        for slot, grad in slot_grads.items():
            order = order_of(grad)
            self._orders[slot] = order if is_dense(order) else None

    def step(self, net: Net, request: StepRequest) -> tuple[float, float | None]:
        """Take the training step ``request`` of ``net``, by a program if one exists."""
        thread = threading.get_ident()
        if self._stepping == thread:
            self._expect_no_step_below()
        try:
            self._stepping = thread
            return self._step(net, request)
        finally:
            self._stepping = None

    def _expect_no_step_below(self) -> None:
        """Refuse a step within another step of this thread, for example by its measure."""
        # An interrupt may have come between the end of a step and the reset of the flag.
        frame: Any = sys._getframe(1)
        code = frame.f_code
        while frame := frame.f_back:
            if frame.f_code is code and frame.f_locals["self"] is self:
                raise CallOrderError(
                    "net.step",
                    expected="no other step of the net under way",
                    received="a call from within one, by its measure or on_layer",
                    advice="step after it has returned, or step a copy.deepcopy of the net",
                )

    def _step(self, net: Net, request: StepRequest) -> tuple[float, float | None]:
        if not (self.enabled and net._passes_are_its_own):
            return self._layers.step(net, request)
        x, y, optimizer, weight, measure, on_layer = request
        chain = self._layers.register(net, optimizer)
        if net.executor is not self:
            # A stage has given the net another executor.
            return net.executor.step(net, request)
        of_step = self._key_of_step(net, request)
        # Arrays of the recorded kinds need no conversion.
        key = of_step, facts(x)
        found = None if on_layer is not None else self._known_to_hold(net, key)
        if found is None:
            feed = x = check_feed(net._execution_plan(), x, net.device, net.dtype)
            found = self._program_of_step(net, feed, request, chain)
            if found is None:
                by_layers = on_layer is not None or chain.knows_norm()
                key = of_step, facts_of_feed(feed)
                first = not by_layers and self._was_first(key, chain.case())
                # Recorded passes for steps that no program can contain.
                alone = by_layers or chain._holds_all or bool(chain.reducers)
                forward = self.forward if alone else self._layers.forward
                run = forward_of_step(forward, net, feed, request, chain)
                with self._before_recording(first):
                    return self._layers.train(net, run, request, chain)
        arena = self.take(found)
        try:
            return found.step(arena, x, y, weight, measure)
        finally:
            if not found.under_way:
                self.give_back(arena)

    def _stage(
        self, part: Any, run: Any, by_layers: Callable[[], Any], asked: tuple[str, ...] = ()
    ) -> Any:
        """Replay what ``run`` is to do on the stage ``part`` of a pipeline, or do it ``by_layers``.

        It is a step, or an evaluation with the outputs of layers ``asked``. Arrays from other
        stages have the shapes and types of the step that ran by the layers.
        """
        batch, ops = run.batch, part.net.device.ops
        if not ops.on_host or getattr(ops, "stores", False):
            return by_layers()
        of_call: tuple[Any, ...] = asked
        optimizer, case, request = None, cast("Hashable", ()), batch.request
        if request is not None:
            from singanet.optimizer.chain import UpdateChain

            optimizer, scaled = batch.gather.optimizer, batch.chain.scaled
            case = UpdateChain(optimizer).case(), scaled and scaled.case()
            trained = part.net._execution_plan().settings().trained
            beside = facts(request.y), facts(request.weight), request.on_layer is not None
            of_call = id(optimizer), trained, run.asked, *beside
        key = self._key(part, "stage", run.ops, *of_call, facts_of_feed(batch.feed))
        self._forms[key] = run.forms = self._forms.pop(key, {})
        if len(self._forms) > 4 * CAPACITY:
            del self._forms[next(iter(self._forms))]
        found = self._find(
            part,
            key,
            lambda r: r.stage_outputs(run, asked) if request is None else r.stage(run),
            optimizer,
            plan=fused(part._execution_plan(), asked),
            case=case,
        )
        if found is None:
            with self._before_recording(self._was_first(key, case)):
                return by_layers()
        arena = self.take(found)
        try:
            return found.stage(arena, batch)
        finally:
            if not found.under_way:
                self.give_back(arena)

    def gradients(self, net: Net, asked: Asked) -> Iterator[LayerGradients]:
        """Yield the gradients ``asked`` of ``net``, by a program if one exists."""
        return self._answers(net, asked) or self._layers.gradients(net, asked)

    def _answers(
        self,
        net: Net,
        asked: Asked,
        turn: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> Iterator[LayerGradients] | None:
        """Return the gradients ``asked`` of ``net`` as a program yields them; None without one.

        Its calls are made in a ``turn`` each.
        """
        given = facts_of_feed(asked.feed), facts(asked.targets), facts(asked.weight)
        key = self._key(net, "gradients", *asked.key, *given)
        found = self._find(net, key, lambda r: r.gradients(asked), plan=asked.plan)
        if found is None:
            return None
        from singanet.program.replay.passes import replayed_gradients

        return replayed_gradients(net, found, asked, self.take, self.give_back, turn)

    def register(self, net: Net, optimizer: Any) -> UpdateChain:
        """Return the chain of ``optimizer`` for ``net``, as `LayerByLayer.register`."""
        return self._layers.register(net, optimizer)

    def _key_of_step(self, net: Net, request: StepRequest) -> Any:
        _, y, optimizer, weight, measure, _ = request
        # Most steps have no weights and few targets, and each call takes long. Of few the head
        # and its loss never go by blocks of rows.
        weighed = None if weight is None else facts(weight)
        many = measure is not None and getattr(y, "size", 0) > FEWEST_ROWS
        looks = looks_of(measure) if many else ()
        of_step = id(optimizer), self._recomputer.level, facts(y), weighed, looks
        return self._key(net, "step", *of_step)

    def _program_of_step(
        self, net: Net, feed: Mapping[str, Any], request: StepRequest, chain: UpdateChain
    ) -> Replay | None:
        """Return the program of the step ``request`` on ``feed``, None if there is none."""
        if request.on_layer is not None or chain.knows_norm():
            return None
        y, optimizer, weight, case = request.y, request.optimizer, request.weight, chain.case()
        plan = plan_of_step(net, request)
        return self._find(
            net,
            (self._key_of_step(net, request), facts_of_feed(feed)),
            lambda r: r.step(feed, y, weight, optimizer),
            optimizer,
            # A step by the layers would exceed the memory limit.
            at_once=self.recompute != "none",
            recompute=self.recompute,
            case=case,
            plan=None if plan is None else fused(plan),
        )

    def reports(self) -> list[ProgramReport]:
        """The reports of the programs, the one used last at the end."""
        return [each.report() for _, each in sorted(self._every(), key=lambda pair: pair[1].used)]

    @property
    def notes(self) -> list[str]:
        """The Python steps of the programs, with reasons."""
        told = [note for _, replay in self._every() for note in replay.notes]
        return list(dict.fromkeys(told))

    @property
    def refusals(self) -> list[str]:
        """The reasons why calls are not recorded."""
        return [reason for reason, _ in self._refused.values()]

    def clear(self) -> None:
        """Forget every program, and free the arena."""
        self._known.clear()
        self._seen.clear()
        self._refused.clear()
        self._waits.clear()
        self._forms.clear()
        self._arena.clear()

    def _every(self) -> list[tuple[Any, Replay]]:
        return [(key, each) for key, programs in [*self._known.items()] for each in [*programs]]

    def _key(self, net: Net, *of_call: Any) -> Any:
        return (*of_call, threading.get_ident(), net.device.ops.settings())

    def _known_to_hold(self, net: Net, key: Any) -> Replay | None:
        """The program of ``key`` that is the net's as it is now, counted as used once more."""
        if self.can.holds:
            # Kernels read the narrow weights, so changes of float32 copies are stored first.
            for storage in self._narrow(net):
                storage.settle(None)
        for program in self._known.get(key, ()):
            if not program.stale(net):
                program.use(next(self._uses))
                return program
        return None

    def _narrow(self, net: Net) -> list[NarrowWeights]:
        """The narrow weights, found again after a change."""
        known = net.version, changes.now
        if self._held_at != known:
            # Imported late: it imports all file formats.
            from singanet.params.narrow import NarrowWeights

            kept = [param.storage for param in net.params()]
            self._held = [each for each in kept if isinstance(each, NarrowWeights)]
            self._held_at = known
        return self._held

    def _find(
        self,
        net: Net,
        key: Any,
        record: Callable[[Recorder], None],
        optimizer: Any = None,
        at_once: bool = False,
        recompute: Recompute = "none",
        plan: Plan | None = None,
        case: Hashable = (),
    ) -> Replay | None:
        """The program of ``key``, recorded now if the call came before or ``at_once``.

        Calls of one key that need programs of their own differ in their ``case``.
        """
        if not self.enabled:
            return None
        found = self._known_to_hold(net, key)
        if found is not None:
            return found
        at_once = at_once or self._records_at_once(net)
        this = key, case
        for program in self._known.get(key, ()):
            if program.lost and program.case != case:
                # It refers to the old arrays, which new ones have replaced.
                self._drop(key, program)
        if self._is_refused(this):
            return None
        for program in self._known.get(key, ()):
            if program.case == case:
                self._drop(key, program)
                self._waits.setdefault(this, WarmUpPolicy()).start(program.replays)
                if not at_once:
                    return None
                break
        if not at_once and (self._is_new(this) or self._waits.get(this, _NO_WAIT).goes_on()):
            return None
        from singanet.program.replay.replay import recorded

        # Its arrays have no values; freed, they would fragment the memory of kernels.
        with large_arrays_apart():
            made = recorded(net, record, optimizer, recompute, plan, self.spills)
        if isinstance(made, str):
            self._refused[this] = made, changes.now
            return None
        self._refused.pop(this, None)
        made.case = case
        made.use(next(self._uses))
        with self._changing:
            self._known.setdefault(key, []).append(made)
        # Reads of a decoder have more shapes, and do not displace steps.
        reads = key[0] == "read"
        every = [each for each in self._every() if (each[0][0] == "read") == reads]
        if len(every) > (4 * CAPACITY if reads else CAPACITY):
            self._drop(*min(every, key=lambda each: each[1].used))
        return made

    def _drop(self, key: Any, program: Replay) -> None:
        """Forget the program, unless another thread did."""
        with self._changing:
            rest = [each for each in self._known.get(key, ()) if each is not program]
            if rest:
                self._known[key] = rest
            else:
                self._known.pop(key, None)

    def _was_first(self, key: Any, case: Hashable = ()) -> bool:
        """Whether the call came for the first time, and a program of it has room."""
        return self.enabled and len(self._seen) <= CAPACITY and self._seen.get((key, case), False)

    def _before_recording(self, first: bool) -> AbstractContextManager[None]:
        """A block around a call by the layers; at the ``first`` call its memory is freed at once.

        The program that follows needs none of it, and holes in the C library's heap are not
        counted. The arenas of others, such as other micro-batches, are freed too. Later calls by
        the layers reuse memory, which is faster.
        """
        if not first:
            return nullcontext()
        self._let_go()
        self._arena.clear()
        return large_arrays_apart()

    def _is_new(self, key: Any) -> bool:
        """Whether the call comes for the first time, among the cached ones."""
        with self._changing:
            new = key not in self._seen
            self._seen[key] = new
            self._seen.move_to_end(key)
            if len(self._seen) > 4 * CAPACITY:
                self._seen.popitem(last=False)
        return new

    def _is_refused(self, key: Any) -> bool:
        """Whether the call was refused, and nothing was assigned since."""
        why, seen = self._refused.get(key, ("", None))
        if seen == changes.now:
            return True
        if seen is not None:
            # Try again after a while; until then the reason stays.
            self._refused[key] = why, None
            self._waits.setdefault(key, WarmUpPolicy()).start(0)
        return False

    def take(self, program: Replay) -> Array:
        """Memory for ``program``; until it is given back no other program gets it."""
        lowering = program.recording.lowering
        if type(lowering) is not self._backend:
            # The net was moved: the arena is another device's.
            self._let_go()
            self._arena.clear()
            self._backend = type(lowering)
        return self._arena.take(
            program.arena_bytes, self._let_go, program.has_holes, lowering.memory
        )

    def _let_go(self) -> None:
        """Unbind every program from its memory."""
        for _, program in self._every():
            program.forget()

    def give_back(self, arena: Array) -> None:
        """Let the next replay use ``arena``."""
        self._arena.give_back(arena)
