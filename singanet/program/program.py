"""A program recorded by hand: one step or evaluation of a net, for arrays of one shape."""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from operator import length_hint
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.base.garbage import no_collections
from singanet.base.kinds import bytes_text
from singanet.engine import feeds as checks
from singanet.engine.step import measure_of
from singanet.errors import ArgumentError, CallOrderError
from singanet.optimizer.chain import UpdateChain
from singanet.optimizer.reducer import Traffic
from singanet.program.ir import NotRecordableError
from singanet.program.lower_sweeps import Ready
from singanet.program.programs import programs_of
from singanet.program.recompute import Recompute
from singanet.program.replay.replay import Replay, run_all
from singanet.program.replay.shared_arena import shapes_of_feed, shapes_of_targets
from singanet.program.report import ProgramReport
from singanet.program.trace.recorder import Recorder, rehearse
from singanet.types import Array

if TYPE_CHECKING:
    from singanet.engine.net import Net
    from singanet.optimizer import Optimizer, Wrapper


class Program:
    """A recorded training step of a net, or without an optimizer a recorded evaluation.

    Recording rehearses the step and leaves net and optimizer as they were. Errors: targets without
    an optimizer or the reverse, a number of bytes too small for the arena, and the net's own
    errors.

    Args:
        net: The net.
        x: Inputs of a batch of the shapes to come, as for `net.step`.
        y: Targets of the batch, or None for an evaluation.
        optimizer: Optimizer, or a stage around one, or None for an evaluation.
        rerecord: Whether `run` records again for other shapes and after changes of the net. If
            False, it refuses them.
        recompute: Recomputation: "none", "cheap", "blocks" or a number of bytes, see
            `FeedForwardNet.record`. None is the level of ``net.programs``.
    """

    def __init__(
        self,
        net: Net,
        x: Any,
        y: Any = None,
        optimizer: Optimizer | Wrapper | None = None,
        *,
        rerecord: bool = False,
        recompute: Recompute | None = None,
    ) -> None:
        if (y is None) != (optimizer is None):
            raise ArgumentError(
                "net.record",
                expected="targets and an optimizer for a training step, or neither",
                received="targets alone" if optimizer is None else "an optimizer alone",
                advice="pass net.record(x, y, optimizer), or net.record(x) for an evaluation",
            )
        if not net._passes_are_its_own:
            raise CallOrderError(
                "net.record",
                expected="a net that runs FeedForwardNet's own forward and backward",
                received=f"a {type(net).__name__} that overrides them",
                advice="call net.step, which calls these methods",
            )
        self.net = net
        self.optimizer = optimizer
        self.rerecord = rerecord
        self.recompute = programs_of(net).level("net.record", recompute)
        self._shapes: tuple[Any, ...] = ()
        self._beside: tuple[Any, ...] = ()
        self._replays: dict[Hashable, Replay] = {}
        self._record(self._feed(x), y, None)

    def __repr__(self) -> str:
        kind = "evaluation" if self.optimizer is None else "training step"
        arena = bytes_text(self._replay.arena_bytes)
        return f"Program({kind}, {len(self._replay.recording.calls):,} kernels, arena {arena})"

    @property
    def notes(self) -> list[str]:
        """The Python steps of the program, with reasons."""
        return list(self._replay.notes)

    def run(
        self, x: Any, y: Any = None, sample_weight: Array | None = None, *, timed: bool = False
    ) -> Any:
        """Replay on a batch: a step gives ``(loss, metric)``, an evaluation the net's output.

        ``x``, ``y`` and ``sample_weight`` are inputs, targets and weights of samples, as for
        `net.step`. ``timed`` measures every kernel for `report`. Errors: other shapes or a changed
        net without ``rerecord``; a thread other than the recording one.
        """
        feed = self._feed(x)
        self._expect_recorded(feed, y, sample_weight)
        run = self._timed if timed else run_all
        arena = programs_of(self.net).take(self._replay)
        try:
            if self.optimizer is not None:
                measure = measure_of(self.net)
                return self._replay.step(arena, feed, y, sample_weight, measure, run, timed)
            outputs = self._replay.outputs(arena, feed, run, timed)
            return next(iter(outputs.values())) if len(outputs) == 1 else outputs
        finally:
            if not self._replay.under_way:
                programs_of(self.net).give_back(arena)

    def report(self) -> ProgramReport:
        """Kernels, memory before and after planning, and the mean times of the timed runs."""
        if not self._runs:
            return self._replay.report()
        timed = iter(self._seconds)
        seconds = [
            0.0 if call.function is None else next(timed) / self._runs
            for call in self._replay.recording.calls
        ]
        alone = self._replay.traffic() is None
        return self._replay.report(seconds, None if alone else self._traffic.mean(self._runs))

    def _feed(self, x: Any) -> dict[str, Any]:
        net = self.net
        return checks.check_feed(net._execution_plan(), x, net.device, net.dtype)

    @no_collections()
    def _record(self, feed: Mapping[str, Any], y: Any, weight: Array | None) -> None:
        optimizer = self.optimizer
        if optimizer is not None:
            programs_of(self.net).register(self.net, optimizer)

        def record(recorder: Recorder) -> None:
            if optimizer is None:
                recorder.evaluation(feed)
            else:
                recorder.step(feed, y, weight, optimizer)

        try:
            recorder = rehearse(self.net, record)
        except NotRecordableError as error:
            raise CallOrderError(
                "net.record",
                expected="a net whose steps are the same for all values",
                received=str(error),
                advice="run net.step, which needs no recording",
            ) from error
        if (shapes_of_feed(feed), shapes_of_targets(y, weight)) != (self._shapes, self._beside):
            self._replays.clear()
        self._replay = Replay(recorder, self.optimizer, self.recompute)
        self._replays[self._case()] = self._replay
        self._shapes = shapes_of_feed(feed)
        self._beside = shapes_of_targets(y, weight)
        self._thread = threading.get_ident()
        self._seconds: list[float] = []
        self._runs = 0
        self._traffic = Traffic()

    def _case(self) -> Hashable:
        return () if self.optimizer is None else UpdateChain(self.optimizer).case()

    def _expect_recorded(self, feed: Mapping[str, Any], y: Any, weight: Array | None) -> None:
        """Record again, or refuse, if the program is not valid.

        An optimizer whose steps differ, such as the last of several micro-batches, has one program
        for each kind, recorded at its first step.
        """
        shapes, beside = shapes_of_feed(feed), shapes_of_targets(y, weight)
        here = self._thread == threading.get_ident()
        alike = here and shapes == self._shapes and beside == self._beside
        found = self._replays.get(self._case())
        if found is None and alike:
            self._record(feed, y, weight)
            return
        if found is not None and found is not self._replay:
            self._replay, self._seconds, self._runs = found, [], 0
            self._traffic = Traffic()
        changed = self._replay.stale(self.net)
        if alike and not changed:
            return
        if self.rerecord:
            self._record(feed, y, weight)
            return
        if changed:
            expected, received = "the net as it was recorded", changed
        elif shapes != self._shapes:
            expected, received = f"arrays like {_shapes_text(self._shapes)}", _shapes_text(shapes)
        elif beside != self._beside:
            expected, received = (
                f"targets like {_targets_text(self._beside)}",
                _targets_text(beside),
            )
        else:
            expected, received = "the thread that recorded it", "another thread"
        raise CallOrderError(
            "program.run",
            expected=expected,
            received=received,
            advice="call net.record again, or pass rerecord=True",
        )

    def _timed(self, calls: Iterator[Ready]) -> None:
        """Make the calls, and add up the seconds of each."""
        before = self._replay.traffic()
        if not self._seconds:
            self._seconds = [0.0] * length_hint(calls)
        clock = time.perf_counter
        for number, call in enumerate(calls):
            start = clock()
            call()
            self._seconds[number] += clock() - start
        self._runs += 1
        after = self._replay.traffic()
        if before is not None and after is not None:
            self._traffic += after.since(before)


def _shapes_text(shapes: Sequence[Any]) -> str:
    """Names with shapes and types from `shapes_of_feed`, as text."""
    told = []
    for name, *rest in shapes:
        parts = rest if isinstance(rest[0][0], tuple) else [rest]
        told.append(
            f"{name} {', '.join(f'{shape} {np.dtype(dtype)}' for shape, _, dtype in parts)}"
        )
    return "; ".join(told)


def _targets_text(parts: Sequence[Any]) -> str:
    """Shapes and types of targets and weights from `shapes_of_targets`, as text."""
    told = [p.__name__ if isinstance(p, type) else f"{p[0]} {np.dtype(p[2])}" for p in parts]
    *targets, weights = told
    return f"{', '.join(targets)} with {'no' if weights == 'NoneType' else weights} weights"
