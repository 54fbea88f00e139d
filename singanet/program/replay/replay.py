"""Replay of a recorded step."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from itertools import pairwise
from operator import length_hint
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from singanet.base.garbage import no_collections
from singanet.base.heap import trim
from singanet.base.processes import had_ended, interrupted_after
from singanet.base.tracebacks import users_level
from singanet.engine.step import Before
from singanet.ops import cpu_ops
from singanet.ops.compiled.calls import joined
from singanet.optimizer.chain import UpdateChain
from singanet.optimizer.mixed_precision import NotFiniteError
from singanet.optimizer.reducer import Traffic
from singanet.program.compile import Recording, compiled
from singanet.program.ir import (
    Call,
    MarkName,
    NotRecordableError,
    Ref,
    map_arrays,
    map_leaves,
    refs_of,
)
from singanet.program.layout import ALIGNMENT
from singanet.program.loads import ArrayStore, LoadRun
from singanet.program.lower_sweeps import Ready, chained
from singanet.program.lowering import Launches, ReadyCalls
from singanet.program.trace.layers import copied, copy_into
from singanet.program.trace.recorder import Recorder, rehearse
from singanet.program.trace.rules import refresh
from singanet.types import Array

if TYPE_CHECKING:
    from singanet.engine.net import Net
    from singanet.engine.plan import Plan
    from singanet.layers.kv_cache import KVCache
    from singanet.program.recompute import Recompute
    from singanet.program.report import ProgramReport


class Segment(NamedTuple):
    """A mark, at which the caller fills or reads arrays, and the calls up to the next mark.

    At "feed" and "dy" the caller fills ``arrays``, at "outputs" and "layer" it reads them.
    """

    name: MarkName
    arrays: Any
    calls: ReadyCalls


class Bound:
    """The calls of a recording on the arrays of one arena, in segments.

    Evaluations have ``feed`` and ``outputs``, steps only ``feed``; passes also have ``dy``, and one
    of ``layers`` for each item.
    """

    def __init__(self, recording: Recording, arena: Array, loaded: Array | None = None) -> None:
        self._lowering = recording.lowering
        start = self._lowering.start(arena)
        self._outside = self._lowering.outside(recording.outside)
        self._arrays: dict[Ref, Array] = dict(self._outside)
        self._place = {token: start + offset for token, offset in recording.place.items()}
        self.arena = arena
        self.loaded = loaded
        marks = [at for at, call in enumerate(recording.calls) if call.function is None]
        self.segments: list[Segment] = []
        for at, end in pairwise([*marks, len(recording.calls)]):
            mark: Any = recording.calls[at]
            calls = self._lowering.ready(recording.calls[at + 1 : end], self.array)
            self.segments.append(Segment(mark.name, self._filled(mark.arguments), calls))
        named = {segment.name: segment for segment in self.segments}
        self.feed = named["feed"]
        self.outputs = named.get("outputs")
        self.dy = named.get("dy")
        self.layers = [segment for segment in self.segments if segment.name == "layer"]
        # The calls that a read of caches prepares, and all of its calls, compiled ones joined.
        self._read: tuple[list[Any], list[Ready]] | None = None

    def read(self) -> list[Ready]:
        """Return the calls of a read, ready for the caches of this replay."""
        if self._read is None:
            calls = [*self.feed.calls]
            self._read = (
                [c for c in calls if getattr(c, "begin", None) and c.after],
                joined(chained(calls), cpu_ops().jobs()),
            )
        begins, calls = self._read
        for call in begins:
            call.begin()
        return calls

    def fill(self, x: Any) -> None:
        """Copy ``x``, a dict or the array of a single input, to the program's inputs."""
        given = self.feed.arrays[0]
        if type(x) is dict:
            for name, target in given.items():
                if type(target) is np.ndarray:
                    target[...] = x[name]
                else:
                    copy_into(x[name], target, self._lowering.fill)
        else:
            (target,) = given.values()
            if type(target) is np.ndarray:
                target[...] = x
            else:
                copy_into(x, target, self._lowering.fill)

    def fill_targets(self, y: Any, weight: Any) -> None:
        """Copy targets and weights; a Python loss gets other objects as they are."""
        targets, weights = self.feed.arrays[1]
        if type(targets) is np.ndarray:
            targets[...] = y
        elif targets is not None:
            copy_into(y, targets, self._lowering.fill)
        if weights is not None:
            copy_into(weight, weights, self._lowering.fill)

    def outside(self) -> list[tuple[Ref, Array]]:
        """The arrays outside the arena."""
        return list(self._outside.items())

    def launches(self) -> Launches | None:
        """The requests of a replay to a device; None if the host computes."""
        parts = [self._lowering.launches(segment.calls) for segment in self.segments]
        there = [part for part in parts if part is not None]
        return Launches.of_all(there) if there else None

    def array(self, ref: Ref) -> Array:
        """The array at ``ref``."""
        found = self._arrays.get(ref)
        if found is None:
            memory, place = self.arena, self._place.get(ref.token)
            if place is None:
                assert self.loaded is not None
                memory, place = self.loaded, self._lowering.start(self.loaded)
            found = self._arrays[ref] = self._lowering.array(ref, memory, place)
        return found

    def _filled(self, value: Any) -> Any:
        """``value`` with arrays in the places of their refs."""
        return map_leaves(value, Ref, self.array)


MUCH = 0.1
"""The fraction of a step from which a warning names its Python steps."""

_PYTHON = frozenset(("python step", "loss"))
_FIRST, _LAST = 2, 5
"""The replays that are timed: not the first ones, which use their memory for the first time."""


class PythonShare:
    """Runs the calls of a step and times them, until the share of Python steps is known.

    ``notes`` list these steps; without one there is nothing to time.
    """

    def __init__(self, calls: Sequence[Call], notes: Sequence[str]) -> None:
        made = [call.function is not None for call in calls]
        begin = made.index(False) + 1 if False in made else 0
        self._python = [call.name in _PYTHON for call in calls[begin:]]
        self._notes = notes
        self._replays = 0
        self._seconds = [0.0, 0.0]

    @property
    def known(self) -> bool:
        """Whether no more replays are timed."""
        return self._replays >= _LAST

    def run(self, calls: Iterable[Ready]) -> None:
        """Make the calls. Warns after the last replay that is timed."""
        clock, seconds = time.perf_counter, [0.0, 0.0]
        for call, python in zip(calls, self._python, strict=False):
            start = clock()
            call()
            seconds[python] += clock() - start
        self._replays += 1
        if self._replays > _FIRST:
            self._seconds = [a + b for a, b in zip(self._seconds, seconds, strict=True)]
        if self.known:
            self._tell()

    def _tell(self) -> None:
        kernels, python = self._seconds
        share = python / max(kernels + python, 1e-12)
        if share > MUCH:
            warnings.warn(
                f"net.step: Python steps take {share:.0%} of a recorded step "
                f"({'; '.join(self._notes)}); net.programs.notes lists them",
                stacklevel=users_level(),
            )


Run = Callable[[Iterator[Ready]], None]

_NOTHING_LOADED = nullcontext()
"""Made once: a step of a small net takes forty microseconds."""


def run_all(calls: Iterable[Ready]) -> None:
    """Make the calls one after the other."""
    for call in calls:
        call()


class Replay:
    """The kernels of an evaluation, a training step or a pass, with planned memory.

    ``notes`` lists the Python steps with reasons, ``arena_bytes`` is the size of its memory,
    ``case`` the kind of step, if the optimizer has several.
    """

    def __init__(
        self, recorder: Recorder, optimizer: Any = None, recompute: Recompute = "none"
    ) -> None:
        self.recording = compiled(recorder, recompute)
        self.notes = recorder.notes
        self.guard = recorder.guard
        self.values = {param.name: param for param, _ in recorder.params}
        self.state, self._undo_bytes = recorder.state, recorder.undo_bytes
        # A function in Python may draw; the program knows all other draws.
        self._draws = bool(self.notes) or recorder.tape.draws
        self._net = recorder.net
        self._before: Before | None = None
        self._of_loss, self._net_loss = recorder.of_loss, recorder.net.loss
        self._numbers, self._members = recorder.numbers, recorder.members
        self._loss = recorder.loss
        self._updates_last = self._loss is not None and self._loss.updates_last
        self._reduction = recorder.reduction
        timed = self._loss is not None and self.notes
        self._share = PythonShare(self.recording.calls, self.notes) if timed else None
        # With this reference the id, which is part of programs' keys, is not reused.
        self._optimizer = optimizer
        self.replays = self.used = 0
        # The arena starts at an aligned address.
        self.arena_bytes = self.recording.layout.nbytes + ALIGNMENT
        self.has_holes = self.recording.is_recurrent
        self._caches = recorder.caches
        self.case: Hashable = ()
        self._bound: Bound | None = None
        if self.recording.loads is not None:
            self.recording.loads.forget = self.forget

    def stale(self, net: Net, begun: bool = False) -> str:
        """The change that made the program invalid; empty if there is none.

        ``begun`` means that its forward was replayed already.
        """
        if self._of_loss and net.loss is not self._net_loss:
            return "it has another loss"
        for numbers in self._numbers:
            if not numbers.holds():
                return "the optimizer's state was loaded or its constraints were changed"
        return self.guard.broken(net, begun)

    @property
    def lost(self) -> bool:
        """Whether it uses arrays that the optimizer's state has replaced."""
        return any(numbers.lost for numbers in self._numbers)

    @property
    def under_way(self) -> bool:
        """Whether other processes may still write to the arena after an error."""
        return self._reduction is not None and self._reduction.under_way

    def use(self, number: int) -> None:
        """Count a replay, number ``number`` of the net's replays."""
        self.replays += 1
        self.used = number

    def forget(self) -> None:
        """Drop the arrays of the arena it was bound to."""
        self._bound = None

    def bound(self, arena: Array) -> Bound:
        """The program on ``arena``, bound again only if the arena has changed."""
        # Another thread may forget it at any time.
        bound, loads = self._bound, self.recording.loads
        loaded = None if loads is None else loads.claim()
        if bound is None or bound.arena is not arena or bound.loaded is not loaded:
            with no_collections():
                bound = self._bound = Bound(self.recording, arena, loaded)
        return bound

    def _loading(self, bound: Bound) -> AbstractContextManager[LoadRun | None]:
        """A block in which stored arrays are loaded."""
        loads = self.recording.loads
        return _NOTHING_LOADED if loads is None else loads.running(bound.array)

    def walked(
        self,
        arena: Array,
        turn: Callable[[], AbstractContextManager[object]],
        after: LoadRun | None = None,
    ) -> Generator[Any, None, None]:
        """Make the calls after "dy", and yield the items of each layer.

        Each item's calls are made in one ``turn``, as others may replay programs between them.
        Stored arrays are loaded as they were ``after`` the forward; a layer's are loaded while its
        item is in use.
        """
        loads, bound = self.recording.loads, self.bound(arena)
        run = None if loads is None else loads.begin(bound.array, after)
        try:
            for k in range(len(bound.layers)):
                with turn():
                    if run is not None and loads is not None and run.ended:
                        # Another program has used the memory.
                        bound = self.bound(arena)
                        run = loads.begin(bound.array, run)
                    before = bound.layers[k - 1] if k else bound.dy
                    assert before is not None
                    run_all(before.calls)
                with nullcontext() if run is None else run.at_mark():
                    yield bound.layers[k].arrays
            if run is not None:
                run.leave()
        finally:
            if run is not None:
                run.stop()
                run.close()

    def outputs(
        self, arena: Array, feed: Mapping[str, Any], run: Run = run_all, singly: bool = False
    ) -> Any:
        """Outputs by name, as new arrays; ``run`` makes the calls, or each recorded one singly."""
        bound = self.bound(arena)
        copy_into(feed, bound.feed.arrays[0])
        return self.forward(bound, run, singly)[1]

    def forward(
        self, bound: Bound, run: Run = run_all, singly: bool = False
    ) -> tuple[LoadRun | None, dict[str, Any]]:
        """Make the calls of the forward; return the run of its loads, and outputs by name, if any.

        These are new arrays.
        """
        outputs: dict[str, Any] = {}
        with self._loading(bound) as loading:
            run(self._calls(bound, singly))
            if bound.outputs is not None:
                (found,) = bound.outputs.arrays
                outputs = {name: map_arrays(value, copied) for name, value in found.items()}
                run_all(bound.outputs.calls)
        return loading, outputs

    def read(
        self, arena: Array, feed: Mapping[str, Any], caches: Mapping[str, KVCache]
    ) -> dict[str, Any]:
        """Outputs by name at the steps ``feed`` of the sequences in ``caches``, as new arrays."""
        assert self._caches is not None
        self._caches.now = caches
        try:
            outputs: dict[str, Any] = self.outputs(arena, feed)
            return outputs
        finally:
            # The program has no reference to them.
            self._caches.now = {}

    def step(
        self,
        arena: Array,
        x: Any,
        y: Any,
        weight: Any,
        measure: Any,
        run: Run = run_all,
        singly: bool = False,
    ) -> tuple[float, float | None]:
        """One training step; ``(loss, metric)`` from before its updates.

        ``x`` is a feed, or the array of a single input, of the recorded kinds. ``run`` makes the
        calls, or each recorded call ``singly``.
        """
        bound = self.bound(arena)
        bound.fill(x)
        bound.fill_targets(y, weight)
        calls = self._calls(bound, singly) if singly else iter(bound.feed.calls)
        return self._stepped(bound, y, weight, measure, run, calls)

    def stage(self, arena: Array, batch: Any) -> Any:
        """The step ``batch`` of a pipeline's stage, or the outputs of its micro-batches."""
        loss: Any = self._loss
        loss.begin(batch)
        if batch.request is None:
            return [*self.outputs(arena, {}).values()]
        return self.step(arena, {}, None, None, None)

    def _calls(self, bound: Bound, singly: bool) -> Iterator[Ready]:
        if self._caches is not None and not singly:
            return iter(bound.read())
        calls = bound.feed.calls
        return self.recording.lowering.singly(calls) if singly else iter(calls)

    def _stepped(
        self, bound: Bound, y: Any, weight: Any, measure: Any, run: Run, calls: Iterator[Ready]
    ) -> tuple[float, float | None]:
        loss = self._loss
        assert loss is not None
        refresh(self._numbers)
        seen = loss.seen
        seen.y, seen.weight, seen.measure = y, weight, measure
        share = self._share
        if share is not None and share.known:
            share = self._share = None
        if share is not None and run is run_all:
            run = share.run
        before = self._before
        if before is not None:
            before.remember()
        elif self._draws or self.state:
            before = self._before = Before(self._net, self.state, self._draws)
        try:
            with self._loading(bound):
                run(calls)
        except NotFiniteError:
            # A skipped step.
            if before is not None:
                before.restore()
            return seen.loss, seen.score
        except BaseException as error:
            if self.recording.loads is not None:
                # The store goes back to the step before.
                UpdateChain(self._optimizer).refused()
                raise
            # Another Ctrl-C waits, as it would interrupt this block.
            with interrupted_after():
                left = length_hint(calls) + (not _is_made(error))
                if not self._interrupted(bound, self._without_begun(calls, left)):
                    UpdateChain(self._optimizer).refused()
                    if before is not None:
                        before.restore()
            raise
        finally:
            seen.y = seen.weight = seen.measure = None
        for numbers in self._numbers:
            numbers.advance()
        return seen.loss, seen.score

    def _without_begun(self, calls: Iterator[Ready], left: int) -> int:
        """Complete an update that has started; return the number of remaining calls.

        An update may change its own gradient, so it cannot start again.
        """
        recorded = self.recording.calls
        at = len(recorded) - left
        # If it is unknown whether a call was made, it is not among the remaining ones.
        if left == length_hint(calls) and recorded[at - 1].phase == "update":
            while at < len(recorded) and recorded[at].phase == "update":
                next(calls)()
                at += 1
        return len(recorded) - at

    def _interrupted(self, bound: Bound, left: int) -> bool:
        """Count and run the updates that the layers would have made before the remaining calls.

        Returns whether there are any updates.
        """
        calls = self.recording.calls
        at = len(calls) - left
        done, missed = calls[:at], calls[at:]
        pending = {call.layer for call in missed if call.phase in ("loss", "backward")}
        if any(call.phase in ("forward", "loss") for call in missed):
            return False
        if self._updates_last and all(call.phase != "update" for call in done):
            return False
        begun, left_out = (
            _written([call for call in some if call.phase == "update"], bound)
            for some in (done, missed)
        )
        updated = bool(begun)
        for numbers, members in zip(self._numbers, self._members, strict=True):
            for member in members:
                # A rule that only gathers writes to its state alone.
                changed = (member.value, *member.state.arrays)
                if not _overlap(changed, left_out):
                    updated, member.state.step = True, member.state.step + 1
                elif (
                    member.grad is not None
                    and member.layer not in pending
                    and not _overlap(changed, begun)
                ):
                    # It was to wait for updates of later layers.
                    grad = bound.array(member.grad).copy()
                    numbers.optimizer.update([member.state.name], [member.value], [grad])
                    updated = True
        return updated

    @contextmanager
    def showing(self, y: Any, weight: Any) -> Iterator[None]:
        """A block with the targets and weights of a batch set for a loss in Python."""
        loss = self._loss
        if loss is not None:
            loss.seen.y, loss.seen.weight = y, weight
        try:
            yield
        finally:
            if loss is not None:
                loss.seen.y = loss.seen.weight = None

    def traffic(self) -> Traffic | None:
        """A copy of the traffic with other processes so far, by this program and others."""
        return None if self._reduction is None else replace(self._reduction.traffic)

    def report(
        self, seconds: Sequence[float] | None = None, traffic: Traffic | None = None
    ) -> ProgramReport:
        """Its report, with ``seconds`` of each call and ``traffic`` if measured."""
        from singanet.engine.recompute.by_layers import Decisions
        from singanet.program.report import ProgramReport

        recording, bound = self.recording, self._bound
        return ProgramReport(
            recording.kernels,
            recording.buffers,
            recording.layout,
            seconds,
            self.notes,
            recording.kept_bytes,
            Decisions(recording.decisions),
            traffic,
            0 if self._reduction is None else self._reduction.rank,
            None if bound is None else bound.launches(),
            self._undo_bytes,
        )


def _is_made(error: BaseException) -> bool:
    """Whether the last call that was started is complete, though ``error`` came.

    Python raises Ctrl-C in the calling frame only after a function in C has returned; functions in
    Python have frames of their own. Updates among these let Ctrl-C act after their end.
    """
    if had_ended(error):
        return True
    trace = error.__traceback__
    inner = None if trace is None else trace.tb_next
    return (
        isinstance(error, KeyboardInterrupt)
        and inner is not None
        and inner.tb_next is None
        and inner.tb_frame.f_code is run_all.__code__
    )


def _overlap(some: Iterable[Array], others: Iterable[Array]) -> bool:
    return any(np.may_share_memory(a, b) for a in some for b in others)


def _written(calls: Sequence[Call], bound: Bound) -> list[Array]:
    """The arrays from outside that ``calls`` write to."""
    refs: set[Ref] = set()
    tokens: set[int] = set()
    for call in calls:
        named = {ref for ref in refs_of(call) if ref.token in call.writes}
        refs |= named
        # Tokens of a bucket, and of a call with its own references to arrays.
        tokens |= {*call.writes} - {ref.token for ref in named}
    return [array for ref, array in bound.outside() if ref in refs or ref.token in tokens]


def recorded(
    net: Net,
    record: Callable[[Recorder], None],
    optimizer: Any,
    recompute: Recompute,
    plan: Plan | None = None,
    spills: ArrayStore | None = None,
) -> Replay | str:
    """The program that ``record`` records of ``net``, or the reason why it cannot be recorded.

    ``plan`` is a part of the net's, None for all of it. What forward leaves is put in ``spills``.
    """
    try:
        with no_collections():
            recorder = rehearse(net, record, plan)
            recorder.tape.spills = spills
            made = Replay(recorder, optimizer, recompute)
    except NotRecordableError as error:
        return str(error)
    # The arena includes scratch memory, so the kernels' own scratch is freed.
    net.device.ops.trim()
    # Free the rehearsal's memory too: a later program may run in the existing arena.
    trim()
    return made
