"""A fit over several ranks."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.base.collectives import Collectives, gathered
from singanet.engine.model import Placed, makes_passes_together, placed_by
from singanet.engine.net import Net
from singanet.errors import RankError, SingaNetError
from singanet.optimizer.chain import UpdateChain
from singanet.optimizer.reducer import Reducer
from singanet.training.batches import Batches, WeightedBatch, copied, cut, ended
from singanet.training.course import (
    Course,
    StopTraining,
    entries_of_rank,
    own_entries,
    own_slices,
    rows_source,
)
from singanet.training.measures import Measures
from singanet.training.options import Stateful
from singanet.training.ranks.process_group import (
    CALLED_ALIKE,
    ProcessGroup,
    expect_mergeable,
    expect_same,
    expect_same_parameters,
    sampled,
)
from singanet.training.steps import Step, with_empty_batches
from singanet.types import Array

if TYPE_CHECKING:
    from singanet.checkpoint.entry import Source
    from singanet.checkpoint.formats import Writing

_by_itself: ContextVar[bool] = ContextVar("by_itself", default=False)


def evaluates_by_itself() -> bool:
    """Return whether this rank now evaluates all samples alone."""
    return _by_itself.get()


@contextmanager
def _evaluating_alone() -> Iterator[None]:
    token = _by_itself.set(True)
    try:
        yield
    finally:
        _by_itself.reset(token)


def waiting(optimizer: Any) -> list[Reducer]:
    """Return the reducers of ``optimizer`` that communicate with other ranks."""
    return [stage for stage in UpdateChain(optimizer).reducers if stage.comm.size > 1]


class FitRanks(ProcessGroup):
    """Several processes that train the same net; reducers ``stages`` sum their gradients.

    ``at_once`` is True if this rank ends the training before the next step, ``interrupted`` if an
    interrupt does so. The other ranks learn of it with the next batch, or in `decide`.
    """

    counted = ("bytes_sent", "bytes_received")

    def __init__(self, stages: Sequence[Reducer], comm: Collectives) -> None:
        self.stages: Sequence[Reducer] = stages
        self.comm = comm
        self.at_once = self.interrupted = self.agreed = False
        self.samples = 0
        # This rank's samples of the epoch that its measures do not include.
        self._uncounted = 0
        self._loss = 0.0
        self._sums = np.zeros((0, 2))
        self._traffic: list[float] = []

    @property
    def rank(self) -> int:
        return self.comm.rank

    @property
    def size(self) -> int:
        return self.comm.size

    @property
    def part(self) -> tuple[int, int]:
        return self.rank, self.size

    @property
    def measuring(self) -> Sequence[int]:
        """The ranks whose measures are merged."""
        return range(self.size)

    @property
    def has_measured(self) -> bool:
        return self.rank == self.measuring[0]

    def of_first(self, value: Any, what: str) -> Any:
        return gathered(self.comm, None if self.rank else value, what)[0]

    def most(self, count: int) -> int:
        own = np.array([count], np.int64)
        return int(self.comm.all_reduce(own, "max", "the parts of a batch")[0])

    def expect_same(self, where: str, facts: Mapping[str, Any], advice: str = CALLED_ALIKE) -> None:
        expect_same(self.comm, where, facts, advice)

    def expect_mergeable(self, where: str, metrics: Mapping[str, Any]) -> None:
        expect_mergeable(where, metrics)

    # Batches

    def part_of(self, **arrays: Any) -> tuple[int, int]:
        self.expect_same("data", {name: sampled(array) for name, array in arrays.items()})
        return self.part

    def expect_own_part(self, where: str, source: Any) -> None:
        said = getattr(source, "rank", None), getattr(source, "world_size", None)
        for own, (its, count) in gathered(self.comm, (self.part, said), f"whose {where} are"):
            if count is not None and (its, count) != own:
                raise RankError(
                    where,
                    expected=f"the batches of rank {own[0]} of {own[1]}",
                    received=f"a loader of rank {its} of {count}",
                    advice="pass rank=comm.rank and world_size=comm.size; if the data are "
                    "this rank's part already, pass a function: lambda epoch: loader",
                )

    def share(self, data: Batches) -> Batches:
        data._may_be_empty = True
        steps = gathered(self.comm, data.steps, "the steps of an epoch")
        data.steps = None if None in steps else max(steps)
        return data

    def stepped(self, step: Step) -> Step:
        return with_empty_batches(step)

    def batches(self, course: Course) -> Iterator[WeightedBatch]:
        """Yield this rank's batches to the epoch's end, empty ones while other ranks have more.

        If a rank stops the fit, all end ``within`` the epoch after the same step. Errors:
        KeyboardInterrupt on all ranks if one was interrupted; no rank has a batch.
        """
        if course.batch == 0:
            self._uncounted = 0
        own, begun = iter(course.data.epoch(course.batch)), False
        self._sums, self.within = course.measures.sums(), False
        self._traffic = [course.batch, *self._bytes()]
        while True:
            batch = self._drawn(own)
            flags = [batch is not None, self.asked is not None, self.at_once, self.interrupted]
            measures = float(self.rank in self.measuring)
            sums = course.measures.sums() * measures
            seen = course.measures.samples * measures
            numbers = np.array([*flags, seen, *sums.reshape(-1)], np.float64)
            having, asking, at_once, interrupted, samples, *rest = self.comm.all_reduce(
                numbers, what="the next batch"
            ).tolist()
            self.samples, self._loss = int(samples), _mean(np.reshape(rest, sums.shape))
            if interrupted:
                self.decide(course)
            if not having:
                if course.batch == 0:
                    raise ended(course.data.where, "at least one batch", "none")
                return
            if at_once or (asking and begun):
                self.decide(course)
                self.within = True
                return
            batch = self._or_empty(batch, int(having))
            begun = True
            yield batch
            del batch

    def _drawn(self, own: Iterator[WeightedBatch]) -> WeightedBatch | None:
        try:
            return next(own, None)
        except KeyboardInterrupt:
            self.interrupted = True
            return None

    # Numbers

    def merge(self, measures: Measures) -> None:
        every = gathered(self.comm, measures.state(), "the measures")
        measures.merge(every[rank] for rank in self.measuring)

    def figures(self, measures: Measures) -> FitRanks:
        return self

    def loss(self) -> float:
        """Return the mean loss of all ranks in the epoch, without the current batch."""
        return self._loss

    def batch_loss(self, loss: float, measures: Measures) -> float:
        sums = measures.sums()
        before, self._sums = self._sums, sums
        own = (sums - before) * float(self.rank in self.measuring)
        return _mean(self.comm.all_reduce(own, what="the loss of a batch"))

    def traffic(self, batch: int) -> dict[str, float]:
        steps = max(batch - self._traffic[0], 1)
        counts = zip(self.counted, self._bytes(), self._traffic[1:], strict=True)
        return {name: (now - before) / steps for name, now, before in counts}

    def _bytes(self) -> list[float]:
        return [float(self.comm.bytes_sent), float(self.comm.bytes_received)]

    # Decisions

    def heard(
        self, hook: Callable[..., None], callback: Stateful, course: Course
    ) -> Callable[..., None]:
        alone = getattr(callback, "first_rank_only", False)

        def call(*arguments: Any) -> None:
            try:
                with _evaluating_alone() if alone else nullcontext():
                    hook(*arguments)
            except StopTraining as stop:
                if hook.__name__ == "on_layer_gradients":
                    raise _within_a_step(callback, stop) from None
                self.stop(course, str(stop))
                self.at_once = True
            except KeyboardInterrupt:
                self.interrupted = True

        return call

    def stop(self, course: Course, reason: str) -> None:
        self.asked = self.asked or reason

    def decide(self, course: Course, logs: Mapping[str, float] | None = None) -> Any:
        own = self.asked, self.interrupted, None if self.rank else logs
        every = gathered(self.comm, own, "the decisions of callbacks")
        self.asked = None
        reasons = [reason for reason, _, _ in every if reason is not None]
        course.stopped = course.stopped or next(iter(reasons), None)
        if any(interrupted for _, interrupted, _ in every):
            self.agreed = True
            raise KeyboardInterrupt
        return every[0][2]

    def follow(self, course: Course) -> None:
        rule = course.rule
        own = {name: getattr(rule, name) for name in getattr(rule, "hypers", ("learning_rate",))}
        numbers = {name: value for name, value in own.items() if isinstance(value, (int, float))}
        for name, value in self.of_first(numbers, "the learning rate").items():
            if own[name] != value:
                setattr(rule, name, value)

    @contextmanager
    def taking_interrupts(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.getsignal(signal.SIGINT)

        def take(number: int, frame: FrameType | None) -> None:
            self.interrupted = True
            signal.signal(signal.SIGINT, before)

        signal.signal(signal.SIGINT, take)
        try:
            yield
        finally:
            if signal.getsignal(signal.SIGINT) is take:
                signal.signal(signal.SIGINT, before)

    # State

    def on_first(self, work: Callable[[], object]) -> None:
        if self.rank == 0:
            work()

    def slices(self, net: Net) -> list[Source]:
        own = own_slices(self.here(net))
        return own_entries(self.comm, (), own) if own else []

    def in_step(self, batches: Iterator[WeightedBatch]) -> Iterator[WeightedBatch]:
        for batch, having in self._counted_batches(batches):
            if batch is None or having < self.size:
                return
            yield batch

    def evaluated(self, net: Net, batches: Iterator[WeightedBatch]) -> Iterator[WeightedBatch]:
        if not makes_passes_together(net):
            yield from batches
            return
        for batch, having in self._counted_batches(batches):
            if not having:
                return
            yield self._or_empty(batch, having)

    def _counted_batches(
        self, batches: Iterator[WeightedBatch]
    ) -> Iterator[tuple[WeightedBatch | None, int]]:
        """Yield this rank's ``batches``, then None, each with the number of ranks that have one."""
        while True:
            batch = next(batches, None)
            own = np.array([float(batch is not None)])
            yield batch, int(self.comm.all_reduce(own, what="the next batch")[0])

    def _or_empty(self, batch: WeightedBatch | None, having: int) -> WeightedBatch:
        """Return ``batch``; if only ``having`` ranks have one, an empty one for the others."""
        if having < self.size:
            empty = None if batch is None else tuple(cut(p, slice(0, 0)) for p in batch)
            shapes = gathered(self.comm, empty, "the shapes of a batch")
            batch = batch or next(each for each in shapes if each is not None)
        assert batch is not None
        return batch

    def train_by(self, optimizer: Any) -> None:
        self.stages = waiting(optimizer)

    def unify(self, net: Net, measures: Measures | None = None) -> None:
        samples = 1.0 if measures is None else self.own_samples(measures)
        for stage in self.stages:
            stage.unify(self.here(net), samples)

    def own_samples(self, measures: Measures) -> int:
        return measures.samples + self._uncounted

    def go_on(self, samples: int, measures: Measures) -> None:
        self._uncounted = samples - measures.samples

    def joined(
        self,
        net: Net,
        own: Callable[[], list[Source]],
        stands: Mapping[str, Any],
        samples: float = 1.0,
        first_rows: dict[str, int] | None = None,
    ) -> tuple[list[Source], list[Mapping[str, Any]]]:
        from singanet.checkpoint.entry import sources_of

        here = self.here(net)
        # Saving must not change the training: each rank continues with its own running state.
        moved = [param for param in here.params() if param.is_state and not param.is_constant]
        before = {param.name: copied(param.value) for param in moved}
        for stage in self.stages:
            stage.unify(here, samples)
        expect_same_parameters(self.comm, here)
        every = gathered(self.comm, stands, "the state of a training")
        # Only now do the parameters have the unified running state.
        unified = {f"net/{param.name}": copied(param.value) for param in moved}
        for param in moved:
            param.value[...] = net.device.put(before[param.name])
        local = {f"local/{name}": array for name, array in before.items()}
        these = own()
        shared = {each.name: each for each in these if each.name.startswith("net/")}
        slices = own_slices(here, "net/")
        apart = {each.name: shared.pop(each.name) for each in slices}
        shared |= {each.name: each for each in sources_of(unified, "session.state")}
        learnt = [each for each in these if each.name not in shared and each.name not in apart]
        learnt += sources_of(local, "session.state")
        if first_rows is not None:
            parts = [each for each in learnt if each.name in first_rows]
            rest = [each for each in learnt if each.name not in first_rows]
            whole = [*shared.values()] if self.rank == 0 else []
            return (
                [
                    *self._own_rows(here, whole, slices, first_rows),
                    *parts,
                    *entries_of_rank(self.comm, rest),
                ],
                every,
            )
        return self._collected([*shared.values()], learnt, slices), every

    def _own_rows(
        self, net: Net, whole: list[Source], slices: list[Source], first_rows: dict[str, int]
    ) -> list[Source]:
        """Return this rank's sources of parameters: ``slices``, rows by reducers, or ``whole``."""
        for param, each in zip((p for p in net.params() if p.storage.sliced), slices, strict=True):
            first_rows[each.name] = param.storage.first_row
        found = [each for each in slices if each.shape[0]]
        cut = set()
        for stage in self.stages:
            for param in net.params():
                rows, name = stage._own_rows(param.name), f"net/{param.name}"
                if rows is None or param.storage.sliced:
                    continue
                cut.add(name)
                if rows[0] < rows[1]:
                    first_rows[name] = rows[0]
                    found.append(rows_source(param, name, rows))
        return [*(each for each in whole if each.name not in cut), *found]

    def parts(self, path: Path, own: list[Source], first_rows: Mapping[str, int]) -> list[Writing]:
        from singanet.checkpoint.sharded import RanksFile

        return [RanksFile(path, own, self.comm, first_rows)]

    def _collected(
        self, shared: list[Source], learnt: list[Source], slices: list[Source]
    ) -> list[Source]:
        """Return the entries of rank 0's file: ``shared``, each rank's ``learnt``, ``slices``."""
        kept = [*shared, *learnt, *own_entries(self.comm, learnt, slices)]
        return [] if self.rank else kept

    def spread(self, read: Callable[[], Mapping[str, Array]]) -> Mapping[str, Array]:
        state: Mapping[str, Array] = {}
        failed: SingaNetError | None = None
        try:
            state = read() if self.rank == 0 else {}
        except SingaNetError as error:
            failed = error
        kinds = {name: (array.shape, array.dtype.str) for name, array in state.items()}
        known = self.of_first(str(failed) if failed else kinds, "the resumed state")
        if failed is not None:
            raise failed
        if isinstance(known, str):
            raise RankError(
                "net.fit, resume",
                expected="a state that rank 0 can read",
                received=known[:400],
                advice="fix the error of rank 0",
            )
        found = {}
        for name, (shape, dtype) in known.items():
            own = np.array(state[name], order="C") if state else np.empty(shape, dtype)
            found[name] = self.comm.broadcast(own, 0, f"the saved {name}")
        return found


def _within_a_step(callback: Stateful, stop: StopTraining) -> RankError:
    return RankError(
        type(callback).__name__,
        expected="a fit of several ranks to end between two steps",
        received=f"an end within a step: {stop}"[:400],
        advice="call session.stop(reason), which all ranks follow after the step",
    )


def _mean(sums: Array) -> float:
    """Return Σ weighted / count over the losses of all outputs, rows (weighted sum, count)."""
    return float(sum(weighted / count for weighted, count in sums.tolist() if count))


class StagedRanks(FitRanks):
    """The ranks of a pipeline, with a net ``placed`` on them; ``stages`` sum over replicas."""

    apart = True

    def __init__(self, stages: Sequence[Reducer], placed: Placed) -> None:
        super().__init__(stages, placed.comm)
        self._placed = placed

    @property
    def part(self) -> tuple[int, int]:
        return self._placed.share

    @property
    def measuring(self) -> Sequence[int]:
        return self._placed.measuring

    @property
    def places(self) -> dict[str, int]:
        return dict(self._placed.places)

    def rate(self, course: Course) -> float | None:
        rule = course.rule
        own = max((state.step for state in rule.states()), default=0)
        every = gathered(self.comm, (own, rule.rate()), "the learning rate")
        most = max(done for done, _ in every)
        return next(rate for done, rate in every if done == most)

    def here(self, net: Net) -> Any:
        return self._placed.part

    @contextmanager
    def moved(self, places: Mapping[str, int]) -> Iterator[None]:
        placed, before = self._placed, self.places
        if places == before or not placed._can_move(places):
            yield
            return
        placed.move(places)
        try:
            yield
        except BaseException:
            placed.move(before)
            raise

    def joined(
        self,
        net: Net,
        own: Callable[[], list[Source]],
        stands: Mapping[str, Any],
        samples: float = 1.0,
        first_rows: dict[str, int] | None = None,
    ) -> tuple[list[Source], list[Mapping[str, Any]]]:
        # Rank 0 writes for the others.
        return super().joined(net, own, stands, samples)

    def parts(self, path: Path, own: list[Source], first_rows: Mapping[str, int]) -> list[Writing]:
        from singanet.checkpoint.formats import OneFile

        return [OneFile(path, own)] if self.rank == 0 else []

    def on_first(self, work: Callable[[], object]) -> None:
        self._placed.on_first(work)

    def _bytes(self) -> list[float]:
        return [*map(float, self._placed.exchanged)]

    def _collected(
        self, shared: list[Source], learnt: list[Source], slices: list[Source]
    ) -> list[Source]:
        """Add the parameters and the optimizer's state of ranks that alone have them."""
        own = [*shared, *learnt]
        entries = own_entries(self.comm, own)
        if self.rank:
            return []
        found = {each.name: each for each in own}
        for each in entries:
            kind, rank, name = each.name.split("/", 2)
            room, _, inner = name.partition("/")
            if room not in ("net", "optimizer"):
                found[each.name] = each
            elif kind == "rank" and self._owner(room, inner) == int(rank):
                found[name] = replace(each, name=name)
            elif kind == "rank":
                each.array()  # it was sent
        return list(found.values())

    def _owner(self, room: str, name: str) -> int | None:
        """Return the rank that owns the entry ``name`` of parameters or optimizer state."""
        param = name if room == "net" else name.rpartition("/")[0]
        try:
            return self._placed.owner(param)
        except KeyError:
            return None


def ranks_of(net: Any, *optimizers: Any) -> ProcessGroup:
    """Return the ranks that share ``net``, or the ranks that ``optimizers`` reduce with.

    This process alone if there are no others, and in hooks that only rank 0 runs.
    """
    stages = [stage for optimizer in optimizers for stage in waiting(optimizer)]
    stages, placed = list(dict.fromkeys(stages)), placed_by(net)
    if evaluates_by_itself():
        if makes_passes_together(net):
            raise RankError(
                "a callback with first_rank_only",
                expected="all ranks in every pass of a net whose parameters are in slices",
                received="rank 0 alone",
                advice="omit first_rank_only, so that all ranks run it",
            )
        return ProcessGroup()
    if placed is not None and placed.comm.size > 1:
        return StagedRanks(stages, placed)
    return FitRanks(stages, stages[0].comm) if stages else ProcessGroup()
