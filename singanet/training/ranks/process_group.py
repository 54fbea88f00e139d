"""The interface of the processes of a fit, and its implementation for one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.base.collectives import Collectives, gathered
from singanet.base.columns import is_sparse
from singanet.base.described import settings_text
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

if TYPE_CHECKING:
    from singanet.checkpoint.entry import Source
    from singanet.checkpoint.formats import Writing


class ProcessGroup:
    """The processes of a fit or an evaluation, which call each method at the same point.

    This class is a single process. ``asked`` is this rank's reason to stop after a step, before the
    others know it. ``within`` is True if an epoch ended before its last batch, ``agreed`` if all
    ranks raise the error that ends the fit. ``counted`` are the names of `traffic`. Layers are
    ``apart`` if each is only on some of the ranks.
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
        """The number of processes."""
        return 1

    @property
    def part(self) -> tuple[int, int]:
        """The part of a batch that this rank trains on, and the number of parts."""
        return 0, 1

    @property
    def has_measured(self) -> bool:
        """Whether this is the rank with the restored measures."""
        return True

    @property
    def places(self) -> dict[str, int]:
        """The pipeline stage of each layer, empty without stages."""
        return {}

    def of_first(self, value: Any, what: str) -> Any:
        """Return the ``value`` of rank 0: plain data or arrays."""
        return value

    def most(self, count: int) -> int:
        """Return the largest ``count`` of all ranks."""
        return count

    def expect_same(self, where: str, facts: Mapping[str, Any], advice: str = "") -> None:
        """Refuse ``facts`` that differ between ranks. Errors: `RankError` on all ranks."""

    def expect_mergeable(self, where: str, metrics: Mapping[str, Any]) -> None:
        """Refuse a metric that cannot be merged over processes."""

    # Batches

    def part_of(self, **arrays: Any) -> tuple[int, int]:
        """Return the `part` of ``arrays``. Errors: `RankError` on all ranks if they differ."""
        return self.part

    def expect_own_part(self, where: str, source: Any) -> None:
        """Refuse a loader of another rank. Errors: `RankError`, on all ranks."""

    def share(self, data: Batches) -> Batches:
        """Return ``data`` with the largest number of steps of all ranks; some may be empty."""
        return data

    def stepped(self, step: Step) -> Step:
        """Return ``step`` for batches of this rank, also if only other ranks have samples."""
        return step

    def batches(self, course: Course) -> Iterator[WeightedBatch]:
        """Yield this rank's batches to the end of the epoch, or to the step after which all end."""
        self.within = False
        for batch in course.data.epoch(course.batch):
            yield batch
            # Free the batch before drawing the next.
            del batch
            if course.stopped is not None and course.batch != course.data.steps:
                self.within = True
                return

    def in_step(self, batches: Iterator[WeightedBatch]) -> Iterator[WeightedBatch]:
        """Yield this rank's ``batches`` for as long as all ranks have one."""
        return batches

    # Numbers

    def merge(self, measures: Measures) -> None:
        """Merge the ``measures`` of all ranks."""

    def figures(self, measures: Measures) -> EpochFigures:
        """Return the figures of all ranks before the current batch; ``measures`` are its own."""
        return measures

    def batch_loss(self, loss: float, measures: Measures) -> float:
        """Return the loss of all ranks in the last batch; this rank's own is ``loss``."""
        return loss

    def traffic(self, batch: int) -> dict[str, float]:
        """Return the bytes a step since `batches` began, by the names ``counted``."""
        return {}

    # Decisions

    def runs(self, callback: Stateful) -> bool:
        """Return whether this rank runs ``callback``."""
        return self.rank == 0 or not getattr(callback, "first_rank_only", False)

    def heard(
        self, hook: Callable[..., None], callback: Stateful, course: Course
    ) -> Callable[..., None]:
        """Return ``hook`` of ``callback``; a stop in it waits until all ranks can follow."""
        return hook

    def stop(self, course: Course, reason: str) -> None:
        """End the training after the current step; the first reason counts."""
        course.stopped = course.stopped or reason

    def decide(self, course: Course, logs: Mapping[str, float] | None = None) -> Any:
        """Stop if any rank asked for it; return the ``logs`` of rank 0.

        Errors: KeyboardInterrupt on all ranks if one was interrupted.
        """
        return logs

    def rate(self, course: Course) -> float | None:
        """Return the rate of the last update, on any rank that trains a parameter."""
        return course.rule.rate()

    def follow(self, course: Course) -> None:
        """Set the numeric hyper-parameters of the rule to rank 0's."""

    def taking_interrupts(self) -> AbstractContextManager[None]:
        """Let SIGINT end the fit on all ranks after the current step; a second one acts at once."""
        return nullcontext()

    # State

    def here(self, net: Net) -> Any:
        """Return the part of ``net`` on this rank: all of it, except in a pipeline."""
        return net

    def moved(self, places: Mapping[str, int]) -> AbstractContextManager[None]:
        """Within the block, movable layers are at their ``places``; an error moves them back."""
        return nullcontext()

    def joined(
        self,
        net: Net,
        own: Callable[[], list[Source]],
        stands: Mapping[str, Any],
        samples: float = 1.0,
        first_rows: dict[str, int] | None = None,
    ) -> tuple[list[Source], list[Mapping[str, Any]]]:
        """Return the arrays of a file, on rank 0, and the ``stands`` of each of several ranks.

        Ranks synchronize first: pushed gradients arrive, parameters become the same on all, and the
        running state of ``net`` becomes the mean of all ranks, weighted by their ``samples``. Then
        ``own`` returns this rank's arrays. With ``first_rows`` each rank gets the arrays that it
        writes itself; see `training_sources`. Otherwise ranks other than 0 get no arrays.
        """
        return own(), []

    def own_samples(self, measures: Measures) -> int:
        """Return the number of samples that this rank has seen in the current epoch."""
        return measures.samples

    def slices(self, net: Net) -> list[Source]:
        """Return whole parameters on rank 0, joined from the ranks' slices.

        All ranks call it; the others return after each of their arrays was fetched.
        """
        return []

    def evaluated(self, net: Net, batches: Iterator[WeightedBatch]) -> Iterator[WeightedBatch]:
        """Yield this rank's ``batches``, then empty ones if other ranks need them to continue."""
        return batches

    def parts(self, path: Path, own: list[Source], first_rows: Mapping[str, int]) -> list[Writing]:
        """Return this rank's writings of a file with every rank's part; all ranks call it."""
        from singanet.checkpoint.formats import OneFile

        return [OneFile(path, own)]

    def on_first(self, work: Callable[[], object]) -> None:
        """Call ``work()`` on rank 0, with all parameters readable meanwhile."""
        work()

    def train_by(self, optimizer: Any) -> None:
        """Run steps through ``optimizer`` from now on: the net's own, in `fit`'s wrappers."""

    def unify(self, net: Net, measures: Measures | None = None) -> None:
        """Set the running state of ``net`` to the mean over all ranks.

        Ranks are weighted by their samples in the epoch of ``measures``, or equally for None.
        """

    def go_on(self, samples: int, measures: Measures) -> None:
        """Set the number of ``samples`` that this rank has seen, apart from loaded ``measures``."""

    def spread(self, read: Callable[[], Mapping[str, Array]]) -> Mapping[str, Array]:
        """Broadcast the arrays of ``read()`` from rank 0, one after the other.

        Errors: ``read``'s on rank 0, `RankError` on the others.
        """
        return read()


_ROWS = 64
"""The samples that ranks compare to check that all were given the same data."""

CALLED_ALIKE = (
    "pass the same whole arrays on all ranks, which divide them; pass a rank's "
    "own part as a function of the epoch that yields batches"
)
"""Advice for arguments that differ between ranks."""


def expect_same(
    comm: Collectives, where: str, facts: Mapping[str, Any], advice: str = CALLED_ALIKE
) -> None:
    """Refuse ``facts`` that differ between ranks. Errors: `RankError` on all ranks."""
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
    """Refuse parameters that differ between ranks. Errors: `RankError` on all ranks.

    Each rank compares the parameters of ``here``, its part of the net.
    """
    own = {
        param.name: _digest(ops_for(param.value).host(param.value))
        for param in here.params()
        # Slices exist on one rank each.
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
                    received=f"other values on rank {rank} than on rank 0",
                    advice="change parameters on all ranks alike, in callbacks too",
                )


def expect_mergeable(where: str, metrics: Mapping[str, Any]) -> None:
    """Refuse a metric that cannot be merged over processes."""
    for name, metric in metrics.items():
        if not isinstance(metric, Metric) or not metric._can_merge():
            raise ArgumentError(
                f"{where}, metric {name!r}",
                expected="a metric that several processes can measure together",
                received=f"a {type(metric).__name__}, which cannot be merged",
                advice="name its counts, sums and lists in the class, gathered = ('samples', "
                "...), or give it state() and merge(state)",
            )


def sampled(data: Any) -> Any:
    """Return type, shape and a digest of some samples of arrays, to compare between ranks."""
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
