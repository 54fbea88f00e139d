"""A fit that goes on with the ranks that are left where others have died."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from singanet.base.collectives import gathered
from singanet.errors import RankError, RankLostError, one_of
from singanet.optimizer.chain import UpdateChain
from singanet.training.hooks import Hooks
from singanet.training.options import settings_of
from singanet.training.ranks import FitRanks
from singanet.training.restore import restore
from singanet.training.session import Session, own_sources, progress_sources
from singanet.types import Array

_SHARE = 50.0
"""Seconds of training for each second of copying: so much more is done again at most."""


@dataclass(frozen=True)
class _Copy:
    """How a rank stood; ``state`` is like that of a training of one process.

    ``put_back`` does so with what callbacks may change beside arrays.
    """

    number: int
    state: Mapping[str, Array]
    generator: Mapping[str, Any]
    samples: int
    step: int
    put_back: Callable[[], None]


class Repairs:
    """Copies in memory of the training state, to go back to when a rank has died; a `Kept`.

    Parameters, state of the optimizer and generator are this rank's own; measures of the epoch and
    the position in the data are those of all ranks. A rank that has begun a step knows that all
    ranks have the copy before that step: with two copies each, all have one in common.
    """

    def __init__(self, session: Session, ranks: FitRanks, hooks: Hooks) -> None:
        self._session, self._ranks, self._hooks = session, ranks, hooks
        self._copies: list[_Copy] = []
        self._next = 0.0
        self._stages = UpdateChain(session.optimizer).stages

    def due(self) -> bool:
        """As `Kept`. Gradients that wait for those of other micro-batches are not kept."""
        return time.monotonic() >= self._next and not any(s.pending for s in self._stages)

    def take(self) -> None:
        """As `Kept`."""
        began, session, ranks = time.monotonic(), self._session, self._ranks
        own = session.measures.state(), dict(session.position())
        every = gathered(ranks.comm, own, "what ranks keep")
        joint = session.measures.copied()
        joint.merge(measured for measured, _ in every)
        # Rank 0 has the most batches, where some have one more.
        progress = progress_sources(session, ranks, joint, every[0][1])
        old = self._copies[0].state if len(self._copies) > 1 else {}
        state = {}
        for source in [*own_sources(session, ranks), *progress]:
            array, into = source.array(), old.get(source.name)
            if into is None or into.shape != array.shape or into.dtype != array.dtype:
                state[source.name] = np.array(array)
            else:
                np.copyto(into, array)
                state[source.name] = into
        made = _Copy(
            self._copies[-1].number + 1 if self._copies else 0,
            state,
            session.net.rng.bit_generator.state,
            ranks.own_samples(session.measures),
            ranks.comm.step,
            settings_of(session.net, session.optimizer),
        )
        self._copies = [*self._copies[-1:], made]
        now = time.monotonic()
        self._next = now + _SHARE * (now - began)

    def end(self) -> None:
        """As `Kept`."""
        self._ranks.unify(self._session.net)
        self._ranks.comm.agree("the end of the training")

    def go_back(self, lost: RankLostError) -> None:
        """As `Kept`."""
        while self._copies:
            try:
                self._repair(lost)
            except RankLostError as another:
                lost = another
            else:
                return
        raise lost

    def _repair(self, lost: RankLostError) -> None:
        session, ranks = self._session, self._ranks
        comm = ranks.comm
        was = comm.rank, comm.size
        comm.repair()
        for stage in {*ranks.stages, *UpdateChain(session.optimizer).reducers}:
            stage.recover(was)
        every = gathered(comm, (was[0], self._copies[-1].number), "who is left")
        gone = sorted(set(range(was[1])) - {rank for rank, _ in every})
        if not gone:
            raise RankError(
                f"rank {was[0]} of {was[1]}, step {session.step}",
                expected="a rank that has died, as an operation was broken off",
                received="all of them",
                advice="end all ranks, and go on from a checkpoint",
            )
        common = min(number for _, number in every)
        copy = next(each for each in self._copies if each.number == common)
        for data in (session.data, session.validation):
            if data is not None:
                data.share_out(ranks.rank, ranks.size)
                if data.may_be_empty:
                    ranks.share(data)
        copy.put_back()
        # Callbacks see how it ended, and that it goes on.
        session.error, session.resumed = lost, True
        self._hooks.begin_anew()
        session.error = None
        session.measures.start()
        # What is loaded may be the arrays themselves, and copies are written to anew.
        restore(session, {name: array.copy() for name, array in copy.state.items()})
        session.net.rng.bit_generator.state = copy.generator
        ranks.go_on(copy.samples, session.measures)
        comm.step = copy.step
        session.is_whole()
        # Who has gone back keeps nothing that others might not have.
        self._copies, self._next = [copy], 0.0
        if ranks.rank == 0:
            warnings.warn(
                f"rank {one_of(map(str, gone))} of {was[1]} has died: the training goes on with "
                f"{ranks.size}, from step {session.step}",
                RuntimeWarning,
                stacklevel=7,
            )


def repairs_of(session: Session, hooks: Hooks, ranks: FitRanks) -> Repairs | None:
    """The repairs of a fit of elastic ranks; None, with a warning, if it cannot be repaired."""
    if not ranks.comm.elastic:
        return None
    why = "a rank has layers that no other has" if ranks.apart else ""
    for data in (session.data, session.validation):
        if data is not None and not data.can_share_out(ranks.size):
            why = "its data are each rank's own, and cannot be shared anew; pass arrays, or a "
            why += "loader with rank= and world_size="
    if why:
        if ranks.rank == 0:
            text = f"a rank that dies ends this training: {why}"
            warnings.warn(text, RuntimeWarning, stacklevel=5)
        return None
    return Repairs(session, ranks, hooks)
