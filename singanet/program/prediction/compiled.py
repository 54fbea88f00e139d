"""Compiled predictions."""

from __future__ import annotations

import copy
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from singanet.base.described import with_inner
from singanet.base.heap import reuse_freed, small_pages, trim
from singanet.base.kinds import bytes_text
from singanet.engine.adapting import merge_constants
from singanet.engine.backward import arrays_in, root_of
from singanet.engine.feeds import check_feed
from singanet.engine.fusion import fused
from singanet.engine.plan import Plan
from singanet.errors import ArgumentError, ShapeError, UnknownNameError
from singanet.loss.loss import Loss
from singanet.ops import ops_for
from singanet.ops.compiled.calls import joined
from singanet.ops.interface import Ops, Prepared
from singanet.ops.kernel import widened
from singanet.params.param import Param
from singanet.program.compile import Recording, compiled
from singanet.program.ir import NotRecordableError, map_arrays
from singanet.program.layout import ALIGNMENT
from singanet.program.lower_sweeps import Ready, chained
from singanet.program.lowering import ON_HOST
from singanet.program.prediction.constant import (
    Constants,
    array_of,
    constant,
    fold_norms,
    foldable,
    for_constants,
    make_constants,
)
from singanet.program.prediction.shared import PredictionProgram, SharedPrediction
from singanet.program.replay.replay import Bound
from singanet.program.replay.shared_arena import SharedArena, facts, shapes_of_feed
from singanet.program.trace.foreign_code import is_own
from singanet.program.trace.layers import RecordedNode, copied
from singanet.program.trace.recorder import Recorder, rehearse
from singanet.types import Array, Shape

if TYPE_CHECKING:
    from singanet.device import Device
    from singanet.engine.net import Net
    from singanet.program.report import ProgramReport


_WHERE = "net.predictor"


class ConstantNet:
    """Layers and loss of a net as they are now, for evaluations on ``device``, without the net.

    ``norms`` maps batch normalisations to the convolutions that they are folded into; if the
    parameters are not filled yet, `Constants` has one place for both. None folds all possible ones.
    ``loose`` is the plan with the folded layers, before other fusions. Errors: a layer or a loss
    that cannot be copied.
    """

    def __init__(self, net: Net, device: Device, norms: Mapping[str, str] | None = None) -> None:
        self.device, self.dtype = device, net.dtype
        # The device's copies for all programs, by ids of the host's constants.
        self.there: dict[int, tuple[Array, Any]] = {}
        self.rng = copy.deepcopy(net.rng)
        self.intake = net.intake.copy()
        given = net._execution_plan() if norms is None else net.planned()
        plan, self.loss = _copied(given, net.loss, device.ops.host)
        self.link = None if self.loss is None or is_own(self.loss) else self.loss.link
        if norms is None:
            # A kernel for several layers would hide a NaN in a parameter.
            norms = {} if _constants(plan).contain_nan() else foldable(plan)
        self.norms = dict(norms)
        # Copies of a moment: programs have most constants in other orders, in the same memory.
        reuse_freed()
        with small_pages():
            self.loose = fold_norms(plan, self.norms)
            self.constants = _constants(self.loose)
            lent = {id(each) for each in _constants(plan).all}
            for each in self.constants.all:
                if id(each) in lent:
                    array_of(each).own()
        self._plan: Plan | None = None
        self.version = 0

    def _execution_plan(self) -> Plan:
        """The plan, with one step for all layers that one kernel computes."""
        if self._plan is None:
            self.has_nan = self.constants.contain_nan()
            self._plan = fused(self.loose) if self.has_nan else for_constants(self.loose)
        return self._plan

    # -- the interface to recorders ---------------------------------------------------------

    def params(self) -> list[Param]:
        """The constants."""
        return list(self.constants.all)

    @contextmanager
    def rehearsal(self) -> Iterator[None]:
        """Undo at the end the draws of the forwards inside."""
        draws = self.rng.bit_generator.state
        try:
            yield
        finally:
            self.rng.bit_generator.state = draws

    def record(self, recorder: Recorder, feed: Mapping[str, Any]) -> None:
        """Record a prediction; results of constants alone are computed now."""
        ops = recorder.tape.ops
        lowering: Any = recorder.tape.lowering
        if lowering is not ON_HOST:
            lowering.constants = self.there
        ops.prepared = self._prepared()
        recorder.evaluation(feed, lambda given, outputs: self._finished(ops, given, outputs))
        recorder.tape.make_constants = partial(make_constants, constants=self.constants)

    # -- predictions ------------------------------------------------------------------------

    def by_layers(self, feed: Mapping[str, Any]) -> Any:
        """The outputs of `record`, computed at once."""
        # A copy, as kernels note in it whether they drop NaN.
        ops = copy.copy(self.device.ops)
        ops.prepared = self._prepared()
        outputs, _ = self._execution_plan().forward(
            feed, self._execution_plan().outputs, ops, self.rng, train=False
        )
        # The link uses the kernels of its arrays: these name the program's, for the same bits.
        kind: Any = type("Output", (np.ndarray,), {"kernels": staticmethod(lambda: ops)})
        made = self._finished(ops, feed, map_arrays(outputs, lambda y: y.view(kind)))[""]
        return map_arrays(made, np.asarray)

    def _prepared(self) -> Prepared | None:
        """The prepared kernels; None if a parameter is NaN, which fused kernels would hide."""
        return None if self.has_nan else Prepared()

    def _finished(
        self, ops: Ops, given: Mapping[str, Any], outputs: dict[str, Any]
    ) -> dict[str, Any]:
        """The output of a net with one, under no name, or all outputs by their names."""
        if ops.prepared is not None and ops.prepared.drops_nan:
            _show_nan(ops, given, outputs)
        made: Any = map_arrays(outputs, widened)
        if len(self._execution_plan().outputs) == 1:
            made = made[self._execution_plan().outputs[0]]
        if self.loss is not None and self.link is None:
            made = self.loss.link(made)
        return {"": made}


def _constants(plan: Plan) -> Constants:
    return Constants(p for step in plan.steps for p in step.layer.params.values())


def _copied(
    plan: Plan, loss: Loss | None, host: Callable[[Array], Array]
) -> tuple[Plan, Loss | None]:
    """Plan and loss with layers of their own, and constants, on the host, for parameters.

    The constants refer to the arrays of the parameters.
    """
    memo: dict[int, Any] = {}
    made: dict[int, Param] = {}
    for step in plan.steps:
        for param in step.layer.params.values():
            key = id(param.root)
            if key not in made:
                array = host(param.peek()).view() if param.filled else None
                made[key] = constant(param.name, param.shape, array)
            memo[id(param)], memo[key] = made[key], made[key].root
    layers = []
    for step in plan.steps:
        with _copying(f"layer {step.name!r}"):
            layers.append(copy.deepcopy(step.layer, memo))
    with _copying("the loss"):
        loss = copy.deepcopy(loss, memo)
    for inner in [] if loss is None else with_inner(loss):
        if isinstance(inner, Loss):
            inner.forget()
    steps = [copy.copy(step) for step in plan.steps]
    for step, layer in zip(steps, layers, strict=True):
        step.layer = layer
    merge_constants(layers)
    return plan.of_steps(steps), loss


@contextmanager
def _copying(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise ArgumentError(
            _WHERE,
            expected="layers and a loss that can be copied, since a predictor has its own",
            received=f"{what}: {error}"[:300],
            advice="remove open files, locks and the like from their attributes",
        ) from error


def _show_nan(ops: Ops, given: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
    """Let a NaN in a sample appear in its outputs, even if a kernel drops it."""
    for y in arrays_in(outputs):
        for x in arrays_in(given):
            if len(x) == len(y):
                ops.pass_on_nan(y, x)


_OUTPUTS_WHERE = "predictor, out="


def put(found: Any, out: Any) -> Any:
    """``out``, with the output ``found``, an array or several by name, in it.

    Nothing is written unless all of it fits. Errors: other names, shapes or types, a read-only
    array, another object.
    """
    if isinstance(found, Mapping):
        if not isinstance(out, Mapping) or out.keys() != found.keys():
            raise UnknownNameError(
                _OUTPUTS_WHERE,
                expected=f"a dict of arrays for {', '.join(map(repr, found))}",
                received=", ".join(map(repr, out)) if isinstance(out, Mapping) else _kind_text(out),
                advice="give each output of the net an array",
            )
        pairs = [(found[name], out[name], f" of output {name!r}") for name in found]
    else:
        pairs = [(found, out, "")]
    for made, given, what in pairs:
        if type(given) is not type(made) or given.shape != made.shape or given.dtype != made.dtype:
            _refuse(made, given, what)
        if type(given) is np.ndarray and not given.flags.writeable:
            raise ArgumentError(
                _OUTPUTS_WHERE,
                expected=f"a writable array{what}",
                received="a read-only array",
                advice="give a copy of it",
            )
    for made, given, _ in pairs:
        ops_for(made).copyto(given, made)
    return out


def _refuse(made: Array, given: Any, what: str) -> None:
    wanted = f"an array{what} of shape {made.shape} and type {made.dtype}"
    if isinstance(given, type(made)) and given.shape != made.shape:
        raise ShapeError(
            _OUTPUTS_WHERE,
            expected=wanted,
            received=f"shape {given.shape}",
            advice="batches of another size need an array of their own, or a part of a larger one",
        )
    raise ArgumentError(
        _OUTPUTS_WHERE,
        expected=wanted,
        received=_kind_text(given),
        advice="make it by numpy.empty_like of the predictor's result without out",
    )


def _kind_text(given: Any) -> str:
    if hasattr(given, "dtype"):
        return f"a {type(given).__name__} of type {given.dtype}"
    return f"a {type(given).__name__}"


CAPACITY = 8
"""The maximum number of programs of a thread: the last used ones, one for each kind of arrays."""

_REMEMBERED = 64
"""The maximum number of kinds of arrays that a thread remembers."""


class CompiledNet:
    """Predictions of a net with its parameters as they were when this was made.

    A program belongs to the thread that recorded it. It is recorded at the first call with arrays
    of its shapes, types and memory layouts, or at the second if the thread has its maximum of
    programs. All calls give the same bits.
    """

    def __init__(self, net: ConstantNet) -> None:
        self._net = net
        self._ops = net.device.ops
        self._programs: weakref.WeakSet[PredictionProgram] = weakref.WeakSet()
        self._thread = _Thread()

    def __call__(self, x: Any, *, out: Any = None) -> Any:
        """The output for ``x``, the array of the single input or a dict by name.

        Batch axis first. The output goes through the link of the net's loss, as in
        `FeedForwardNet.predict`, into new arrays, or into ``out``. Errors: unsuitable inputs, and
        the errors of `put`.
        """
        if not self._net.intake.leaves(x):
            x = self._taken("predictor, x", x)
        mine = self._thread
        latest, settings = mine.latest, self._ops.settings()
        if latest is not None and latest.alike(x, settings):
            return self._replayed(mine, latest.program, x, out)
        feed = check_feed(
            self._net._execution_plan(), x, self._net.device, self._net.dtype, "predictor"
        )
        key = (*shapes_of_feed(feed), settings)
        program = mine.known.get(key) or self._made(mine, key, feed)
        if program is None and not self._ops.on_host:
            raise self._unrecordable(mine, key)
        if program is None:
            made = self._net.by_layers(feed)
            made = made if self._net.link is None else self._net.link(made)
            return made if out is None else put(made, out)
        mine.known.move_to_end(key)
        mine.latest = _Latest(program, feed, settings)
        return self._replayed(mine, program, feed, out)

    def _taken(self, where: str, x: Any) -> Any:
        """``x`` with arrays of NumPy or CuPy alone, as the net converts it."""
        return self._net.intake.arrays(where, x, self.inputs)

    @property
    def inputs(self) -> dict[str, Shape]:
        """Sample shapes by the names of the inputs; -1 is any extent."""
        plan = self._net._execution_plan()
        # A layer that takes an input of the net takes no other, so it has one shape.
        return {name: cast(Shape, plan.by_name[name].layer.in_shapes) for name in plan.inputs}

    @property
    def outputs(self) -> list[str]:
        """The names of the outputs."""
        return list(self._net._execution_plan().outputs)

    @property
    def nbytes(self) -> int:
        """Bytes of the constants, in each stored order."""
        with self._net.constants.lock:
            arrays = [a for each in self._net.constants.all for a in array_of(each).arrays]
            arrays += [a for program in list(self._programs) for a in program.outside]
        roots = {id(root): root for root in map(root_of, arrays)}
        return sum(root.nbytes for root in roots.values())

    @property
    def notes(self) -> list[str]:
        """The Python steps, with reasons, for the kinds of arrays so far."""
        found = [note for program in list(self._programs) for note in program.notes]
        return list(dict.fromkeys([*found, *self._thread.refused.values()]))

    def reports(self) -> list[ProgramReport]:
        """The reports of its programs."""
        return [program.report() for program in list(self._programs)]

    def __repr__(self) -> str:
        inputs = ", ".join(f"{name} {shape}" for name, shape in self.inputs.items())
        outputs, programs = ", ".join(self.outputs), len(self._programs)
        return (
            f"{type(self).__name__}({inputs} -> {outputs}; {bytes_text(self.nbytes)} of constants, "
            f"{programs} program{'' if programs == 1 else 's'})"
        )

    def _replayed(self, mine: _Thread, program: PredictionProgram, x: Any, out: Any) -> Any:
        arena = mine.arena.take(program.arena_bytes, mine.forget, program.has_holes, program.memory)
        try:
            if self._net.link is None:
                return program.run(arena, x, out)
            made = program.run(arena, x)
        finally:
            mine.arena.give_back(arena)
        made = self._net.link(made)
        return made if out is None else put(made, out)

    def _unrecordable(self, mine: _Thread, key: Any) -> ArgumentError:
        return ArgumentError(
            "predictor",
            expected=f"layers that can be recorded, as constants come to {self._net.device.name} "
            "with a program",
            received=mine.refused[key],
            advice="call net.predict, or make the predictor of a net on the CPU",
        )

    def _made(self, mine: _Thread, key: Any, feed: Mapping[str, Any]) -> PredictionProgram | None:
        """The program of a kind of arrays, if it is due now and can be recorded."""
        if key in mine.refused or (self._ops.on_host and not mine.is_due(key)):
            return None
        with self._net.constants.lock:
            try:
                program = _program(self._net, feed)
            except NotRecordableError as error:
                mine.refused[key] = str(error)
                return None
        trim()
        mine.known[key] = program
        if len(mine.known) > CAPACITY:
            mine.known.popitem(last=False)
        self._programs.add(program)
        return program


class Prediction:
    """A recorded prediction for one kind of arrays. ``notes`` list its Python steps."""

    def __init__(self, recording: Recording, notes: list[str]) -> None:
        self.recording = recording
        self.notes = notes
        self.arena_bytes = recording.layout.nbytes + ALIGNMENT
        self.has_holes = recording.is_recurrent
        self.memory = recording.lowering.memory
        self._bound: Bound | None = None
        self._calls: list[Ready] = []
        self._taken: Ready = list
        self._found: Any = None

    @property
    def outside(self) -> list[Array]:
        """The constants that it reads."""
        return list(self.recording.outside.values())

    def forget(self) -> None:
        """Drop the arrays of the arena it was bound to."""
        self._bound, self._calls, self._taken, self._found = None, [], list, None

    def run(self, arena: Array, x: Any, out: Any = None) -> Any:
        """The predictions for ``x``, a dict or the array of a single input; in ``out``, if any."""
        bound = self._bound
        if bound is None or bound.arena is not arena:
            # Set last: otherwise an interrupt could leave calls on other memory.
            self._bound = None
            bound = Bound(self.recording, arena)
            self._calls = joined(chained(bound.feed.calls))
            assert bound.outputs is not None
            self._found = bound.outputs.arrays[0][""]
            self._taken = _taking(self._found)
            self._bound = bound
        bound.fill(x)
        for call in self._calls:
            call()
        return self._taken() if out is None else put(self._found, out)

    def report(self) -> ProgramReport:
        """Its report."""
        from singanet.program.report import ProgramReport

        made, bound = self.recording, self._bound
        launches = None if bound is None else bound.launches()
        return ProgramReport(
            made.kernels, made.buffers, made.layout, None, self.notes, launches=launches
        )


def _taking(found: Any) -> Ready:
    """A function that copies an output, or several."""
    if type(found) is np.ndarray:
        # A keyword, or a wrapper, would take as long as the copy of a small array.
        return found.copy if found.flags.c_contiguous else partial(copied, found)
    return partial(map_arrays, found, copied)


class _Thread(threading.local):
    """The programs of a thread, and the memory that they use in turn."""

    def __init__(self) -> None:
        self.known: OrderedDict[Any, PredictionProgram] = OrderedDict()
        self.refused: dict[Any, str] = {}
        self.latest: _Latest | None = None
        self.arena = SharedArena()
        self._seen: OrderedDict[Any, None] = OrderedDict()

    def is_due(self, key: Any) -> bool:
        """Whether a kind of arrays is worth a program: there is room, or it came before."""
        if len(self.known) < CAPACITY or key in self._seen:
            return True
        self._seen[key] = None
        if len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)
        return False

    def forget(self) -> None:
        """Let every program forget the memory that it was bound to."""
        for program in self.known.values():
            program.forget()


class _Latest:
    """The last prediction: equal kinds of arrays need neither look-up nor check."""

    def __init__(self, program: PredictionProgram, feed: Mapping[str, Any], settings: Any) -> None:
        self.program = program
        x = dict(feed) if len(feed) != 1 else next(iter(feed.values()))
        self._fed, self._settings = facts(x), settings
        # Comparing arrays one by one takes a fraction of the time of `facts`.
        self._kind = _kind(x) if type(x) is np.ndarray else None
        arrays = type(x) is dict and all(type(part) is np.ndarray for part in x.values())
        self._kinds = {name: _kind(part) for name, part in x.items()} if arrays else {}

    def alike(self, x: Any, settings: Any) -> bool:
        """Whether the program serves ``x``, the array of a single input or a dict of several."""
        if settings != self._settings:
            return False
        if type(x) is np.ndarray:
            return _kind(x) == self._kind
        if not self._kinds or type(x) is not dict or len(x) != len(self._kinds):
            return bool(facts(x) == self._fed)
        for name, kind in self._kinds.items():
            part = x.get(name)
            if type(part) is not np.ndarray or _kind(part) != kind:
                return False
        return True


def _kind(array: Array) -> tuple[Shape, Shape, np.dtype[Any]]:
    return array.shape, array.strides, array.dtype


def _recorded(net: ConstantNet, feed: Mapping[str, Any]) -> Prediction:
    stand_in: Any = net
    recorder = rehearse(stand_in, lambda recorder: net.record(recorder, feed))
    recording = compiled(recorder)
    net.constants.settle(recording.outside.values(), _read_in_python(recorder))
    return Prediction(recording, recorder.notes)


def _program(net: ConstantNet, feed: Mapping[str, Any]) -> Prediction | SharedPrediction:
    """The program, and later one of a single thread, if threads share its kernels."""
    program, ops = _recorded(net, feed), net.device.ops
    jobs = ops.jobs() if ops.on_host else None
    if jobs is None or program.notes or any(type(x) is not np.ndarray for x in feed.values()):
        return program

    def record(given: Mapping[str, Any]) -> Prediction:
        with net.constants.lock:
            return _recorded(net, given)

    return SharedPrediction(program, record, list(feed), jobs.is_busy)


def _read_in_python(recorder: Recorder) -> set[int]:
    """Ids of the parameters of layers whose own Python runs."""
    steps = [step for step in recorder.plan.steps if isinstance(step, RecordedNode)]
    return {id(p) for step in steps if step.recorded.reasons for p in step.layer.params.values()}
