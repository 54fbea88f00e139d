"""A net's programs: recorded at the second call of a shape, replayed from then on."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.base.edits import changes
from singanet.engine.feeds import check_feed
from singanet.errors import CallOrderError
from singanet.program.guard import passes_are_its_own
from singanet.program.replaying.alike import (
    Latest,
    LatestPrediction,
    shapes_of_feed,
    shapes_of_targets,
)
from singanet.program.replaying.orders import Order, is_dense, order_of, output_slots
from singanet.program.replaying.shared_arena import SharedArena
from singanet.program.replaying.wait import Wait
from singanet.types import Array

if TYPE_CHECKING:
    from singanet.engine.net import Net
    from singanet.program.recomputing.recompute import Recompute
    from singanet.program.recording.record import Recorder
    from singanet.program.replaying.replay import Replay
    from singanet.program.replaying.replayed_pass import ReplayedPass
    from singanet.program.reporting.report import ProgramReport

_NO_WAIT = Wait()
CAPACITY = 8
"""Programs that a net keeps: full and last batches, of training, validation and inference."""


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
        self._recompute = recompute
        self._known: OrderedDict[Any, Replay] = OrderedDict()
        self._seen: OrderedDict[Any, None] = OrderedDict()
        self._refused: dict[Any, tuple[str, int]] = {}
        self._waits: dict[Any, Wait] = {}
        self._arena = SharedArena()
        self._orders: dict[int, Order] = {}
        self._latest: Latest | None = None
        self._predicted: LatestPrediction | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Programs:
        """None of them: they belong to the arrays of the net that was copied."""
        return Programs(self.enabled, self._recompute)

    def __reduce__(self) -> Any:
        return (Programs, (self.enabled, self._recompute))

    @property
    def recompute(self) -> Recompute:
        """What training steps make again to need less memory, see `FeedForwardNet.record`.

        Errors: what is no level.
        """
        return self._recompute

    @recompute.setter
    def recompute(self, value: Recompute) -> None:
        self._recompute = self.level("net.programs", value)

    def level(self, where: str, value: Recompute | None) -> Recompute:
        """``value``, or for None that of these programs. Errors: what is no level."""
        from singanet.program.recomputing.recompute import checked_recompute

        return self._recompute if value is None else checked_recompute(where, value)

    def evaluate(self, net: Net, feed: Mapping[str, Any]) -> Any:
        """The outputs by name; None where no program is there yet.

        That of a sealed net is recorded at the first call, so that all calls give the same bits.
        """
        key = ("sealed" if net.sealed else "evaluation", *shapes_of_feed(feed))
        found = self._find(net, key, lambda r: r.evaluation(feed), at_once=net.sealed)
        return None if found is None else self._outputs(found, feed)

    def predict(self, net: Net, x: Any) -> Any:
        """What a sealed net predicts of ``x``, so far unchecked; None where it is not recorded."""
        settings, latest = net.device.ops.settings(), self._predicted
        if latest is not None and self.enabled and latest.alike(x, settings):
            program = latest.program
            if not program.stale(net):
                net._forget_pass()
                arena = self.take(program)
                try:
                    return program.predict_alike(arena, x)
                finally:
                    self.give_back(arena)
        feed = check_feed(net._sorted(), x, net.device, net.dtype)
        key = ("sealed", "link", *shapes_of_feed(feed))
        found = self._find(net, key, lambda r: r.evaluation(feed, link=True), at_once=True)
        if found is None:
            return None
        self._predicted = LatestPrediction(found, feed, settings)
        net._forget_pass()
        return self._outputs(found, feed)[""]

    def forward(self, net: Net, feed: Mapping[str, Any]) -> ReplayedPass | None:
        """A training forward that a walk back may follow; None where no program is there yet."""
        # The order of sums, and so the last bit, depends on how gradients lie.
        orders = {slot: self._orders.get(slot) for slot in output_slots(net._sorted())}
        found = self._find(
            net,
            ("passes", self._recompute, *orders.values(), *shapes_of_feed(feed)),
            lambda r: r.passes(feed, orders),
            recompute=self._recompute,
        )
        if found is None:
            return None
        from singanet.program.replaying.replayed_pass import ReplayedPass

        arena = self.take(found)
        return ReplayedPass(net, found, arena, feed, orders, self.give_back, self.walked)

    def walked(self, slot_grads: Mapping[int, Array]) -> None:
        """Remember how the gradients lay that a walk by the layers started from."""
        for slot, grad in slot_grads.items():
            order = order_of(grad)
            self._orders[slot] = order if is_dense(order) else None

    def step(
        self,
        net: Net,
        feed: Mapping[str, Any],
        y: Any,
        optimizer: Any,
        weight: Any,
        measure: Any,
    ) -> tuple[float, float | None] | None:
        """One training step; None where no program is there yet."""
        if not passes_are_its_own(net):
            return None
        of_batch = (*shapes_of_feed(feed), *shapes_of_targets(y, weight))
        found = self._find(
            net,
            ("step", id(optimizer), self._recompute, *of_batch),
            lambda r: r.step(feed, y, weight, optimizer),
            optimizer,
            # A step by the layers would take the memory that is not to be taken.
            at_once=self._recompute != "none",
            recompute=self._recompute,
        )
        if found is None:
            return None
        if weight is None:
            settings = net.device.ops.settings()
            self._latest = Latest(found, feed, y, optimizer, self._recompute, settings)
        arena = self.take(found)
        try:
            return found.step(arena, feed, y, weight, measure)
        finally:
            self.give_back(arena)

    def again(
        self, net: Net, x: Any, y: Any, optimizer: Any, measure: Any
    ) -> tuple[float, float | None] | None:
        """One training step without weights, if it is like the last one; else None.

        ``x`` is what the caller gave, so far unchecked.
        """
        latest = self._latest
        if latest is None or not self.enabled or not passes_are_its_own(net):
            return None
        settings = net.device.ops.settings()
        if not latest.alike(x, y, optimizer, self._recompute, settings):
            return None
        if latest.program.stale(net):
            return None
        net._forget_pass()
        latest.program.replays += 1
        arena = self.take(latest.program)
        try:
            return latest.program.step_alike(arena, x, y, measure)
        finally:
            self.give_back(arena)

    def reports(self) -> list[ProgramReport]:
        """What each program consists of, that used last at the end."""
        return [replay.report() for replay in self._known.values()]

    @property
    def refusals(self) -> list[str]:
        """Why calls are not recorded, where they are not."""
        return [reason for reason, _ in self._refused.values()]

    def forget_sealed(self) -> None:
        """Forget the programs in which parameters are constants."""
        for key in [key for key in list(self._known) if key[0] == "sealed"]:
            self._known.pop(key, None)
        self._predicted = None

    def clear(self) -> None:
        """Forget every program, and give the arena back."""
        self._known.clear()
        self._seen.clear()
        self._refused.clear()
        self._waits.clear()
        self._arena.clear()
        self._latest = self._predicted = None

    def _find(
        self,
        net: Net,
        key: Any,
        record: Callable[[Recorder], None],
        optimizer: Any = None,
        at_once: bool = False,
        recompute: Recompute = "none",
    ) -> Replay | None:
        """The program of ``key``, recorded now where the same call came before or ``at_once``."""
        key = (*key, threading.get_ident(), net.device.ops.settings())
        self._latest = None
        if not self.enabled or net.device.ops.xp is not np or self._is_refused(key):
            return None
        found = self._known.get(key)
        if found is not None and not found.stale(net):
            self._known.move_to_end(key)
            found.replays += 1
            return found
        if found is not None:
            del self._known[key]
            self._waits.setdefault(key, Wait()).start(found.replays)
        if not at_once and (self._is_new(key) or self._waits.get(key, _NO_WAIT).goes_on()):
            return None
        from singanet.program.replaying.recorded import recorded

        made = recorded(net, record, optimizer, recompute)
        if isinstance(made, str):
            self._refused[key] = made, changes.now
            return None
        self._known[key] = made
        if len(self._known) > CAPACITY:
            self._known.popitem(last=False)
        made.replays += 1
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
        if key not in self._refused:
            return False
        if self._refused[key][1] == changes.now:
            return True
        del self._refused[key]
        self._waits.setdefault(key, Wait()).start(0)
        return False

    def _outputs(self, program: Replay, feed: Mapping[str, Any]) -> Any:
        arena = self.take(program)
        try:
            return program.outputs(arena, feed)
        finally:
            self.give_back(arena)

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
