"""The world of a fit: one process or several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from singanet.base.collectives import Collectives, gathered
from singanet.base.columns import is_sparse
from singanet.base.described import settings_text
from singanet.checkpoint.entry import Source
from singanet.checkpoint.formats import OneFile, Writing
from singanet.engine.net import Net
from singanet.errors import ArgumentError, RankError
from singanet.metric import Metric
from singanet.ops import ops_for
from singanet.training.batches import Batches, WeightedBatch
from singanet.training.course import Course
from singanet.training.display import EpochFigures
from singanet.training.measures import Measures
from singanet.training.options import Stateful
from singanet.training.steps import Step
from singanet.types import Array


class World:
    """The processes of a fit or an evaluation, which call each method at the same point.

    Here the one that trains by itself. ``asked`` is why this rank wants the training to end after
    a step, while others do not know, ``within`` whether an epoch ended before its last batch,
    ``agreed`` whether the error that ends the fit is raised on all ranks. In an
    epoch each counts ``counted``. Layers may lie ``apart``, each on some of the ranks.
    """

    counted: Sequence[str] = ()
    asked: str | None = None
    within = False
    agreed = True
    apart = False

    @property
    def rank(self) -> int:
        """The rank of this process: 0 prints, and writes files."""
        return 0

    @property
    def size(self) -> int:
        """How many there are."""
        return 1

    @property
    def part(self) -> tuple[int, int]:
        """The part of a batch that this rank takes, and the number of parts."""
        return 0, 1

    @property
    def has_measured(self) -> bool:
        """Whether what was gathered before counts on this rank, which is one of all."""
        return True

    @property
    def places(self) -> dict[str, int]:
        """The stage of each layer, where layers lie on several ranks."""
        return {}

    def of_first(self, value: Any, what: str) -> Any:
        """The ``value`` of rank 0: plain data or arrays."""
        return value

    def most(self, count: int) -> int:
        """The largest ``count`` of any of them."""
        return count

    def expect_same(self, where: str, facts: Mapping[str, Any], advice: str = "") -> None:
        """Errors: `RankError` on all ranks, with the first of ``facts`` in which one differs."""

    def expect_mergeable(self, where: str, metrics: Mapping[str, Any]) -> None:
        """Errors: a metric that does not say what it has gathered."""

    # Batches

    def part_of(self, **arrays: Any) -> tuple[int, int]:
        """The `part` of the ``arrays``. Errors: `RankError` on all ranks if theirs differ."""
        return self.part

    def expect_own_part(self, where: str, source: Any) -> None:
        """Refuse a loader that says it is not this rank's. Errors: `RankError`, on all ranks."""

    def share(self, data: Batches) -> Batches:
        """``data`` with the steps of the rank that has the most; others may have none."""
        return data

    def stepped(self, step: Step) -> Step:
        """``step`` for batches of this rank, also where only others have samples."""
        return step

    def batches(self, course: Course) -> Iterator[WeightedBatch]:
        """The batches of this rank to the end of the epoch, or to the step after which all stop."""
        self.within = False
        for batch in course.data.epoch(course.batch):
            yield batch
            # Let go before the next one is drawn.
            del batch
            if course.stopped is not None and course.batch != course.data.steps:
                self.within = True
                return

    # Numbers

    def merge(self, measures: Measures) -> None:
        """Let ``measures`` have gathered what those of all ranks have."""

    def figures(self, measures: Measures) -> EpochFigures:
        """What all have gathered before the batch in work, this rank into ``measures``."""
        return measures

    def batch_loss(self, loss: float, measures: Measures) -> float:
        """The loss of all ranks in the last batch; this rank's own is ``loss``."""
        return loss

    def traffic(self, batch: int) -> dict[str, float]:
        """``counted`` a step since `batches` began: bytes."""
        return {}

    # Decisions

    def runs(self, callback: Stateful) -> bool:
        """Whether ``callback`` is one that this rank runs."""
        return self.rank == 0 or not getattr(callback, "first_rank_only", False)

    def heard(
        self, hook: Callable[..., None], callback: Stateful, course: Course
    ) -> Callable[..., None]:
        """``hook`` of ``callback``, whose wish to end the fit waits until all ranks can follow."""
        return hook

    def stop(self, course: Course, reason: str) -> None:
        """End the training after the step in work; the first reason given stands."""
        course.stopped = course.stopped or reason

    def decide(self, course: Course, logs: Mapping[str, float] | None = None) -> Any:
        """Stop where any rank asks for it; returns the ``logs`` of rank 0.

        Errors: KeyboardInterrupt on all ranks, where one was interrupted.
        """
        return logs

    def rate(self, course: Course) -> float | None:
        """The rate of the last update, on whichever rank something is trained."""
        return course.rule.rate()

    def follow(self, course: Course) -> None:
        """Let the numbers among the hyper-parameters of the rule be those of rank 0."""

    def taking_interrupts(self) -> AbstractContextManager[None]:
        """Let SIGINT end the fit on all ranks after the step in work; a second one acts at once."""
        return nullcontext()

    # State

    def here(self, net: Net) -> Any:
        """What of ``net`` is on this rank: all of it, but where layers lie on several."""
        return net

    def moved(self, places: Mapping[str, int]) -> AbstractContextManager[None]:
        """Within the block, movable layers are at their ``places``; undone if the block fails."""
        return nullcontext()

    def joined(
        self,
        net: Net,
        own: Callable[[], list[Source]],
        stands: Mapping[str, Any],
        samples: float = 1.0,
        first_rows: dict[str, int] | None = None,
    ) -> tuple[list[Source], list[Mapping[str, Any]]]:
        """The arrays that a file keeps, on rank 0, and the ``stands`` of each of several ranks.

        Ranks meet first: gradients that were pushed arrive, parameters become the same on all, and
        the running state of ``net`` becomes that of all ranks, weighed by their ``samples``. Then
        ``own`` is called for this rank's arrays. With ``first_rows`` each rank gets the arrays that
        it writes itself; see `training_sources`. Other ranks than 0 get no arrays otherwise.
        """
        return own(), []

    def own_samples(self, measures: Measures) -> int:
        """How many this rank has seen in the epoch in work."""
        return measures.samples

    def slices(self, net: Net) -> list[Source]:
        """The parameters of ``net`` that ranks have in slices, whole, on rank 0.

        All ranks call it; the others come back once the array of each has been asked for.
        """
        return []

    def evaluated(self, net: Net, batches: Iterator[WeightedBatch]) -> Iterator[WeightedBatch]:
        """``batches`` of this rank, and empty ones where others have more and need it meanwhile."""
        return batches

    def parts(self, path: Path, own: list[Source], first_rows: Mapping[str, int]) -> list[Writing]:
        """What writes a file of what each rank has, as far as this rank does; all ranks call it."""
        return [OneFile(path, own)]

    def on_first(self, work: Callable[[], object]) -> None:
        """``work()`` on rank 0, where the parameters of all can be read meanwhile."""
        work()

    def train_by(self, optimizer: Any) -> None:
        """Steps go through ``optimizer`` from now on: what `fit` has made of the net's own."""

    def unify(self, net: Net, measures: Measures | None = None) -> None:
        """Let the running state of ``net`` be that of all ranks.

        Each weighs by the samples that it has seen in the epoch of ``measures``, or all alike.
        """

    def go_on(self, samples: int, measures: Measures) -> None:
        """Have seen so many ``samples``, whatever ``measures``, which were loaded, have counted."""

    def spread(self, read: Callable[[], Mapping[str, Array]]) -> Mapping[str, Array]:
        """The arrays that ``read()`` gives on rank 0, one after the other.

        Errors: those of ``read`` there, `RankError` elsewhere.
        """
        return read()


_ROWS = 64
"""Samples that are looked at to see that all ranks were given the same."""

CALLED_ALIKE = (
    "call it alike on all ranks; arrays are whole, each takes its part: what is a part already is "
    "yielded by a function of the epoch"
)
"""Advice on arguments that differ."""


def expect_same(
    comm: Collectives, where: str, facts: Mapping[str, Any], advice: str = CALLED_ALIKE
) -> None:
    """Errors: `RankError` on all ranks, with the first of ``facts`` in which one differs."""
    own = {name: settings_text(value) for name, value in facts.items()}
    every = gathered(comm, own, f"the comparison of {where}")
    for rank, other in enumerate(every):
        for name, value in every[0].items():
            if other.get(name) != value:
                raise RankError(
                    f"{where}, {name}",
                    expected=f"{value}, as on rank 0",
                    received=f"{other.get(name)} on rank {rank}",
                    advice=advice,
                )


def expect_same_parameters(comm: Collectives, here: Net) -> None:
    """Errors: `RankError` on all ranks, with the first parameter in which one differs.

    Each compares what it has ``here``.
    """
    own = {
        param.name: _digest(ops_for(param.value).host(param.value))
        for param in here.params()
        # Of what is in slices there is one.
        if not (param.storage.by_rows or param.storage.sliced)
    }
    every = gathered(comm, own, "the comparison of parameters")
    first: dict[str, str] = {}
    for rank, other in enumerate(every):
        for name, value in other.items():
            if first.setdefault(name, value) != value:
                raise RankError(
                    f"parameter {name!r}",
                    expected="the same values on all ranks",
                    received=f"others on rank {rank} than on rank 0",
                    advice="change parameters on all ranks alike, in callbacks too",
                )


def expect_mergeable(where: str, metrics: Mapping[str, Any]) -> None:
    """Errors: a metric that does not say what it has gathered."""
    for name, metric in metrics.items():
        if not isinstance(metric, Metric) or not metric._can_merge():
            raise ArgumentError(
                f"{where}, metric {name!r}",
                expected="a metric that several processes can measure together",
                received=f"a {type(metric).__name__}, which does not say how it is merged",
                advice="name its counts, sums and lists in the class, gathered = ('samples', "
                "...), or give it state() and merge(state)",
            )


def sampled(data: Any) -> Any:
    """Type, shape and some samples of arrays, as text that tells whether they are the same."""
    if isinstance(data, Mapping):
        return {name: sampled(part) for name, part in data.items()}
    if data is None:
        return None
    if is_sparse(data):
        return sampled({"indptr": data.indptr, "indices": data.indices, "values": data.values})
    rows = np.linspace(0, len(data) - 1, min(_ROWS, len(data))).astype(int)
    some = ops_for(data).host(data[rows])
    return f"{data.dtype} {tuple(data.shape)} {_digest(some)}"


def _digest(array: Array) -> str:
    facts = f"{array.dtype} {array.shape}".encode()
    return sha256(facts + np.ascontiguousarray(array).tobytes()).hexdigest()[:16]
