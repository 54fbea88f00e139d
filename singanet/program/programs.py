"""A net's programs: recorded at the second call of a shape, replayed from then on."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.engine.executor import LayerByLayer
from singanet.engine.feeds import check_feed
from singanet.engine.model import Measure, OnLayer
from singanet.engine.passes import Pass
from singanet.errors import CallOrderError
from singanet.program.replaying.alike import (
    Latest,
    LatestPrediction,
    shapes_of_feed,
    shapes_of_targets,
)
from singanet.program.replaying.shared_arena import SharedArena
from singanet.program.replaying.wait import Wait
from singanet.types import Array

if TYPE_CHECKING:
    from singanet.engine.net import Net
    from singanet.program.recomputing.recompute import Recompute
    from singanet.program.recording.record import Recorder
    from singanet.program.replaying.replay import Replay
    from singanet.program.reporting.report import ProgramReport

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

    None in the place of a program says that the call came once. Where ``enabled`` is False every
    call runs the layers.
    """

    def __init__(self, enabled: bool = True, recompute: Recompute = "none") -> None:
        self.enabled = enabled
        self._recompute = recompute
        self._known: OrderedDict[Any, Replay | None] = OrderedDict()
        self._refused: dict[Any, str] = {}
        self._waits: dict[Any, Wait] = {}
        self._arena = SharedArena()
        self._layers = LayerByLayer()
        self._c_order = True
        self._latest: tuple[Latest, ...] = ()
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

    def evaluate(self, net: Net, feed: Mapping[str, Any], asked: tuple[str, ...]) -> dict[str, Any]:
        """As `Executor`; that of a sealed net is recorded at the first call.

        So all its calls give the same bits.
        """
        found = None
        if not asked:
            key = ("sealed" if net.sealed else "evaluation", *shapes_of_feed(feed))
            found = self._find(net, key, lambda r: r.evaluation(feed), at_once=net.sealed)
        if found is None:
            return self._layers.evaluate(net, feed, asked)
        return self._outputs(found, feed)

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
        feed = check_feed(net.plan(), x, net.device, net.dtype)
        key = ("sealed", "link", *shapes_of_feed(feed))
        found = self._find(net, key, lambda r: r.evaluation(feed, link=True), at_once=True)
        if found is None:
            return None
        self._predicted = LatestPrediction(found, feed, settings)
        net._forget_pass()
        return self._outputs(found, feed)[""]

    def forward(self, net: Net, feed: Mapping[str, Any], asked: tuple[str, ...]) -> Pass:
        """As `Executor`: replayed where a program is there."""
        found = None
        if not asked:
            found = self._find(
                net,
                ("passes", self._recompute, *shapes_of_feed(feed)),
                lambda r: r.passes(feed, self._c_order),
                recompute=self._recompute,
            )
        if found is None or found.walked:
            return self._layers.forward(net, feed, asked, self._walked)
        from singanet.program.replaying.replayed_pass import ReplayedPass

        return ReplayedPass(net, found, self.take(found), feed, self.give_back)

    def _walked(self, slot_grads: Mapping[int, Array]) -> None:
        """Remember how the gradients lay that a walk by the layers started from."""
        # The order of sums, and so the last bit, depends on it.
        self._c_order = all(grad.flags.c_contiguous for grad in slot_grads.values())

    def step(
        self,
        net: Net,
        x: Any,
        y: Any,
        optimizer: Any,
        weight: Array | None,
        measure: Measure,
        on_layer: OnLayer,
    ) -> tuple[float, float | None]:
        """As `Executor`: replayed where a program is there and nobody looks at the gradients."""
        settings = net.device.ops.settings()
        if on_layer is None and weight is None and self.enabled:
            for latest in self._latest:
                if not latest.alike(x, y, optimizer, self._recompute, settings):
                    continue
                program = latest.program
                if program.stale(net):
                    continue
                if latest is not self._latest[0]:
                    self._took_turn(latest)
                program.replays += 1
                arena = self.take(program)
                try:
                    return program.step_alike(arena, x, y, measure)
                finally:
                    self.give_back(arena)
        if not self.enabled:
            return self._layers.step(net, x, y, optimizer, weight, measure, on_layer)
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
            return self._layers.train(net, forward, y, optimizer, weight, measure, on_layer)
        if weight is None:
            now = Latest(found, feed, y, optimizer, self._recompute, settings)
            others = (latest for latest in before if latest.program is not found)
            # The steps of an optimizer that accumulates take turns.
            self._latest = (now, *others)[:_TURNS]
        arena = self.take(found)
        try:
            return found.step(arena, feed, y, weight, measure)
        finally:
            self.give_back(arena)

    def _took_turn(self, latest: Latest) -> None:
        """Note that another of the ``_latest`` steps is the one made last."""
        self._latest = (latest, *(other for other in self._latest if other is not latest))
        for key, program in self._known.items():
            if program is latest.program:
                self._known.move_to_end(key)
                break

    def _find_step(
        self, net: Net, feed: Mapping[str, Any], y: Any, optimizer: Any, weight: Any
    ) -> Replay | None:
        from singanet.optimizer.stages import case_of

        of_batch = (*shapes_of_feed(feed), *shapes_of_targets(y, weight))
        return self._find(
            net,
            ("step", id(optimizer), case_of(optimizer), self._recompute, *of_batch),
            lambda r: r.step(feed, y, weight, optimizer),
            optimizer,
            # A step by the layers would take the memory that is not to be taken.
            at_once=self._recompute != "none",
            recompute=self._recompute,
        )

    def reports(self) -> list[ProgramReport]:
        """What each program consists of, that used last at the end."""
        return [replay.report() for replay in self._known.values() if replay is not None]

    @property
    def notes(self) -> list[str]:
        """What of the programs runs as a Python step, and why."""
        told = [note for replay in self._known.values() if replay for note in replay.notes]
        return list(dict.fromkeys(told))

    @property
    def refusals(self) -> list[str]:
        """Why calls are not recorded, where they are not."""
        return list(self._refused.values())

    def forget_sealed(self) -> None:
        """Forget the programs in which parameters are constants."""
        for key in [key for key in list(self._known) if key[0] == "sealed"]:
            self._known.pop(key, None)
        self._predicted = None

    def clear(self) -> None:
        """Forget every program, and give the arena back."""
        self._known.clear()
        self._refused.clear()
        self._waits.clear()
        self._arena.clear()
        self._latest, self._predicted = (), None

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
        self._latest = ()
        if not self.enabled or key in self._refused or net.device.ops.xp is not np:
            return None
        if key not in self._known:
            self._known[key] = None
            if len(self._known) > CAPACITY:
                self._known.popitem(last=False)
            if not at_once:
                return None
        found = self._known[key]
        if found is not None and found.stale(net):
            self._known[key] = None
            if not at_once:
                self._waits.setdefault(key, Wait()).start(found.replays)
                return None
            found = None
        if found is None and not at_once and self._waits.get(key, _NO_WAIT).goes_on():
            return None
        if found is None:
            from singanet.program.replaying.recorded import recorded

            made = recorded(net, record, optimizer, recompute)
            if isinstance(made, str):
                self._refused[key] = made
                return None
            found = self._known[key] = made
        else:
            self._known.move_to_end(key)
        found.replays += 1
        return found

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
            if program is not None:
                program.forget()

    def give_back(self, arena: Array) -> None:
        """Let the next replay have the memory."""
        self._arena.give_back(arena)
