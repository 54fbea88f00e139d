"""An optimizer around another one."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, TypeAlias, TypeGuard

from singanet.base.described import Configurable, Counted, checked_call
from singanet.errors import ArgumentError
from singanet.optimizer.hyper import Scale
from singanet.optimizer.optimizer import Optimizer, Update
from singanet.optimizer.state import Grad, Grads, Names, Values
from singanet.params.param import Param, ParamSpec
from singanet.types import Array

Handed: TypeAlias = tuple[Sequence[str], Sequence[Array], Sequence[Grad], Scale]
"""Names, values and gradients, and what the gradients are multiplied by."""


class Wrapper(Counted, Configurable, ABC):
    """A stage: it changes gradients on their way to ``optimizer``, which may be a wrapper itself.

    It is used like an optimizer: `update`, `register`, `state_dict`. A subclass says in `take`
    what becomes of the gradients of a layer, or overrides `update` altogether. In a step a stage
    is asked, in this order: `meet` once a net, `begin`, `previewed` where a stage behind it
    `_needs_norm`, `take` for each layer, and `end`.
    """

    _reads_gradients: ClassVar[bool] = True
    """Whether `take` looks at gradients, and does not only hand them on."""
    _by_element: ClassVar[bool] = False
    """Whether each element of a gradient is changed by itself: parts of it may be, elsewhere."""
    _by_parts: ClassVar[bool] = False
    """Whether gradients may be parts, others of which other processes have: it asks `joined`."""
    _across_layers: ClassVar[bool] = False
    """Whether what becomes of a layer's gradients depends on those of layers before."""
    _selects: ClassVar[bool] = False
    """Whether it hands on gradients of some parameters alone: programs do not make the others."""
    gathers: ClassVar[bool] = False
    """Whether it hands on what it has gathered over ``every`` steps, see `left`."""
    every: int = 1
    _needs_norm: ClassVar[bool] = False
    """Whether it is to be told the norm of a step before its first gradients, by `knowing`."""
    _holds_all: ClassVar[bool] = False
    """Whether all gradients of a step have to be there, and finite, before it takes the first."""
    _waits: ClassVar[bool] = False
    """Whether it is a `Reducer`, which waits for other processes."""
    _over_parts: Callable[[Any], Any] | None = None
    """What sums a number over the processes that have the other parts of gradients, if any."""

    def __init__(self, optimizer: Optimizer | Wrapper) -> None:
        if not is_optimizer(optimizer):
            raise ArgumentError(
                type(self).__name__,
                expected="an optimizer to wrap",
                received=type(optimizer).__name__,
                advice=f"write {type(self).__name__}(SGD(learning_rate=0.1), ...)",
            )
        self.optimizer = optimizer

    @property
    def _weighs(self) -> bool:
        """Whether `begin` has to be called, since what the loss counts decides over gradients."""
        return False

    @property
    def left(self) -> int:
        """How many steps there are up to the next one whose gradients are handed on, with it."""
        return 1

    @property
    def pending(self) -> bool:
        """Whether gradients wait here for those of other micro-batches."""
        return False

    def update(self, names: Names, values: Values, grads: Grads, scale: float = 1.0) -> None:
        """As `Optimizer.update`."""
        for some, their, handed, factor in self.take(names, values, grads, scale):
            self.optimizer.update(some, their, handed, float(factor))

    def take(self, names: Names, values: Values, grads: Grads, scale: Scale) -> Iterator[Handed]:
        """What the optimizer inside is to update for the gradients of a layer.

        Code after a ``yield`` runs once that update is done. Where the arithmetic is that of
        arrays, and state is arrays that are changed in place, programs record it; what else
        decides over it is told by `case`, and goes on by `skip`.
        """
        yield names, values, grads, scale

    def joined(self, total: Any) -> Any:
        """``total``, a sum over the elements of gradients, with the parts that are elsewhere.

        All processes that have parts come here, at the same gradients.
        """
        return total if self._over_parts is None else self._over_parts(total)

    def meet(self, net: Any, around: Sequence[Wrapper] = ()) -> None:
        """Train ``net`` from now on, behind the stages ``around``, the first of them outermost."""

    def turn(self, params: Sequence[Param], other: bool) -> None:
        """Go on with the state of the net of ``params``, an ``other`` net than the last or not."""

    def train(self, names: Iterable[str]) -> None:
        """The parameters ``names`` are those that are trained from now on."""

    def begin(self, count: float | None) -> float | None:
        """The gradients to come are of a mean over ``count`` positions; None: of a sum.

        Returns what the gradients that are handed on are a mean over.
        """
        return count

    def previewed(self, items: Iterable[Any]) -> Iterable[Any]:
        """What would be handed on of the gradients ``items`` of a step, nothing changed.

        A stage that changes gradients has to override it to stand before one that `_needs_norm`.
        """
        return items

    def _previewed_in_parts(self, items: Iterable[Any]) -> Iterable[Any]:
        """As `previewed`, for who looks at elements: a gradient may come in several items."""
        return self.previewed(items)

    def end(self) -> None:
        """What is to be done once all updates of a step are; `take` saw every one of them."""

    def join(self) -> None:
        """Take part in the steps of other processes without samples, until all have come here.

        The `Reducer` inside does so; without one there are no other processes.
        """
        if isinstance(self.optimizer, Wrapper):
            self.optimizer.join()

    def _conclude(self, refused: str | None) -> None:
        """The step was taken, or not, as the gradients of the layer ``refused`` are not finite."""

    def refused(self) -> None:
        """Undo what `begin` did: the step in work failed before its first update."""

    def refresh(self, names: Names, values: Values) -> None:
        """Bring what `settle` made up to date with ``values``, which somebody may have changed."""

    def written(self, names: Names, values: Values) -> None:
        """Let ``values`` follow what `settle` made, to which somebody wrote; it was no update."""

    def _before_last(self, names: Names, values: Values) -> AbstractContextManager[None]:
        """Within it the next step is one whose gradients are handed on; then all is as before."""
        return nullcontext()

    def updated(self, names: Names, values: Values) -> None:
        """The parameters ``names`` were changed after `take` went on, or without it."""

    def settle(self, names: Names, values: Values) -> Sequence[Array]:
        """Make the state of these parameters, so that `take` finds it.

        Returns the arrays that the optimizer inside is to update.
        """
        return values

    def case(self) -> Hashable:
        """What of the state, other than the numbers in its arrays, decides what `take` does."""
        return ()

    def skip(self, names: Names) -> None:
        """Go on as `take` does, the arrays apart: a program has changed those."""

    def _will_change(self, name: str) -> bool:
        """As `Optimizer._will_change`."""
        return self.optimizer._will_change(name)

    def _expect_rates(self, names: Iterable[str]) -> None:
        """As `Optimizer._expect_rates`."""
        self.optimizer._expect_rates(names)

    @checked_call
    def minimize(self, loss: Any, params: Any = None) -> Update:
        """As `Optimizer.minimize`."""
        return Update(self, loss, params)

    def register(self, name: str, spec: ParamSpec) -> None:
        """As `Optimizer.register`."""
        self.optimizer.register(name, spec)

    def register_all(self, specs: Iterable[ParamSpec]) -> None:
        """As `Optimizer.register_all`."""
        self.optimizer.register_all(specs)

    def state_dict(self) -> dict[str, Array]:
        """The state of the optimizer inside, and that of the wrapper."""
        return {**self.optimizer.state_dict(), **self._own_state()}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Go on exactly where the wrapper of the `state_dict` stood."""
        own = {key: array for key, array in state.items() if self._is_own(key)}
        # Parsed before the optimizer inside changes, taken after it has.
        take = self._parsed(own)
        self.optimizer.load_state_dict({k: a for k, a in state.items() if k not in own})
        self._take(take)

    def _own_state(self) -> dict[str, Array]:
        """What the wrapper itself has gathered."""
        return {}

    def _is_own(self, key: str) -> bool:
        return False

    def _parsed(self, own: Mapping[str, Array]) -> object:
        return None

    def _take(self, parsed: object) -> None:
        """Take what `_parsed` made."""


def is_optimizer(given: Any) -> TypeGuard[Optimizer | Wrapper]:
    """Whether ``given`` is a rule, or stages around one."""
    return isinstance(given, (Optimizer, Wrapper))


def rule_of(optimizer: Any) -> Any:
    """The rule inside of all stages."""
    while isinstance(optimizer, Wrapper):
        optimizer = optimizer.optimizer
    return optimizer
