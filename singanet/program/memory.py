"""The memory of a training step, from the plan of its recording."""

from __future__ import annotations

import math
import pickle
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.base.arguments import checked_count
from singanet.base.garbage import no_collections
from singanet.base.heap import large_arrays_apart, library_pages, once_bytes, trim
from singanet.base.kinds import resident_bytes, union
from singanet.engine.backward import ones, root_of
from singanet.engine.executor import plan_of_step
from singanet.engine.fusion import fused
from singanet.engine.model import Measure, StepRequest
from singanet.engine.step import measure_of
from singanet.engine.timeline import AllocationLog, PeakMemory
from singanet.errors import ArgumentError, SingaNetError
from singanet.loss.head_loss import MultiLoss
from singanet.ops import ops_for
from singanet.ops.casts import is_compiled
from singanet.optimizer.chain import UpdateChain
from singanet.optimizer.mixed_precision import ScaledUpdates
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.state import check_type, nothing
from singanet.program.compile import Compiler, Recording
from singanet.program.cost import (
    CALL_BYTES,
    EXECUTION_BYTES,
    PLAN_BYTES,
    PRODUCTS_BYTES,
    work_of,
)
from singanet.program.ir import Buffer, Call, Kernel, NotRecordableError, Token, refs_of
from singanet.program.lowering import ON_HOST
from singanet.program.programs import programs_of
from singanet.program.recompute import MemoryTarget, Recompute
from singanet.program.report import ProgramReport
from singanet.program.trace.foreign_code import is_own
from singanet.program.trace.recorder import Recorder, rehearse
from singanet.program.trace.sparse_rows import NarrowParameters
from singanet.types import Shape

if TYPE_CHECKING:
    from singanet.engine.net import Net
    from singanet.optimizer.wrapper import Wrapper

_REHEARSED = 4_000_000
"""The maximum bytes of a rehearsal without values."""

_LIBRARIES = {"oneDNN": "dnnl", "LLVM": "llvm"}
"""The libraries of kernels, by a part of the file's name; NumPy's are loaded by its import."""

_IN_LANE = 0.6
"""The memory of a call in a lane, relative to that of other calls."""

TURNS = 3
"""The number of programs for accumulated micro-batches: first, middle and last."""


@dataclass(frozen=True)
class PlannedStep:
    """A training step before it runs: its memory, and the bytes that its kernels process.

    ``work`` compares steps of one net: arithmetic counts as the bytes read from memory in the same
    time. ``by_layers`` is the peak of its arrays, in bytes, if the step runs by the layers,
    ``recording`` the peak of another recording, ``objects`` the size of the Python objects of its
    program.
    """

    memory: PeakMemory
    work: int
    by_layers: int
    recording: int
    objects: int
    packed: bytes

    @property
    def report(self) -> ProgramReport:
        """The program's report, unpacked: a search plans many, whose objects would all stay."""
        kernels, buffers, layout, kept, undo = pickle.loads(zlib.decompress(self.packed))
        return ProgramReport(
            [*map(Kernel._make, kernels)],
            [*map(Buffer._make, buffers)],
            layout,
            kept_bytes=kept,
            undo_bytes=undo,
        )


@large_arrays_apart()
def planned_memory(
    net: Net,
    batch_size: int,
    optimizer: Optimizer | Wrapper | None,
    extent: int | None,
    recompute: Recompute | None,
) -> PeakMemory:
    """Carry out `FeedForwardNet.memory`."""
    size = checked_count("net.memory", "batch_size", batch_size, 1)
    if extent is not None:
        extent = checked_count("net.memory", "extent", extent, 1)
    expect_alone("net.memory", optimizer)
    programs = programs_of(net)
    level = programs.level("net.memory", recompute)
    at_once = programs._records_at_once(net) or level != "none"
    with net._unfilled() as filling, expect_recorded("net.memory"):
        step = rehearsed_step(net, size, as_trained(net, optimizer), extent, at_once)
        memory = step.at(level).memory
    del step
    trim()
    return replace(memory.after(filling), outside=pages_outside())


def pages_outside() -> dict[str, int]:
    """Bytes in memory of the files of the libraries that kernels come from: `library_pages`."""
    return library_pages(**_LIBRARIES)


@contextmanager
def expect_recorded(where: str) -> Iterator[None]:
    """Refuse a step that cannot be recorded. Errors: `ArgumentError`."""
    try:
        yield
    except NotRecordableError as error:
        raise ArgumentError(
            where,
            expected="a step that can be recorded, whose memory is known before it runs",
            received=f"a step with {error}",
            advice="train it without a budget, or change that part",
        ) from None


def expect_alone(where: str, optimizer: Optimizer | Wrapper | None) -> None:
    """Refuse an ``optimizer`` whose step waits for other processes: no program has it whole."""
    for stage in UpdateChain(optimizer).reducers:
        raise ArgumentError(
            f"{where}, optimizer",
            expected="an optimizer whose step can be recorded",
            received=f"{type(stage).__name__}, which waits for other processes",
            advice="pass the optimizer inside; the sums add the gradients in transfer",
        )


def as_trained(net: Net, optimizer: Optimizer | Wrapper | None) -> Optimizer | Wrapper | None:
    """``optimizer`` as in a fit: scaled if ``net`` is compiled for float16.

    Errors: an optimizer that refuses the type of the parameters, as a step of it would.
    """
    precision = getattr(net.compiled, "precision", None)
    if precision is not None and optimizer is not None:
        scaled = UpdateChain(optimizer).scaled
        optimizer = ScaledUpdates(optimizer, precision) if scaled is None else optimizer
    chain = UpdateChain(optimizer)
    if chain.own_rule is not None:
        for param in net._execution_plan().trained_params():
            check_type(type(chain.rule).__name__, param.name, chain.rule_type(param))
        # The size of state may depend on the layer. The next step of any net registers its own.
        chain.own_rule.follow(net.params(), net)
        chain.owners.net = nothing
    return optimizer


def rehearsed_step(
    net: Net,
    batch_size: int,
    optimizer: Optimizer | Wrapper | None,
    extent: int | None,
    at_once: bool,
    y: Any = None,
) -> Rehearsal:
    """A step of ``net``, the first one recorded ``at_once`` or run by the layers.

    With targets ``y`` the loss's own arrays are included. Raises `NotRecordableError`.
    """
    feed = ones(net._execution_plan(), batch_size, net.device, extent)

    # The loss's arrays are live between others, so they affect the layout.
    guessed = y is None
    if guessed:
        y = targets_of(net, feed, extent)
    measure = _measure_of(net)
    plan = plan_of_step(net, StepRequest(feed, y, optimizer, measure=measure))
    of_loss = plan is not None and plan.head is not None

    def record(recorder: Recorder) -> None:
        if not of_loss:
            recorder.count_copies(batch_size, extent, measure, recorded=not guessed)
        if y is None or optimizer is None:
            recorder.rehearsed_step(feed, optimizer)
        else:
            recorder.step(feed, y, None, optimizer)

    with _state_stays(optimizer), _at_last_micro_batch(net, optimizer):
        walks = 1 if UpdateChain(optimizer).norm is None else 2
        plan = None if plan is None or (of_loss and optimizer is None) else fused(plan)
        recorder = rehearse(net, record, plan, AllocationLog())
        return Rehearsal(recorder, at_once, turns_of(optimizer), walks)


def _measure_of(net: Net) -> Measure:
    """The measure of a step: all metrics that the net was compiled with, or its metric."""
    compiled: Any = net.compiled
    return measure_of(net) if compiled is None else compiled.measures(net.loss, alone=True)


def targets_of(net: Net, feed: Mapping[str, Any], extent: int | None) -> Any:
    """Targets for the batch ``feed``: labels, or numbers in the shape of the outputs.

    None without a loss, for a loss that is not singanet's or has other targets, and on a device.
    """
    plan, loss = net._execution_plan(), net.loss
    first = next(iter(feed.values()), None)
    if loss is None or not isinstance(first, np.ndarray) or not is_own(loss):
        return None
    losses = loss.losses if isinstance(loss, MultiLoss) else dict.fromkeys(plan.outputs, loss)
    found = {}
    for name, each in losses.items():
        step = plan.by_name.get(name)
        if step is None or step.many_out or getattr(loss, "masks", None):
            return None
        shape = (len(first), *(extent or 1 if n < 0 else n for n in step.out_shapes[0]))
        found[name] = _targets_for(each, net.dtype, shape)
        if found[name] is None:
            return None
    return found if isinstance(loss, MultiLoss) else found.popitem()[1]


def _targets_for(loss: Any, dtype: np.dtype[Any], shape: Shape) -> Any:
    """A batch of targets that ``loss`` accepts with outputs of ``shape``; None if neither kind."""
    # A trial on a few numbers shows the accepted kind.
    small = np.ones([min(extent, 2) for extent in shape], dtype)
    for axes, kind in ((len(shape) - 1, np.dtype(np.int64)), (len(shape), dtype)):
        with suppress(SingaNetError):
            loss.compute(ops_for(small), small, np.zeros(small.shape[:axes], kind))
            return np.zeros(shape[:axes], kind)
    return None


def turns_of(optimizer: Any) -> int:
    """The number of programs for the micro-batches that ``optimizer`` accumulates."""
    return min(TURNS, math.prod(stage.every for stage in UpdateChain(optimizer).stages))


@contextmanager
def _at_last_micro_batch(net: Net, optimizer: Any) -> Iterator[None]:
    """A block in which accumulators are at the last micro-batch before an update."""
    trained = [param for param in net.params() if param.trainable and not param.is_state]
    names = [param.name for param in trained]
    with NarrowParameters(net, trained).standing_in():
        values = [param.value for param in trained]
    with ExitStack() as stack:
        for stage in UpdateChain(optimizer).stages:
            stack.enter_context(stage._before_last(names, values))
        del values
        yield


@contextmanager
def _state_stays(optimizer: Any) -> Iterator[None]:
    """A block after which the optimizer's new state is dropped: it has no values."""
    rule = UpdateChain(optimizer).own_rule
    states = () if rule is None else rule.states()
    before = {state.name for state in states if state.step or state.arrays}
    # A rehearsal updates no values, so parameters may rest.
    at_rest = [(state, state.rests) for state in states if state.rests]
    for state, _ in at_rest:
        state.rests = 0.0
    try:
        yield
    finally:
        for state, rests in at_rest:
            state.rests = rests
        for state in states:
            if state.name not in before:
                state.forget()


class Rehearsal:
    """A rehearsed step, whose memory is known at any level of recomputation.

    It alternates with programs of other micro-batches, ``turns`` in all. It walks through the net
    ``walks`` times, the others once and without an update. Call `trim` after its use: what is freed
    would count as memory of the process that it predicted.
    """

    def __init__(
        self,
        recorder: Recorder,
        at_once: bool,
        turns: int = 1,
        walks: int = 1,
        recomputes: bool = True,
    ) -> None:
        tape = recorder.tape
        self._recorder, self._at_once = recorder, at_once
        self._turns, self._walks = turns, walks
        assert tape.log is not None
        self._log = tape.log
        # The recording and Python's objects are not in a device's memory.
        self._on_host = tape.lowering is ON_HOST
        with no_collections():
            self._compiler = Compiler(tape, recorder.finish(), recomputes)

    def at(self, level: Recompute) -> PlannedStep:
        """The step at ``level``. Errors: bytes that are too few for the arena."""
        with no_collections():
            made = self._compiler.at(level)
        return self._plain if made is self._compiler.plain else self._planned(made)

    @cached_property
    def _plain(self) -> PlannedStep:
        """The step that recomputes nothing, which several levels are for some nets."""
        return self._planned(self._compiler.plain)

    def _planned(self, made: Recording) -> PlannedStep:
        """The step whose program is ``made``."""
        tape = self._recorder.tape
        by_layers = self._by_layers
        # Arrays without values have few resident pages.
        recording = by_layers if self._recorder.saw_values else min(by_layers, _REHEARSED)
        calls = self._calls(made)
        memory = self._memory(made, calls)
        known = self._work
        work = sum(
            known[id(call)] if id(call) in known else work_of(call, tape.tokens)
            for call in made.calls
            if call.function is not None
        )
        objects = calls * CALL_BYTES // self._turns
        # As plain tuples, which are packed in half the time.
        kernels = [tuple(kernel) for kernel in made.kernels]
        buffers = [tuple(buffer) for buffer in made.buffers]
        report = kernels, buffers, made.layout, made.kept_bytes, self._recorder.undo_bytes
        packed = zlib.compress(pickle.dumps(report), 1)
        there = self._on_host
        return PlannedStep(memory, work, by_layers, recording * there, objects * there, packed)

    @cached_property
    def _by_layers(self) -> int:
        """The peak of the step by the layers."""
        return self._log.peak("input", "array", "scratch")[0]

    @cached_property
    def _work(self) -> dict[int, int]:
        """The work of the calls without recomputation, by their ids: most levels have them too."""
        tokens = self._recorder.tape.tokens
        return {id(call): work_of(call, tokens) for call in self._compiler.kept.calls}

    def _calls(self, recording: Recording) -> int:
        """The number of calls of all programs: earlier ones have no update."""
        calls = _objects(recording.calls)
        walked = calls
        if self._turns > 1:
            walked = _objects([call for call in recording.calls if call.phase != "update"])
        return round(calls + (self._turns - 1) * walked // self._walks)

    def _memory(self, recording: Recording, calls: int) -> PeakMemory:
        """The memory of all programs, the last one ``recording``: they share arena and plans."""
        recorder, tape = self._recorder, self._recorder.tape
        floats = [value for param, value in recorder.params if param.name not in recorder.held]
        params = {id(value): value.nbytes for value in floats} | recorder.held.sizes()
        # The state of small parameters is in buckets.
        roots = [root_of(array) for n in recorder.numbers for array in n.arrays]
        state = {id(root): root.nbytes for root in roots}
        used = {token for call in recording.calls for token in (*call.reads, *call.writes)}
        tokens = [tape.tokens[token] for token in sorted(used)]
        tokens = [token for token in tokens if token.held is not None]
        held = {id(token.held): token.nbytes for token in tokens}
        # Weights in another order are recognised by their memory.
        lying = [*(value for _, value in recorder.params), *recorder.held.arrays]
        own = {*params, *state, *map(id, lying), *(id(root_of(value)) for value in lying)}
        other = [size for key, size in held.items() if key not in own]
        folded = [ref.token for ref in recording.outside if ref.token in tape.folded]
        other += [tape.tokens[token].nbytes for token in folded]
        other += [tape.beside, recording.lowering.beside, recorder.undo_bytes, recording.packing]
        program = 0
        if self._on_host:
            # Python's objects are not in a device's memory.
            bindings = len(recording.bound)
            executions = bindings + (self._turns - 1) * bindings // self._walks
            program = calls * CALL_BYTES + executions * EXECUTION_BYTES
        plans, wide = len(recording.recipes), recording.is_wide
        arena, first, compiled = _arena_bytes(recording, tape.tokens), 0, recording.is_compiled
        if not self._at_once:
            # At the peak of the step by the layers, some state and plans do not exist yet.
            most, moment = self._log.peak("input", "array", "scratch", "state")
            later = plans * (1 - moment.calls / max(1, len(tape.calls)))
            by_layers = most - self._log.peak("state")[0] - round(later * PLAN_BYTES[wide])
            first = max(0, by_layers - arena - program)
            # A program casts by NumPy.
            copies = (refs_of(call) for call in tape.calls if call.function is np.copyto)
            compiled |= any(len(refs) == 2 and is_compiled(*refs) for refs in copies)
        return PeakMemory(
            {
                "arena": arena,
                "parameters": sum(params.values()),
                "optimizer state": sum(state.values()),
                "other": sum(other),
                "program": program,
                "kernels": plans * PLAN_BYTES[wide]
                + PRODUCTS_BYTES[wide] * recording.is_recurrent
                # Functions of LLVM count only if it compiled some here.
                + once_bytes() * (compiled and self._on_host),
                "first step": first,
            }
        )

    @property
    def targets(self) -> list[MemoryTarget]:
        """Possible bytes of the arena, the most first."""
        return self._compiler.choice.targets

    @cached_property
    def most_freed(self) -> float:
        """The most bytes by which recomputation can reduce the memory of the step."""
        choice, made = self._compiler.choice, self._compiler.plain
        arena = _arena_bytes(made, self._recorder.tape.tokens)
        if choice.asked or arena < made.layout.nbytes:
            return math.inf
        # Another layout may have fewer gaps.
        gaps = arena - made.layout.lower_bound
        return gaps + choice.most_freed(int(_IN_LANE * CALL_BYTES) * self._on_host)


def rehearsed_memory(
    net: Net, record: Callable[[Recorder], None], optimizer: Any, level: Recompute
) -> PeakMemory:
    """The memory of the steps that ``record`` records, the first one run by the layers."""
    with _state_stays(optimizer):
        recorder = rehearse(net, record, log=AllocationLog())
        made = Rehearsal(recorder, False, recomputes=level != "none")
        memory = made.at(level).memory
    del made, recorder
    trim()
    return memory


def logged_step(
    net: Net, extent: int | None, batch_size: int
) -> tuple[AllocationLog, dict[str, list[Shape]]]:
    """The memory of forward and backward by the layers, and sample shapes of outputs by name."""
    plan, log = net._execution_plan(), AllocationLog()
    feed = ones(plan, batch_size, net.device, extent)
    with net._unfilled(), expect_recorded("net.summary"):
        made = rehearse(net, lambda recorder: recorder.rehearsed_step(feed, None), plan, log)
    return log, made.shapes


def _arena_bytes(recording: Recording, tokens: Sequence[Token]) -> int:
    """The bytes of the arena that are ever written."""
    layout = recording.layout
    lying = [(tokens[token], offset) for token, offset in recording.place.items()]
    if all(token.written is None for token, _ in lying):
        return layout.nbytes
    parts: list[tuple[int, int]] = []
    for token, offset in lying:
        inside = ((0, token.nbytes),) if token.written is None else token.written
        parts += [(offset + start, offset + end) for start, end in inside]
    return resident_bytes(union(parts), layout.nbytes)


def _objects(calls: Sequence[Call]) -> float:
    """The number of calls whose memory ``calls`` take: `_IN_LANE` for each one in a lane."""
    lanes = sum([call.parts for call in calls if call.name == "lanes"])
    return sum([call.parts for call in calls]) - (1 - _IN_LANE) * lanes
