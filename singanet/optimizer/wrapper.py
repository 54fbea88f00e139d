"""Stages around an optimizer."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeAlias, TypeGuard

from singanet.base import terms
from singanet.base.described import Configurable, Counted, checked_call
from singanet.base.terms import Terms
from singanet.errors import ArgumentError
from singanet.optimizer.hyper import Scale, as_float
from singanet.optimizer.optimizer import Optimizer, Update, moved
from singanet.optimizer.state import Grad, Grads, Names, Values
from singanet.params.param import Param, ParamSpec
from singanet.types import Array

Handed: TypeAlias = tuple[Sequence[str], Sequence[Array], Sequence[Grad], Scale]
"""Names, values, gradients, and the factor of the gradients."""


_ITS_READS = (
    'declare traits = StageTraits(reads="elements") in its class if it changes each element by'
    ' itself, reads="sums" if its sums go through self.joined'
)


@dataclass(frozen=True)
class StageTraits:
    """Declare what a stage reads of gradients, and needs of a step.

    Args:
        reads: "whole" gradients; "sums" over elements, each passed through `Wrapper.joined`, so
            that gradients may be spread over processes; "elements", each changed by itself; or
            "nothing".
        selects: Whether gradients of some parameters are dropped, so that programs do not compute
            them.
        gathers: Whether gradients are accumulated over `Wrapper.every` steps, see `Wrapper.left`.
        needs_norm: Whether the norm of a step must be known, by ``knowing``, before the first
            gradients.
        holds_all: Whether all gradients of a step must exist, and be finite, before the first
            `Wrapper.take`.
        waits: Whether it is a reducer, which waits for other processes.
        needs: Further conditions of `singanet.base.terms`, without which it is refused.
        takes: Further conditions that it takes away from all other parts of a training.
        inside: Further conditions that it takes away from the stages and the rule inside it.
        remedy: What to do without it, for errors.

    """

    reads: Literal["whole", "sums", "elements", "nothing"] = "whole"
    selects: bool = False
    gathers: bool = False
    needs_norm: bool = False
    holds_all: bool = False
    waits: bool = False
    needs: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    inside: tuple[str, ...] = ()
    remedy: str = ""

    @property
    def _terms(self) -> Terms:
        """The terms of the stage."""
        needs, inside, remedy = [*self.needs], [*self.inside], self.remedy
        apart = self.gathers or self.holds_all or self.waits
        if self.reads == "whole" and not apart:
            needs.append(terms.GRADIENTS)
            remedy = remedy or _ITS_READS
        elif self.reads == "sums":
            needs.append(terms.NORM if self.needs_norm else terms.SUMS)
        if apart:
            needs.append(terms.OWN)
        elif self.reads != "nothing":
            inside.append(terms.SUMMABLE)
        if self.gathers:
            needs.append(terms.EACH_STEP)
        if self.selects:
            inside.append(terms.EACH_STEP)
        if self.waits:
            needs.append(terms.SUMMABLE)
            inside.append(terms.OWN)
        return Terms(tuple(needs), takes=self.takes, inside=tuple(inside), remedy=remedy)


class Wrapper(Counted, Configurable, ABC):
    """A stage, which changes gradients on their way to ``optimizer``.

    It has the methods of an optimizer: `update`, `register`, `state_dict`. A subclass overrides
    `take` to change the gradients of a layer, or `update`. The calls in a step are, in this order:
    `meet` once a net, `begin`, `previewed` if an inner stage needs the norm, `take` for each layer,
    and `end`.

    Args:
        optimizer: An optimizer or another stage.

    """

    _fixed_names = True
    traits: ClassVar[StageTraits] = StageTraits()
    """What the stage reads of gradients, and needs of a step."""
    every: int = 1
    _over_parts: Callable[[Any], Any] | None = None
    """A function that sums a number over the processes with the other parts of gradients."""

    def __init__(self, optimizer: Optimizer | Wrapper) -> None:
        if not is_optimizer(optimizer):
            raise ArgumentError(
                type(self).__name__,
                expected="an optimizer to wrap",
                received=type(optimizer).__name__,
                advice=f"write {type(self).__name__}(SGD(learning_rate=0.1), ...)",
            )
        self.optimizer = optimizer
        expect_inside(self)

    @property
    def _terms(self) -> Terms:
        """The terms of the stage, which needs all values if it sees or settles them."""
        found, kind = self.traits._terms, type(self)
        if kind.settle is Wrapper.settle and kind.updated is Wrapper.updated:
            return found
        return replace(found, needs=(*found.needs, terms.VALUES))

    @property
    def _weighs(self) -> bool:
        """Whether gradients depend on the count of the loss, so that `begin` must be called."""
        return False

    @property
    def left(self) -> int:
        """The number of steps up to the next step that passes gradients on, included."""
        return 1

    @property
    def pending(self) -> bool:
        """Whether the stage has gradients of an incomplete set of micro-batches."""
        return False

    def update(self, names: Names, values: Values, grads: Grads, scale: float = 1.0) -> None:
        """Call `Optimizer.update` with the gradients of `take`.

        ``names``, ``values`` and ``grads`` have an entry for each parameter; ``scale`` is the
        factor of the gradients.
        """
        for some, their, handed, factor in self.take(names, values, grads, scale):
            self.optimizer.update(some, their, handed, as_float(factor))

    def take(self, names: Names, values: Values, grads: Grads, scale: Scale) -> Iterator[Handed]:
        """Yield the gradients for the inner optimizer from the gradients of a layer.

        ``names``, ``values`` and ``grads`` have an entry for each parameter; ``scale`` is the
        factor of the gradients. Code after a ``yield`` runs after this update. Programs record
        arithmetic with arrays, and state in arrays that changes in place. `case` returns all other
        state that the result depends on, and `skip` advances it.
        """
        yield names, values, grads, scale

    def joined(self, total: Any) -> Any:
        """Add the parts of other processes to ``total``, a sum over elements of gradients.

        All processes with parts make this call for the same gradients.
        """
        return total if self._over_parts is None else self._over_parts(total)

    def meet(self, net: Any, around: Sequence[Wrapper] = ()) -> None:
        """Prepare for the training of ``net``; ``around`` are the outer stages, outermost first."""

    def turn(self, params: Sequence[Param], other: bool) -> None:
        """Switch to the state of the net of ``params``, which may be an ``other`` net or not."""

    def train(self, names: Iterable[str]) -> None:
        """Train the parameters ``names`` from now on, and no others."""

    def begin(self, count: float | None) -> float | None:
        """Start a step with gradients of a mean over ``count`` positions, or None for a sum.

        Returns the count of the gradients that the stage passes on.
        """
        return count

    def previewed(self, items: Iterable[Any]) -> Iterable[Any]:
        """Return the gradients that `take` would pass on for a step, without changing anything.

        ``items`` are the gradients of the step. A stage that changes gradients must override it to
        be around a stage that needs the norm.
        """
        return items

    def _previewed_in_parts(self, items: Iterable[Any]) -> Iterable[Any]:
        """Call `previewed`; a subclass may split a gradient into several items."""
        return self.previewed(items)

    def end(self) -> None:
        """Finish a step, after all its updates."""

    def _ended(self) -> None:
        """Forget what `updated` has recorded, since a program has done what `end` does."""

    def join(self) -> None:
        """Take part in the steps of other processes without samples, until all call `join`.

        The inner `Reducer` does so; without a reducer there are no other processes.
        """
        if isinstance(self.optimizer, Wrapper):
            self.optimizer.join()

    def _conclude(self, refused: str | None) -> None:
        """Record a good step, or a skipped one: ``refused`` names the layer with the cause."""

    def refused(self) -> None:
        """Undo `begin`, after a failure before the first update of the step."""

    def refresh(self, names: Names, values: Values) -> None:
        """Update the arrays of `settle` from ``values``, which a user may have changed.

        ``names`` are the names of the parameters.
        """

    def written(self, names: Names, values: Values) -> None:
        """Update ``values`` from the arrays of `settle` after a write that was not an update.

        ``names`` are the names of the parameters.
        """

    def _before_last(self, names: Names, values: Values) -> AbstractContextManager[None]:
        """Pass gradients on at the next step within the block; restores the state."""
        return nullcontext()

    def updated(self, names: Names, values: Values) -> None:
        """Record a change of the parameters ``names`` after `take`, or without it.

        ``values`` are their arrays after the change.
        """

    def settle(self, names: Names, values: Values) -> Sequence[Array]:
        """Create the state of the parameters ``names`` with the arrays ``values`` for `take`.

        Returns the arrays for the inner optimizer to update.
        """
        return values

    def case(self) -> Hashable:
        """Return the state outside of arrays that the result of `take` depends on."""
        return ()

    def skip(self, names: Names) -> None:
        """Advance the state for ``names`` as `take` does, but not arrays.

        A program has changed these.
        """

    def rest(self, params: Iterable[Param]) -> None:
        """Set ``params`` to their values for evaluation, see `Optimizer.rest`."""
        if rule_of(self).rests:
            moved(self, params, True)

    def resume(self, params: Iterable[Param]) -> None:
        """Set ``params`` to their values of training, if they rest."""
        if rule_of(self).rests:
            moved(self, params, False)

    def _move(self, params: Sequence[Param], values: Sequence[Array], rest: bool) -> None:
        """Call `Optimizer._move`."""
        self.optimizer._move(params, values, rest)

    def _will_change(self, name: str) -> bool:
        """Call `Optimizer._will_change`."""
        return self.optimizer._will_change(name)

    def _expect_rates(self, names: Iterable[str]) -> None:
        """Call `Optimizer._expect_rates`."""
        self.optimizer._expect_rates(names)

    @checked_call
    def minimize(self, loss: Any, params: Any = None) -> Update:
        """Return the update of ``params`` by the mean of the symbol ``loss``.

        The arguments are as for `Update`.
        """
        return Update(self, loss, params)

    def register(self, name: str, spec: ParamSpec) -> None:
        """Train the parameter ``name`` according to ``spec``, see `Optimizer.register`."""
        self.optimizer.register(name, spec)

    def register_all(self, specs: Iterable[ParamSpec]) -> None:
        """Register each of ``specs`` under its own name."""
        self.optimizer.register_all(specs)

    def state_dict(self) -> dict[str, Array]:
        """Return the state of the inner optimizer and of the stage."""
        return {**self.optimizer.state_dict(), **self._own_state()}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Load ``state``, the result of `state_dict`."""
        own = {key: array for key, array in state.items() if self._is_own(key)}
        # Parsed before the inner optimizer changes, and loaded after it.
        take = self._parsed(own)
        self.optimizer.load_state_dict({k: a for k, a in state.items() if k not in own})
        self._take(take)

    def _own_state(self) -> dict[str, Array]:
        """Return the state of the stage itself."""
        return {}

    def _is_own(self, key: str) -> bool:
        return False

    def _parsed(self, own: Mapping[str, Array]) -> object:
        return None

    def _take(self, parsed: object) -> None:
        """Load the result of `_parsed`."""


def is_optimizer(given: Any) -> TypeGuard[Optimizer | Wrapper]:
    """Whether ``given`` is a rule, or a stage."""
    return isinstance(given, (Optimizer, Wrapper))


def rule_of(optimizer: Any) -> Any:
    """Return the rule inside all stages."""
    while isinstance(optimizer, Wrapper):
        optimizer = optimizer.optimizer
    return optimizer


def clashes(outer: Terms, inner: Terms) -> list[str]:
    """Return the conditions that one takes from the other, if ``inner`` is inside ``outer``."""
    taken = {*outer.takes, *outer.inside}
    found = [condition for condition in inner.needs if condition in taken]
    return found + [condition for condition in outer.needs if condition in inner.takes]


def expect_inside(stage: Wrapper, own: Terms | None = None) -> None:
    """Refuse stages and a rule inside ``stage`` that do not combine with it.

    ``own`` are its terms, by default the usual ones. Errors: `ArgumentError`.
    """
    outer, kind, inner = own or stage._terms, type(stage).__name__, stage.optimizer
    while True:
        terms, name = inner._terms, type(inner).__name__
        clash = clashes(outer, terms)
        if clash:
            ruling = kind if clash[0] in (*outer.takes, *outer.inside) else name
            remedies = [each for each in dict.fromkeys((outer.remedy, terms.remedy)) if each]
            if clash[0] in outer.inside and clash[0] in terms.inside:
                remedies = ["remove one"]
            elif isinstance(inner, Wrapper) and not clashes(terms, outer):
                remedies = [f"write {name}({kind}(...))"]
            raise ArgumentError(
                f"{name} in {kind}",
                expected=clash[0],
                received=f"{ruling}, which rules this out",
                advice=", or ".join(remedies) or "remove one",
            )
        if not isinstance(inner, Wrapper):
            return
        inner = inner.optimizer
