"""Reduction of gradients between ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import numpy as np

from singanet.base.collectives import Collectives, SharedBatch, gathered
from singanet.errors import ArgumentError, CallOrderError
from singanet.ops import ops_for
from singanet.optimizer.hyper import Scale, on_host
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.state import Grads, Names, Values, check_lists
from singanet.optimizer.wrapper import Handed, Wrapper
from singanet.params.storage import is_served
from singanet.types import Array, RowSparse

if TYPE_CHECKING:
    from singanet.checkpoint.entry import Source


def average_state(net: Any, comm: Collectives, samples: float) -> None:
    """Let the state of the layers of ``net`` be what `Layer.merged_state` makes of all ranks'.

    Each weighs by its ``samples``; where no rank has any, all weigh alike. State that is the same
    on all ranks stays so to the bit.
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


class Cutting(ABC):
    """The parts of parameters that processes update, each its own, as a few calls in one order.

    Of a step it is asked for each entry of its `Reduction`: `part` of values and gradients, then,
    once these are updated, `pass_over` and `tell`, and in the same order `hear`. As many as
    ``ahead`` entries may be updated before others' values are heard.
    """

    ahead: int

    @abstractmethod
    def part(self, name: str, array: Any) -> Any:
        """The part that this process updates of ``array``, or of rows, as large as the parameter.

        None if it has none: others do.
        """

    @abstractmethod
    def pass_over(self, names: Names) -> None:
        """Count an update of the parameters ``names``, of which this process has no `part`."""

    @abstractmethod
    def tell(self, names: Names, targets: Sequence[Array], grads: Sequence[Any]) -> None:
        """Begin to tell others this process's parts of ``targets``, and to hear theirs.

        They were updated by ``grads``, which are whole.
        """

    @abstractmethod
    def hear(self) -> None:
        """Wait for the `tell` that was begun first: its targets are whole then."""


@dataclass
class Traffic:
    """What one process has exchanged with the others so far.

    ``sums`` were begun, of ``nbytes`` bytes of this process. They were under way for ``busy``
    seconds, from the beginning of each until it was seen to be done, seconds of several at a time
    counted once; of these the process has ``waited``, and done something else in the rest.
    """

    sums: int = 0
    nbytes: int = 0
    busy: float = 0.0
    waited: float = 0.0

    @property
    def hidden(self) -> float:
        """The part of the seconds under way in which the process did something else."""
        return max(0.0, 1.0 - self.waited / self.busy) if self.busy else 0.0

    def __add__(self, other: Traffic) -> Traffic:
        """Both together."""
        return Traffic(
            self.sums + other.sums,
            self.nbytes + other.nbytes,
            self.busy + other.busy,
            self.waited + other.waited,
        )

    def since(self, before: Traffic) -> Traffic:
        """What was added after ``before``."""
        return Traffic(
            self.sums - before.sums,
            self.nbytes - before.nbytes,
            self.busy - before.busy,
            self.waited - before.waited,
        )

    def mean(self, runs: int) -> Traffic:
        """The traffic of one of ``runs`` runs, on average."""
        return Traffic(self.sums // runs, self.nbytes // runs, self.busy / runs, self.waited / runs)

    def as_dict(self) -> dict[str, float]:
        """The figures by name."""
        return {
            "sums": self.sums,
            "bytes": self.nbytes,
            "seconds under way": self.busy,
            "seconds waited": self.waited,
            "hidden": self.hidden,
        }


RoundKind: TypeAlias = Literal["step", "preview"]
"""Of gradients that are updated by, or only looked at."""

Found: TypeAlias = bool | RowSparse | None
"""Where the sum of a gradient is: True for the buffer, rows themselves, None if no rank has any."""


class Reduction(ABC):
    """How the gradients of a step become those of all processes, as a few calls in one order.

    A round is `open`, for each entry `start` and, in the same order, `finish`, and `close`; at most
    ``window`` entries are under way. By the layers a `GradientRound` makes these calls, and a
    program has them written down. An entry names the parameters that are reduced by one call. Its
    dense gradients lie side by side in a flat buffer, and behind them an element for each, which is
    the reduction's own.
    """

    window: int
    traffic: Traffic
    rows_first: bool = False
    """Whether gradients of rows that tables have go there before the first `finish`."""
    cutting: Cutting | None = None
    """Which parts of parameters this process updates, where it is not all of them."""

    @property
    @abstractmethod
    def entries(self) -> Sequence[Sequence[str]]:
        """In the order in which all processes begin them."""

    @property
    def settled(self) -> bool:
        """Whether the entries are those of all steps to come: then these are recorded."""
        return True

    @property
    def rank(self) -> int:
        """The rank of this process."""
        return 0

    @property
    def factor(self) -> float:
        """What is finished is to be multiplied by it; known after the first `finish`."""
        return 1.0

    @property
    def share(self) -> float:
        """The weight of this process's gradients in the means of all; known as ``factor``."""
        return 1.0

    @property
    def under_way(self) -> bool:
        """Whether others may still write to buffers of a round that has no end."""
        return False

    @abstractmethod
    def value(self, name: str) -> Array:
        """The parameter."""

    def like(self, name: str) -> Array:
        """An array of the type and shape that gradients of the parameter have."""
        return self.value(name)

    def is_rows(self, name: str) -> bool:
        """Whether gradients of the parameter are rows, and in no buffer."""
        return False

    def room(self, names: Names) -> Array | None:
        """A buffer of zeros for the dense gradients of an entry, None if it has only rows."""
        likes = [self.like(name) for name in names if not self.is_rows(name)]
        if not likes:
            return None
        size = sum(like.size for like in likes) + len(likes)
        made: Array = self.module(likes[0]).zeros(size, likes[0].dtype)
        return made

    def module(self, like: Array) -> Any:
        """The array module of buffers for gradients as ``like``: NumPy, as processes talk so."""
        return np

    def parts(self, names: Names, buffer: Array | None) -> dict[str, Array]:
        """Where in its ``buffer`` the dense gradients of an entry lie."""
        parts: dict[str, Array] = {}
        start = 0
        for name in names:
            if buffer is not None and not self.is_rows(name):
                like = self.like(name)
                parts[name] = buffer[start : start + like.size].reshape(like.shape)
                start += like.size
        return parts

    def lay(self, part: Array, grad: Array) -> None:
        """Copy ``grad`` to its ``part`` of a buffer, which may lie on the host alone."""
        part[...] = ops_for(grad).host(grad) if on_host(ops_for(part).xp) else grad

    @abstractmethod
    def open(self, kind: RoundKind) -> None:
        """Begin a round."""

    def prepare(self, names: Names, given: Mapping[str, Any]) -> Sequence[str]:
        """The parameters ``names`` with a gradient on any process; ``given`` are this process's.

        Once steps are ``settled`` these are all names, and no process is asked.
        """
        return names

    def late(self, gone: Collection[str], given: Mapping[str, Any]) -> Sequence[Sequence[str]]:
        """Entries of what nobody had in steps before, none of it ``gone``."""
        return ()

    @abstractmethod
    def start(
        self,
        names: Names,
        buffer: Array | None,
        scales: Sequence[Scale | None],
        rows: Mapping[str, RowSparse],
    ) -> None:
        """Begin an entry, whose gradients are in ``buffer`` and ``rows``.

        They are still to be multiplied by ``scales``, None if this process has no gradient.
        """

    @abstractmethod
    def test(self) -> None:
        """Carry on what is under way, which nothing else does while the process computes."""

    @abstractmethod
    def finish(self, names: Names, buffer: Array | None) -> list[Found]:
        """Wait for the entry that was begun first: ``buffer`` then holds what all have of it."""

    @abstractmethod
    def close(self, kind: RoundKind) -> None:
        """End the round, of which nothing is under way."""


class Reducer(Wrapper):
    """A stage that hands on what its ``reduction`` makes of the gradients of several processes.

    Updates come when the others' gradients have, at the latest in `end`; each process makes all
    of them, those of parameters that it found no gradient for too. `singanet.parallel` has some.
    """

    _waits = True

    comm: Collectives
    """What the ranks talk through: `fit` agrees by it on all that is no gradient."""
    batch: SharedBatch
    """The shared batch as synchronized layers see it."""
    _serves: ClassVar[bool] = False
    """Whether it refuses stages around that have a part in what becomes of values."""
    _in_parts: ClassVar[bool] = False
    """Whether what it hands on may be parts of gradients, see `joined`."""
    _copies: ClassVar[int] = 2
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
    def _weighs(self) -> bool:
        return True

    @property
    def _lone_optimizer(self) -> Optimizer | Wrapper:
        """The optimizer of a process that trains alone."""
        return self.optimizer

    @property
    @abstractmethod
    def _alone(self) -> bool:
        """Whether gradients are handed on as they are, as there is no other process."""

    def _knows(self, net: Any) -> bool:
        """Whether ``net`` is the last net that it met."""
        return False

    @property
    def _local(self) -> bool:
        """Whether gradients are handed on as they are, and only `end` asks other processes."""
        return False

    def _settled(self, name: str, value: Array) -> Array:
        """The array behind the parameter ``value`` that the optimizer inside is to update."""
        values: Values = [value]
        for stage in self._around:
            values = stage.settle([name], values)
        return values[0]

    def _round_of(self, kind: RoundKind, opened: bool = False) -> GradientRound:
        return GradientRound(self, self.reduction, self._around, kind, opened)

    def take(self, names: Names, values: Values, grads: Grads, scale: Scale) -> Iterator[Handed]:
        """As `Wrapper.take`; what is not there yet comes later, or in `end`."""
        if self._alone:
            return super().take(names, values, grads, scale)
        check_lists(type(self).__name__, names, values, grads)
        if self._sums is None:
            self._sums = self._round_of("step")
        return self._sums.take(names, values, grads, scale)

    def end(self) -> None:
        """As `Wrapper.end`: what is left is waited for, and updated by."""
        if self._alone:
            return
        sums = self._sums or self._round_of("step")
        try:
            for names, values, grads, factor in sums.rest():
                self.optimizer.update(names, values, grads, float(factor))
        finally:
            self._sums = None

    @property
    def _by_itself(self) -> bool:
        """Whether each process updates by its own gradients."""
        return self._local

    def _totals(self, counts: Array) -> Array:
        """The ``counts`` of a batch's loss, summed over all processes.

        All processes call it, between a forward and its walk back.
        """
        return counts

    def joined(self, total: Any) -> Any:
        """The sum of ``total`` over all processes, where each is handed on parts of gradients.

        It is a sum over those that were handed on here. All processes come here.
        """
        return total

    def _spared(self, net: Any) -> int:
        """The bytes of state that other processes keep of the parameters of ``net``, and not it."""
        return 0

    def _own_parts(self, first_rows: dict[str, int]) -> list[Source] | None:
        """The state that this process has, where each has a part of it; None for all of it.

        With which rows they begin goes to ``first_rows``, by name, 0 for a whole array.
        """
        return None

    def _own_rows(self, name: str) -> tuple[int, int] | None:
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
        return iter(items) if self._alone else self._round_of("preview").previewed(items)

    @abstractmethod
    def _agree(self, refused: str | None) -> str | None:
        """The layer that vetoes the step on any rank, or None."""

    @abstractmethod
    def join(self) -> None:
        """Take part in the others' steps without samples, until all have come here."""

    def unify(self, net: Any, samples: float = 1.0) -> None:
        """Let the running state of ``net`` be that of all ranks, each weighing by ``samples``.

        Parameters too, where a stage lets them differ meanwhile. All ranks come here at the same
        time: before an evaluation or a checkpoint.
        """
        average_state(net, self.comm, samples)

    def _share_batch(self, net: Any) -> None:
        """Tell the synchronized layers of ``net`` whose batch theirs is a part of."""
        for layer in net.layers:
            layer.share(self.batch)

    @abstractmethod
    def _remade(self, optimizer: Optimizer | Wrapper) -> Reducer:
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
        self, names: Names, values: Values, grads: Sequence[Any], scale: Scale
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

    def _parts(self, names: Names, arrays: Sequence[Any]) -> Sequence[Any]:
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
