"""Reduction of gradients between ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import numpy as np

from singanet.base import terms
from singanet.base.collectives import Collectives, SharedBatch, gathered
from singanet.errors import ArgumentError, CallOrderError
from singanet.ops import ops_for
from singanet.optimizer.hyper import Scale, as_float, on_host
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.state import Grads, Names, Values, check_lists
from singanet.optimizer.wrapper import Handed, StageTraits, Wrapper
from singanet.params.storage import is_served
from singanet.types import Array, RowSparse

if TYPE_CHECKING:
    from singanet.checkpoint.entry import Source


def average_state(net: Any, comm: Collectives, samples: float) -> None:
    """Set the running state of ``net`` on all ranks to the result of `Layer.merged_state`.

    A rank's weight is its ``samples``; if no rank has samples, all weights are equal. State that
    is equal on all ranks does not change by a bit.
    """
    states = {}
    for layer in net.layers:
        own = {k: p for k, p in layer.params.items() if p.is_state and not p.is_constant}
        if own:
            states[layer.name] = layer, own
    if not states:
        return
    values = {
        name: {key: np.array(ops_for(p.value).host(p.value)) for key, p in own.items()}
        for name, (_, own) in states.items()
    }
    parts = gathered(comm, (float(samples), values), "the running state")
    weights = np.array([weight for weight, _ in parts])
    shares = weights / weights.sum() if weights.sum() else np.full(comm.size, 1.0 / comm.size)
    for name, (layer, own) in states.items():
        of_ranks = {key: np.stack([part[name][key] for _, part in parts]) for key in own}
        if all((array == array[:1]).all() for array in of_ranks.values()):
            continue
        for key, merged in layer.merged_state(of_ranks, shares).items():
            value = own[key].value
            value[...] = ops_for(value).xp.asarray(merged, value.dtype)


class ShardPlan(ABC):
    """The division of parameters into parts, each updated by one process.

    The calls for each entry of a `Reduction` in a step are: `part` of values and gradients, after
    the update `pass_over` and `tell`, and in the same order `hear`. Up to ``ahead`` entries may be
    updated before the values of other processes arrive.
    """

    ahead: int

    @abstractmethod
    def part(self, name: str, array: Any) -> Any:
        """Return the part of ``array``, or of rows, that this process updates; None if it has none.

        ``array`` has the size of the parameter.
        """

    @abstractmethod
    def pass_over(self, names: Names) -> None:
        """Count an update of the parameters ``names``, if this process has no `part` of them."""

    @abstractmethod
    def tell(self, names: Names, targets: Sequence[Array], grads: Sequence[Any]) -> None:
        """Start the exchange of the parts of ``targets`` between processes.

        The parts were updated by ``grads``, the whole gradients.
        """

    @abstractmethod
    def hear(self) -> None:
        """Wait for the oldest `tell`; its targets are then complete."""


@dataclass
class Traffic:
    """The communication of one process with the others so far.

    ``sums`` is the number of sums, and ``nbytes`` the bytes of this process in them. ``busy`` is
    the time in seconds with at least one sum in progress, and ``waited`` the part of this time in
    which the process waited.
    """

    sums: int = 0
    nbytes: int = 0
    busy: float = 0.0
    waited: float = 0.0

    @property
    def hidden(self) -> float:
        """The fraction of the time in progress in which the process did other work."""
        return max(0.0, 1.0 - self.waited / self.busy) if self.busy else 0.0

    def __add__(self, other: Traffic) -> Traffic:
        """Return the sum of both."""
        return Traffic(
            self.sums + other.sums,
            self.nbytes + other.nbytes,
            self.busy + other.busy,
            self.waited + other.waited,
        )

    def since(self, before: Traffic) -> Traffic:
        """Return the difference to ``before``."""
        return Traffic(
            self.sums - before.sums,
            self.nbytes - before.nbytes,
            self.busy - before.busy,
            self.waited - before.waited,
        )

    def mean(self, runs: int) -> Traffic:
        """Return the mean traffic per run of ``runs`` runs."""
        return Traffic(self.sums // runs, self.nbytes // runs, self.busy / runs, self.waited / runs)

    def as_dict(self) -> dict[str, float]:
        """Return the figures by name."""
        return {
            "sums": self.sums,
            "bytes": self.nbytes,
            "seconds under way": self.busy,
            "seconds waited": self.waited,
            "hidden": self.hidden,
        }


RoundKind: TypeAlias = Literal["step", "preview"]
"""The purpose of a round: an update, or a preview of gradients."""

Found: TypeAlias = bool | RowSparse | None
"""The place of the sum of a gradient: True for the buffer, its rows, or None if no rank has any."""


class Reduction(ABC):
    """The reduction of the gradients of a step over all processes.

    The calls of a round are `open`, for each entry `start` and, in the same order, `finish`, and
    `close`, with at most ``window`` entries in progress. A `GradientRound` makes these calls layer
    by layer; a program records them. An entry lists the parameters of one reduction. Its dense
    gradients are contiguous in a flat buffer, followed by an element a gradient for the use of the
    reduction.
    """

    window: int
    traffic: Traffic
    rows_first: bool = False
    """Whether tables receive the gradients of their rows before the first `finish`."""
    cutting: ShardPlan | None = None
    """The parts of parameters that this process updates; None if it updates all of them."""

    @property
    @abstractmethod
    def entries(self) -> Sequence[Sequence[str]]:
        """The entries in the order in which all processes start them."""

    @property
    def settled(self) -> bool:
        """Whether the entries are final, so that steps can be recorded."""
        return True

    @property
    def rank(self) -> int:
        """The rank of this process."""
        return 0

    @property
    def factor(self) -> float:
        """The factor of finished sums, known after the first `finish`."""
        return 1.0

    @property
    def share(self) -> float:
        """The weight of this process's gradients in the means, known when ``factor`` is."""
        return 1.0

    @property
    def under_way(self) -> bool:
        """Whether other processes may still write to buffers of an unfinished round."""
        return False

    @abstractmethod
    def value(self, name: str) -> Array:
        """Return the array of the parameter."""

    def like(self, name: str) -> Array:
        """Return an array with the dtype and shape of the parameter's gradients."""
        return self.value(name)

    def is_rows(self, name: str) -> bool:
        """Whether gradients of the parameter are row-sparse, and not in the buffer."""
        return False

    def room(self, names: Names) -> Array | None:
        """Return a buffer of zeros for the dense gradients of an entry, or None without any."""
        likes = [self.like(name) for name in names if not self.is_rows(name)]
        if not likes:
            return None
        size = sum(like.size for like in likes) + len(likes)
        made: Array = self.module(likes[0]).zeros(size, likes[0].dtype)
        return made

    def module(self, like: Array) -> Any:
        """Return the array module of buffers: NumPy, which processes communicate in."""
        return np

    def parts(self, names: Names, buffer: Array | None) -> dict[str, Array]:
        """Return views of ``buffer`` for the dense gradients of an entry, by name."""
        parts: dict[str, Array] = {}
        start = 0
        for name in names:
            if buffer is not None and not self.is_rows(name):
                like = self.like(name)
                parts[name] = buffer[start : start + like.size].reshape(like.shape)
                start += like.size
        return parts

    def lay(self, part: Array, grad: Array) -> None:
        """Copy ``grad`` to its ``part`` of a buffer, which may be on the host."""
        part[...] = ops_for(grad).host(grad) if on_host(ops_for(part).xp) else grad

    @abstractmethod
    def open(self, kind: RoundKind) -> None:
        """Start a round."""

    def prepare(self, names: Names, given: Mapping[str, Any]) -> Sequence[str]:
        """Return the ``names`` with a gradient on any process; ``given`` are this process's.

        If the entries are ``settled``, these are all names, without communication.
        """
        return names

    def late(self, gone: Collection[str], given: Mapping[str, Any]) -> Sequence[Sequence[str]]:
        """Return entries of parameters without gradients in earlier steps, except ``gone``."""
        return ()

    @abstractmethod
    def start(
        self,
        names: Names,
        buffer: Array | None,
        scales: Sequence[Scale | None],
        rows: Mapping[str, RowSparse],
    ) -> None:
        """Start an entry with the gradients in ``buffer`` and ``rows``.

        The reduction multiplies them by ``scales``, None if this process has no gradient.
        """

    @abstractmethod
    def test(self) -> None:
        """Make progress with started entries, since nothing else does so during computation."""

    @abstractmethod
    def finish(self, names: Names, buffer: Array | None) -> list[Found]:
        """Wait for the oldest entry; ``buffer`` then contains the sums over all processes."""

    @abstractmethod
    def close(self, kind: RoundKind) -> None:
        """End the round, after all entries are finished."""


@dataclass(frozen=True)
class ReducerTraits(StageTraits):
    """Declare what a reducer needs of a step.

    Args:
        waits: True.
        in_parts: Whether it may pass on parts of gradients, see `Wrapper.joined`.
        copies: The largest number of copies of the trained parameters: sums in progress, and sent
            data.

    """

    waits: bool = True
    takes: tuple[str, ...] = (terms.STATE, terms.ORDER)
    remedy: str = "train by AllReduce"
    in_parts: bool = False
    copies: int = 2


class Reducer(Wrapper):
    """A stage that reduces gradients over several processes by its ``reduction``.

    An update is made when the gradients of the other processes arrive, at the latest in `end`.
    Every process makes all updates, even for a parameter without a gradient on this process.
    `singanet.parallel` has subclasses.
    """

    traits: ClassVar[ReducerTraits] = ReducerTraits()

    comm: Collectives
    """The communication between ranks, which `fit` uses for all data but gradients."""
    batch: SharedBatch
    """The shared batch for synchronized layers."""

    reduction: Reduction
    """The sum of gradients over the ranks; a `local` reducer has none."""
    _around: tuple[Wrapper, ...] = ()
    _sums: GradientRound | None = None

    @abstractmethod
    def meet(self, net: Any, around: Sequence[Wrapper] = ()) -> None:
        """Prepare for the training of ``net``; ``around`` are the outer stages, outermost first.

        Errors: nets or optimizers that differ between processes.
        """

    @property
    def _weighs(self) -> bool:
        return True

    @property
    def _lone_optimizer(self) -> Optimizer | Wrapper:
        """The optimizer for training in one process."""
        return self.optimizer

    @property
    @abstractmethod
    def _alone(self) -> bool:
        """Whether gradients are passed on unchanged, since there is no other process."""

    def _knows(self, net: Any) -> bool:
        """Whether ``net`` is the net of the last `meet`."""
        return False

    @property
    def _local(self) -> bool:
        """Whether gradients are passed on unchanged, and only `end` communicates."""
        return False

    def _settled(self, name: str, value: Array) -> Array:
        """Return the array that the inner optimizer updates for the parameter ``value``."""
        values: Values = [value]
        for stage in self._around:
            values = stage.settle([name], values)
        return values[0]

    def _round_of(self, kind: RoundKind, opened: bool = False) -> GradientRound:
        return GradientRound(self, self.reduction, self._around, kind, opened)

    def take(self, names: Names, values: Values, grads: Grads, scale: Scale) -> Iterator[Handed]:
        """Pass on the gradients that are reduced so far; the others follow later, or in `end`."""
        if self._alone:
            return super().take(names, values, grads, scale)
        check_lists(type(self).__name__, names, values, grads)
        if self._sums is None:
            self._sums = self._round_of("step")
        return self._sums.take(names, values, grads, scale)

    def end(self) -> None:
        """Wait for the remaining gradients, and update by them."""
        if self._alone:
            return
        sums = self._sums or self._round_of("step")
        try:
            for names, values, grads, factor in sums.rest():
                self.optimizer.update(names, values, grads, as_float(factor))
        finally:
            self._sums = None

    @property
    def _by_itself(self) -> bool:
        """Whether each process updates by its own gradients."""
        return self._local

    def _totals(self, counts: Array) -> Array:
        """Return the ``counts`` of a batch's loss, summed over all processes.

        All processes call it between forward and backward.
        """
        return counts

    def joined(self, total: Any) -> Any:
        """Return the sum of ``total`` over all processes, if each has parts of gradients.

        ``total`` is a sum over the parts of this process. All processes make this call.
        """
        return total

    def _spared(self, net: Any) -> int:
        """Return the bytes of state of ``net`` that only other processes store."""
        return 0

    def _own_parts(self, first_rows: dict[str, int]) -> list[Source] | None:
        """Return the state of this process if it is spread over processes, or None.

        ``first_rows`` receives the index of the first row by name, 0 for a whole array.
        """
        return None

    def _own_rows(self, name: str) -> tuple[int, int] | None:
        """Return the range (first, stop) of the parameter's rows that this process updates.

        Returns None if each process may write the whole parameter.
        """
        return None

    @property
    @abstractmethod
    def exchanged(self) -> tuple[int, int]:
        """The bytes that this process has sent and received since the last `begin`."""

    def previewed(self, items: Iterable[Any]) -> Iterator[Any]:
        """Return reduced gradients; the updates reduce them again."""
        return iter(items) if self._alone else self._round_of("preview").previewed(items)

    @abstractmethod
    def _agree(self, refused: str | None) -> str | None:
        """Return the layer that refuses the step on any rank, or None."""

    @abstractmethod
    def join(self) -> None:
        """Take part in the steps of other processes without samples, until all call `join`."""

    def unify(self, net: Any, samples: float = 1.0) -> None:
        """Merge the running state of ``net`` over all ranks, with the weights ``samples``.

        Also merges parameters, if a stage lets them differ between ranks. All ranks make this call
        at the same time: before an evaluation or a checkpoint.
        """
        average_state(net, self.comm, samples)

    def _share_batch(self, net: Any) -> None:
        """Pass the shared batch to the synchronized layers of ``net``."""
        for layer in net.layers:
            layer.share(self.batch)

    @abstractmethod
    def _remade(self, optimizer: Optimizer | Wrapper) -> Reducer:
        """Return a stage of the same kind around ``optimizer``."""


class GradientRound:
    """A round of ``reduction`` for the gradients of ``reducer`` in a step.

    Entries start in their order: each if its gradients exist, and the others in `rest`. Reduced
    gradients go to the optimizer inside the reducer; then the stages ``around`` it see the updates.
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
        self._gradients: dict[str, tuple[Any, Scale]] = {}
        # Names with a gradient on this process, and names of started entries.
        self._had: set[str] = set()
        self._gone: set[str] = set()
        self._flying: deque[tuple[Sequence[str], Array | None]] = deque()
        self._served: list[tuple[str, Array, Any, Scale]] = []
        # Updates of this process that others may not have yet: changed names, and all values.
        self._unconfirmed: deque[tuple[list[str], dict[str, Array]]] = deque()

    def take(
        self, names: Names, values: Values, grads: Sequence[Any], scale: Scale
    ) -> Iterator[Handed]:
        """Yield the gradients that are reduced so far. Errors: a second gradient of a name."""
        some: list[tuple[str, Any]] = []
        for name, value, grad in zip(names, values, grads, strict=True):
            if not is_served(value):
                some.append((name, grad))
            elif grad is not None:
                self._served.append((name, value, grad, scale))
        return self._handed(self._give(some, scale))

    def rest(self) -> Iterator[Handed]:
        """Yield the remaining gradients of a step, and end the round."""
        first = self._reduction.rows_first
        yield from self._handed(self._begun())
        yield from self._pushed() if first else ()
        yield from self._handed(self._landed())
        while self._unconfirmed:
            self._heard()
        yield from self._pushed() if not first else ()
        self._reduction.close(self._kind)

    def previewed(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yield the reduced gradients for ``items`` of this process, layer by layer.

        Errors: gradients of rows of a served table.
        """
        for item in items:
            for name, value in zip(item[0], item[1], strict=True):
                if is_served(value):
                    raise ArgumentError(
                        f"{type(self._reducer).__name__}, parameter {name!r}",
                        expected="a norm of gradients that all ranks see",
                        received="rows of a table, which differ between ranks",
                        advice="clip by value, or by the norm of each layer",
                    )
            names, _, grads = item
            given = [*zip(names, grads, strict=True)]
            # Releases one layer's gradients before the next layer's exist.
            del item, grads
            yield from map(self._multiplied, self._give(given, 1.0))
        yield from map(self._multiplied, chain(self._begun(), self._landed()))
        self._reduction.close(self._kind)

    def _multiplied(self, handed: Handed) -> Any:
        names, values, grads, factor = handed
        parts = self._parts(names, grads)
        for grad in parts:
            # There is no other reference to it.
            array: Any = grad[1] if isinstance(grad, tuple) else grad
            if array is not None:
                array *= factor
        return names, values, parts

    def _parts(self, names: Names, arrays: Sequence[Any]) -> Sequence[Any]:
        """Return this process's parts of the whole ``arrays``, or None without a part."""
        cutting = self._reduction.cutting
        if cutting is None:
            return arrays
        return [cutting.part(name, array) for name, array in zip(names, arrays, strict=True)]

    def _give(self, given: list[tuple[str, Any]], scale: Scale) -> Iterator[Handed]:
        """Record gradients, start complete entries, and finish entries beyond the window."""
        while given:
            name, grad = given.pop(0)
            if name in self._gradients or name in self._gone:
                raise CallOrderError(
                    f"{type(self._reducer).__name__}, parameter {name!r}",
                    expected="one gradient a step",
                    received="a second gradient",
                    advice="call end() after the last update of each step",
                )
            if grad is not None:
                self._gradients[name] = grad, scale
                self._had.add(name)
            del grad
        while self._entries and all(name in self._gradients for name in self._entries[0]):
            yield from self._next()
        self._reduction.test()

    def _begun(self) -> Iterator[Handed]:
        """Start all remaining entries."""
        while self._entries:
            yield from self._next()
        for entry in self._reduction.late(self._gone, self._gradients):
            self._start(entry)

    def _next(self) -> Iterator[Handed]:
        """Start the next entry, and finish entries beyond the window.

        All processes start and wait in the same order, so that there is no deadlock.
        """
        self._start(self._entries.popleft())
        while len(self._flying) > self._reduction.window:
            yield from self._land()

    def _landed(self) -> Iterator[Handed]:
        while self._flying:
            yield from self._land()

    def _start(self, entry: Sequence[str]) -> None:
        reduction = self._reduction
        names = reduction.prepare(entry, self._gradients)
        self._gone.update(entry)
        if not names:
            return
        buffer = reduction.room(names)
        parts = reduction.parts(names, buffer)
        scales: list[Scale | None] = []
        rows: dict[str, RowSparse] = {}
        for name in names:
            grad, scale = self._gradients.pop(name, (None, None))
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
        """Finish the oldest entry, and yield its parameters with a gradient on any process."""
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
        """Yield the updates of ``landed``, and show each to the stages around."""
        optimizer, around = self._reducer.optimizer, self._around
        for names, values, grads, factor in landed:
            changed = [name for name in names if optimizer._will_change(name)]
            by_name = dict(zip(names, values, strict=True))
            other = [name for name in names if name not in self._had]
            for stage in around if other else ():
                stage.refresh(other, [by_name[name] for name in other])
            value, settled = self._reducer.reduction.value, self._reducer._settled
            targets = [settled(name, value(name)) for name in names]
            cutting = self._reduction.cutting
            if cutting is None:
                yield names, targets, grads, factor
            else:
                yield from self._cut(cutting, (names, targets, grads, factor))
            self._unconfirmed.append((changed, by_name))
            del grads
            while len(self._unconfirmed) > (0 if cutting is None else cutting.ahead):
                self._heard()

    def _cut(self, cutting: ShardPlan, whole: Handed) -> Iterator[Handed]:
        """Yield the updates of this process's parts, then send them to the other processes.

        The gradient is None without a part, since stages expect all parameters of a layer.
        """
        names, targets, grads, scale = whole
        parts = self._parts(names, targets)
        # Without a part the target is a placeholder.
        own = [t if part is None else part for t, part in zip(targets, parts, strict=True)]
        yield names, own, self._parts(names, grads), scale
        cutting.pass_over([n for n, part in zip(names, parts, strict=True) if part is None])
        cutting.tell(names, targets, grads)

    def _heard(self) -> None:
        """Show the updates of all processes to the stages around."""
        changed, by_name = self._unconfirmed.popleft()
        if self._reduction.cutting is not None:
            self._reduction.cutting.hear()
        for stage in reversed(self._around):
            stage.updated(changed, [by_name[name] for name in changed])

    def _pushed(self) -> Iterator[Handed]:
        """Yield the gradients of the rows of served tables."""
        share = self._reduction.share
        for name, value, grad, scale in self._served:
            yield [name], [value], [grad], scale * share
        self._served.clear()
