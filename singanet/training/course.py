"""The course of a fit and the state that is a rank's own."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Any, Literal

import numpy as np

from singanet.base.collectives import Collectives, gathered
from singanet.checkpoint.entry import Source, sources_of
from singanet.engine.net import Net
from singanet.optimizer import Optimizer, Wrapper
from singanet.optimizer.chain import UpdateChain
from singanet.training.batches import Batches
from singanet.training.compiled import Compiled
from singanet.training.display import History
from singanet.training.options import FitOptions, Stateful
from singanet.types import Array, Shape


class StopTraining(Exception):  # noqa: N818 - no error: a callback's way to end a fit at once
    """Raised by a callback to end the fit now, within a step if need be, without an error."""


class Course:
    """The net, the optimizer and the data of a fit, with its position in them.

    ``epoch`` of ``epochs`` and ``batch`` count from 0 and name what is in work; once a step is
    done they name the next. ``step`` counts the steps of the whole training, ``inputs`` is the x
    of the one in work. ``phase`` is "step" while a step or a validation is under way, "told" while
    callbacks hear of it, and else "whole". ``stopped`` is why it ends early, ``warned`` whether the
    user knows of a loss that is not finite.
    """

    phase: Literal["whole", "step", "told"] = "whole"

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
        """What is here goes together: every callback has heard of the last step."""
        # A batch that is drawn next and not trained on is drawn once more.
        self._position = self.data.state_dict()
        self.phase = "whole"

    def position(self) -> Mapping[str, int]:
        """The position of the data after the last step."""
        if self.phase == "whole" and self._position is not None:
            return self._position
        return self.data.state_dict()

    @property
    def rule(self) -> Optimizer:
        """The optimizer inside any wrappers, with the learning rate."""
        rule: Optimizer = UpdateChain(self.optimizer).rule
        return rule


_OWN, _ABSENT = "rank", "absent"


def own_entries(
    comm: Collectives, state: Sequence[Source], slices: Sequence[Source] = ()
) -> list[Source]:
    """What other ranks have otherwise in ``state`` than rank 0, which gets it; [] on the others.

    ``rank/1/<key>`` is rank 1's, ``absent/1/<key>`` tells that it has none. Of ``slices`` each rank
    has some rows, in the order of ranks: rank 0 gets arrays of all, under their names. An array is
    sent when rank 0 fetches it, so that it holds no more than the one that it writes; the others
    come back once all of theirs are fetched, each of which has to be.
    """
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
    # As they are sent.
    return [*joined, *found]


def entries_of_rank(comm: Collectives, state: Sequence[Source]) -> list[Source]:
    """Of the entries that `own_entries` makes of ``state`` those that this rank is to write.

    Rank 0 has all of its own, and tells what others lack.
    """
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
    """The ``rows`` of a parameter, from the first up to the last, as ``name``."""
    start, stop = rows
    whole = tuple(param.shape)
    shape = (stop - start, *whole[1:]) if whole else whole

    def fetch() -> Array:
        value: Array = param.peek()
        return value[start:stop] if whole else value

    return Source(name, shape, np.dtype(param.array_type).newbyteorder("<"), fetch)


def own_slices(net: Any, start: str = "") -> list[Source]:
    """The slices that this process has of the parameters of ``net``, by ``start`` and name."""
    return [
        Source(f"{start}{param.name}", param.here.shape, param.array_type, partial(_here, param))
        for param in net.params()
        if param.storage.sliced
    ]


def _here(param: Any) -> Array:
    found: Array = param.here
    return found


def _joined(own: Source, mails: Sequence[_Mail]) -> Array:
    """The rows of rank 0, and those that the others send."""
    return np.concatenate([own.array(), *(mail.fetch(own.name) for mail in mails)])


class _Mail:
    """The arrays that a rank sends, in their order: key, shape, type."""

    def __init__(self, comm: Collectives, rank: int, coming: list[tuple[str, Shape, str]]) -> None:
        self._comm, self._rank, self._coming = comm, rank, deque(coming)
        self._early: dict[str, Array] = {}

    def fetch(self, key: str) -> Array:
        """The array ``key``; if it is asked for out of turn, the arrays before it are kept."""
        while key not in self._early:
            name, shape, dtype = self._coming.popleft()
            array = np.empty(shape, dtype)
            what = f"{name} of rank {self._rank}"
            self._early[name] = self._comm.receive(array, self._rank, what=what)
        return self._early.pop(key)


def is_own(key: str) -> bool:
    """Whether ``key`` is one of `own_entries`."""
    return key.split("/", 1)[0] in (_OWN, _ABSENT)


def as_of_rank(state: Mapping[str, Array], rank: int) -> dict[str, Array]:
    """``state`` as ``rank`` had it, or as rank 0 had it if ``rank`` did not save any."""
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
    """Arrays of the ``shapes`` of which each of so many ``ranks`` has saved some rows, by key."""
    every = [as_of_rank(state, rank) for rank in range(ranks)]
    found: dict[str, Array] = {}
    for key, shape in shapes.items():
        rows = [own[key] for own in every if key in own]
        if len(rows) == ranks and all(part.shape[1:] == shape[1:] for part in rows):
            whole = np.concatenate(rows) if shape and rows[0].shape != shape else rows[0]
            if whole.shape == shape:
                found[key] = whole
    return found
