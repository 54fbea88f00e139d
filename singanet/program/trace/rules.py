"""Recorded rules: the updates of parameters, and the numbers of their steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from singanet.base.elsewhere import is_library
from singanet.base.processes import done_whole
from singanet.errors import SingaNetError
from singanet.optimizer.chain import (
    are_neighbours,
    bounds_of,
    has_own_schedules,
    is_own_schedule,
    onwards,
    runs,
)
from singanet.optimizer.element_wise import ElementWise
from singanet.optimizer.hyper import is_one
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.regularization import Regularizer
from singanet.optimizer.state import Grads, Names, ParamState, ParamUpdate, Values, check_fit
from singanet.params.storage import Place, place_of
from singanet.program.guard import Guard
from singanet.program.ir import Call, NotRecordableError, Ref, map_arrays
from singanet.program.join_lanes import relocated
from singanet.program.trace.foreign_code import arrays_of, is_own, no_draws
from singanet.program.trace.layers import TrialMemory, is_sparse
from singanet.program.trace.numbers import StepScalar, number_now
from singanet.program.trace.sparse_rows import NarrowParameters, RowsSource, source_of
from singanet.program.trace.tape import Tape
from singanet.types import Array, RowSparse

_SETTINGS = attrgetter("step", "lr_mult", "decay_mult", "regularizer", "constraint")
_OF_NUMBERS = attrgetter("step", "lr_mult", "decay_mult", "penalty_mult", "ratio", "regularizer")


class Numbers:
    """The numbers of one update, computed by the optimizer before each replay.

    The update is of one parameter, or of several with equal settings and steps.
    """

    def __init__(self, optimizer: Optimizer, states: Sequence[ParamState]) -> None:
        self.optimizer, self.states, self.state = optimizer, tuple(states), states[0]
        # Whether the update ends the step of its parameters.
        self.counts = True
        self._kept = [(state, state.held, bounds_of(state)) for state in states]
        self._parts = self.state.regularizer, self.state.constraint
        with _schedules_held(optimizer, self.state.regularizer):
            numbers = optimizer.numbers(self.state)
        self.scalars: list[StepScalar] = []
        # A list, so that the scalars need no reference to this object.
        self._current = [numbers]
        # The numbers in all scalars; None in a refresh, which an interrupt may end early.
        self._shown: Any = numbers

    @property
    def arrays(self) -> list[Array]:
        """The state arrays of all parameters."""
        # A stored array has another address at each step.
        found = [state.arrays if state.is_away else held for state, held, _ in self._kept]
        return [array for arrays in found for array in arrays]

    @property
    def lost(self) -> bool:
        """Whether the state arrays were replaced, as by loading."""
        return any(state.held is not arrays for state, arrays, _ in self._kept)

    def holds(self) -> bool:
        """Whether the kernels of the program still fit the parameters."""
        state = self.state
        now = state.step, state.lr_mult, state.decay_mult, *self._parts
        for state, arrays, bounds in self._kept:
            if _SETTINGS(state) != now or state.held is not arrays:
                return False
            if bounds is not None and bounds_of(state) != bounds:
                return False
        return True

    def settings(self) -> tuple[Any, ...]:
        """Return the settings that the numbers depend on."""
        found: tuple[Any, ...] = _OF_NUMBERS(self.state)
        return found

    def now(self) -> tuple[float, tuple[float, ...]]:
        """Return the coefficient of the penalty and the numbers of the rule in this replay."""
        return self._current[0]

    def take(self, numbers: tuple[float, tuple[float, ...]]) -> None:
        """Pass ``numbers`` to the kernels of the next replay."""
        if numbers != self._shown:
            self._shown = None
            self._current[0] = numbers
            for scalar in self.scalars:
                scalar.refresh()
            self._shown = numbers

    def advance(self) -> None:
        """Count a step."""
        for state in self.states:
            state.step += self.counts

    def read(self) -> tuple[Any, tuple[Any, ...]]:
        """Return the numbers as scalars that change from step to step.

        A bool is part of the optimizer's case, and does not change.
        """
        current = self._current
        penalty, values = current[0]

        def reader(k: int) -> StepScalar:
            return StepScalar(lambda: current[0][1][k])

        changes = self.state.is_scheduled
        return (StepScalar(lambda: current[0][0]) if changes else penalty), tuple(
            v if isinstance(v, bool) else reader(k) for k, v in enumerate(values)
        )


def refresh(every: Sequence[Numbers]) -> None:
    """Compute the numbers of this step, once for all parameters with the same."""
    before: tuple[Any, ...] = ()
    found: tuple[float, tuple[float, ...]] = 0.0, ()
    for numbers in every:
        settings = numbers.settings()
        if settings != before or has_own_schedules(numbers.optimizer, settings[-1]):
            before, found = settings, numbers.optimizer.numbers(numbers.state)
        numbers.take(found)


@contextmanager
def _schedules_held(optimizer: Optimizer, regularizer: Regularizer | None) -> Iterator[None]:
    """Replace the user's schedules by numbers in the block, since recording does not call them."""
    owners: list[tuple[Any, str]] = [(optimizer, name) for name in optimizer.hypers]
    owners.append((regularizer, "coefficient"))
    every = [(owner, name, getattr(owner, name, None)) for owner, name in owners]
    own = [(owner, name, value) for owner, name, value in every if is_own_schedule(value)]
    try:
        for owner, name, _ in own:
            setattr(owner, name, 0.5)
        yield
    finally:
        for owner, name, value in own:
            setattr(owner, name, value)


class PendingUpdate(NamedTuple):
    """An update of a parameter of ``layer`` by ``scale`` · ``grad``.

    ``place`` is the value's place in a bucket. A ``summed`` gradient is a part of a buffer, and
    stays there.
    """

    layer: str
    state: ParamState
    value: Array
    grad: Any
    scale: Any
    place: Place | None
    summed: bool

    @property
    def bucket(self) -> Array | None:
        """The flat array with the value."""
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


class Member(NamedTuple):
    """A parameter of ``layer`` that kernels update, and the place of its gradient.

    ``grad`` is None if the optimizer receives something other than this array.
    """

    layer: str
    state: ParamState
    value: Array
    grad: Ref | None


class RecordedRule:
    """Writes the updates by ``rule`` on the tape, in the place of the rule inside the stages.

    Small neighbours in a bucket wait, and an element-wise rule updates them as one parameter.
    Gradients may be ``summed`` in buffers. There are ``stages`` between the gradients of the net
    and the rule. Errors: `NotRecordableError` for an update that is not arithmetic of arrays.
    """

    def __init__(
        self,
        tape: Tape,
        rule: Any,
        guard: Guard,
        held: NarrowParameters,
        stages: Sequence[Any],
        summed: bool,
    ) -> None:
        self.tape, self.rule, self.guard, self.held = tape, rule, guard, held
        self.summed, self.staged = summed, bool(stages)
        self.layers: dict[str, str] = {}
        """The layers of parameters by name."""
        self.numbers: list[Numbers] = []
        self.members: list[list[Member]] = []
        self._ours = is_library(type(rule))
        self._by_element = getattr(type(rule), "_sweep", None) is ElementWise._sweep
        # A user's stage may read a layer's parameters after their update.
        self._joins = (
            self._by_element
            and not has_own_schedules(rule)
            and all(is_library(type(stage)) for stage in stages)
        )
        self._tried: set[tuple[Any, ...]] = set()
        self._waiting: list[PendingUpdate] = []
        self._room = 0

    def __getattr__(self, name: str) -> Any:
        # Stages ask the rule for its states and rates.
        return getattr(self.rule, name)

    def update(self, names: Names, values: Values, grads: Grads, scale: Any = 1.0) -> None:
        """Record `Optimizer.update`; a gradient of None belongs to another process."""
        for name, value, grad in zip(names, values, grads, strict=True):
            if grad is None:
                continue
            self.tape.layer = self.layers.get(name, self.tape.layer)
            update = self._pending(name, value, grad, scale)
            source = source_of(grad)
            if source is not None:
                self._rows(update, source)
            elif not self._can_wait(update):
                self._apply([update])
            else:
                if self._waiting and self._waiting[0].bucket is not update.bucket:
                    # No gradient waits for long.
                    self.update_waiting()
                self._waiting.append(update)

    def _update_part(self, names: Names, values: Values, grads: Grads) -> None:
        """Record updates that others of the same step and parameters follow, which count it."""
        for name, value, grad in zip(names, values, grads, strict=True):
            self._apply([self._pending(name, value, grad, 1.0)])
            self.numbers[-1].counts = False
            self.members[-1] = []

    def saved(self) -> Callable[[], None]:
        """Return a function that deletes all that is recorded from now on."""
        tape = self.tape
        calls, waiting = len(tape.calls), [*self._waiting]
        added: list[tuple[dict[Any, Any], int]] = [
            (each, len(each)) for each in (tape.scalars, tape.moves)
        ]
        sizes: list[tuple[list[Any], int]] = [
            (each, len(each)) for each in (self.numbers, self.members)
        ]

        def restore() -> None:
            tape.delete_from(calls)
            for entries, size in added:
                while len(entries) > size:
                    entries.popitem()
            for each, size in sizes:
                del each[size:]
            self._waiting = waiting

        return restore

    def _pending(self, name: str, value: Any, grad: Any, scale: Any) -> PendingUpdate:
        """Return the update of the parameter, with its state. Raises `NotRecordableError`."""
        state, array, sparse = self.rule.state(name), self.tape.array(value), is_sparse(grad)
        if sparse and source_of(grad) is None:
            raise NotRecordableError("rows of a table")
        if sparse and type(self.rule).update is not Optimizer.update:
            raise NotRecordableError("its optimizer looks at rows before")
        for part in (state.constraint, state.regularizer):
            if part is not None and not is_own(part):
                raise NotRecordableError(f"{type(part).__name__} is not singanet's")
            if part is not None:
                self.guard.part(part)
        # Only a replay knows the rows.
        none = RowSparse(*(part[:0] for part in grad)) if sparse else grad
        try:
            check_fit("", name, array, none, state.shape)
        except SingaNetError as error:
            raise NotRecordableError(str(error)) from None
        is_new = not state.arrays
        state = self.rule.settle(name, array)
        if is_new:
            self.tape.note(sum(each.nbytes for each in state.arrays), "state")
        if not self._ours and state.constraint is None and hasattr(scale, "strides"):
            # By the layers it is a float, which widens no array.
            scale = scale.astype(array.dtype)
        place, layer = place_of(array), self.tape.layer
        update = PendingUpdate(layer, state, array, grad, scale, place, self.summed)
        if not sparse and not self._ours:
            self._try_out(update)
        return update

    def _try_out(self, update: PendingUpdate) -> None:
        """Compare the rule of a user, once a shape, with its recorded calls.

        Raises `NotRecordableError` if their results differ.
        """
        tape, state, value, scale = self.tape, update.state, update.value, 1 / 3
        of_array = hasattr(update.scale, "strides")
        if (value.shape, value.dtype, of_array) in self._tried:
            return
        restore, mark, rule = self.saved(), len(tape.calls), _copy_of(self.rule)
        numbers = Numbers(self.rule, [state])
        with tape.in_blocks(), no_draws(self.rule):
            given: Any = tape.like(value), tape.like(value), [*map(tape.like, state.arrays)]
            near: Any = tape.hold(np.full((), scale, update.scale.dtype)) if of_array else scale
            try:
                tape.allowed = frozenset(map(id, arrays_of(rule, type(value))))
                rule.apply_rule(ParamUpdate(*(state, *given, *numbers.read(), near)))
            except Exception as error:
                # Of a user's code, which runs by itself then.
                raise NotRecordableError(str(error)) from error
            finally:
                tape.allowed = None
            trial = TrialMemory(tape, tape.calls[mark:])
            plain = trial.given(given)
            rule.apply_rule(ParamUpdate(*(state, *plain, *numbers.now(), scale)))
            trial.expect_same(plain, given)
        restore()
        self._tried.add((value.shape, value.dtype, of_array))

    # -- neighbours that are updated together -----------------------------------------------------

    def _can_wait(self, update: PendingUpdate) -> bool:
        """Whether the update can be part of a joint one."""
        state, value, grad, tape = update.state, update.value, update.grad, self.tape
        if update.place is None or not self._joins or state.name in self.held:
            return False
        penalty = getattr(state.regularizer, "coefficient", None)
        if state.constraint is not None or is_own_schedule(penalty):
            return False
        if not getattr(value.flags, "writeable", True) or grad.dtype != value.dtype:
            return False
        if self.summed or not grad.flags.c_contiguous:
            return bool(grad.flags.c_contiguous)
        number = tape.ref(grad).token
        token = tape.tokens[number]
        movable = token.held is None and token.writes and token.nbytes == grad.nbytes
        # The end of an interrupted step knows no scale of a stage.
        plain = not self.staged or is_one(update.scale)
        return bool(movable) and number not in tape.moves and plain

    def update_waiting(self) -> None:
        """Record the updates that wait for others."""
        group, self._waiting = self._waiting, []
        tape, now = self.tape, (self.tape.layer, self.tape.phase)
        for run in runs(group):
            # A gradient of two parameters is in one place only.
            apart = not self.summed and len({tape.ref(each.grad).token for each in run}) < len(run)
            for part in [[each] for each in run] if apart else [run]:
                tape.layer, tape.phase = "" if len(part) > 1 else part[0].layer, "update"
                self._apply(part, waited=True)
        tape.layer, tape.phase = now

    def _apply(self, run: Sequence[PendingUpdate], waited: bool = False) -> None:
        """Record the rule for ``run``, neighbours that are updated as one parameter.

        The updates may have ``waited`` for gradients of later layers.
        """
        tape, rule, first = self.tape, self.rule, run[0]
        numbers = Numbers(rule, [update.state for update in run])
        value, grad = first.value, first.grad
        if first.state.name in self.held or value.size > rule._most_in_kernels:
            self._in_one_call(numbers, first)
        else:
            parts: Any = numbers.state.parts(grad)
            if len(run) > 1:
                value, grad, arrays = self._joint(run)
                parts = [(None, grad, arrays)]
            known = len(tape.scalars)
            # By the layers an element-wise rule works through blocks of a large parameter.
            with tape.in_blocks() if self._by_element and len(run) == 1 else nullcontext():
                place: Any = tape.place(value)
                read = numbers.read()
                for rows, g, found in parts:
                    near: list[Any] = [*map(tape.place, found)]
                    w = place if rows is None else place[rows]
                    rule.apply_rule(ParamUpdate(numbers.state, w, g, near, *read, first.scale))
                    if rows is not None:
                        # As one sweep all parts would be loaded together.
                        tape.add(_nothing, (), {}, (), "hidden", name="part").barrier = True
            numbers.scalars = [*islice(reversed(tape.scalars), len(tape.scalars) - known)][::-1]
        # An interrupted step needs the gradients that waited, and all if no stage changed them.
        asked = not self.summed and (waited or not self.staged)
        self._add(numbers, [(each, tape.ref(each.grad) if asked else None) for each in run])

    def _joint(self, run: Sequence[PendingUpdate]) -> tuple[Array, Any, list[Array]]:
        """Return value, gradient and state of ``run`` as one parameter.

        The gradients are moved to one place, unless they are contiguous already.
        """
        first, last, tape = run[0].place, run[-1].place, self.tape
        assert first is not None
        assert last is not None
        value = first.bucket[first.start : last.stop]
        arrays = [onwards(array, value.size, array.base) for array in run[0].state.arrays]
        if self.summed:
            return value, run[0].grad.viewed((value.size,), (value.itemsize,)), arrays
        grad, start = tape.like(value), 0
        for update in run:
            tape.moves[tape.ref(update.grad).token] = grad.region.number, start
            start += update.value.nbytes
        return value, grad, arrays

    def _add(self, numbers: Numbers, group: Sequence[tuple[PendingUpdate, Ref | None]]) -> None:
        self.numbers.append(numbers)
        memory_of = self.held.memory_of
        self.members.append(
            [Member(u.layer, u.state, memory_of(u.state.name, u.value)[0], r) for u, r in group]
        )

    def finish(self) -> None:
        """Move the gradients of members to their new places."""
        for members in self.members:
            members[:] = [
                m if m.grad is None else m._replace(grad=relocated(m.grad, self.tape.moves))
                for m in members
            ]

    # -- updates in Python ------------------------------------------------------------------------

    def _in_one_call(self, numbers: Numbers, update: PendingUpdate) -> None:
        """Record `Optimizer.apply_rule` itself as one call.

        It has many kernels, some for each block of rows, or its array exists only for the update.
        """
        rule, state, name = self.rule, update.state, update.state.name
        # One parameter at a time.
        more = max(rule._rule_for(state)._room(update.value) - self._room, 0)
        self._room += more
        self.tape.beside += more

        def apply(lent: list[Array], grad: Array, scale: Any) -> None:
            now = numbers.arrays, *numbers.now(), number_now(scale)
            rule.apply_rule(ParamUpdate(state, lent[0], grad, *now))

        filled = [array for array in numbers.arrays if array.size]
        reads = update.grad, update.scale
        call = self.in_python("update", [name], [update.value], reads, apply, filled)
        # Rounding draws numbers.
        call.barrier = name in self.held

    def _rows(self, update: PendingUpdate, source: RowsSource) -> None:
        """Record the update of the rows of a table that ``source`` has."""
        rule, state, value = self.rule, update.state, update.value
        numbers = Numbers(rule, [state])

        def apply(lent: list[Array], scale: Any) -> None:
            now = *numbers.now(), number_now(scale)
            for part, rows, arrays in state.parts(source.now()):
                w = lent[0] if part is None else lent[0][part]
                each = ParamUpdate(state, w, rows.rows, arrays, *now)
                rule._apply_rule_to_rows(rows.indices, each)

        self.tape.loads = max(self.tape.loads, state.part_bytes)
        filled = self.loaded_state([state.name])
        self.in_python("update rows", [state.name], [value], (update.scale,), apply, filled)
        if not self._by_element:
            # The rows of value and state are copied together.
            whole = sum(array.size == value.size for array in (value, *numbers.arrays))
            self.tape.beside += whole * source.nbytes
        self._add(numbers, [(update, None)])

    def loaded_state(self, names: Names) -> list[Array]:
        """Return the state arrays that have to be loaded for a call. It loads parts by itself."""
        states = [self.rule.state(name) for name in names if hasattr(self.rule, "state")]
        away = [state for state in states if state.is_away and not state.rows]
        return [array for state in away for array in state.arrays if array.size]

    def in_python(
        self,
        name: str,
        names: Names,
        values: Values,
        reads: tuple[Any, ...],
        function: Callable[..., None],
        filled: Sequence[Array] = (),
    ) -> Call:
        """Record a Python call that changes ``values``, of parameters ``names``, and ``filled``.

        ``function`` receives the values, and ``reads`` in a replay. It has no reference to arrays
        of the recording, which would keep their memory alive.
        """
        held, live = self.held, [*map(self.tape.live_of, values)]

        @done_whole
        def change(*now: Any) -> None:
            held.change(names, [value() for value in live], lambda lent: function(lent, *now))

        pairs = zip(names, values, strict=True)
        memory = [array for each, value in pairs for array in held.memory_of(each, value)]
        call = self.tape.add(
            change, reads, {}, [*memory, *filled], "hidden", changes=True, name=name
        )
        call.barrier = True
        return call


def _nothing() -> None:
    """Do nothing, between calls that stay apart."""


def _copy_of(rule: Any) -> Any:
    """Return a copy of ``rule`` whose counts, lists, dicts and arrays are its own."""
    made: Any = object.__new__(type(rule))
    vars(made).update(map_arrays(vars(rule), np.copy))
    return made
