"""A recorded program: replayed on other arrays, as long as its net is what it was."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.base.edits import changes
from singanet.optimizer.mixed_precision import NotFiniteError
from singanet.program.places import map_arrays
from singanet.program.planning.arena import ALIGNMENT
from singanet.program.recomputing.recompute import Recompute
from singanet.program.recording.python_pass import keep
from singanet.program.recording.record import targets
from singanet.program.recording.rule_numbers import refresh
from singanet.program.recording.settings import Settings
from singanet.program.replaying.bound import Bound
from singanet.program.replaying.python_share import PythonShare
from singanet.program.replaying.ready import Ready
from singanet.program.reporting.report import ProgramReport
from singanet.types import Array

if TYPE_CHECKING:
    from singanet.engine.net import Net
    from singanet.params.param import Param
    from singanet.program.recording.record import Recorder

_WRITEABLE = attrgetter("flags.writeable")

Run = Callable[[Sequence[Ready]], None]


def run_all(calls: Sequence[Ready]) -> None:
    """Make the calls one after the other."""
    for call in calls:
        call()


class Replay:
    """The kernels of an evaluation, a training step or a pass both ways, with planned memory.

    ``notes`` tells what runs as a Python step and why.
    """

    def __init__(
        self, recorder: Recorder, optimizer: Any = None, recompute: Recompute = "none"
    ) -> None:
        self.recording = recorder.recording(recompute)
        self.notes = recorder.notes
        self._params = [
            (param, value, param.trainable, value.flags.writeable)
            for param, value in recorder.params
        ]
        self.values = {param.name: param for param, _ in recorder.params}
        self._version = recorder.net._graph.version
        self._sealing = recorder.net.sealing
        self._values = [value for _, value in recorder.params]
        self._of_loss, self._net_loss = recorder.of_loss, recorder.net.loss
        self._numbers = recorder.numbers
        self._guards = recorder.guards
        self._loss = recorder.loss
        share = PythonShare(self.recording.calls, self.notes)
        self._share = share if self._loss is not None and not share.known else None
        self._settings = Settings(recorder.recorded_parts())
        self._looked = -1
        self._optimizer = optimizer
        self.replays = 0
        self._bound: Bound | None = None
        self._walk: weakref.ref[object] | None = None

    @property
    def walked(self) -> bool:
        """Whether a walk back is under way in whose Python steps the layers' contexts lie."""
        return self._walk is not None and self._walk() is not None

    def walk(self, walk: object) -> None:
        """Serve ``walk``, which is over when it is let go; None: it is over."""
        self._walk = weakref.ref(walk) if self.notes and walk is not None else None

    @property
    def arena_bytes(self) -> int:
        """The bytes of memory to bind it to; what is planned begins at an aligned address."""
        return self.recording.layout.nbytes + ALIGNMENT

    def stale(self, net: Net) -> str:
        """What changed about the net, so that the program is no longer its; empty if nothing."""
        if net._graph.version != self._version:
            return "layers were added or frozen"
        if net.sealing is not self._sealing:
            return "it was sealed or unsealed"
        if self._of_loss and net.loss is not self._net_loss:
            return "it has another loss"
        # That a sealed array was made writable by hand nobody counts.
        by_hand = self._sealing is not None and any(map(_WRITEABLE, self._values))
        if changes.now != self._looked or by_hand:
            now = changes.now
            assigned = self._assigned()
            if assigned:
                return assigned
            self._looked = now
        for guard in self._guards:
            if not guard.holds():
                return "a stage of the optimizer was changed, or its next step is of another kind"
        if not all(numbers.holds() for numbers in self._numbers):
            return "the optimizer's state was loaded or its constraints were changed"
        return ""

    def _assigned(self) -> str:
        """What was assigned to parameters, layers or loss; empty if nothing that matters."""
        for param, value, trainable, writeable in self._params:
            if (
                param.value is not value
                or param.trainable is not trainable
                or value.flags.writeable is not writeable
            ):
                return _changed(param, value, trainable)
        return self._settings.changed()

    def forget(self) -> None:
        """Drop the arrays of the arena it was bound to."""
        self._bound = None

    def bound(self, arena: Array) -> Bound:
        """The program on ``arena``, as it was bound before where that is the same."""
        # Another thread may forget it at any time.
        bound = self._bound
        if bound is None or bound.arena is not arena:
            bound = self._bound = Bound(self.recording, arena)
        return bound

    def outputs(self, arena: Array, feed: Mapping[str, Any], run: Run = run_all) -> Any:
        """Outputs by name, as new arrays."""
        bound = self.bound(arena)
        keep(feed, bound.payloads[0][0])
        run(bound.segments[1])
        found = bound.payloads[1][0]
        return {name: map_arrays(value, _copied) for name, value in found.items()}

    def predict_alike(self, arena: Array, x: Any) -> Any:
        """The one output for arrays known to be like those of the last prediction.

        ``x`` is a dict, or the array of a single input.
        """
        bound = self.bound(arena)
        _fill(bound.payloads[0][0], x)
        run_all(bound.segments[1])
        (found,) = bound.payloads[1][0].values()
        return _copied(found) if type(found) is np.ndarray else map_arrays(found, _copied)

    def step(
        self,
        arena: Array,
        feed: Mapping[str, Any],
        y: Any,
        weight: Any,
        measure: Any,
        run: Run = run_all,
    ) -> tuple[float, float | None]:
        """One training step; ``(loss, metric)`` from before its updates."""
        bound = self.bound(arena)
        given, beside = bound.payloads[0]
        keep(feed, given)
        keep(targets(y, weight), beside)
        return self._stepped(bound, y, weight, measure, run)

    def step_alike(self, arena: Array, x: Any, y: Any, measure: Any) -> tuple[float, float | None]:
        """`step` without weights, with arrays known to be like those of the last one.

        ``x`` is a dict, or the array of a single input.
        """
        bound = self.bound(arena)
        given, (into, _) = bound.payloads[0]
        _fill(given, x)
        if type(into) is np.ndarray:
            into[...] = y
        else:
            keep(y, into)
        return self._stepped(bound, y, None, measure, run_all)

    def _stepped(
        self, bound: Bound, y: Any, weight: Any, measure: Any, run: Run
    ) -> tuple[float, float | None]:
        loss = self._loss
        assert loss is not None
        refresh(self._numbers)
        seen = loss.seen
        seen.y, loss.weight, seen.measure = y, weight, measure
        share = self._share
        if share is not None and share.known:
            share = self._share = None
        if share is not None and run is run_all:
            run = share.run
        try:
            run(bound.segments[1])
        except NotFiniteError:
            # A step that is not taken; all is undone by the look that found it.
            return seen.loss, seen.score
        finally:
            seen.y = loss.weight = seen.measure = None
        for numbers in self._numbers:
            numbers.advance()
        return seen.loss, seen.score

    def report(self, seconds: Sequence[float] | None = None) -> ProgramReport:
        """What it consists of, with the ``seconds`` of each call where they were measured."""
        recording = self.recording
        return ProgramReport(
            recording.kernels,
            recording.buffers,
            recording.layout,
            seconds,
            self.notes,
            recording.kept_bytes,
        )


def _fill(given: dict[str, Array], x: Any) -> None:
    """Copy ``x``, a dict or the array of a single input, to where a program is fed."""
    if type(x) is dict:
        keep(x, given)
    else:
        (target,) = given.values()
        target[...] = x


def _copied(array: Array) -> Array:
    return array.copy(order="K")


def _changed(param: Param, value: Array, trainable: bool) -> str:
    if param.value is not value:
        return f"the array of {param.name!r} is another one"
    if param.trainable is not trainable:
        return f"trainable of {param.name!r} is {param.trainable} now"
    return f"the array of {param.name!r} is {'' if param.is_constant else 'not '}read-only now"
