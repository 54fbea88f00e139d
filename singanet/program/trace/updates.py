"""The optimizer's part of a recorded step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from operator import attrgetter, is_not
from typing import Any

import numpy as np

from singanet.errors import SingaNetError
from singanet.optimizer.accumulator import Accumulator
from singanet.optimizer.checks import check_fit
from singanet.optimizer.element_wise import ElementWise
from singanet.optimizer.mixed_precision import ScaledUpdates
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.scale import is_one
from singanet.optimizer.stages import TwoPasses, gathering, reducers, stages_of, two_passes
from singanet.optimizer.state import ParamState
from singanet.optimizer.wrapper import Wrapper
from singanet.params.gradients import LayerGradients
from singanet.params.param import Param
from singanet.params.store import place_of
from singanet.program.array_tree import map_arrays
from singanet.program.guard import Guard, is_library, is_patched
from singanet.program.ir import NotRecordableError, Ref
from singanet.program.relocate import relocated
from singanet.program.trace.evaluator import AbstractEvaluator
from singanet.program.trace.foreign import is_own
from singanet.program.trace.joint_update import Waiting, joint_update, runs
from singanet.program.trace.python_pass import is_sparse
from singanet.program.trace.sparse_rows import RowsSource, source_of, sources
from singanet.program.trace.tape import Tape
from singanet.program.trace.traced import Traced, plain
from singanet.program.trace.update_scalars import Numbers, has_own_schedules
from singanet.types import Array


@dataclass
class Member:
    """A parameter that recorded kernels update: its ``layer``, and where its gradient lies.

    ``grad`` is None where what lies there is not what the optimizer is given.
    """

    layer: str
    state: ParamState
    value: Array
    grad: Ref | None


class Updates:
    """Writes the update of each layer's parameters on the tape.

    Gradients go through the stages of ``optimizer`` to its rule, as they do by the layers; both
    are arithmetic of arrays, which the tape writes down. What is not becomes a Python step of
    the whole optimizer. Small parameters wait, to be updated together. ``trained`` are the
    parameters that will be updated. `finish` has to be called at the end.
    """

    def __init__(self, tape: Tape, optimizer: Any, guard: Guard, trained: Iterable[Param]) -> None:
        self.tape = tape
        self.guard = guard
        self.optimizer = optimizer
        self.numbers: list[Numbers] = []
        self.members: list[list[Member]] = []
        self.reasons: list[str] = []
        self.stages, self.rule = stages_of(optimizer)
        if reducers(optimizer):
            raise NotRecordableError("the optimizer waits for other processes")
        self._why = refusal(optimizer)
        self._traced: list[Wrapper] = []
        if self._why is None:
            params = list(trained)
            names, values = [p.name for p in params], [p.value for p in params]
            for stage in self.stages:
                values = list(stage.settle(names, values))
            self._traced = [_traced(stage) for stage in self.stages]
            for part in [*self.stages, self.rule]:
                guard.part(part)
            guarded = [*self.stages, *([self.rule] if self.rule.case() != () else [])]
            for stage in guarded:
                what = "a stage of the optimizer was changed, or its next step is of another kind"
                guard.watch(what, StageGuard(stage).holds)
        # A stage may look at a layer's parameters once they are updated, as for rounding them.
        first = self._traced[0] if self._traced else None
        self.scaled = first if isinstance(first, ScaledUpdates) else None
        by_element = getattr(type(self.rule), "_sweep", None) is ElementWise._sweep
        own = all(is_library(type(stage)) for stage in self.stages)
        # By the layers such a rule works through blocks of a parameter.
        self._blocks: Callable[[], AbstractContextManager[None]] = (
            tape.in_blocks if by_element else nullcontext
        )
        self._together = by_element and self.scaled is None and own
        self._recordable: bool | None = None
        self._whole = False
        self._waiting: list[Waiting] = []
        self._untraced: dict[int, Array] = {}
        self._moves: dict[int, tuple[int, int]] = {}

    def ahead(self) -> TwoPasses | None:
        """The clipping that has to see all gradients of this step first, if any does.

        Raises `NotRecordableError` where a Python step would have to know what it found.
        """
        ahead = two_passes(self.optimizer)
        due = ahead is not None and ahead.due()
        if due or isinstance(self.optimizer, ScaledUpdates):
            if self._why is not None:
                raise NotRecordableError(self._why)
            self._whole = True
        if ahead is None or not due:
            return None
        traced = dict(zip(map(id, self.stages), self._traced, strict=True))
        gathering: Any = tuple(traced[id(each)] for each in ahead.gathering)
        clip: Any = traced[id(ahead.clip)]
        return TwoPasses(gathering, clip)

    @property
    def weighs(self) -> bool:
        """Whether a stage has to be told what the loss of the batch counts."""
        return bool(gathering(self.optimizer))

    def begin(self, count: float | Callable[[Any], float | None] | None, outputs: Any) -> None:
        """Tell accumulators the ``count`` of a batch, or what gives it at a replay."""
        real = gathering(self.optimizer)
        # Numbers that differ from replay to replay, by the stages that have them.
        numbers: list[tuple[Accumulator, Array, Array]] = []
        for stage in real if self._traced else ():
            one: Any = self._traced[self.stages.index(stage)]
            if not callable(count):
                one.begin(count)
                if one.is_even():
                    continue
            if not one.is_together():
                self._why = "its parameters are at different micro-batches"
            weight, share = np.ones(()), np.ones(())
            one.weigh(weight.view(Traced), share.view(Traced))
            numbers.append((stage, weight, share))

        def tell(outputs: Any) -> None:
            now = count(outputs) if callable(count) else count
            for stage in real:
                stage.begin(now)
            for stage, weight, share in numbers:
                weight[...], share[...] = stage.weight, stage.share()

        filled = [array for _, *pair in numbers for array in pair]
        self.tape.layer, self.tape.phase = "loss", "loss"
        read = (outputs if callable(count) else None,)
        self.tape.add(tell, read, {}, filled, "hidden", name="weigh").barrier = True

    def record(self, item: LayerGradients) -> None:
        """The update with the gradients that a backward walk yielded."""
        self.tape.layer, self.tape.phase = item.layer, "update"
        why = self._why
        if not item.names and why is None:
            return
        names, values, grads = list(item.names), list(item.values), list(item.grads)
        if why is None and self.stages:
            # How many rows there are no stage could see.
            reads = any(stage.reads_gradients for stage in self.stages)
            sparse = reads and any(map(is_sparse, grads))
            why = "rows of a table" if sparse else self._staged(names, values, grads)
        elif why is None:
            for name, value, grad in zip(names, values, grads, strict=True):
                refused = self._ruled(name, value, grad, 1.0)
                if refused is not None:
                    self._in_python([name], [value], [grad], refused)
        if why is not None:
            self._in_python(names, values, grads, why)
            for stage in self._traced:
                stage.skip(names)

    def _staged(self, names: list[str], values: list[Array], grads: list[Any]) -> str | None:
        """Record the way of a layer's gradients through the stages; why not, where that fails."""
        mark, known, ruled = len(self.tape.calls), len(self.tape.scalars), len(self.numbers)
        waiting, moves = list(self._waiting), dict(self._moves)
        before = [map_arrays(vars(stage), lambda array: array) for stage in self._traced]
        traced: list[Array] = [value.view(Traced) for value in values]
        # Of views nobody knows in which bucket they lie.
        self._untraced = {id(view): value for view, value in zip(traced, values, strict=True)}
        # Nothing is computed, so that nothing is to be undone.
        evaluator, self.tape.evaluator = self.tape.evaluator, AbstractEvaluator()
        try:
            self._handed(0, names, traced, grads, 1.0)
        except NotRecordableError as error:
            del self.tape.calls[mark:]
            del self.tape.scalars[known:]
            del self.numbers[ruled:], self.members[ruled:]
            self._waiting, self._moves = waiting, moves
            for stage, state in zip(self._traced, before, strict=True):
                vars(stage).update(state)
            return str(error)
        finally:
            self.tape.evaluator = evaluator
        return None

    def _handed(self, depth: int, names: Any, values: Any, grads: Any, scale: Any) -> None:
        """What the stage at ``depth`` hands on, and so on to the rule."""
        if depth == len(self._traced):
            for name, value, grad in zip(names, values, grads, strict=True):
                own = self._untraced.get(id(value))
                why = self._ruled(name, plain(value) if own is None else own, grad, scale)
                if why is not None:
                    raise NotRecordableError(why)
            return
        for given in self._traced[depth].take(names, values, grads, scale):
            self._handed(depth + 1, *given)
        stage = self.stages[depth]
        if type(stage).skip is not Wrapper.skip:
            skip = partial(stage.skip, list(names))
            self.tape.add(skip, (), {}, (), "hidden", name="count").barrier = True

    def _ruled(self, name: str, value: Array, grad: Any, scale: Any) -> str | None:
        """Record the update of one parameter by the rule, or let it wait; why not, if so."""
        why = self._unfit(self.rule.state(name), value, grad)
        if why is not None:
            return why
        state = self.rule.settle(name, value)
        source = source_of(grad)
        if source is not None:
            self._rows(name, value, source, scale)
            return None
        if self._waits(state, value, grad, scale):
            return None
        return self._kernels(name, value, grad, scale)

    def finish(self) -> None:
        """Write down the updates that wait, and lay their gradients side by side."""
        self._update_waiting()
        self._end()
        self.tape.moves = self._moves
        for member in (m for members in self.members for m in members):
            if member.grad is not None:
                member.grad = relocated(member.grad, self._moves)

    def _end(self) -> None:
        """Write down what stages do at the end of a step.

        Raises `NotRecordableError` where they saw some updates in Python, and some in kernels.
        """
        ending = [k for k, stage in enumerate(self.stages) if type(stage).end is not Wrapper.end]
        self.tape.layer, self.tape.phase = "", "update"
        if not ending:
            return
        if self.reasons and self.members:
            raise NotRecordableError("the end of a step of which some updates are Python steps")
        does, self.tape.evaluator = self.tape.evaluator, AbstractEvaluator()
        try:
            for k in ending:
                if self.reasons:
                    end = self.stages[k].end
                    self.tape.add(end, (), {}, (), "hidden", name="python step").barrier = True
                else:
                    self._traced[k].end()
        finally:
            self.tape.evaluator = does

    def _waits(self, state: ParamState, value: Array, grad: Any, scale: Any) -> bool:
        """Let the update wait for others, where it can be made together with them."""
        if state.constraint is not None or not self._together:
            return False
        if self.stages and not is_one(scale):
            # An interrupted step could not make up for it.
            return False
        waiting = Waiting(self.tape.layer, state, value, grad, scale, place_of(value))
        if not waiting.fits(self.tape, self._moves):
            return False
        if has_own_schedules(self.rule, state.regularizer):
            return False
        if self._recordable is None:
            self._recordable = self._is_recordable(state.name, value, grad, scale)
        if not self._recordable:
            return False
        if self._waiting and self._waiting[0].bucket is not waiting.bucket:
            # No gradient waits for long.
            self._update_waiting()
        self._waiting.append(waiting)
        return True

    def _is_recordable(self, name: str, value: Array, grad: Any, scale: Any) -> bool:
        """Whether the rule leaves kernels, of which no trace stays here."""
        tape = self.tape
        calls, scalars, numbers = len(tape.calls), len(tape.scalars), len(self.numbers)
        recorded = self._kernels(name, value, grad, scale) is None
        del tape.calls[calls:], tape.scalars[scalars:]
        del self.numbers[numbers:], self.members[numbers:]
        return recorded

    def _update_waiting(self) -> None:
        group, self._waiting = self._waiting, []
        now = self.tape.layer, self.tape.phase
        for run in runs(group):
            if len(run) > 1:
                self.tape.layer, self.tape.phase = "", "update"
                try:
                    numbers, moves = joint_update(self.tape, self.rule, run)
                except NotRecordableError:
                    pass
                else:
                    self._add(numbers, run)
                    self._moves |= moves
                    continue
            for waiting in run:
                self.tape.layer, self.tape.phase = waiting.layer, "update"
                name = waiting.state.name
                why = self._kernels(name, waiting.value, waiting.grad, waiting.scale)
                if why is not None:
                    if self.stages:
                        raise NotRecordableError(why)
                    self._in_python([name], [waiting.value], [waiting.grad], why)
        self.tape.layer, self.tape.phase = now

    def _kernels(self, name: str, value: Array, grad: Any, scale: Any) -> str | None:
        """Record the rule's kernels; why not, where that fails."""
        mark, known = len(self.tape.calls), len(self.tape.scalars)
        numbers = Numbers(self.rule, [self.rule.settle(name, value)])
        evaluator, self.tape.evaluator = self.tape.evaluator, AbstractEvaluator()
        try:
            with self._blocks():
                self.rule.apply_rule(
                    numbers.state,
                    value.view(Traced),
                    grad,
                    [array.view(Traced) for array in numbers.arrays],
                    *numbers.read(),
                    scale,
                )
        except NotRecordableError as error:
            del self.tape.calls[mark:]
            del self.tape.scalars[known:]
            return str(error)
        finally:
            self.tape.evaluator = evaluator
        numbers.scalars = self.tape.scalars[known:]
        self._add(numbers, [Waiting(self.tape.layer, numbers.state, value, grad, scale)])
        return None

    def _add(self, numbers: Numbers, group: Sequence[Waiting]) -> None:
        self.numbers.append(numbers)
        # What stages hand on, a step that is interrupted needs only where updates waited for it.
        asked = not self.stages or len(group) > 1
        refs = [self.tape.ref(w.grad) if asked else None for w in group]
        self.members.append(
            [Member(w.layer, w.state, w.value, ref) for w, ref in zip(group, refs, strict=True)]
        )

    def _rows(self, name: str, value: Array, source: RowsSource, scale: Any) -> None:
        """Record the update of those rows of a table that ``source`` has."""
        rule = self.rule
        numbers = Numbers(rule, [rule.settle(name, value)])

        def update(scale: Any) -> None:
            now = numbers.state, value, source.now(), numbers.penalty, numbers.values
            rule.apply_rule_to_rows(*now, float(scale))

        call = self.tape.add(
            update, (scale,), {}, [value], "hidden", changes=True, name="update rows"
        )
        call.barrier = True
        self.numbers.append(numbers)
        self.members.append([Member(self.tape.layer, numbers.state, value, None)])

    def _unfit(self, state: ParamState, value: Array, grad: Any) -> str | None:
        """Why the update of this parameter is not recorded, if so."""
        if is_sparse(grad) and source_of(grad) is None:
            return "rows of a table"
        if is_sparse(grad) and type(self.rule).update is not Optimizer.update:
            return "its optimizer looks at rows before"
        for part in (state.constraint, state.regularizer):
            if part is None:
                continue
            if not is_own(part):
                return f"{type(part).__name__} is not singanet's"
            self.guard.part(part)
        try:
            check_fit("", state.name, value, value if is_sparse(grad) else grad, state.shape)
        except SingaNetError as error:
            return str(error)
        return None

    def _in_python(self, names: list[str], values: list[Array], grads: list[Any], why: str) -> None:
        if self._whole:
            raise NotRecordableError(why)
        if names:
            self.reasons.append(f"{', '.join(names)}: {why}")
        optimizer, given = self.optimizer, sources(grads)
        dense = [grad for grad in given if not isinstance(grad, RowsSource)]
        # No array of the recording stays in the program.
        rows = [grad if isinstance(grad, RowsSource) else None for grad in given]

        def update(arrays: list[Array]) -> None:
            rest = iter(arrays)
            # Lists and arrays of its own: the optimizer may keep them, or change them.
            now = [next(rest).copy() if source is None else source.now() for source in rows]
            optimizer.update(names.copy(), values.copy(), now)

        call = self.tape.add(
            update, (dense,), {}, values, "hidden", changes=True, name="python step"
        )
        call.barrier = True


class StageGuard:
    """Whether a stage, or a rule with cases, is as it was when its arithmetic was recorded."""

    def __init__(self, stage: Any) -> None:
        self._stage = stage
        self._case = stage.case()
        names = [
            name
            for name, value in vars(stage).items()
            if not name.startswith("_") or isinstance(value, (dict, np.ndarray))
        ]
        self._get = attrgetter(*names, "__class__", "__class__")
        self._before = self._get(stage)

    def holds(self) -> bool:
        """Whether attributes are the same objects, and the next step is of the same case."""
        same = not any(map(is_not, self._get(self._stage), self._before))
        return same and self._stage.case() == self._case


def refusal(optimizer: Any) -> str | None:
    """Why no update of ``optimizer`` is recorded, if so."""
    stages, rule = stages_of(optimizer)
    for part in (*stages, rule):
        kind = type(part).__name__
        if not is_library(type(part)) and not getattr(part, "pure", False):
            return f"{kind} is not singanet's"
        if not isinstance(part, Optimizer) and type(part).update is not Wrapper.update:
            return f"{kind} has an update of its own"
        if is_patched(part):
            return f"a method of this {kind} was replaced"
    return None


def _traced(stage: Wrapper) -> Wrapper:
    """A copy of ``stage`` whose arrays are traced, and whose counts are its own."""
    made: Wrapper = object.__new__(type(stage))
    for name, value in vars(stage).items():
        state = name != "optimizer"
        vars(made)[name] = map_arrays(value, lambda a: a.view(Traced)) if state else value
    return made
