"""The chain of stages and rule of an update, and joint updates of contiguous parameters."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from copy import copy
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, cast

import numpy as np

from singanet.base.elsewhere import is_library
from singanet.base.heap import address
from singanet.base.terms import Terms, expect_met
from singanet.errors import ArgumentError, brief
from singanet.ops import ops_for
from singanet.optimizer.element_wise import ElementWise
from singanet.optimizer.hyper import Scale
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.regularization import Regularizer, sum_of_squares
from singanet.optimizer.state import Grad, Grads, Names, Owners, ParamState, ParamUpdate, Values
from singanet.optimizer.wrapper import Wrapper, expect_inside
from singanet.params.grads import split
from singanet.params.param import Param
from singanet.params.storage import Place, place_of
from singanet.types import Array, RowSparse

if TYPE_CHECKING:
    from singanet.checkpoint.entry import Source
    from singanet.optimizer.mixed_precision import ScaledUpdates
    from singanet.optimizer.reducer import Reducer
    from singanet.params.grads import LayerGradients
    from singanet.types import Shape


def squares_of(grads: Grads) -> Any:
    """Return Σ g² over several gradients; None counts as 0."""
    total: Any = 0.0
    for grad in grads:
        if grad is not None:
            total = total + sum_of_squares(RowSparse(*grad) if isinstance(grad, tuple) else grad)
    return total


def norm_of(
    items: Iterable[tuple[Sequence[str], Sequence[Array], Sequence[Grad]]],
    joined: Callable[[Any], Any] = lambda total: total,
) -> Any:
    """Return `global_norm` as an array without axes; ``joined`` adds the squares of other parts."""
    total: Any = 0.0
    for item in items:
        total = total + squares_of(item[2])
        # Releases this layer's gradients before the generator computes the next layer's.
        del item
    return root(joined(total))


def root(squares: Any) -> Any:
    """Return the root of a sum of squares; 0 for an empty sum."""
    return math.sqrt(squares) if isinstance(squares, float) else ops_for(squares).xp.sqrt(squares)


def global_norm(items: Iterable[tuple[Sequence[str], Sequence[Array], Sequence[Grad]]]) -> float:
    """Return the L2 norm of all gradients of a backward pass, one layer at a time.

    Args:
        items: Names, values and gradients of each layer, as from ``net.backward``.

    """
    return float(norm_of(items))


class ToldNorm(Protocol):
    """A stage that needs the norm, such as `ClipByGlobalNorm`."""

    @property
    def knows(self) -> bool:
        """Whether the norm of the current step is known."""

    def knowing(self, norm: Scale) -> AbstractContextManager[None]:
        """Use ``norm`` as the norm of all gradients of `take` within the block."""

    def joined(self, total: Any) -> Any:
        """Add the parts of other processes to ``total``."""


class UpdateChain:
    """The ``stages`` of an optimizer, outermost first, and its ``rule``.

    Executors create a new chain after each change of a stage. It calls stages only by the
    interface of `Wrapper`, so that a user's stage works like singanet's.
    """

    def __init__(self, optimizer: Any) -> None:
        stages: list[Wrapper] = []
        inner = optimizer
        while isinstance(inner, Wrapper):
            stages.append(inner)
            inner = inner.optimizer
        self.optimizer = optimizer
        self.stages: tuple[Wrapper, ...] = tuple(stages)
        self.rule: Any = inner
        self.owners = inner.owners if isinstance(inner, Optimizer) else Owners()
        self.reducers = cast("tuple[Reducer, ...]", tuple(s for s in stages if s.traits.waits))
        # Scaled gradients must all exist before the first reaches the inner stages.
        holds = bool(stages) and stages[0].traits.holds_all
        self.scaled = cast("ScaledUpdates", stages[0]) if holds else None
        self._weighs = any(stage._weighs for stage in stages)
        self._selects = any(stage.traits.selects for stage in stages)
        self.updated = False
        """Whether the current step has made any update."""

    @property
    def own_rule(self) -> Optimizer | None:
        """The rule, if it is an `Optimizer` and not a user's class with its methods."""
        return self.rule if isinstance(self.rule, Optimizer) else None

    @property
    def rests(self) -> bool:
        """Whether parameters have other values for evaluation, see `Optimizer.rest`."""
        return self.own_rule is not None and self.own_rule.rests

    def treats_alike(self, param: Param) -> bool:
        """Whether the rule updates each element of ``param`` by itself, so that parts can be, too.

        It does not if the rule or a constraint uses norms of the whole parameter.
        """
        own = self.own_rule
        if own is None or not own._alike:
            return False
        return own.constraint is None and own._spec_of(param).constraint is None

    def updates_by_each_use(self, param: Param) -> bool:
        """Whether the gradient of each use of ``param`` is applied in turn; see `Optimizer`."""
        rule = self.own_rule
        if rule is None or self.stages or not rule.each_use:
            return False
        state = rule.state(param.name)
        return state.regularizer is None and state.constraint is None

    def case(self) -> Hashable:
        """Return the case of the next step's arithmetic; a user's rule has one case."""
        of_rule = self.rule.case() if isinstance(self.rule, Optimizer) else ()
        return (*(stage.case() for stage in self.stages), of_rule)

    def slots_of(self, param: Param) -> dict[str, tuple[Shape, np.dtype[Any]]]:
        """Return shape and dtype of the state arrays of ``param`` by slot.

        In mixed precision the dtype is float32, as for the master.
        """
        rule = self.own_rule
        if rule is None or not param.trainable:
            return {}
        whole, dtype = prod(param.shape), self.rule_type(param)
        sizes = zip(rule.slots, rule._slot_sizes(param.shape, rule.state(param.name)), strict=True)
        return {slot: (param.shape if size == whole else (size,), dtype) for slot, size in sizes}

    def state_bytes(self, param: Param) -> int:
        """Return the size of the arrays of `slots_of` in bytes."""
        return sum(prod(shape) * dtype.itemsize for shape, dtype in self.slots_of(param).values())

    def held_bytes(self) -> int:
        """Return the bytes of all state in memory, with masters and accumulated gradients."""
        states = () if self.own_rule is None else self.own_rule.states()
        held = [array for state in states for array in state.held]
        if self.scaled is not None:
            held += self.scaled.precision.masters.values()
        for stage in self.stages:
            held += stage._own_state().values()
        return sum(int(array.nbytes) for array in held)

    def rule_type(self, param: Param) -> np.dtype[Any]:
        """Return the dtype of the array that the rule updates for ``param``."""
        return param.array_type if self.scaled is None else np.dtype(np.float32)

    # -- before a step ---------------------------------------------------------------------------

    def turn(self, net: Any) -> None:
        """Switch to the state of ``net``, if another net was trained since."""
        if self.owners.net() is not net:
            params, rule = net.params(), self.own_rule
            other = rule is not None and rule.turn(params)
            self.owners.net = weakref.ref(net)
            for stage in self.stages:
                stage.turn(params, other)

    def follow(self, net: Any) -> None:
        """Pass the specs of the parameters of ``net`` to the rule, and the names to the stages."""
        if isinstance(self.optimizer, type) or not hasattr(self.optimizer, "register_all"):
            raise ArgumentError(
                "net.step, optimizer",
                expected="an optimizer",
                received=brief(self.optimizer)[:80],
                advice="make one before the loop: sgd = singanet.optimizer.SGD(learning_rate=0.1)",
            )
        self.turn(net)
        if self.stages:
            trained = [param.name for param in net._execution_plan().trained_params()]
            for stage in self.stages:
                stage.train(trained)
        if isinstance(self.rule, Optimizer):
            self.rule.follow(net.params(), net)
        else:
            self.optimizer.register_all(net.param_specs())

    def expect_fit(self, terms: Terms) -> None:
        """Refuse stages and a rule that need what ``terms`` of an executor take away."""
        rule: list[Any] = [] if self.own_rule is None else [self.own_rule]
        for each in (*self.stages, *rule):
            kind = type(each).__name__
            own = each._terms
            expect_met(f"net.step, {kind}", own.needs, terms, own.remedy, ArgumentError)

    def meet(self, net: Any) -> None:
        """Call `follow`, and `Wrapper.meet` of every stage. Errors: stages that do not combine."""
        for stage in self.stages:
            # Another optimizer may have been assigned.
            expect_inside(stage)
        self.follow(net)
        in_parts = False
        for place, stage in enumerate(self.stages):
            if stage._over_parts is not None and not in_parts:
                # The stage was inside a reducer before.
                stage._over_parts = None
            stage.meet(net, self.stages[:place])
            in_parts = in_parts or (stage.traits.waits and cast("Reducer", stage).traits.in_parts)

    # -- within a step ---------------------------------------------------------------------------

    def begin(self, count: float | None) -> None:
        """Start a step: pass the count of the batch's loss to stages and reducers."""
        own = count
        for stage in self.stages:
            count = stage.begin(count)
        for reducer in self.reducers:
            reducer.batch.weight = own

    def agree(self, refused: str | None) -> str | None:
        """Return the layer that made this or another process refuse the step, or None."""
        for reducer in self.reducers:
            refused = reducer._agree(refused)
        return refused

    def _conclude(self, refused: str | None) -> None:
        """Tell the stages that the step succeeded, or that the layer ``refused`` caused a skip."""
        for stage in self.stages:
            stage._conclude(refused)

    def refused(self) -> None:
        """Tell the stages that the current step failed before its first update."""
        for stage in self.stages:
            stage.refused()

    def apply(
        self,
        items: Iterable[LayerGradients],
        on_layer: Callable[[Any], object] | None = None,
        scale: float = 1.0,
    ) -> None:
        """Update by the gradients ``items`` of a step, and release each before the next.

        ``on_layer`` is called with each item first. Layers without gradients are skipped.
        """
        last = self.reached()
        update = self.optimizer.update
        for item in items:
            if on_layer is not None:
                on_layer(item)
            unfinished: Any = getattr(item, "_unfinished", ())
            if unfinished:
                part, item = split(item, unfinished)
                self.rule._update_part(*part)
                self.updated = True
                del part
            if item[0]:
                update(*item, *(() if scale == 1.0 else (scale,)))
                self.updated = True
            # Releases this layer's gradients before the next layer's exist.
            del item
        for stage in last:
            stage.end()

    def reached(self) -> Sequence[Wrapper]:
        """Return the stages that the next step reaches; reducers, which update last, come first."""
        reached = self.stages
        for number, stage in enumerate(reached, 1):
            if stage.left > 1:
                reached = reached[:number]
                break
        return (
            sorted(reached, key=lambda stage: not stage.traits.waits) if self.reducers else reached
        )

    # -- stages that need all gradients ----------------------------------------------------------

    @cached_property
    def norm(self) -> TwoPasses | None:
        """The stage that needs a norm before the first update, if any.

        Errors: an outer stage that changes gradients and has no preview.
        """
        around: list[Wrapper] = []
        for stage in self.stages:
            if stage.traits.needs_norm:
                for each in around:
                    _expect_preview(each)
                return TwoPasses(tuple(around), cast("ToldNorm", stage))
            if stage.traits.reads != "nothing":
                around.append(stage)
        return None

    def _needs_norm(self) -> bool:
        """Whether the next step needs a norm that is not known."""
        return self.norm is not None and self.norm.due()

    def knows_norm(self) -> bool:
        """Whether the norm of the next step is known, so that it consists of passes alone."""
        return self.norm is not None and self.norm.clip.knows

    @property
    def _holds_all(self) -> bool:
        """Whether a stage needs all gradients of a step before the first update."""
        return self.scaled is not None or self.norm is not None


class TwoPasses(NamedTuple):
    """A clipping stage that needs the norm of a whole step before the first update.

    ``gathering`` are the stages around ``clip`` that read gradients. If one is an accumulator, only
    its last micro-batch needs the norm.
    """

    gathering: tuple[Wrapper, ...]
    clip: ToldNorm

    def due(self) -> bool:
        """Whether the next step is clipped by a norm that is not known."""
        return not self.clip.knows and all(stage.left <= 1 for stage in self.gathering)

    def previewed(self, items: Iterable[Any]) -> Iterable[Any]:
        """Return the gradients that ``clip`` would receive for ``items``, large ones in parts."""
        if not self.gathering:
            return items
        *around, last = self.gathering
        for stage in around:
            items = stage.previewed(items)
        return last._previewed_in_parts(items)

    def knowing(self, items: Iterable[Any]) -> AbstractContextManager[None]:
        """Compute the norm of the gradients ``items``, and use it within the block."""
        return self.clip.knowing(norm_of(self.previewed(items), self.clip.joined))


def within_reduction(
    optimizer: Optimizer | Wrapper, wrap: Callable[[Optimizer | Wrapper], Wrapper]
) -> Wrapper:
    """Apply ``wrap`` to ``optimizer``, or to the optimizer inside its reducer, if it has one."""
    if isinstance(optimizer, Wrapper) and optimizer.traits.waits:
        return cast("Reducer", optimizer)._remade(within_reduction(optimizer.optimizer, wrap))
    return wrap(optimizer)


def with_reduction(
    optimizer: Optimizer | Wrapper, reduce: Callable[[Optimizer | Wrapper], Wrapper]
) -> Optimizer | Wrapper:
    """Return ``optimizer`` with a reducer by ``reduce`` inside its outermost stages.

    Stages that accumulate gradients, need all of them, or read none stay around the reducer.
    """
    if not isinstance(optimizer, Wrapper) or optimizer.traits.waits:
        return reduce(optimizer)
    traits = optimizer.traits
    if not (traits.gathers or traits.holds_all) and traits.reads != "nothing":
        return reduce(optimizer)
    optimizer.optimizer = with_reduction(optimizer.optimizer, reduce)
    return optimizer


def without_reductions(optimizer: Optimizer | Wrapper) -> Optimizer | Wrapper:
    """Return ``optimizer`` without reducers, for training in one process; stages are copied."""
    if not isinstance(optimizer, Wrapper):
        return optimizer
    if optimizer.traits.waits:
        return without_reductions(cast("Reducer", optimizer)._lone_optimizer)
    alone = copy(optimizer)
    alone.optimizer = without_reductions(optimizer.optimizer)
    return alone


def _expect_preview(stage: Wrapper) -> None:
    """Refuse a stage that changes gradients and does not override `previewed`."""
    if type(stage).previewed is Wrapper.previewed:
        kind = type(stage).__name__
        raise ArgumentError(
            "ClipByGlobalNorm",
            expected="ClipByGlobalNorm around other clipping",
            received=f"{kind} around it",
            advice=f"write ClipByGlobalNorm({kind}(...), max_norm)",
        )


class Neighbour(Protocol):
    """The update of a parameter that may have neighbours in a bucket."""

    @property
    def place(self) -> Place | None:
        """The place of the value in its bucket."""

    def precedes(self, other: Any) -> bool:
        """Whether ``other`` comes next and can be updated together with it."""


_Neighbour = TypeVar("_Neighbour", bound=Neighbour)


def runs(group: Iterable[_Neighbour]) -> Iterator[list[_Neighbour]]:
    """Yield members of one bucket in runs of neighbours that can be updated together."""
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
    """Whether the second parameter and its state come next, with the same numbers."""
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
    """Return ``size`` elements of ``flat`` from the first element of its part ``array`` on."""
    start = (address(array) - address(flat)) // array.itemsize
    whole: Array = flat[start : start + size]
    return whole


def alike(state: ParamState) -> tuple[Any, ...]:
    """Return the settings that are equal for parameters with equal numbers."""
    return state.step, state.lr_mult, state.decay_mult, bounds_of(state)


def bounds_of(state: ParamState) -> tuple[Any, ...] | None:
    """Return the settings of penalty and constraint, which do not depend on the step."""
    regularizer, constraint = state.regularizer, state.constraint
    if regularizer is None and constraint is None:
        return None
    made = () if regularizer is None else (regularizer.coefficient, state.penalty_mult)
    kept = () if constraint is None else tuple(vars(constraint).values())
    return regularizer, made, constraint, kept


def has_own_schedules(optimizer: Optimizer, regularizer: Regularizer | None = None) -> bool:
    """Whether a schedule is a user's, which may count its calls, one for each parameter."""
    values = [getattr(optimizer, name) for name in optimizer.hypers]
    if regularizer is not None:
        values.append(getattr(regularizer, "coefficient", None))
    return any(map(is_own_schedule, values))


def is_own_schedule(value: object) -> bool:
    """Whether a hyper-parameter is a user's schedule."""
    return callable(value) and not is_library(type(value))


def is_plain(optimizer: Optimizer | Wrapper) -> bool:
    """Whether `update` only applies a rule to each parameter."""
    kind = type(optimizer)
    return kind.update is Optimizer.update and kind._run is Optimizer._run


def update_rows(rule: Optimizer, name: str, value: Array, grad: RowSparse, scale: float) -> None:
    """Call `Optimizer.update` with rows already checked to rise and to fit ``value``.

    `is_plain` must be True for the ``rule``.
    """
    state = rule.settle(name, value)
    penalty, scalars = rule.numbers(state)
    numbers = state.arrays, penalty, scalars, scale
    rule._apply_rule_to_rows(grad.indices, ParamUpdate(state, value, grad.rows, *numbers))
    state.step += 1


class _Member(NamedTuple):
    """A parameter of a `Together`, whose gradient is ``part`` of the flat gradient."""

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
    """Members with contiguous values, gradients and states, one parameter for the rule."""

    members: list[_Member]
    value: Array
    part: slice
    arrays: list[Array]

    def holds(self) -> bool:
        """Whether the states are the same arrays and still have equal numbers."""
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
    """The update of ``names`` by one flat gradient, the concatenation of their gradients.

    ``values`` that are contiguous in a bucket, in this order, are updated together if the rule of
    ``optimizer`` is element-wise, has no stages around it, and the settings are equal, which is
    checked at each update. Otherwise values are updated one by one. The result is the same to the
    bit.
    """

    def __init__(self, optimizer: Optimizer | Wrapper, names: Names, values: Values) -> None:
        chain = UpdateChain(optimizer)
        self._optimizer, self._names, self._values = optimizer, names, values
        self._rule = chain.rule
        kind = type(chain.rule)
        self._joins = (
            not chain.stages
            and isinstance(chain.rule, ElementWise)
            # A user's class may do more, for each parameter.
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
        """Update once by ``scale`` · ``grad``, with the errors of `Optimizer.update`."""
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


def state_sources(optimizer: Any, first_rows: dict[str, int] | None = None) -> list[Source]:
    """Return the entries of ``optimizer.state_dict()`` without copies.

    A user's `state_dict` is called. The arrays belong to the optimizer: write them before its next
    step. If the state is spread over processes, ``first_rows`` selects the parts of this process
    and receives the index of the first row of each.
    """
    from singanet.checkpoint.entry import sources_of

    kind = type(optimizer)
    if first_rows is not None and isinstance(optimizer, Wrapper) and optimizer.traits.waits:
        own = cast("Reducer", optimizer)._own_parts(first_rows)
        if own is not None:
            return own
    if isinstance(optimizer, Wrapper) and kind.state_dict is Wrapper.state_dict:
        inner = {source.name: source for source in state_sources(optimizer.optimizer, first_rows)}
        mine = sources_of(optimizer._own_state(), kind.__name__)
        return list((inner | {source.name: source for source in mine}).values())
    if isinstance(optimizer, Optimizer) and kind.state_dict is Optimizer.state_dict:
        found = [
            source
            for state in optimizer.states()
            if state.step
            for source in _of_parameter(state, optimizer.slots)
        ]
        return [*found, *sources_of(optimizer._hyper_state(), kind.__name__)]
    return sources_of(optimizer.state_dict(), kind.__name__)


def _of_parameter(state: ParamState, slots: tuple[str, ...]) -> list[Source]:
    """Return the entries of `singanet.optimizer.state.dump` for one parameter."""
    from singanet.checkpoint.entry import Source

    step = np.array(state.step, np.int64)
    found = [Source(f"{state.name}/step", (), np.dtype("<i8"), lambda: step)]
    if state.rests:
        rests = np.array(state.rests)
        found.append(Source(f"{state.name}/rests", (), np.dtype("<f8"), lambda: rests))
    sizes, types = state.kinds()
    # There are no arrays if another process or a table updates the parameter.
    for k, (slot, size, dtype) in enumerate(zip(slots[: len(sizes)], sizes, types, strict=True)):
        whole = state.shape is not None and size == prod(state.shape)
        shape = state.shape if whole and state.shape is not None else (size,)

        def fetch(k: int = k) -> Array:
            return state.arrays[k]

        found.append(Source(f"{state.name}/{slot}", shape, dtype.newbyteorder("<"), fetch))
    return found
