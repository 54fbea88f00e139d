"""The position of a fit, and the state that each rank has of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from singanet.base.collectives import Collectives, gathered
from singanet.engine.net import Net
from singanet.optimizer import Optimizer, Wrapper
from singanet.optimizer.chain import UpdateChain
from singanet.optimizer.regularization import Regularizer
from singanet.optimizer.schedules import Schedule
from singanet.training.batches import Batches
from singanet.training.compiled import Compiled
from singanet.training.display import History
from singanet.training.options import FitOptions, Stateful
from singanet.types import Array, Shape

if TYPE_CHECKING:
    from singanet.checkpoint.entry import Source


class StopTraining(Exception):  # noqa: N818 - no error: a callback's way to end a fit at once
    """Raised by a callback to end the fit at once, also within a step, without an error."""


class Course:
    """The net, the optimizer and the data of a fit, with its position in them.

    ``epoch`` of ``epochs`` and ``batch`` count from 0; after a step they name the next. ``step``
    counts the steps of the whole training; ``inputs`` is the x of the current step. ``phase`` is
    "step" during a step or a validation, "callbacks" while callbacks run after it, and otherwise
    "whole". ``stopped`` is the reason for an early end; ``warned`` is True after the warning about
    a loss that is not finite.
    """

    phase: Literal["whole", "step", "callbacks"] = "whole"

    def __init__(
        self,
        net: Net,
        compiled: Compiled,
        optimizer: Optimizer | Wrapper,
        data: Batches,
        validation: Batches | None,
        options: FitOptions,
    ) -> None:
        self.net = net
        self.compiled = compiled
        self.optimizer = optimizer
        self.data = data
        self.validation = validation
        self.epochs = options.epochs
        self.callbacks: Sequence[Stateful] = [*options.callbacks]
        self.epoch, self.batch, self.step = options.initial_epoch, 0, 0
        self.layer = ""
        self.inputs: Any = None
        self.history = History()
        self.measures = compiled.measures(net.loss)
        self.resumed = False
        self.warned = False
        self.stopped: str | None = None
        self.error: BaseException | None = None
        self._position: Mapping[str, int] | None = None

    def _is_whole(self) -> None:
        """Mark the state as consistent: every callback has seen the last step."""
        # After resumption a batch that was drawn but not trained on is drawn again.
        self._position = self.data.state_dict()
        self.phase = "whole"

    def position(self) -> Mapping[str, int]:
        """Return the position of the data after the last step."""
        if self.phase == "whole" and self._position is not None:
            return self._position
        return self.data.state_dict()

    @property
    def rule(self) -> Optimizer:
        """The optimizer inside any wrappers; it has the learning rate."""
        rule: Optimizer = UpdateChain(self.optimizer).rule
        return rule

    def begin_epoch(self) -> None:
        """Set the epoch of the schedules that count epochs, of all fits of this optimizer."""
        for schedule in _schedules_in(self.optimizer):
            schedule.epoch = max(self.compiled.epochs, self.epoch)


def _schedules_in(part: object) -> Iterator[Schedule]:
    """Yield the schedules among the attributes of ``part`` and of the rules in it."""
    if isinstance(part, Schedule):
        yield part
    elif isinstance(part, (Optimizer, Wrapper, Regularizer)):
        for value in vars(part).values():
            yield from _schedules_in(value)


_OWN, _ABSENT = "rank", "absent"


def own_entries(
    comm: Collectives, state: Sequence[Source], slices: Sequence[Source] = ()
) -> list[Source]:
    """Return on rank 0 the entries of ``state`` in which other ranks differ; [] on the others.

    ``rank/1/<key>`` is rank 1's array, ``absent/1/<key>`` marks that rank 1 lacks it. ``slices``
    are rows of arrays, in the order of ranks: rank 0 gets the whole arrays, under their names. A
    rank sends an array when rank 0 fetches it, so rank 0 has one at a time in memory. Rank 0 has to
    fetch each; the other ranks return after their last.
    """
    from singanet.checkpoint.entry import Source, sources_of

    own = {each.name: sha256(each.array().tobytes()).hexdigest() for each in state}
    forms = {each.name: (each.shape, each.dtype.str) for each in state}
    cut = [(each.name, each.shape, each.dtype.str) for each in slices]
    every = gathered(comm, (own, forms, cut), "the state that is each rank's own")
    first = every[0][0]
    found: list[Source] = []
    mails: list[_Mail] = []
    for rank, (digests, shapes, parts) in enumerate(every):
        keys = [key for key in sorted(digests) if digests[key] != first.get(key)]
        if rank == comm.rank:
            by_name = {each.name: each for each in state}
            for each in (*slices, *(by_name[key] for key in keys)) if rank else ():
                comm.send(each.array(), 0, what=f"{each.name} for rank 0")
        elif comm.rank == 0:
            mail = _Mail(comm, rank, [*parts, *((key, *shapes[key]) for key in keys)])
            mails.append(mail)
            for key in keys:
                shape, dtype = shapes[key]
                fetch = partial(mail.fetch, key)
                found.append(Source(f"{_OWN}/{rank}/{key}", shape, np.dtype(dtype), fetch))
            gone = {f"{_ABSENT}/{rank}/{key}": np.empty(0) for key in first.keys() - digests.keys()}
            found += sources_of(dict(sorted(gone.items())), "session.state")
    joined: list[Source] = []
    for k, each in enumerate(slices) if comm.rank == 0 else ():
        rows = sum(parts[k][1][0] for *_, parts in every)
        fetch = partial(_joined, each, mails)
        joined.append(Source(each.name, (rows, *each.shape[1:]), each.dtype, fetch))
    # In the order in which ranks send them.
    return [*joined, *found]


def entries_of_rank(comm: Collectives, state: Sequence[Source]) -> list[Source]:
    """Return the entries of ``state``, named as by `own_entries`, that this rank writes.

    Rank 0 writes all of its own, and marks the entries that other ranks lack.
    """
    from singanet.checkpoint.entry import sources_of

    own = {each.name: sha256(each.array().tobytes()).hexdigest() for each in state}
    every = gathered(comm, own, "the state that is each rank's own")
    first = every[0]
    if comm.rank:
        return [
            replace(each, name=f"{_OWN}/{comm.rank}/{each.name}")
            for each in state
            if own[each.name] != first.get(each.name)
        ]
    gone = {
        f"{_ABSENT}/{rank}/{key}": np.empty(0)
        for rank, digests in enumerate(every)
        for key in sorted(first.keys() - digests.keys())
    }
    return [*state, *sources_of(gone, "session.state")]


def rows_source(param: Any, name: str, rows: tuple[int, int]) -> Source:
    """Return the ``rows`` [start, stop) of a parameter as a source called ``name``."""
    from singanet.checkpoint.entry import Source

    start, stop = rows
    whole = tuple(param.shape)
    shape = (stop - start, *whole[1:]) if whole else whole

    def fetch() -> Array:
        value: Array = param.peek()
        return value[start:stop] if whole else value

    return Source(name, shape, np.dtype(param.array_type).newbyteorder("<"), fetch)


def own_slices(net: Any, start: str = "") -> list[Source]:
    """Return this process's slices of the parameters of ``net``, by ``start`` plus their name."""
    from singanet.checkpoint.entry import Source

    return [
        Source(f"{start}{param.name}", param.here.shape, param.array_type, partial(_here, param))
        for param in net.params()
        if param.storage.sliced
    ]


def _here(param: Any) -> Array:
    found: Array = param.here
    return found


def _joined(own: Source, mails: Sequence[_Mail]) -> Array:
    """Return the rows of rank 0, followed by the rows that the others send."""
    return np.concatenate([own.array(), *(mail.fetch(own.name) for mail in mails)])


class _Mail:
    """The arrays that a rank sends, in their order: key, shape, type."""

    def __init__(self, comm: Collectives, rank: int, coming: list[tuple[str, Shape, str]]) -> None:
        self._comm, self._rank, self._coming = comm, rank, deque(coming)
        self._early: dict[str, Array] = {}

    def fetch(self, key: str) -> Array:
        """Receive the array ``key``, and cache any arrays that arrive before it."""
        while key not in self._early:
            name, shape, dtype = self._coming.popleft()
            array = np.empty(shape, dtype)
            what = f"{name} of rank {self._rank}"
            self._early[name] = self._comm.receive(array, self._rank, what=what)
        return self._early.pop(key)


def is_own(key: str) -> bool:
    """Return whether ``key`` is in `own_entries`."""
    return key.split("/", 1)[0] in (_OWN, _ABSENT)


def as_of_rank(state: Mapping[str, Array], rank: int) -> dict[str, Array]:
    """Return the ``state`` of ``rank``, or of rank 0 if ``rank`` did not save any."""
    own, absent = f"{_OWN}/{rank}/", f"{_ABSENT}/{rank}/"
    found = {key: array for key, array in state.items() if not is_own(key)}
    for key, array in state.items():
        if key.startswith(own):
            found[key.removeprefix(own)] = array
        elif key.startswith(absent):
            found.pop(key.removeprefix(absent), None)
    return found


def with_all_rows(
    state: Mapping[str, Array], ranks: int, shapes: Mapping[str, Shape]
) -> dict[str, Array]:
    """Return arrays of ``shapes`` by key, concatenated from the rows of all ``ranks``."""
    every = [as_of_rank(state, rank) for rank in range(ranks)]
    found: dict[str, Array] = {}
    for key, shape in shapes.items():
        rows = [own[key] for own in every if key in own]
        if len(rows) == ranks and all(part.shape[1:] == shape[1:] for part in rows):
            whole = np.concatenate(rows) if shape and rows[0].shape != shape else rows[0]
            if whole.shape == shape:
                found[key] = whole
    return found
