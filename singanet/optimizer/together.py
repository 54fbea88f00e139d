"""Parameters that are neighbours in a bucket, as their states are: one update for all of them.

A rule that treats each element by itself takes them for one parameter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, TypeVar

from singanet.base.addresses import address
from singanet.base.origin import is_library
from singanet.optimizer.chain import UpdateChain
from singanet.optimizer.element_wise import ElementWise
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.param_update import ParamUpdate
from singanet.optimizer.regularizer import Regularizer
from singanet.optimizer.state import ParamState
from singanet.optimizer.wrapper import Wrapper
from singanet.params.storage import Place, place_of
from singanet.types import Array, RowSparse


class Neighbour(Protocol):
    """A parameter's update, of which others may be neighbours."""

    @property
    def place(self) -> Place | None:
        """Where its value lies."""

    def precedes(self, other: Any) -> bool:
        """Whether ``other`` comes next, and may be made with it."""


_Neighbour = TypeVar("_Neighbour", bound=Neighbour)


def runs(group: Iterable[_Neighbour]) -> Iterator[list[_Neighbour]]:
    """Members of one bucket in runs of neighbours that may be updated as one."""
    run: list[_Neighbour] = []
    for each in sorted(group, key=lambda each: each.place.start if each.place else -1):
        if run and not run[-1].precedes(each):
            yield run
            run = []
        run.append(each)
    if run:
        yield run


def are_neighbours(
    place: Place | None, state: ParamState, next_place: Place | None, next_state: ParamState
) -> bool:
    """Whether the second parameter comes next, its state too, and has the same numbers."""
    if place is None or next_place is None or place.stop != next_place.start:
        return False
    if place.bucket is not next_place.bucket:
        return False
    return alike(state) == alike(next_state) and all(
        one.base is not None
        and one.base is next_one.base
        and address(one) + one.nbytes == address(next_one)
        for one, next_one in zip(state.arrays, next_state.arrays, strict=True)
    )


def onwards(array: Array, size: int, flat: Any) -> Array:
    """``size`` elements from the first of ``array`` on, which is a part of ``flat``."""
    start = (address(array) - address(flat)) // array.itemsize
    whole: Array = flat[start : start + size]
    return whole


def alike(state: ParamState) -> tuple[Any, ...]:
    """The settings that parameters with equal numbers share."""
    return state.step, state.lr_mult, state.decay_mult, bounds_of(state)


def bounds_of(state: ParamState) -> tuple[Any, ...] | None:
    """The settings of penalty and constraint, which are constants and no numbers of the step."""
    regularizer, constraint = state.regularizer, state.constraint
    if regularizer is None and constraint is None:
        return None
    made = () if regularizer is None else (regularizer.coefficient, state.penalty_mult)
    kept = () if constraint is None else tuple(vars(constraint).values())
    return regularizer, made, constraint, kept


def has_own_schedules(optimizer: Optimizer, regularizer: Regularizer | None = None) -> bool:
    """Whether a schedule is a user's: it may count, so it is asked as often as by the layers."""
    values = [getattr(optimizer, name) for name in optimizer.hypers]
    if regularizer is not None:
        values.append(getattr(regularizer, "coefficient", None))
    return any(map(is_own_schedule, values))


def is_own_schedule(value: object) -> bool:
    """Whether a hyper-parameter is a schedule of the user's own."""
    return callable(value) and not is_library(type(value))


def is_plain(optimizer: Optimizer | Wrapper) -> bool:
    """Whether `update` does nothing but carry out a rule for each parameter."""
    kind = type(optimizer)
    return kind.update is Optimizer.update and kind._run is Optimizer._run


def update_rows(rule: Optimizer, name: str, value: Array, grad: RowSparse, scale: float) -> None:
    """`Optimizer.update` by rows of which somebody has seen that they rise, and fit ``value``.

    The ``rule`` has to be `is_plain`.
    """
    state = rule.settle(name, value)
    penalty, scalars = rule.numbers(state)
    numbers = state.arrays, penalty, scalars, scale
    rule.apply_rule_to_rows(grad.indices, ParamUpdate(state, value, grad.rows, *numbers))
    state.step += 1


class _Member(NamedTuple):
    """A parameter of a `Together`: its gradient is ``part`` of the flat one."""

    state: ParamState
    arrays: list[Array]
    value: Array
    part: slice
    place: Place | None

    def precedes(self, other: _Member) -> bool:
        states = self.state, other.state
        return (
            states[0].constraint is None
            and not is_own_schedule(getattr(states[0].regularizer, "coefficient", None))
            and self.part.stop == other.part.start
            and are_neighbours(self.place, states[0], other.place, states[1])
        )


class _Run(NamedTuple):
    """Members that are one parameter to the rule: all of their values, gradients, and states."""

    members: list[_Member]
    value: Array
    part: slice
    arrays: list[Array]

    def holds(self) -> bool:
        """Whether the states are where they were, and still have the same numbers."""
        first = self.members[0].state
        if not all(each.state.held is each.arrays for each in self.members):
            return False
        return len(self.members) == 1 or all(
            # Most have neither penalty nor constraint.
            one.step == first.step
            and one.lr_mult == first.lr_mult
            and one.decay_mult == first.decay_mult
            and one.constraint is None
            and (one.regularizer is first.regularizer is None or alike(one) == alike(first))
            for one, *_ in self.members
        )


class Together:
    """The update of ``names`` by one flat gradient, in which theirs stand one after the other.

    ``values`` that lie side by side in a bucket, in this order, are updated as one where the rule
    of ``optimizer`` treats each element by itself and they have the same settings, which is asked
    anew at each update; those of others, and behind stages, one after the other. Both come to the
    same to the bit.
    """

    def __init__(
        self, optimizer: Optimizer | Wrapper, names: Sequence[str], values: Sequence[Array]
    ) -> None:
        chain = UpdateChain(optimizer)
        self._optimizer, self._names, self._values = optimizer, names, values
        self._rule = chain.rule
        kind = type(chain.rule)
        self._joins = (
            not chain.stages
            and isinstance(chain.rule, ElementWise)
            # What a class of a user's own does besides, it does for each parameter.
            and kind._sweep is ElementWise._sweep
            and kind.apply_rule is Optimizer.apply_rule
            and is_plain(chain.rule)
            and all(value.dtype.name in ("float32", "float64") for value in values)
        )
        ends = [0]
        for value in values:
            ends.append(ends[-1] + value.size)
        self._parts = [slice(start, stop) for start, stop in pairwise(ends)]
        self._runs: list[_Run] = []

    def update(self, grad: Array, scale: float = 1.0) -> None:
        """Update once by ``scale`` · ``grad``. Errors: as `Optimizer.update`."""
        rule = self._rule
        if not self._joins or has_own_schedules(rule):
            for name, value, part in zip(self._names, self._values, self._parts, strict=True):
                self._optimizer.update([name], [value], [grad[part].reshape(value.shape)], scale)
            return
        if not self._runs or not all(run.holds() for run in self._runs):
            self._runs = [_run_of(members) for members in runs(self._members())]
        asked = [rule.numbers(run.members[0].state) for run in self._runs]
        for run, (penalty, scalars) in zip(self._runs, asked, strict=True):
            given = grad[run.part].reshape(run.value.shape)
            state, numbers = run.members[0].state, (run.arrays, penalty, scalars, scale)
            rule.apply_rule(ParamUpdate(state, run.value, given, *numbers))
            for each in run.members:
                each.state.step += 1

    def _members(self) -> Iterator[_Member]:
        for name, value, part in zip(self._names, self._values, self._parts, strict=True):
            state = self._rule.settle(name, value)
            yield _Member(state, state.arrays, value, part, place_of(value))


def _run_of(members: list[_Member]) -> _Run:
    first, last = members[0], members[-1]
    if len(members) == 1 or first.place is None or last.place is None:
        return _Run(members, first.value, first.part, first.arrays)
    value = first.place.bucket[first.place.start : last.place.stop]
    arrays = [onwards(array, value.size, array.base) for array in first.arrays]
    return _Run(members, value, slice(first.part.start, last.part.stop), arrays)
