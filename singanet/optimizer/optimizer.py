"""The base class of update rules."""

from __future__ import annotations

import math
import weakref
from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict

from singanet.base import terms
from singanet.base.described import (
    Configurable,
    Counted,
    Moment,
    changes,
    checked_call,
    passed_up,
    shown,
)
from singanet.base.elsewhere import is_library
from singanet.base.terms import Terms
from singanet.base.words import OWN, aliases
from singanet.errors import ArgumentError
from singanet.layers.symbol import Symbol
from singanet.optimizer.hyper import (
    Hyper,
    at,
    begin_schedules,
    checked,
    dump_hypers,
    learnt_by,
    load_hypers,
    plain,
)
from singanet.optimizer.regularization import ClipNorm, Constraint, L2Regularizer, Regularizer
from singanet.optimizer.state import (
    Grad,
    Grads,
    Names,
    Owners,
    ParamState,
    ParamUpdate,
    StateBuckets,
    Values,
    check_fit,
    check_lists,
    check_loaded,
    checked_name,
    dump,
    no_rate,
    not_finite,
    nothing,
    parse,
)
from singanet.params.param import Param, ParamSpec, owner_of
from singanet.params.storage import served_by
from singanet.types import Array, RowSparse, Shape

if TYPE_CHECKING:
    pass


def as_regularizer(where: str, given: Any) -> Regularizer | None:
    """Return ``given``, a regularizer or None; a number becomes an `L2Regularizer`."""
    if given is None or isinstance(given, Regularizer):
        return given
    if isinstance(given, (int, float)):
        return L2Regularizer(given)
    raise _not_one(f"{where}(regularizer=)", "a Regularizer, an L2 coefficient or None", given)


def as_constraint(where: str, given: Any) -> Constraint | None:
    """Return ``given``, a constraint or None; a number becomes a `ClipNorm`."""
    if given is None or isinstance(given, Constraint):
        return given
    if isinstance(given, (int, float)):
        return ClipNorm(given)
    raise _not_one(f"{where}(constraint=)", "a Constraint, a norm threshold or None", given)


def configured(
    where: str,
    name: str,
    spec: ParamSpec,
    regularizer: Regularizer | None,
    constraint: Constraint | None,
) -> ParamState:
    """Return the settings of parameter ``name`` from its spec, or else from the optimizer."""
    own = as_regularizer(where, spec.regularizer)
    state = ParamState(
        name, own or regularizer, as_constraint(where, spec.constraint) or constraint
    )
    state.lr_mult = at(checked(where, "lr_mult", spec.lr_mult), 0)
    state.decay_mult = at(checked(where, "decay_mult", spec.decay_mult), 0)
    # As in SINGA: the coefficient of a parameter's own regularizer is not multiplied.
    state.penalty_mult = state.decay_mult if own is None else 1.0
    return state


def _not_one(where: str, expected: str, given: Any) -> ArgumentError:
    return ArgumentError(
        where,
        expected=expected,
        received=type(given).__name__,
        advice="see singanet.optimizer for the classes",
    )


class Update:
    """An update by the mean of ``loss``, a symbol of one number a sample.

    A program of an `Executor` that lists it trains. Errors: a symbol that is not a loss.

    Args:
        optimizer: The optimizer.
        loss: The symbol of the loss.
        params: The parameters to change: a name, `Param`, layer or net, or a list of these. None
            is every trained parameter that the loss depends on.

    """

    __slots__ = ("loss", "optimizer", "params")

    def __init__(self, optimizer: Any, loss: Symbol, params: Any = None) -> None:
        where = f"{type(optimizer).__name__}.minimize"
        if not isinstance(loss, Symbol) or loss.shape != () or not loss.call.inputs:
            received = f"sample shape {loss.shape}" if isinstance(loss, Symbol) else repr(loss)
            raise ArgumentError(
                where,
                expected="the symbol of a loss, of one number a sample",
                received="an input" if getattr(loss, "shape", None) == () else received[:60],
                advice="build one: SoftmaxCrossEntropy()(scores, y); Add sums several",
            )
        if params is not None:
            params = tuple(params) if isinstance(params, (list, tuple, set)) else (params,)
            if not params:
                raise ArgumentError(
                    f"{where}, argument params",
                    expected="at least one parameter, layer or net",
                    received="none",
                    advice="omit it for all parameters that the loss depends on",
                )
        self.optimizer, self.loss, self.params = optimizer, loss, params

    def __repr__(self) -> str:
        settings = {"optimizer": self.optimizer, "loss": self.loss}
        return shown("Update", settings, bare=("optimizer", "loss"))


class Shared(TypedDict, total=False):
    """Keyword arguments of every rule. Their defaults are attributes of the class."""

    weight_decay: Hyper | None
    decoupled: bool | None
    regularizer: Regularizer | float | None
    constraint: Constraint | float | None


class Optimizer(Counted, Configurable, ABC):
    """Updates parameters from their gradients, layer by layer in any order.

    Hyper-parameters are numbers or schedules: callables of the parameter's own step, 0 at its first
    update. As in SINGA, the constraint is applied first, then the regularizer, then the rule. The
    settings of a parameter's spec precede the arguments of the optimizer.

    Each net has its own state, even if parameters have the same names. If a net is trained again
    after another one, its parameters and its schedules continue from their state. Loaded state
    belongs to the first parameters with its names. Arrays without a net are identified by name.

    A subclass lists its state arrays in ``slots`` and its hyper-parameters in ``hypers``.

    Args:
        learning_rate: The lr of formulas, a number or schedule. None if every update passes a rate.
        weight_decay: A number or schedule; times the parameter's ``decay_mult`` it is λ.
        decoupled: If False, as in SINGA and in PyTorch's `SGD` and `Adam`, λ · value is added to
            the gradient, instead of a ``regularizer``. If True, as in Keras and AdamW, the step
            value −= lr · λ · value comes first, and a regularizer is allowed, too.
        regularizer: A `Regularizer`, or a number, the coefficient of an `L2Regularizer`.
        constraint: A `Constraint` of gradients or weights, or a number, the threshold of a
            `ClipNorm`.

    """

    _fixed_names = True
    slots: tuple[str, ...] = ()
    hypers: ClassVar[tuple[str, ...]] = ("learning_rate", "weight_decay")
    weight_decay: Hyper = 0.0
    decoupled: bool | None = False
    regularizer: Regularizer | None = None
    constraint: Constraint | None = None
    _shared = Shared
    _by_parameter: ClassVar[bool] = True
    """Whether `state`, `numbers` and `apply_rule` define an update, so that programs record it."""
    _most_in_kernels: ClassVar[float] = math.inf
    """The most elements of a parameter whose update programs record as the rule's kernels.

    Of a larger one they call `apply_rule` itself, which works block by block.
    """
    each_use: bool = False
    """Whether a parameter with several uses is updated by the gradient of each use in turn.

    The update by the sum must be equal to these updates, to rounding.
    """
    every: int = 1
    """Updates per step of schedules, more than 1 if a rule accumulates micro-batches."""
    rests: ClassVar[bool] = False
    """Whether the values of training are not the values for evaluation, see `rest`."""
    _always_shown = ("learning_rate",)
    _first_hypers: Mapping[str, Hyper | None] = {}

    def __init_subclass__(cls) -> None:
        """Read hyper-parameters at every update."""
        cls._asked_anew = cls.hypers

    def __init__(
        self,
        learning_rate: Hyper | None = 0.001,
        *,
        weight_decay: Hyper | None = OWN,
        decoupled: bool | None = OWN,
        regularizer: Regularizer | float | None = None,
        constraint: Constraint | float | None = None,
        **words: Any,
    ) -> None:
        if words:  # A user's rule calls this by itself, perhaps with lr=.
            learning_rate = passed_up(self, Optimizer, "learning_rate", learning_rate, words)
        where, rate = type(self).__name__, learning_rate
        self.learning_rate = None if rate is None else checked(where, "learning_rate", rate)
        decay = self.weight_decay if weight_decay is OWN else weight_decay
        self.weight_decay = checked(where, "weight_decay", decay or 0.0)
        if decoupled is OWN or decoupled is None:
            decoupled = type(self).decoupled
        self.decoupled = decoupled if decoupled is None else bool(decoupled)
        self.regularizer = as_regularizer(where, regularizer)
        self.constraint = as_constraint(where, constraint)
        if decay and self.decoupled is False:
            if self.regularizer is not None:
                raise ArgumentError(
                    where,
                    expected="weight_decay or a regularizer",
                    received="both",
                    advice="weight_decay is an L2Regularizer: omit one",
                )
            self.regularizer = L2Regularizer(self.weight_decay)
        self._states: dict[str, ParamState] = {}
        self._owners = Owners()
        self._registered: dict[str, tuple[Moment, ParamSpec]] = {}
        self._buckets = StateBuckets()

    def _constructed(self) -> None:
        """Record the constructor's hyper-parameters, to find assigned ones later."""
        super()._constructed()
        self._first_hypers = {name: getattr(self, name) for name in self.hypers}

    @checked_call
    def minimize(self, loss: Any, params: Any = None) -> Update:
        """Return the update by the mean of the symbol ``loss``, for an `Executor`.

        Args:
            loss: The symbol of a loss, one number a sample.
            params: The parameters to change, see `Update`.

        """
        return Update(self, loss, params)

    def register(self, name: str, spec: ParamSpec) -> None:
        """Train the parameter ``name`` with the settings of ``spec``; a later call replaces them.

        They precede the spec of the parameter, until another spec is assigned to it.
        """
        self._settle_as(name, spec)
        self._registered[name] = changes.moment(), spec

    def register_all(self, specs: Iterable[ParamSpec]) -> None:
        """`register` each of ``specs`` under its own name."""
        for spec in specs:
            self.register(spec.name, spec)

    def follow(self, params: Iterable[Param], net: Any = None) -> None:
        """Train ``params``, the parameters of ``net``, with the settings of `_spec_of`."""
        for param in params:
            self._owners.turn(param.name, param.root, self._states)
            self._settle_as(param.name, self._spec_of(param))

    def turn(self, params: Sequence[Param]) -> bool:
        """Switch to the state of the ``params`` of a net and of its schedules.

        Returns True if the state of other parameters was in use.
        """
        switched = [self._owners.turn(p.name, p.root, self._states) for p in params]
        other = any(switched)
        now = learnt_by(self, self.hypers) if other else {}
        learnt = self._owners.turn_all([param.root for param in params], other, now, {})
        if learnt is not now:
            begin_schedules(self, self.hypers, learnt)
        return other

    def rest(self, params: Iterable[Param]) -> None:
        """Set ``params`` to their values for evaluation; only `ScheduleFreeAdamW` has others.

        The next `net.step` calls `resume`. A parameter at rest, or without an update so far, is not
        changed.
        """
        if self.rests:
            moved(self, params, True)

    def resume(self, params: Iterable[Param]) -> None:
        """Set ``params`` to their values of training, if they rest."""
        if self.rests:
            moved(self, params, False)

    def _move(self, params: Sequence[Param], values: Sequence[Array], rest: bool) -> None:
        """Call `rest` or `resume` for the arrays ``values`` of ``params``."""

    @property
    def _terms(self) -> Terms:
        """The terms of the rule."""
        needs: list[str] = []
        if self.rests:
            needs += [*terms.PARAMETERS, terms.STATE]
        if self.every > 1:
            needs.append(terms.EACH_STEP)
        if type(self)._rule_for is not Optimizer._rule_for:
            needs.append(terms.ALIKE)
        takes = [terms.BEGUN] if self.rests else []
        if not self._alike:
            takes.append(terms.ELEMENTS)
        kind, remedy = type(self).__name__, "use AdamW" if self.rests else ""
        return Terms(tuple(needs), takes=tuple(takes), received=kind, remedy=remedy)

    @property
    def _alike(self) -> bool:
        """Whether the rule updates each element by itself."""
        return False

    @property
    def owners(self) -> Owners:
        """The owners of the state."""
        return self._owners

    def _spec_of(self, param: Param) -> ParamSpec:
        """Return the newest spec of a parameter: from `register`, or assigned to it."""
        when, spec = self._registered.get(param.name, (None, param.spec))
        later = when is not None and (param.said is None or when > param.said)
        return spec if later else param.spec

    def _settle_as(self, name: str, spec: ParamSpec) -> None:
        where = f"{type(self).__name__}, parameter {name!r}"
        rule = self._rule_for(self._states.get(name))
        fresh = configured(where, name, spec, rule.regularizer, rule.constraint)
        if name in self._states:
            self._states[name].settle_as(fresh)
        else:
            self._states[name] = fresh

    def _rule_for(self, state: ParamState | None) -> Optimizer:
        """Return the rule that updates the parameter of ``state``: this one, or one inside."""
        return self

    def update(self, names: Names, values: Values, grads: Grads, scale: float = 1.0) -> None:
        """Update ``values`` in place by ``scale`` · ``grads``.

        Errors, before anything changes: lists of unequal length, shapes that differ, a rate that
        is not finite.

        Args:
            names: The name of each parameter.
            values: The arrays to update.
            grads: Gradients of the shapes of the values, which do not change. A `RowSparse`
                changes only its rows of the value and of the state. None skips a parameter.
            scale: A factor of the gradients.

        """
        self._run(names, values, grads, scale, None)

    def _update_part(self, names: Names, values: Values, grads: Grads) -> None:
        """Update by some gradients of a step before others, without counting a step."""
        self._run(names, values, grads, 1.0, None, counts=False)

    def apply(
        self, epoch: int, grad: Grad, value: Array, name: str | None = None, step: int = -1
    ) -> Array:
        """Update one parameter (SINGA's interface); changes and returns ``value``.

        ``grad`` is its gradient and ``name`` its full name. ``epoch`` and ``step`` are not used,
        since steps are counted by name.
        """
        self._run([checked_name(type(self).__name__, name)], [value], [grad], 1.0, None)
        return value

    def apply_with_lr(
        self,
        epoch: int,
        lr: float,
        grad: Grad,
        value: Array,
        name: str | None = None,
        step: int = -1,
    ) -> Array:
        """Call `apply` with the rate ``lr``, times the parameter's ``lr_mult``.

        ``epoch``, ``grad``, ``value``, ``name`` and ``step`` are as for `apply`.
        """
        self._run([checked_name(type(self).__name__, name)], [value], [grad], 1.0, float(lr))
        return value

    def state_dict(self) -> dict[str, Array]:
        """Return copies of all state: ``name/step`` and ``name/slot`` for updated parameters.

        The keys of schedules with state, like `Plateau`, and of numbers assigned to
        hyper-parameters, like ``optimizer.learning_rate = 0.01``, start with ``*``.
        """
        return {**dump(self._states, self.slots), **self._hyper_state()}

    def _key(self, key: str) -> str:
        """Return the current ``key`` of a hyper-parameter, which older files name otherwise."""
        hyper, dot, rest = key.removeprefix("*/").partition(".")
        return f"*/{aliases(self.hypers).get(hyper, hyper)}{dot}{rest}"

    def _hyper_state(self) -> dict[str, Array]:
        """Return the entries of `state_dict` under ``*``, which belong to no parameter."""
        return dump_hypers(self, self.hypers, self._first_hypers)

    def _load_hyper_state(self, state: Mapping[str, Array]) -> None:
        """Load the result of `_hyper_state`."""
        load_hypers(type(self).__name__, self, self.hypers, self._first_hypers, state)

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Load ``state``, the result of `state_dict`, including an assigned rate.

        Errors, before anything changes: an unknown or missing slot.
        """
        where = type(self).__name__
        learnt = {key: array for key, array in state.items() if key.startswith("*/")}
        rest = {key: array for key, array in state.items() if key not in learnt}
        parsed = parse(where, rest, self.slots)
        self._load_hyper_state({self._key(key): array for key, array in learnt.items()})
        for known in (*self._states.values(), *self._owners.aside()):
            if isinstance(known, ParamState):
                known.forget()
        self._owners.forget()
        for name, (step, arrays, rests) in parsed.items():
            self.state(name).resume(step, arrays, rests)

    def _check_loaded(self, values: Mapping[str, Array]) -> None:
        """Raise `ShapeError` if loaded state does not fit its parameter in ``values``."""
        for state in self._states.values():
            if state.arrays and state.name in values:
                value = values[state.name]
                check_loaded(
                    type(self).__name__, state, self._slot_sizes(value.shape, state), value
                )

    def _run(
        self,
        names: Names,
        values: Values,
        grads: Grads,
        scale: float,
        lr: float | None,
        counts: bool = True,
    ) -> None:
        where = type(self).__name__
        check_lists(where, names, values, grads)
        jobs = []
        for name, value, grad in zip(names, values, grads, strict=True):
            if grad is not None:
                state = self._states.get(name)
                if state is None or state.seen() is not value:
                    state = self._state_of(name, value)
                check_fit(where, name, value, grad, state.shape)
                if state.shape is None and state.arrays:
                    check_loaded(where, state, self._slot_sizes(value.shape, state), value)
                jobs.append((state, value, grad, *self.numbers(state, lr)))
        for state, value, grad, penalty, scalars in jobs:
            if state.shape is None:
                state.settle_on(value, self._slot_sizes(value.shape, state), self._buckets)
            numbers = penalty, scalars, scale
            for part, g, arrays in state.parts(grad):
                w = value if part is None else value[part]
                if isinstance(g, tuple):
                    now = ParamUpdate(state, w, g[1], arrays, *numbers)
                    self._apply_rule_to_rows(g[0], now)
                else:
                    self.apply_rule(ParamUpdate(state, w, g, arrays, *numbers))
            state.step += counts

    def state(self, name: str) -> ParamState:
        """Return the state of the parameter ``name``.

        It is created with the optimizer's settings if missing.
        """
        fresh = ParamState(name, self.regularizer, self.constraint)
        return self._states.setdefault(name, fresh)

    def _state_of(self, name: str, value: Array) -> ParamState:
        """Return the `state` of the parameter with the array ``value``, not of a namesake."""
        root = owner_of(value)
        if root is not None and self._owners.turn(name, root, self._states):
            self._owners.net = nothing
        state = self.state(name)
        if root is not None:
            state.seen = weakref.ref(value)
        if state.shape is not None and value.dtype.itemsize > 2 and not state.is_beside(value):
            # The net was converted or moved: `settle_on` converts and moves the arrays. The state
            # of a parameter in half precision is of its master.
            state.shape = None
        return state

    # -- the rule, for callers that apply it step by step -----------------------------------------

    def settle(self, name: str, value: Array) -> ParamState:
        """Return the state of the parameter ``name``, with arrays for the shape of ``value``.

        They are created before the first update. Copied state is made contiguous again if its
        parameters are.
        """
        state = self._state_of(name, value)
        if state.shape is None:
            sizes = self._slot_sizes(value.shape, state)
            if state.arrays:
                check_loaded(type(self).__name__, state, sizes, value)
            state.settle_on(value, sizes, self._buckets)
        elif state.arrays and self._buckets.lacks(name, value, state.arrays):
            state.settle_on(value, self._slot_sizes(value.shape, state), self._buckets)
        return state

    def _will_change(self, name: str) -> bool:
        """Whether the next gradient of the parameter changes it, and is not just accumulated."""
        step = self.state(name).step
        return (step + 1) // self.every != step // self.every

    def _expect_rates(self, names: Iterable[str]) -> None:
        """Raise `ArgumentError` if the next rate of a parameter in ``names`` is not finite.

        A user's schedule is not called, as it may count its calls.
        """
        for state in map(self.state, names):
            given = self._rule_for(state).learning_rate
            if given is None or (callable(given) and not is_library(type(given))):
                continue
            step = state.step // self.every
            rate = at(given, step) * state.lr_mult
            if not math.isfinite(rate):
                raise not_finite(type(self).__name__, state.name, rate, step)

    def states(self) -> Collection[ParamState]:
        """Return the states of all parameters so far."""
        return self._states.values()

    def rate(self) -> float | None:
        """Return the rate of the last update, or of the first before it, without ``lr_mult``.

        None if the optimizer has no rate.
        """
        done = max((state.step for state in self._states.values()), default=0)
        return (
            None
            if self.learning_rate is None
            else at(self.learning_rate, max(done - 1, 0) // self.every)
        )

    def case(self) -> Hashable:
        """Return the state other than `numbers` that the result of `apply_rule` depends on."""
        return ()

    def numbers(
        self, state: ParamState, lr: float | None = None
    ) -> tuple[float, tuple[float, ...]]:
        """Return the regularizer's coefficient, and the numbers of the rule for this step.

        ``state`` is the state of the parameter, ``lr`` the rate before its ``lr_mult``; None for
        the optimizer's. If the decay is `decoupled`, the last number is the factor of the value.
        Errors: a rate that is not finite.
        """
        step = state.step // self.every
        if lr is None:
            rate = self.learning_rate
            if rate is None:
                raise no_rate(type(self).__name__)
            # The fast path, since this runs at each step of each parameter.
            lr = rate if type(rate) is float else at(rate, step)
        rate = lr * state.lr_mult
        if not math.isfinite(rate):
            raise not_finite(type(self).__name__, state.name, rate, step)
        penalty = 0.0
        if state.regularizer is not None:
            penalty = at(state.regularizer.coefficient, step) * state.penalty_mult
        scalars = self._scalars(state, rate)
        if not self.decoupled:
            return penalty, scalars
        # True, which selects a case, if this micro-batch does not change the value.
        last = (state.step + 1) % self.every == 0
        kept = not last or 1.0 - rate * at(self.weight_decay, step) * state.decay_mult
        return penalty, (*scalars, kept)

    def apply_rule(self, update: ParamUpdate) -> None:
        """Apply constraint, regularizer and rule to the arrays of ``update``, in place.

        It computes with arrays alone, and does not count a step.
        """
        constraint = update.state.constraint
        if constraint is not None:
            scale = plain(constraint.factor(update.grad, update.scale))
            update = update._replace(scale=scale)
        self._sweep(self._with_decay(update) if self.decoupled else update)
        if constraint is not None:
            constraint.project(update.value)

    def _apply_rule_to_rows(self, indices: Array, update: ParamUpdate) -> None:
        """Apply the rule to the rows ``indices``, with the gradients of ``update``.

        The rows of a served table are updated by the table.
        """
        elsewhere, constraint = served_by(update.value), update.state.constraint
        rows = RowSparse(indices, update.grad)
        if elsewhere is not None:
            elsewhere.push(rows, float(update.scale))
            return
        if constraint is not None:
            update = update._replace(scale=plain(constraint.factor(rows, update.scale)))
        self._sweep_rows(indices, self._with_decay(update) if self.decoupled else update)

    def _with_decay(self, update: ParamUpdate) -> ParamUpdate:
        """Return ``update`` with the last of its numbers as the factor of the value."""
        *scalars, kept = update.scalars
        return update._replace(scalars=tuple(scalars), kept=kept)

    def _slot_sizes(self, shape: Shape, state: ParamState) -> tuple[int, ...]:
        """Return the number of elements of each state array of a parameter."""
        return (math.prod(shape),) * len(self.slots)

    def _room(self, value: Array) -> int:
        """Return the bytes that an update of ``value`` needs beside it, if they are many."""
        return 0

    @abstractmethod
    def _scalars(self, state: ParamState, rate: float) -> tuple[float, ...]:
        """Return the numbers of the rule for this step, computed once a parameter."""

    @abstractmethod
    def _sweep(self, update: ParamUpdate) -> None:
        """Update the value and the flat state in place."""

    @abstractmethod
    def _sweep_rows(self, indices: Array, update: ParamUpdate) -> None:
        """Update the rows ``indices`` of value and state, with the gradients of ``update``."""


def moved(optimizer: Any, params: Iterable[Param], rest: bool) -> None:
    """Implement `Optimizer.rest` and `Optimizer.resume`, also of a stage."""
    given = [param for param in params if param.filled and param.storage.in_memory]
    optimizer._move(given, [param.here for param in given], rest)
