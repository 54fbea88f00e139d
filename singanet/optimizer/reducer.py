"""The base class of stages between several processes."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, ClassVar

from singanet.base.collectives import Collectives, SharedBatch
from singanet.checkpoint.entry import Source
from singanet.errors import ArgumentError, CallOrderError
from singanet.ops import ops_for
from singanet.optimizer.checks import Grad, check_lists
from singanet.optimizer.cutting import Cutting
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.reduction import Reduction, RoundKind
from singanet.optimizer.running_state import average_state
from singanet.optimizer.scale import Scale
from singanet.optimizer.wrapper import Handed, Wrapper
from singanet.params.served import is_served
from singanet.types import Array, RowSparse


class Reducer(Wrapper):
    """A stage that hands on what its ``reduction`` makes of the gradients of several processes.

    Updates come when the others' gradients have, at the latest in `end`; each process makes all
    of them, those of parameters that it found no gradient for too. `singanet.parallel` has some.
    """

    waits = True

    comm: Collectives
    """What the ranks talk through: `fit` agrees by it on all that is no gradient."""
    batch: SharedBatch
    """The shared batch as synchronized layers see it."""
    serves: ClassVar[bool] = False
    """Whether it refuses stages around that have a part in what becomes of values."""
    in_parts: ClassVar[bool] = False
    """Whether what it hands on may be parts of gradients, see `joined`."""
    copies: ClassVar[int] = 2
    """Of what is trained, the copies that it holds at most: sums under way, what is sent."""

    reduction: Reduction
    """How gradients are summed over the ranks; a `local` reducer has no such sums."""
    _around: tuple[Wrapper, ...] = ()
    _sums: GradientRound | None = None

    @abstractmethod
    def meet(self, net: Any, around: Sequence[Wrapper] = ()) -> None:
        """Train ``net`` from now on, behind the stages ``around``, the first of them outermost.

        Errors: processes whose nets or optimizers differ.
        """

    @property
    def weighs(self) -> bool:
        return True

    @property
    def inside(self) -> Optimizer | Wrapper:
        """The optimizer of a process that trains alone."""
        return self.optimizer

    @property
    @abstractmethod
    def alone(self) -> bool:
        """Whether gradients are handed on as they are, as there is no other process."""

    def knows(self, net: Any) -> bool:
        """Whether ``net`` is the last net that it met."""
        return False

    @property
    def local(self) -> bool:
        """Whether gradients are handed on as they are, and only `end` asks other processes."""
        return False

    def settled(self, name: str, value: Array) -> Array:
        """The array behind the parameter ``value`` that the optimizer inside is to update."""
        values: Sequence[Array] = [value]
        for stage in self._around:
            values = stage.settle([name], values)
        return values[0]

    def _round_of(self, kind: RoundKind, opened: bool = False) -> GradientRound:
        return GradientRound(self, self.reduction, self._around, kind, opened)

    def take(
        self,
        names: Sequence[str],
        values: Sequence[Array],
        grads: Sequence[Grad],
        scale: Scale,
    ) -> Iterator[Handed]:
        """As `Wrapper.take`; what is not there yet comes later, or in `end`."""
        if self.alone:
            return super().take(names, values, grads, scale)
        check_lists(type(self).__name__, names, values, grads)
        if self._sums is None:
            self._sums = self._round_of("step")
        return self._sums.take(names, values, grads, scale)

    def end(self) -> None:
        """As `Wrapper.end`: what is left is waited for, and updated by."""
        if self.alone:
            return
        sums = self._sums or self._round_of("step")
        try:
            for names, values, grads, factor in sums.rest():
                self.optimizer.update(names, values, grads, float(factor))
        finally:
            self._sums = None

    @property
    def by_itself(self) -> bool:
        """Whether each process updates by its own gradients."""
        return self.local

    def totals(self, counts: Array) -> Array:
        """The ``counts`` of a batch's loss, summed over all processes.

        All processes call it, between a forward and its walk back.
        """
        return counts

    def joined(self, total: Any) -> Any:
        """The sum of ``total`` over all processes, where each is handed on parts of gradients.

        It is a sum over those that were handed on here. All processes come here.
        """
        return total

    def spared(self, net: Any) -> int:
        """The bytes of state that other processes keep of the parameters of ``net``, and not it."""
        return 0

    def own_parts(self, first_rows: dict[str, int]) -> list[Source] | None:
        """The state that this process has, where each has a part of it; None for all of it.

        With which rows they begin goes to ``first_rows``, by name, 0 for a whole array.
        """
        return None

    def own_rows(self, name: str) -> tuple[int, int] | None:
        """Of a parameter that processes update in rows those of this one: (first, after the last).

        None for one that each may write as a whole.
        """
        return None

    @property
    @abstractmethod
    def exchanged(self) -> tuple[int, int]:
        """The bytes that this process has sent and received since the last `begin`."""

    def previewed(self, items: Iterable[Any]) -> Iterator[Any]:
        """As `Wrapper.previewed`: those of all processes, summed for it, and again for updates."""
        return iter(items) if self.alone else self._round_of("preview").previewed(items)

    @abstractmethod
    def agree(self, refused: str | None) -> str | None:
        """The layer that vetoes the step on any rank, or None."""

    @abstractmethod
    def join(self) -> None:
        """Take part in the others' steps without samples, until all have come here."""

    def recover(self, was: tuple[int, int]) -> None:
        """Forget the step that a rank's death has broken off: rank and number of ranks ``was``."""
        self._sums = None

    def unify(self, net: Any, samples: float = 1.0) -> None:
        """Let the running state of ``net`` be that of all ranks, each weighing by ``samples``.

        Parameters too, where a stage lets them differ meanwhile. All ranks come here at the same
        time: before an evaluation or a checkpoint.
        """
        average_state(net, self.comm, samples)

    def share(self, net: Any) -> None:
        """Tell the synchronized layers of ``net`` whose batch theirs is a part of."""
        for layer in net.layers:
            layer.share(self.batch)

    @abstractmethod
    def around(self, optimizer: Optimizer | Wrapper) -> Reducer:
        """Another stage as this one, around ``optimizer``."""


class GradientRound:
    """A round of ``reduction``, which takes the gradients that come to ``reducer`` in a step.

    Entries are begun in their order, each once its gradients are there, and in `rest` without.
    What is handed on goes to what is behind the reducer; stages ``around`` it then see the updates.
    """

    def __init__(
        self,
        reducer: Reducer,
        reduction: Reduction,
        around: Sequence[Wrapper],
        kind: RoundKind = "step",
        opened: bool = False,
    ) -> None:
        self._reducer, self._reduction, self._around = reducer, reduction, around
        self._kind: RoundKind = kind
        if not opened:
            reduction.open(kind)
        self._entries = deque(reduction.entries)
        self._given: dict[str, tuple[Any, Scale]] = {}
        # What this process has had, and what was begun.
        self._had: set[str] = set()
        self._gone: set[str] = set()
        self._flying: deque[tuple[Sequence[str], Array | None]] = deque()
        self._served: list[tuple[str, Array, Any, Scale]] = []
        # What was updated here, and not everywhere: names that changed, and all values.
        self._told: deque[tuple[list[str], dict[str, Array]]] = deque()

    def take(
        self, names: Sequence[str], values: Sequence[Array], grads: Sequence[Any], scale: Scale
    ) -> Iterator[Handed]:
        """As `Wrapper.take`, of all that is there by now. Errors: a second gradient of a name."""
        some: list[tuple[str, Any]] = []
        for name, value, grad in zip(names, values, grads, strict=True):
            if not is_served(value):
                some.append((name, grad))
            elif grad is not None:
                self._served.append((name, value, grad, scale))
        return self._handed(self._give(some, scale))

    def rest(self) -> Iterator[Handed]:
        """The updates that are left of a step, and its end."""
        first = self._reduction.rows_first
        yield from self._handed(self._begun())
        yield from self._pushed() if first else ()
        yield from self._handed(self._landed())
        while self._told:
            self._heard()
        yield from self._pushed() if not first else ()
        self._reduction.close(self._kind)

    def previewed(self, items: Iterable[Any]) -> Iterator[Any]:
        """For the gradients ``items`` of this process, layer by layer, those of all.

        Errors: gradients of rows that a table has.
        """
        for item in items:
            for name, value in zip(item[0], item[1], strict=True):
                if is_served(value):
                    raise ArgumentError(
                        f"{type(self._reducer).__name__}, parameter {name!r}",
                        expected="a norm of gradients that all ranks see",
                        received="rows that a table has, others on each rank",
                        advice="clip by value, or by the norm of each layer",
                    )
            names, _, grads = item
            given = [*zip(names, grads, strict=True)]
            # As the walk itself: one layer's gradients are let go before the next one's exist.
            del item, grads
            yield from map(self._multiplied, self._give(given, 1.0))
        yield from map(self._multiplied, chain(self._begun(), self._landed()))
        self._reduction.close(self._kind)

    def _multiplied(self, handed: Handed) -> Any:
        names, values, grads, factor = handed
        parts = self._parts(names, grads)
        for grad in parts:
            # Nobody else has it.
            array: Any = grad[1] if isinstance(grad, tuple) else grad
            if array is not None:
                array *= factor
        return names, values, parts

    def _parts(self, names: Sequence[str], arrays: Sequence[Any]) -> Sequence[Any]:
        """What this process updates, or updates by, of whole ``arrays``; None where others do."""
        cutting = self._reduction.cutting
        if cutting is None:
            return arrays
        return [cutting.part(name, array) for name, array in zip(names, arrays, strict=True)]

    def _give(self, given: list[tuple[str, Any]], scale: Scale) -> Iterator[Handed]:
        """Take gradients, begin what is complete, and land what the window is over."""
        while given:
            name, grad = given.pop(0)
            if name in self._given or name in self._gone:
                raise CallOrderError(
                    f"{type(self._reducer).__name__}, parameter {name!r}",
                    expected="one gradient a step",
                    received="a second one",
                    advice="call end() after the last update of each step",
                )
            if grad is not None:
                self._given[name] = grad, scale
                self._had.add(name)
            del grad
        while self._entries and all(name in self._given for name in self._entries[0]):
            yield from self._next()
        self._reduction.test()

    def _begun(self) -> Iterator[Handed]:
        """Begin all that is left."""
        while self._entries:
            yield from self._next()
        for entry in self._reduction.late(self._gone, self._given):
            self._start(entry)

    def _next(self) -> Iterator[Handed]:
        """Begin the next entry, and land what the window is over.

        Processes begin and wait in one order, whenever each has its gradients: none can wait for
        another that waits for it.
        """
        self._start(self._entries.popleft())
        while len(self._flying) > self._reduction.window:
            yield from self._land()

    def _landed(self) -> Iterator[Handed]:
        while self._flying:
            yield from self._land()

    def _start(self, entry: Sequence[str]) -> None:
        reduction = self._reduction
        names = reduction.prepare(entry, self._given)
        self._gone.update(entry)
        if not names:
            return
        buffer = reduction.room(names)
        parts = reduction.parts(names, buffer)
        scales: list[Scale | None] = []
        rows: dict[str, RowSparse] = {}
        for name in names:
            grad, scale = self._given.pop(name, (None, None))
            scales.append(scale)
            if isinstance(grad, tuple):
                rows[name] = RowSparse(*grad)
            elif grad is not None and name in parts:
                reduction.lay(parts[name], grad)
            elif grad is not None:
                rows[name] = RowSparse(ops_for(grad).xp.arange(len(grad)), grad)
            del grad
        reduction.start(names, buffer, scales, rows)
        self._flying.append((names, buffer))

    def _land(self) -> Iterator[Handed]:
        """The oldest entry under way, of the parameters that any process has reached."""
        (names, buffer), reduction = self._flying.popleft(), self._reduction
        found = dict(zip(names, reduction.finish(names, buffer), strict=True))
        parts = reduction.parts(names, buffer)
        reached = [name for name in names if found[name] is not None and found[name] is not False]
        if reached:
            values = [reduction.value(name) for name in reached]
            grads: list[Any] = [
                ops_for(value).xp.asarray(parts[n]) if found[n] is True else found[n]
                for n, value in zip(reached, values, strict=True)
            ]
            yield reached, values, grads, reduction.factor

    def _handed(self, landed: Iterator[Handed]) -> Iterator[Handed]:
        """The updates of ``landed`` that are handed on; the stages around see each of them."""
        optimizer, around = self._reducer.optimizer, self._around
        for names, values, grads, factor in landed:
            changed = [name for name in names if optimizer.will_change(name)]
            by_name = dict(zip(names, values, strict=True))
            other = [name for name in names if name not in self._had]
            for stage in around if other else ():
                stage.refresh(other, [by_name[name] for name in other])
            value, settled = self._reducer.reduction.value, self._reducer.settled
            targets = [settled(name, value(name)) for name in names]
            cutting = self._reduction.cutting
            if cutting is None:
                yield names, targets, grads, factor
            else:
                yield from self._cut(cutting, (names, targets, grads, factor))
            self._told.append((changed, by_name))
            del grads
            while len(self._told) > (0 if cutting is None else cutting.ahead):
                self._heard()

    def _cut(self, cutting: Cutting, whole: Handed) -> Iterator[Handed]:
        """The updates of the parts that are this process's; then the others are told of them.

        What is others' has None for a gradient: stages count on all of a layer.
        """
        names, targets, grads, scale = whole
        parts = self._parts(names, targets)
        # Of what others have the target is as good as any.
        own = [t if part is None else part for t, part in zip(targets, parts, strict=True)]
        yield names, own, self._parts(names, grads), scale
        cutting.pass_over([n for n, part in zip(names, parts, strict=True) if part is None])
        cutting.tell(names, targets, grads)

    def _heard(self) -> None:
        """Let the stages around see what all processes have updated."""
        changed, by_name = self._told.popleft()
        if self._reduction.cutting is not None:
            self._reduction.cutting.hear()
        for stage in reversed(self._around):
            stage.updated(changed, [by_name[name] for name in changed])

    def _pushed(self) -> Iterator[Handed]:
        """The gradients of rows that tables have."""
        share = self._reduction.share
        for name, value, grad, scale in self._served:
            yield [name], [value], [grad], scale * share
        self._served.clear()
