"""The chain of transformations of an update.

A rule that treats each element by itself takes them for one parameter.
"""

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
from singanet.errors import ArgumentError
from singanet.ops import ops_for
from singanet.optimizer.element_wise import ElementWise
from singanet.optimizer.hyper import Scale
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.regularization import Regularizer, sum_of_squares
from singanet.optimizer.state import Grad, Grads, Names, Owners, ParamState, ParamUpdate, Values
from singanet.optimizer.wrapper import Wrapper
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
    """Σ g² over several gradients; None counts nothing."""
    total: Any = 0.0
    for grad in grads:
        if grad is not None:
            total = total + sum_of_squares(RowSparse(*grad) if isinstance(grad, tuple) else grad)
    return total


def norm_of(
    items: Iterable[tuple[Sequence[str], Sequence[Array], Sequence[Grad]]],
    joined: Callable[[Any], Any] = lambda total: total,
) -> Any:
    """`global_norm` as an array without axes; of parts ``joined`` sums the squares of all."""
    total: Any = 0.0
    for item in items:
        total = total + squares_of(item[2])
        # The generator goes on to the next layer only after this one's gradients are let go.
        del item
    return root(joined(total))


def root(squares: Any) -> Any:
    """√squares of a sum of squares; 0 where nothing was summed."""
    return math.sqrt(squares) if isinstance(squares, float) else ops_for(squares).xp.sqrt(squares)


def global_norm(items: Iterable[tuple[Sequence[str], Sequence[Array], Sequence[Grad]]]) -> float:
    """The L2 norm of all gradients of a backward pass, each layer's dropped once it is read."""
    return float(norm_of(items))


class ToldNorm(Protocol):
    """A stage that `Wrapper._needs_norm`, such as `ClipByGlobalNorm`."""

    @property
    def knows(self) -> bool:
        """Whether the norm of the step in work was said."""

    def knowing(self, norm: Scale) -> AbstractContextManager[None]:
        """Within the block, ``norm`` is that of all gradients that `take` is given."""

    def joined(self, total: Any) -> Any:
        """As `Wrapper.joined`."""


class UpdateChain:
    """The ``stages`` of an optimizer in the order in which gradients meet them, and its ``rule``.

    It is of the optimizer as it is now: executors make it anew after each change of a stage. What
    stages do is told by `Wrapper`, so that a user's own takes part as singanet's do.
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
        self.reducers = cast("tuple[Reducer, ...]", tuple(s for s in stages if s._waits))
        # Scaled gradients are all there before the first goes on to the stages behind.
        holds = bool(stages) and stages[0]._holds_all
        self.scaled = cast("ScaledUpdates", stages[0]) if holds else None
        self._weighs = any(stage._weighs for stage in stages)
        self._selects = any(stage._selects for stage in stages)
        self.updated = False
        """Whether any update of the step in work was made."""

    @property
    def own_rule(self) -> Optimizer | None:
        """The rule, where it is an `Optimizer` and not a user's class like one."""
        return self.rule if isinstance(self.rule, Optimizer) else None

    def treats_alike(self, param: Param) -> bool:
        """Whether the rule updates each element of ``param`` by itself: parts of it may be, apart.

        A rule that looks at norms of a whole parameter, or a constraint on them, does not do so.
        """
        alike = isinstance(self.rule, ElementWise) and type(self.rule)._sweep is ElementWise._sweep
        return alike and (self.rule.constraint, self.rule._spec_of(param).constraint) == (
            None,
            None,
        )

    def updates_by_each_use(self, param: Param) -> bool:
        """Whether gradients of the uses of ``param`` are applied one by one; see `Optimizer`."""
        rule = self.own_rule
        if rule is None or self.stages or not rule.each_use:
            return False
        state = rule.state(param.name)
        return state.regularizer is None and state.constraint is None

    def case(self) -> Hashable:
        """The case of the next step's arithmetic; a user's own rule has one case."""
        of_rule = self.rule.case() if isinstance(self.rule, Optimizer) else ()
        return (*(stage.case() for stage in self.stages), of_rule)

    def slots_of(self, param: Param) -> dict[str, tuple[Shape, np.dtype[Any]]]:
        """Shape and type of the arrays that the rule keeps of ``param``, by slot.

        In mixed precision they are those of its master, which is float32.
        """
        rule = self.own_rule
        if rule is None or not param.trainable:
            return {}
        whole, dtype = prod(param.shape), self.rule_type(param)
        sizes = zip(rule.slots, rule._slot_sizes(param.shape), strict=True)
        return {slot: (param.shape if size == whole else (size,), dtype) for slot, size in sizes}

    def state_bytes(self, param: Param) -> int:
        """The bytes of these arrays."""
        return sum(prod(shape) * dtype.itemsize for shape, dtype in self.slots_of(param).values())

    def held_bytes(self) -> int:
        """The bytes of all state that is in memory now, masters and gathered gradients included."""
        states = () if self.own_rule is None else self.own_rule.states()
        held = [array for state in states for array in state.held]
        if self.scaled is not None:
            held += self.scaled.precision.masters.values()
        for stage in self.stages:
            held += stage._own_state().values()
        return sum(int(array.nbytes) for array in held)

    def rule_type(self, param: Param) -> np.dtype[Any]:
        """The type of what the rule updates for ``param``."""
        return param.array_type if self.scaled is None else np.dtype(np.float32)

    # -- before a step ---------------------------------------------------------------------------

    def turn(self, net: Any) -> None:
        """Go on with the state of ``net``, as another net may have been trained since."""
        if self.owners.net() is not net:
            params, rule = net.params(), self.own_rule
            other = rule is not None and rule.turn(params)
            self.owners.net = weakref.ref(net)
            for stage in self.stages:
                stage.turn(params, other)

    def follow(self, net: Any) -> None:
        """Tell the rule how the parameters of ``net`` are trained, and the stages which."""
        self.turn(net)
        if self.stages:
            trained = [param.name for param in net._execution_plan().trained_params()]
            for stage in self.stages:
                stage.train(trained)
        if isinstance(self.rule, Optimizer):
            self.rule.follow(net.params())
        else:
            self.optimizer.register_all(net.param_specs())

    def meet(self, net: Any) -> None:
        """Follow what ``net`` says of its parameters, and let every stage meet it."""
        self.follow(net)
        in_parts = False
        for place, stage in enumerate(self.stages):
            if stage._over_parts is not None and not in_parts:
                # It was inside of a reducer before.
                stage._over_parts = None
            stage.meet(net, self.stages[:place])
            in_parts = in_parts or (stage._waits and cast("Reducer", stage)._in_parts)

    # -- within a step ---------------------------------------------------------------------------

    def begin(self, count: float | None) -> None:
        """Tell stages what the loss of a batch is a mean over: a reducer, of all micro-batches."""
        own = count
        for stage in self.stages:
            count = stage.begin(count)
        for reducer in self.reducers:
            reducer.batch.weight = own

    def agree(self, refused: str | None) -> str | None:
        """The layer for which the step is ``refused``, here or on another process."""
        for reducer in self.reducers:
            refused = reducer._agree(refused)
        return refused

    def _conclude(self, refused: str | None) -> None:
        """Tell stages that the step was taken, or the layer for which it was ``refused``."""
        for stage in self.stages:
            stage._conclude(refused)

    def refused(self) -> None:
        """Tell the stages that the step in work failed before its first update."""
        for stage in self.stages:
            stage.refused()

    def apply(
        self,
        items: Iterable[LayerGradients],
        on_layer: Callable[[Any], object] | None = None,
        scale: float = 1.0,
    ) -> None:
        """The updates of a step by the gradients ``items``, each let go before the next exists.

        ``on_layer`` sees them before. Layers without any update nothing.
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
            # Else the loop variable would hold this layer's gradients through the next one's.
            del item
        for stage in last:
            stage.end()

    def reached(self) -> Sequence[Wrapper]:
        """The stages that the next step reaches; reducers first, which update at its end."""
        reached = self.stages
        for number, stage in enumerate(reached, 1):
            if stage.left > 1:
                reached = reached[:number]
                break
        return sorted(reached, key=lambda stage: not stage._waits) if self.reducers else reached

    # -- what has to know all gradients ----------------------------------------------------------

    @cached_property
    def norm(self) -> TwoPasses | None:
        """The stage that has to know a norm before the first update, if any.

        Errors: such a stage inside of one that changes gradients, and cannot preview them.
        """
        around: list[Wrapper] = []
        for stage in self.stages:
            if stage._needs_norm:
                for each in around:
                    _expect_preview(each)
                return TwoPasses(tuple(around), cast("ToldNorm", stage))
            if stage._reads_gradients:
                around.append(stage)
        return None

    def _needs_norm(self) -> bool:
        """Whether the next step is clipped by a norm that is not known yet."""
        return self.norm is not None and self.norm.due()

    def knows_norm(self) -> bool:
        """Whether somebody has said the norm of the next step: it is made of passes alone."""
        return self.norm is not None and self.norm.clip.knows

    @property
    def _holds_all(self) -> bool:
        """Whether something has to see all gradients of a step before any is applied."""
        return self.scaled is not None or self.norm is not None


class TwoPasses(NamedTuple):
    """A clipping that has to know the norm of a whole step before its first update.

    ``gathering`` are the stages before ``clip`` that look at gradients. Accumulators see that norm
    only where theirs is the last of their micro-batches.
    """

    gathering: tuple[Wrapper, ...]
    clip: ToldNorm

    def due(self) -> bool:
        """Whether the next step is clipped, and its norm not known yet."""
        return not self.clip.knows and all(stage.left <= 1 for stage in self.gathering)

    def previewed(self, items: Iterable[Any]) -> Iterable[Any]:
        """What ``clip`` would get of the gradients ``items``, large ones in parts."""
        if not self.gathering:
            return items
        *around, last = self.gathering
        for stage in around:
            items = stage.previewed(items)
        return last._previewed_in_parts(items)

    def knowing(self, items: Iterable[Any]) -> AbstractContextManager[None]:
        """Within the block, the norm is that of the gradients ``items``, none of which is kept."""
        return self.clip.knowing(norm_of(self.previewed(items), self.clip.joined))


def within_reduction(
    optimizer: Optimizer | Wrapper, wrap: Callable[[Optimizer | Wrapper], Wrapper]
) -> Wrapper:
    """``wrap`` of ``optimizer``, but inside of a reducer, which has to see gradients before."""
    if isinstance(optimizer, Wrapper) and optimizer._waits:
        return cast("Reducer", optimizer)._remade(within_reduction(optimizer.optimizer, wrap))
    return wrap(optimizer)


def with_reduction(
    optimizer: Optimizer | Wrapper, reduce: Callable[[Optimizer | Wrapper], Wrapper]
) -> Optimizer | Wrapper:
    """``optimizer`` with what ``reduce`` makes of its inside, within stages that see no sums.

    Those gather gradients, hold all of them, or look at none: they stay around the reducer.
    """
    if not isinstance(optimizer, Wrapper) or optimizer._waits:
        return reduce(optimizer)
    if not optimizer.gathers and not optimizer._holds_all and optimizer._reads_gradients:
        return reduce(optimizer)
    optimizer.optimizer = with_reduction(optimizer.optimizer, reduce)
    return optimizer


def without_reductions(optimizer: Optimizer | Wrapper) -> Optimizer | Wrapper:
    """``optimizer`` as a process has it that trains alone; its other stages are copies."""
    if not isinstance(optimizer, Wrapper):
        return optimizer
    if optimizer._waits:
        return without_reductions(cast("Reducer", optimizer)._lone_optimizer)
    alone = copy(optimizer)
    alone.optimizer = without_reductions(optimizer.optimizer)
    return alone


def _expect_preview(stage: Wrapper) -> None:
    """Errors: a stage that changes gradients, and does not tell beforehand what they become."""
    if type(stage).previewed is Wrapper.previewed:
        kind = type(stage).__name__
        raise ArgumentError(
            "ClipByGlobalNorm",
            expected="ClipByGlobalNorm around other clipping",
            received=f"{kind} around it",
            advice=f"write ClipByGlobalNorm({kind}(...), max_norm)",
        )


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
    rule._apply_rule_to_rows(grad.indices, ParamUpdate(state, value, grad.rows, *numbers))
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

    def __init__(self, optimizer: Optimizer | Wrapper, names: Names, values: Values) -> None:
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


def state_sources(optimizer: Any, first_rows: dict[str, int] | None = None) -> list[Source]:
    """What ``optimizer.state_dict()`` gives, without copies and wherever the arrays are.

    A user's own `state_dict` is asked. The arrays are the optimizer's: to be written before its
    next step. With ``first_rows`` an optimizer that several processes have parts of gives those of
    this one, and says there with which rows they begin.
    """
    from singanet.checkpoint.entry import sources_of

    kind = type(optimizer)
    if first_rows is not None and isinstance(optimizer, Wrapper) and optimizer._waits:
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
    """As `singanet.optimizer.state.dump` has them."""
    from singanet.checkpoint.entry import Source

    step = np.array(state.step, np.int64)
    found = [Source(f"{state.name}/step", (), np.dtype("<i8"), lambda: step)]
    sizes, types = state.kinds()
    # Of what others update there are none.
    for k, (slot, size, dtype) in enumerate(zip(slots[: len(sizes)], sizes, types, strict=True)):
        whole = state.shape is not None and size == prod(state.shape)
        shape = state.shape if whole and state.shape is not None else (size,)

        def fetch(k: int = k) -> Array:
            return state.arrays[k]

        found.append(Source(f"{state.name}/{slot}", shape, dtype.newbyteorder("<"), fetch))
    return found
