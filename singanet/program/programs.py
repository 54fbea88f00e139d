"""A net's programs: recorded at the second call of a shape, replayed from then on."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.base.edits import changes
from singanet.engine.executor import LayerByLayer
from singanet.engine.feeds import check_feed
from singanet.engine.model import StepRequest
from singanet.engine.passes import Pass
from singanet.engine.recompute.by_layers import Recomputer
from singanet.errors import CallOrderError
from singanet.params.gradients import LayerGradients
from singanet.program.orders import Order, is_dense, order_of, output_slots
from singanet.program.replay.shared_arena import SharedArena
from singanet.program.replay.signature import Latest, shapes_of_feed, shapes_of_targets
from singanet.program.replay.wait import Wait
from singanet.types import Array

if TYPE_CHECKING:
    from singanet.engine.gradients import Asked
    from singanet.engine.net import Net
    from singanet.engine.plan import Plan
    from singanet.program.recompute.choice import Recompute
    from singanet.program.replay.replay import Replay
    from singanet.program.report.report import ProgramReport
    from singanet.program.trace.recorder import Recorder

_NO_WAIT = Wait()
CAPACITY = 8
"""Programs that a net keeps: full and last batches, of training, validation and inference."""


_TURNS = 3
"""Steps that are known without a lookup: the first, those between, and the last of several."""


def programs_of(net: Net) -> Programs:
    """The programs of ``net``. Errors: `CallOrderError` for one that runs by its layers alone."""
    if not isinstance(net.programs, Programs):
        raise CallOrderError(
            "net.programs",
            expected="a net whose steps are recorded",
            received=f"one that is carried out by a {type(net.programs).__name__}",
            advice="build a singanet.FeedForwardNet",
        )
    return net.programs


class Programs:
    """Programs by what determines them, and one arena that they take turns with.

    A call is recorded when it comes again. Where ``enabled`` is False every call runs the layers.
    """

    def __init__(self, enabled: bool = True, recompute: Recompute = "none") -> None:
        self.enabled = enabled
        self._recomputer = Recomputer(recompute)
        self._known: dict[Any, Replay] = {}
        # By numbers, since the keys of programs take long to look up.
        self._uses = count()
        self._seen: OrderedDict[Any, None] = OrderedDict()
        self._refused: dict[Any, tuple[str, int | None]] = {}
        self._waits: dict[Any, Wait] = {}
        self._arena = SharedArena()
        self._layers = LayerByLayer(self._recomputer)
        self._orders: dict[int, Order] = {}
        self._latest: tuple[Latest, ...] = ()

    def __deepcopy__(self, memo: dict[int, Any]) -> Programs:
        """None of them: they belong to the arrays of the net that was copied."""
        return Programs(self.enabled, self.recompute)

    def __reduce__(self) -> Any:
        return (Programs, (self.enabled, self.recompute))

    @property
    def recompute(self) -> Recompute:
        """What training steps make again to need less memory, see `FeedForwardNet.record`.

        Errors: what is no level.
        """
        return self._recomputer.level

    @recompute.setter
    def recompute(self, value: Recompute) -> None:
        self._recomputer.level = self.level("net.programs", value)

    def level(self, where: str, value: Recompute | None) -> Recompute:
        """``value``, or for None that of these programs. Errors: what is no level."""
        from singanet.program.recompute.choice import checked_recompute

        return self.recompute if value is None else checked_recompute(where, value)

    def evaluate(self, net: Net, feed: Mapping[str, Any], asked: tuple[str, ...]) -> dict[str, Any]:
        """As `Executor`: replayed where a program is there."""
        found = None
        if not asked:
            key = ("evaluation", *shapes_of_feed(feed))
            found = self._find(net, key, lambda r: r.evaluation(feed))
        if found is None:
            return self._layers.evaluate(net, feed, asked)
        arena = self.take(found)
        try:
            outputs: dict[str, Any] = found.outputs(arena, feed)
            return outputs
        finally:
            self.give_back(arena)

    def forward(self, net: Net, feed: Mapping[str, Any], asked: tuple[str, ...]) -> Pass:
        """As `Executor`: replayed where a program is there."""
        # The order of sums, and so the last bit, depends on how gradients lie.
        orders = {slot: self._orders.get(slot) for slot in output_slots(net.plan())}
        found = None
        if not asked:
            found = self._find(
                net,
                ("passes", self.recompute, *orders.values(), *shapes_of_feed(feed)),
                lambda r: r.passes(feed, orders),
                recompute=self.recompute,
            )
        if found is None:
            return self._layers.forward(net, feed, asked, self._walked)
        from singanet.program.replay.replayed_pass import ReplayedPass

        arena = self.take(found)
        return ReplayedPass(net, found, arena, feed, orders, self.give_back, self._walked)

    def _walked(self, slot_grads: Mapping[int, Array]) -> None:
        """Remember how the gradients lay that a walk by the layers started from."""
        for slot, grad in slot_grads.items():
            order = order_of(grad)
            self._orders[slot] = order if is_dense(order) else None

    def step(self, net: Net, request: StepRequest) -> tuple[float, float | None]:
        """As `Executor`: replayed where a program is there and nobody looks at the gradients."""
        if not (self.enabled and net.passes_are_its_own):
            return self._layers.step(net, request)
        x, y, optimizer, weight, measure, on_layer = request
        settings = net.device.ops.settings()
        if on_layer is None and weight is None:
            for latest in self._latest:
                if not latest.alike(x, y, optimizer, self.recompute, settings):
                    continue
                program = latest.program
                if program.stale(net):
                    continue
                if latest is not self._latest[0]:
                    others = (other for other in self._latest if other is not latest)
                    self._latest = (latest, *others)
                program.use(next(self._uses))
                arena = self.take(program)
                try:
                    return program.step_alike(arena, x, y, measure)
                finally:
                    self.give_back(arena)
        from singanet.optimizer.stages import by_passes, needs_all_gradients

        feed = check_feed(net.plan(), x, net.device, net.dtype)
        self._layers.register(net, optimizer)
        by_layers = on_layer is not None or by_passes(optimizer)
        before = self._latest
        found = None if by_layers else self._find_step(net, feed, y, optimizer, weight)
        if found is None:
            # Passes of their own for steps that no program may ever make.
            alone = by_layers or needs_all_gradients(optimizer)
            run = self.forward if alone else self._layers.forward
            forward = partial(run, net, feed, ())
            return self._layers.train(net, forward, request)
        if weight is None:
            now = Latest(found, feed, y, optimizer, self.recompute, settings)
            others = (latest for latest in before if latest.program is not found)
            # The steps of an optimizer that accumulates take turns.
            self._latest = (now, *others)[:_TURNS]
        arena = self.take(found)
        try:
            return found.step(arena, feed, y, weight, measure)
        finally:
            self.give_back(arena)

    def gradients(self, net: Net, asked: Asked) -> Iterator[LayerGradients]:
        """As `Executor`: replayed where a program is there."""
        shapes = (*shapes_of_feed(asked.feed), *shapes_of_targets(asked.targets, asked.weight))
        key = ("gradients", *asked.key, *shapes)
        found = self._find(net, key, lambda r: r.gradients(asked), plan=asked.part)
        if found is None:
            return self._layers.gradients(net, asked)
        from singanet.program.replay.replayed_gradients import replayed_gradients

        return replayed_gradients(net, found, asked, self.take, self.give_back)

    def register(self, net: Net, optimizer: Any) -> None:
        """Tell ``optimizer`` the settings of the parameters, once for a net as it is."""
        self._layers.register(net, optimizer)

    def _find_step(
        self, net: Net, feed: Mapping[str, Any], y: Any, optimizer: Any, weight: Any
    ) -> Replay | None:
        from singanet.optimizer.stages import case_of

        of_batch = (*shapes_of_feed(feed), *shapes_of_targets(y, weight))
        return self._find(
            net,
            ("step", id(optimizer), case_of(optimizer), self.recompute, *of_batch),
            lambda r: r.step(feed, y, weight, optimizer),
            optimizer,
            # A step by the layers would take the memory that is not to be taken.
            at_once=self.recompute != "none",
            recompute=self.recompute,
        )

    def reports(self) -> list[ProgramReport]:
        """What each program consists of, that used last at the end."""
        return [each.report() for each in sorted(self._known.values(), key=lambda r: r.used)]

    @property
    def notes(self) -> list[str]:
        """What of the programs runs as a Python step, and why."""
        told = [note for replay in self._known.values() for note in replay.notes]
        return list(dict.fromkeys(told))

    @property
    def refusals(self) -> list[str]:
        """Why calls are not recorded, where they are not."""
        return [reason for reason, _ in self._refused.values()]

    def clear(self) -> None:
        """Forget every program, and give the arena back."""
        self._known.clear()
        self._seen.clear()
        self._refused.clear()
        self._waits.clear()
        self._arena.clear()
        self._latest = ()

    def _find(
        self,
        net: Net,
        key: Any,
        record: Callable[[Recorder], None],
        optimizer: Any = None,
        at_once: bool = False,
        recompute: Recompute = "none",
        plan: Plan | None = None,
    ) -> Replay | None:
        """The program of ``key``, recorded now where the same call came before or ``at_once``."""
        key = (*key, threading.get_ident(), net.device.ops.settings())
        self._latest = ()
        if not self.enabled or net.device.ops.xp is not np or self._is_refused(key):
            return None
        found = self._known.get(key)
        if found is not None and not found.stale(net):
            found.use(next(self._uses))
            return found
        if found is not None:
            del self._known[key]
            self._waits.setdefault(key, Wait()).start(found.replays)
            if not at_once:
                return None
        if not at_once and (self._is_new(key) or self._waits.get(key, _NO_WAIT).goes_on()):
            return None
        from singanet.program.replay.compiled import recorded

        made = recorded(net, record, optimizer, recompute, plan)
        if isinstance(made, str):
            self._refused[key] = made, changes.now
            return None
        self._refused.pop(key, None)
        made.use(next(self._uses))
        self._known[key] = made
        if len(self._known) > CAPACITY:
            del self._known[min(self._known, key=lambda each: self._known[each].used)]
        return made

    def _is_new(self, key: Any) -> bool:
        """Whether such a call comes for the first time, as far as is remembered."""
        new = key not in self._seen
        self._seen[key] = None
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
            # Another try after a while; until then it is told why there is no program.
            self._refused[key] = why, None
            self._waits.setdefault(key, Wait()).start(0)
        return False

    def take(self, program: Replay) -> Array:
        """Memory for ``program``; until it is given back nobody else has it."""
        return self._arena.take(program.arena_bytes, self._let_go)

    def _let_go(self) -> None:
        """Let every program forget the memory that it was bound to."""
        for program in list(self._known.values()):
            program.forget()

    def give_back(self, arena: Array) -> None:
        """Let the next replay have the memory."""
        self._arena.give_back(arena)
