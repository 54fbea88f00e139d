"""Recorded updates.

An element-wise rule treats them as one parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from operator import attrgetter
from typing import Any, NamedTuple

from singanet.base.elsewhere import is_library
from singanet.base.processes import done_whole
from singanet.errors import SingaNetError
from singanet.optimizer.chain import (
    TwoPasses,
    UpdateChain,
    are_neighbours,
    bounds_of,
    has_own_schedules,
    onwards,
    runs,
)
from singanet.optimizer.element_wise import ElementWise
from singanet.optimizer.hyper import is_one
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.reducer import Reducer, Reduction
from singanet.optimizer.state import ParamState, ParamUpdate, check_fit
from singanet.params.grads import LayerGradients
from singanet.params.param import Param
from singanet.params.storage import Place, place_of
from singanet.program.guard import Guard
from singanet.program.ir import Call, NotRecordableError, Ref
from singanet.program.join_lanes import moved, relocated
from singanet.program.trace.foreign_code import is_own
from singanet.program.trace.layers import is_sparse
from singanet.program.trace.numbers import StepScalar, number_now
from singanet.program.trace.sparse_rows import NarrowParameters, RowsSource, source_of, sources
from singanet.program.trace.tape import Tape
from singanet.program.trace.traced_stages import TracedStages, refusal, schedules_held, watch_case
from singanet.types import Array, RowSparse

_SETTINGS = attrgetter("step", "lr_mult", "decay_mult", "regularizer", "constraint")


class Numbers:
    """The numbers of one update, asked of the optimizer anew before each replay.

    The update is of one parameter, or of several whose settings and steps are the same.
    """

    def __init__(self, optimizer: Optimizer, states: Sequence[ParamState]) -> None:
        self.optimizer = optimizer
        # Whether the update ends the step of its parameters.
        self.counts = True
        self.state = states[0]
        self.states = tuple(states)
        self._kept = [(state, state.arrays, bounds_of(state)) for state in states]
        self._plain = all(bounds is None for _, _, bounds in self._kept)
        with schedules_held(optimizer, self.state.regularizer):
            self.penalty, self.values = optimizer.numbers(self.state)
        self.scalars: list[StepScalar] = []
        # What the scalars look at, so that they need not know these numbers in turn.
        self._current = [(self.penalty, self.values)]
        # What all of them show, None while they are refreshed: an interrupt may leave some behind.
        self._shown: tuple[float, tuple[float, ...]] | None = self._current[0]

    @property
    def arrays(self) -> list[Array]:
        """The state arrays of all parameters."""
        return [array for _, arrays, _ in self._kept for array in arrays]

    @property
    def lost(self) -> bool:
        """Whether state was dropped or loaded: other arrays are there, for good."""
        return any(state.held is not arrays for state, arrays, _ in self._kept)

    def holds(self) -> bool:
        """Whether the program's kernels are still right for the parameters."""
        state = self.state
        if self._plain:
            now = state.step, state.lr_mult, state.decay_mult, None, None
            for state, arrays, _ in self._kept:
                if _SETTINGS(state) != now or state.held is not arrays:
                    return False
            return True
        step, rate, decay, *_ = self.settings()
        for state, arrays, bounds in self._kept:
            bare = state.regularizer is None and state.constraint is None
            if (
                state.held is not arrays
                or state.step != step
                or state.lr_mult != rate
                or state.decay_mult != decay
                or ((bounds is not None or not bare) and bounds_of(state) != bounds)
            ):
                return False
        return True

    def settings(self) -> tuple[Any, ...]:
        """The settings that the numbers depend on; equal ones give equal numbers."""
        state = self.state
        alike = state.step, state.lr_mult, state.decay_mult, state.penalty_mult, state.ratio
        return *alike, state.regularizer

    def asked(self) -> tuple[float, tuple[float, ...]]:
        """The numbers of this step."""
        return self.optimizer.numbers(self.state)

    def take(self, numbers: tuple[float, tuple[float, ...]]) -> None:
        """Let the kernels of the next replay see ``numbers``."""
        if numbers != self._shown:
            self._shown = None
            self.penalty, self.values = self._current[0] = numbers
            for scalar in self.scalars:
                scalar.refresh()
            self._shown = numbers

    def advance(self) -> None:
        """Count a step."""
        for state in self.states:
            state.step += self.counts

    def read(self) -> tuple[Any, tuple[Any, ...]]:
        """The numbers, as scalars that change from step to step."""
        current = self._current

        def reader(k: int) -> StepScalar:
            return StepScalar(lambda: current[0][1][k])

        penalty: Any = self.penalty
        if self.state.is_scheduled:
            penalty = StepScalar(lambda: current[0][0])
        # What is true or false belongs to the optimizer's case.
        return penalty, tuple(
            v if isinstance(v, bool) else reader(k) for k, v in enumerate(self.values)
        )


def refresh(every: Sequence[Numbers]) -> None:
    """Ask for the numbers of this step, once for all parameters that have the same."""
    before: tuple[Any, ...] = ()
    found: tuple[float, tuple[float, ...]] = 0.0, ()
    for numbers in every:
        settings = numbers.settings()
        if settings != before or has_own_schedules(numbers.optimizer, settings[-1]):
            before, found = settings, numbers.asked()
        numbers.take(found)


Moves = dict[int, tuple[int, int]]
"""By token: the token in which it lies instead, and from which byte on."""


class PendingUpdate(NamedTuple):
    """A parameter of ``layer`` whose update waits for others; ``place`` is where its value lies.

    A gradient that was ``summed`` is a part of a buffer, where it stays.
    """

    layer: str
    state: ParamState
    value: Array
    grad: Any
    scale: Any = 1.0
    place: Place | None = None
    summed: bool = False

    def fits(self, tape: Tape, moves: Moves) -> bool:
        """Whether the value lies in a bucket, and the gradient may lie beside others."""
        value, grad = self.value, self.grad
        if (
            self.place is None
            or not getattr(value.flags, "writeable", True)
            or grad.dtype != value.dtype
            or not grad.flags.c_contiguous
        ):
            return False
        if self.summed:
            return True
        number = tape.ref(grad).token
        token = tape.tokens[number]
        planned = token.held is None and token.writes and token.nbytes == grad.nbytes
        return bool(planned) and number not in moves

    @property
    def bucket(self) -> Array | None:
        """The flat array in which the value lies."""
        return None if self.place is None else self.place.bucket

    def precedes(self, other: PendingUpdate) -> bool:
        """Whether ``other`` comes next in the bucket, its state too, and has the same numbers."""
        scales = self.scale is other.scale or (is_one(self.scale) and is_one(other.scale))
        mine, theirs = self.grad, other.grad
        beside = not self.summed or (
            mine.region is theirs.region and mine.offset + mine.nbytes == theirs.offset
        )
        return (
            scales and beside and are_neighbours(self.place, self.state, other.place, other.state)
        )


def joint_update(
    tape: Tape, rule: ElementWise, run: Sequence[PendingUpdate]
) -> tuple[Numbers, Moves]:
    """Write the update of ``run`` on the tape: its numbers, and where its gradients are to lie.

    Raises `NotRecordableError` where two of them have one gradient.
    """
    summed = run[0].summed
    tokens = [] if summed else [tape.ref(waiting.grad).token for waiting in run]
    if len(set(tokens)) < len(tokens):
        raise NotRecordableError("a gradient of two parameters")
    first, last = run[0].place, run[-1].place
    assert first is not None
    assert last is not None
    value = first.bucket[first.start : last.stop]
    if summed:
        first_grad = run[0].grad
        grads = first_grad.viewed((value.size,), (value.itemsize,))
    else:
        grads = tape.like(value)
    numbers = Numbers(rule, [waiting.state for waiting in run])
    mark, known = len(tape.calls), len(tape.scalars)
    try:
        slots = [onwards(array, value.size, array.base) for array in numbers.state.arrays]
        near: list[Any] = [tape.place(array) for array in (value, grads, *slots)]
        w, g, *arrays = near
        scale = run[0].scale
        rule.apply_rule(ParamUpdate(numbers.state, w, g, arrays, *numbers.read(), scale))
    except NotRecordableError:
        tape.delete_from(mark)
        del tape.scalars[known:]
        raise
    numbers.scalars = tape.scalars[known:]
    joint, moves, start = tape.ref(grads).token, {}, 0
    for token, waiting in zip(tokens, () if summed else run, strict=True):
        moves[token] = joint, start
        start += waiting.value.nbytes
    return numbers, moves


def with_gradients_joined(calls: Sequence[Call], moves: Moves) -> list[Call]:
    """``calls`` with the gradients at the places that ``moves`` gives them."""
    for call in calls:
        if not moves.keys().isdisjoint(call.writes):
            # A step that is interrupted finds them there.
            call.once = True
    return [moved(call, moves) for call in calls]


class Member(NamedTuple):
    """A parameter that recorded kernels update: its ``layer``, and where its gradient lies.

    ``grad`` is None if the optimizer is given something else than the array there.
    """

    layer: str
    state: ParamState
    value: Array
    grad: Ref | None


class Updates:
    """Writes the update of each layer's parameters on the tape.

    Gradients go through the stages of ``chain`` to its rule, as they do by the layers; both
    are arithmetic of arrays, which the tape writes down. What is not becomes a Python step of
    the whole optimizer. Small parameters wait, to be updated together. ``trained`` are the
    parameters that will be updated; their gradients may be parts of buffers in which they were
    ``summed``. `finish` has to be called at the end.
    """

    def __init__(
        self,
        tape: Tape,
        chain: UpdateChain,
        guard: Guard,
        trained: Iterable[Param],
        held: NarrowParameters,
        summed: bool = False,
    ) -> None:
        self.tape = tape
        self.held = held
        self.summed = summed
        self.reduction: Reduction | None = None
        self.guard = guard
        self.chain = chain
        self.numbers: list[Numbers] = []
        self.members: list[list[Member]] = []
        self.reasons: list[str] = []
        self.rule = chain.rule
        self.stages: list[Any] = [stage for stage in chain.stages if not stage.traits.waits]
        self._local: list[Reducer] = []
        for reducer in chain.reducers:
            guard.part(reducer)
            if not reducer._alone:
                self._local.append(reducer)
        self._why = refusal([*self.stages, self.rule])
        self._traced = TracedStages(tape, guard, self.stages, trained, self._why is None)
        if self._why is None:
            guard.part(self.rule)
            if self.rule.case() != ():
                watch_case(guard, self.rule)
        # A stage may look at a layer's parameters once they are updated, as for rounding them.
        self.scaled: Any = self._traced.scaled
        by_element = getattr(type(self.rule), "_sweep", None) is ElementWise._sweep
        self._by_element = by_element
        own = all(is_library(type(stage)) for stage in self.stages)
        # By the layers such a rule works through blocks of a parameter.
        self._blocks: Callable[[], AbstractContextManager[None]] = (
            tape.in_blocks if by_element else nullcontext
        )
        self._together = by_element and self.scaled is None and own
        self._recordable: bool | None = None
        self._whole = False
        self._waiting: list[PendingUpdate] = []
        self._untraced: dict[int, Array] = {}
        self._moves: dict[int, tuple[int, int]] = {}
        self._room = 0

    def ahead(self) -> TwoPasses | None:
        """The clipping that has to see all gradients of this step first, if any does.

        Raises `NotRecordableError` where a Python step would have to know what it found.
        """
        norm = self.chain.norm
        due = norm is not None and norm.due()
        if due or self.chain.scaled is not None:
            if self._why is not None:
                raise NotRecordableError(self._why)
            self._whole = True
        if norm is None or not due:
            return None
        around = [self.traced_of(stage) for stage in norm.gathering if not stage.traits.waits]
        return TwoPasses(tuple(around), self.traced_of(norm.clip))

    @property
    def traced(self) -> Sequence[Any]:
        """The twins of the stages in the recording."""
        return self._traced.traced

    def traced_of(self, stage: Any) -> Any:
        """The twin of ``stage`` in the recording."""
        return self._traced.traced_of(stage)

    @property
    def _weighs(self) -> bool:
        """Whether a stage has to be told what the loss of the batch counts."""
        return bool(self._local) or any(stage._weighs for stage in self.stages)

    def begin(self, weight: float | Callable[[Any], None] | None, outputs: Any) -> None:
        """Tell stages the ``weight`` of a batch; a function tells it at each replay."""
        if self._local and (callable(weight) or weight == 0):
            raise NotRecordableError("a rank that has no samples for a step updates nothing")
        self._why = self._traced.weigh(self.chain, weight, outputs) or self._why

    def record(self, item: LayerGradients) -> None:
        """The update with the gradients that a backward walk yielded."""
        self.tape.layer, self.tape.phase = item.layer, "update"
        if not item.names and self._why is None:
            return
        names, values, grads = list(item.names), list(item.values), list(item.grads)
        self.held.count(names, self.tape)
        for name in item._unfinished:
            at = names.index(name)
            self._part(names.pop(at), values.pop(at), grads.pop(at))
        self.record_scaled(names, values, grads, 1.0)

    def _part(self, name: str, value: Array, grad: Any) -> None:
        """Record an update that others of the same step and parameter follow."""
        state = self.rule.settle(name, value)
        why = self._unfit(state, value, grad) or self._kernels(name, value, grad, 1.0)
        if why is not None:
            raise NotRecordableError(why)
        # The last of them counts the step.
        self.numbers[-1].counts = False
        self.members[-1] = []

    def record_scaled(
        self, names: list[str], values: list[Array], grads: list[Any], scale: Any
    ) -> None:
        """The update with ``scale`` times the gradients ``grads``."""
        why = self._why
        if why is None and self.stages:
            # How many rows there are no stage can see: one that looks at them is refused.
            why = self._staged(names, values, grads, scale)
        elif why is None:
            for name, value, grad in zip(names, values, grads, strict=True):
                refused = self._ruled(name, value, grad, scale)
                if refused is not None:
                    self._in_python([name], [value], [grad], refused, scale)
        if why is not None:
            self._in_python(names, values, grads, why, scale)
            for stage in self._traced.traced:
                stage.skip(names)

    def _staged(
        self, names: list[str], values: list[Array], grads: list[Any], scale: Any
    ) -> str | None:
        """Record a layer's gradients through the stages; the reason if that fails, else None."""
        stages = self._traced
        mark, known, ruled = len(self.tape.calls), len(self.tape.scalars), len(self.numbers)
        waiting, moves, before = list(self._waiting), dict(self._moves), stages.state()
        views: list[Any] = [*map(self.tape.place, values)]
        # Of places nobody knows in which bucket they lie.
        self._untraced = {id(view): value for view, value in zip(views, values, strict=True)}
        try:
            stages.hand(names, views, grads, scale, self._rule)
        except NotRecordableError as error:
            self.tape.delete_from(mark)
            del self.tape.scalars[known:]
            del self.numbers[ruled:], self.members[ruled:]
            self._waiting, self._moves = waiting, moves
            stages.restore(before)
            return str(error)
        return None

    def _rule(self, names: Any, values: Any, grads: Any, scale: Any) -> None:
        """Record the rule for what the last stage hands on."""
        for name, value, grad in zip(names, values, grads, strict=True):
            if grad is None:
                # Another process updates it.
                continue
            own = self._untraced.get(id(value))
            if own is None:
                own = self._traced.own(name, value)
            why = self._ruled(name, own, grad, scale)
            if why is not None:
                raise NotRecordableError(why)

    def _ruled(self, name: str, value: Array, grad: Any, scale: Any) -> str | None:
        """Record the update of one parameter by the rule, or let it wait; why not, if so."""
        state = self.rule.state(name)
        why = self._unfit(state, value, grad)
        if why is not None:
            return why
        is_new = not state.arrays
        state = self.rule.settle(name, value)
        if is_new:
            self.tape.note(sum(array.nbytes for array in state.arrays), "state")
        source = source_of(grad)
        if source is not None:
            self._rows(name, value, source, scale)
            return None
        if self._waits(state, value, grad, scale):
            return None
        return self._kernels(name, value, grad, scale)

    def finish(self) -> None:
        """Write down the updates that wait, and lay their gradients side by side."""
        self.update_waiting()
        for stage in self._local:
            if stage in self.chain.reached():
                self.tape.layer, self.tape.phase = "", "communication"
                end = self.tape.add(stage.end, (), {}, (), "hidden", name="end")
                end.barrier = True
        self._end()
        self.tape.moves |= self._moves
        for members in self.members:
            members[:] = [
                m if m.grad is None else m._replace(grad=relocated(m.grad, self._moves))
                for m in members
            ]

    def _end(self) -> None:
        """Write down what stages do at the end of a step.

        Raises `NotRecordableError` where they saw some updates in Python, and some in kernels.
        """
        if not self._traced.ends:
            return
        if self.reasons and self.members:
            raise NotRecordableError("the end of a step of which some updates are Python steps")
        self._traced.end(in_python=bool(self.reasons))

    def _waits(self, state: ParamState, value: Array, grad: Any, scale: Any) -> bool:
        """Let the update wait for others, where it can be made together with them."""
        if state.constraint is not None or not self._together or state.name in self.held:
            return False
        if self.stages and not is_one(scale) and not self.summed:
            # An interrupted step could not make up for it.
            return False
        place = place_of(value)
        waiting = PendingUpdate(self.tape.layer, state, value, grad, scale, place, self.summed)
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
            self.update_waiting()
        self._waiting.append(waiting)
        return True

    def _is_recordable(self, name: str, value: Array, grad: Any, scale: Any) -> bool:
        """Whether the rule leaves kernels, of which no trace stays here."""
        tape = self.tape
        calls, scalars, numbers = len(tape.calls), len(tape.scalars), len(self.numbers)
        recorded = self._kernels(name, value, grad, scale) is None
        tape.delete_from(calls)
        del tape.scalars[scalars:]
        del self.numbers[numbers:], self.members[numbers:]
        return recorded

    def update_waiting(self) -> None:
        """Write down the updates that wait for others."""
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
                    self._add(numbers, run, waited=True)
                    self._moves |= moves
                    continue
            for waiting in run:
                self.tape.layer, self.tape.phase = waiting.layer, "update"
                name = waiting.state.name
                given = waiting.value, waiting.grad, waiting.scale
                why = self._kernels(name, *given, waited=True)
                if why is not None:
                    if self.stages:
                        raise NotRecordableError(why)
                    self._in_python([name], [waiting.value], [waiting.grad], why, waiting.scale)
        self.tape.layer, self.tape.phase = now

    def _kernels(
        self, name: str, value: Array, grad: Any, scale: Any, waited: bool = False
    ) -> str | None:
        """Record the rule's kernels; the reason if that fails, else None.

        The update may have ``waited`` for those of later layers.
        """
        mark, known = len(self.tape.calls), len(self.tape.scalars)
        numbers = Numbers(self.rule, [self.rule.settle(name, value)])
        waiting = PendingUpdate(
            self.tape.layer, numbers.state, value, grad, scale, summed=self.summed
        )
        if name in self.held or value.size > self.rule._most_in_kernels:
            self._in_one_call(numbers, value, grad, scale)
            self._add(numbers, [waiting], waited)
            return None
        try:
            with self._blocks():
                arrays: list[Any] = [*map(self.tape.place, numbers.arrays)]
                place: Any = self.tape.place(value)
                update = ParamUpdate(numbers.state, place, grad, arrays, *numbers.read(), scale)
                self.rule.apply_rule(update)
        except NotRecordableError as error:
            self.tape.delete_from(mark)
            del self.tape.scalars[known:]
            return str(error)
        numbers.scalars = self.tape.scalars[known:]
        self._add(numbers, [waiting], waited)
        return None

    def _in_one_call(self, numbers: Numbers, value: Array, grad: Array, scale: Any) -> None:
        """Record the rule as it is.

        Its kernels are many, one for each block of rows, or the array is lent for the update alone.
        """
        # Nothing more of the recording, whose memory would live as long as the program.
        rule, name, held = self.rule, numbers.state.name, self.held
        # Of one parameter at a time.
        more = max(rule._rule_for(numbers.state)._room(value) - self._room, 0)
        self._room += more
        self.tape.beside += more

        @done_whole
        def update(grad: Array, scale: Any) -> None:
            now = numbers.arrays, numbers.penalty, numbers.values, number_now(scale)

            def change(values: list[Array]) -> None:
                rule.apply_rule(ParamUpdate(numbers.state, values.pop(), grad, *now))

            held.change([name], [value], change)

        memory = self.held.memory_of(name, value)
        filled = [*memory, *(array for array in numbers.arrays if array.size)]
        call = self.tape.add(
            update, (grad, scale), {}, filled, "hidden", changes=True, name="update"
        )
        # Rounding draws numbers.
        call.barrier = name in self.held

    def _add(self, numbers: Numbers, group: Sequence[PendingUpdate], waited: bool) -> None:
        self.numbers.append(numbers)
        # What stages hand on, a step that is interrupted needs only where updates waited for it.
        asked = (not self.stages or waited) and not any(w.summed for w in group)
        refs = [self.tape.ref(w.grad) if asked else None for w in group]
        self.members.append(
            [
                Member(w.layer, w.state, self.held.memory_of(w.state.name, w.value)[0], ref)
                for w, ref in zip(group, refs, strict=True)
            ]
        )

    def _rows(self, name: str, value: Array, source: RowsSource, scale: Any) -> None:
        """Record the update of those rows of a table that ``source`` has."""
        rule, held = self.rule, self.held
        numbers = Numbers(rule, [rule.settle(name, value)])

        @done_whole
        def update(scale: Any) -> None:
            rows, of_step = source.now(), (numbers.penalty, numbers.values, number_now(scale))
            state = numbers.state

            def change(values: list[Array]) -> None:
                now = ParamUpdate(state, values.pop(), rows.rows, state.arrays, *of_step)
                rule._apply_rule_to_rows(rows.indices, now)

            held.change([name], [value], change)

        memory = self.held.memory_of(name, value)
        call = self.tape.add(
            update, (scale,), {}, memory, "hidden", changes=True, name="update rows"
        )
        call.barrier = True
        if not self._by_element:
            # Those rows of the value and of the state are taken out together.
            whole = sum(array.size == value.size for array in (value, *numbers.arrays))
            self.tape.beside += whole * source.nbytes
        self.numbers.append(numbers)
        self.members.append([Member(self.tape.layer, numbers.state, memory[0], None)])

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
            # Which rows there are only a replay knows.
            none = RowSparse(*(part[:0] for part in grad)) if is_sparse(grad) else grad
            check_fit("", state.name, value, none, state.shape)
        except SingaNetError as error:
            return str(error)
        return None

    def _in_python(
        self, names: list[str], values: list[Array], grads: list[Any], why: str, scale: Any
    ) -> None:
        if self._whole:
            raise NotRecordableError(why)
        if names:
            self.reasons.append(f"{', '.join(names)}: {why}")
        optimizer, given = self.chain.optimizer, sources(grads)
        # None is a gradient that another process updates by.
        apart = [grad is None or isinstance(grad, RowsSource) for grad in given]
        dense = [grad for grad, other in zip(given, apart, strict=True) if not other]
        # No array of the recording stays in the program.
        rows = [grad if other else None for grad, other in zip(given, apart, strict=True)]
        held = self.held

        @done_whole
        def update(arrays: list[Array]) -> None:
            rest = iter(arrays)
            # Lists and arrays of its own: the optimizer may keep them, or change them.
            now = [
                (None if source is None else source.now()) if other else next(rest).copy()
                for source, other in zip(rows, apart, strict=True)
            ]
            factor = () if is_one(scale) else (number_now(scale),)
            held.change(
                names, values, lambda given: optimizer.update(names.copy(), given, now, *factor)
            )

        memory = [
            array
            for name, value in zip(names, values, strict=True)
            for array in self.held.memory_of(name, value)
        ]
        call = self.tape.add(
            update, (dense,), {}, memory, "hidden", changes=True, name="python step"
        )
        call.barrier = True
