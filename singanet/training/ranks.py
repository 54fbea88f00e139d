"""What the ranks of a training agree on beside gradients: batches, numbers, decisions, state."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import sha256
from types import FrameType
from typing import Any, Protocol

import numpy as np

from singanet.base.collectives import gathered
from singanet.base.csr import is_sparse
from singanet.base.described import settings_text
from singanet.checkpoint.entry import Source
from singanet.engine.model import Model, Placed, placed_by
from singanet.errors import ArgumentError, RankError, SingaNetError
from singanet.metric import Metric
from singanet.ops import ops_for
from singanet.optimizer.chain import UpdateChain
from singanet.optimizer.reducer import Reducer
from singanet.training.arrays import cut
from singanet.training.batches import Batches, WeightedBatch, ended
from singanet.training.measures import Measures
from singanet.types import Array

_ROWS = 64
"""Samples that are looked at to see that all ranks were given the same."""

_CALLED_ALIKE = (
    "call it alike on all ranks; arrays are whole, each takes its part: what is a part already is "
    "yielded by a function of the epoch"
)

_by_itself: ContextVar[bool] = ContextVar("by_itself", default=False)


class Stoppable(Protocol):
    """What ranks need to know of a session."""

    data: Batches
    measures: Measures
    batch: int
    stopped: str | None


def ranks_of(net: Any, optimizer: Any) -> FitRanks | None:
    """Those that have ``net`` together, or that ``optimizer`` reduces with.

    None for a lone process, and within `by_itself`.
    """
    stages, placed = _waiting(optimizer), placed_by(net)
    if _by_itself.get() or not (stages or (placed is not None and placed.comm.size > 1)):
        return None
    return FitRanks(stages, placed)


def _waiting(optimizer: Any) -> list[Reducer]:
    """The stages of ``optimizer`` that have others to wait for."""
    return [stage for stage in UpdateChain(optimizer).reducers if stage.comm.size > 1]


@contextmanager
def by_itself() -> Iterator[None]:
    """Let what this rank evaluates within the block be its own affair, of all samples."""
    token = _by_itself.set(True)
    try:
        yield
    finally:
        _by_itself.reset(token)


class Kept(Protocol):
    """What a fit keeps to go back to where a rank dies."""

    def due(self) -> bool:
        """Whether this rank has worked long enough since the last `take`."""

    def take(self) -> None:
        """Keep how it stands now: all ranks do at once."""


class FitRanks:
    """The processes of a fit or an evaluation, which call each method at the same point.

    ``asked`` is why this rank wants the training to end after a step, or ``at_once``, before the
    next one; ``interrupted`` whether by an interrupt. That waits for the next batch, or `decide`.
    ``within`` says whether an epoch ended before its last batch, ``agreed`` whether the error that
    ends the fit is raised on all ranks. A net may be ``placed`` on several of them.
    """

    def __init__(self, stages: Sequence[Reducer], placed: Placed | None = None) -> None:
        self.stages: Sequence[Reducer] = stages
        self._placed = placed
        self.comm = stages[0].comm if placed is None else placed.comm
        self.kept: Kept | None = None
        self.asked: str | None = None
        self.at_once = self.interrupted = self.within = self.agreed = False
        self.samples = 0
        # How many samples of its own a rank has seen beyond those that it counts for all.
        self._uncounted = 0
        self._loss = 0.0
        self._sums = np.zeros((0, 2))
        self._traffic: list[float] = []

    @property
    def rank(self) -> int:
        """Which of them this is; another one once a rank has died."""
        return self.comm.rank

    @property
    def size(self) -> int:
        """How many there are now."""
        return self.comm.size

    @property
    def part(self) -> tuple[int, int]:
        """Which of how many parts of a batch this rank takes."""
        return (self.rank, self.size) if self._placed is None else self._placed.share

    @property
    def _measuring(self) -> Sequence[int]:
        """The ranks whose measures are what all have measured."""
        return range(self.size) if self._placed is None else self._placed.measuring

    def of_first(self, value: Any, what: str) -> Any:
        """The ``value`` of rank 0: plain data or arrays."""
        return gathered(self.comm, None if self.rank else value, what)[0]

    def most(self, count: int) -> int:
        """The largest ``count`` of any of them."""
        own = np.array([count], np.int64)
        return int(self.comm.all_reduce(own, "max", "the parts of a batch")[0])

    def expect_same(
        self, where: str, facts: Mapping[str, Any], advice: str = _CALLED_ALIKE
    ) -> None:
        """Errors: `RankError` on all ranks, with the first of ``facts`` in which one differs."""
        own = {name: settings_text(value) for name, value in facts.items()}
        every = gathered(self.comm, own, f"the comparison of {where}")
        for rank, other in enumerate(every):
            for name, value in every[0].items():
                if other.get(name) != value:
                    raise RankError(
                        f"{where}, {name}",
                        expected=f"{value}, as on rank 0",
                        received=f"{other.get(name)} on rank {rank}",
                        advice=advice,
                    )

    def expect_same_parameters(self, net: Model) -> None:
        """Errors: `RankError` on all ranks, with the first parameter in which one differs."""
        own = {
            param.name: _digest(ops_for(param.value).host(param.value))
            for param in self.here(net).params()
            if not param.storage.by_rows
        }
        every = gathered(self.comm, own, "the comparison of parameters")
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

    # Batches

    def expect_own_part(self, where: str, source: Any) -> None:
        """Refuse a loader that says it is not this rank's. Errors: `RankError`, on all ranks."""
        said = getattr(source, "rank", None), getattr(source, "world_size", None)
        for own, (its, count) in gathered(self.comm, (self.part, said), f"whose {where} are"):
            if count is not None and (its, count) != own:
                raise RankError(
                    where,
                    expected=f"the batches of rank {own[0]} of {own[1]}",
                    received=f"a loader of rank {its} of {count}",
                    advice="pass rank=comm.rank and world_size=comm.size; of data that are this "
                    "rank's part already pass a function: lambda epoch: loader",
                )

    def share(self, data: Batches) -> Batches:
        """``data`` with the steps of the rank that has the most; others may have none."""
        data.may_be_empty = True
        steps = gathered(self.comm, data.steps, "the steps of an epoch")
        data.steps = None if None in steps else max(steps)
        return data

    def batches(self, session: Stoppable) -> Iterator[WeightedBatch]:
        """Those of this rank to the end of the epoch, empty ones while others have more.

        Ends ``within`` the epoch after the same step on all ranks where one asks for it. Errors:
        KeyboardInterrupt on all ranks, where one was interrupted; no rank has any batch.
        """
        if session.batch == 0:
            self._uncounted = 0
        own, begun = iter(session.data.epoch(session.batch)), False
        self._sums, self.within = session.measures.sums(), False
        self._traffic = [session.batch, *self._counted()]
        while True:
            batch = self._drawn(own)
            due = self.kept is not None and self.kept.due()
            flags = [batch is not None, self.asked is not None, self.at_once, self.interrupted, due]
            measures = float(self.rank in self._measuring)
            sums = session.measures.sums() * measures
            seen = session.measures.samples * measures
            told = np.array([*flags, seen, *sums.reshape(-1)], np.float64)
            having, asking, at_once, interrupted, due, samples, *rest = self.comm.all_reduce(
                told, what="the next batch"
            ).tolist()
            self.samples, self._loss = int(samples), _mean(np.reshape(rest, sums.shape))
            if due and self.kept is not None:
                self.kept.take()
            if interrupted:
                self.decide(session)
            if not having:
                if session.batch == 0:
                    raise ended("at least one batch", "none")
                return
            if at_once or (asking and begun):
                self.decide(session)
                self.within = True
                return
            if having < self.size:
                empty = None if batch is None else tuple(cut(p, slice(0, 0)) for p in batch)
                shapes = gathered(self.comm, empty, "the shapes of a batch")
                batch = batch or next(each for each in shapes if each is not None)
            assert batch is not None
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

    def expect_mergeable(self, where: str, metrics: Mapping[str, Any]) -> None:
        """Errors: a metric that does not say what it has gathered."""
        for name, metric in metrics.items():
            if not isinstance(metric, Metric) or not metric.can_merge():
                raise ArgumentError(
                    f"{where}, metric {name!r}",
                    expected="a metric that several processes can measure together",
                    received=f"a {type(metric).__name__}, which does not say how it is merged",
                    advice="name its counts, sums and lists in the class, gathered = ('samples', "
                    "...), or give it state() and merge(state)",
                )

    def merge(self, measures: Measures) -> None:
        """Let ``measures`` have gathered what those of all ranks have."""
        every = gathered(self.comm, measures.state(), "the measures")
        measures.merge(every[rank] for rank in self._measuring)

    def merged(self, measures: Measures) -> Measures:
        """A copy of ``measures`` that has gathered what those of all ranks have."""
        joint = measures.copied()
        self.merge(joint)
        return joint

    def loss(self) -> float:
        """That of all ranks in the epoch, from before the batch in work; ``samples`` are its."""
        return self._loss

    def batch_loss(self, measures: Measures) -> float:
        """That of all ranks in the last batch."""
        sums = measures.sums()
        before, self._sums = self._sums, sums
        own = (sums - before) * float(self.rank in self._measuring)
        return _mean(self.comm.all_reduce(own, what="the loss of a batch"))

    def traffic(self, batch: int) -> dict[str, float]:
        """Bytes a step that this rank has sent and received since `batches` began."""
        steps = max(batch - self._traffic[0], 1)
        pairs = zip(("bytes_sent", "bytes_received"), self._counted(), strict=False)
        return {
            name: (now - before) / steps
            for (name, now), before in zip(pairs, self._traffic[1:], strict=True)
        }

    def _counted(self) -> list[float]:
        if self._placed is not None:
            return [*map(float, self._placed.exchanged)]
        return [float(self.comm.bytes_sent), float(self.comm.bytes_received)]

    # Decisions

    def decide(self, session: Stoppable, logs: Mapping[str, float] | None = None) -> Any:
        """Stop where any rank asks for it; returns the ``logs`` of rank 0.

        Errors: KeyboardInterrupt on all ranks, where one was interrupted.
        """
        own = self.asked, self.interrupted, None if self.rank else logs
        every = gathered(self.comm, own, "what callbacks decide")
        self.asked = None
        reasons = [reason for reason, _, _ in every if reason is not None]
        session.stopped = session.stopped or next(iter(reasons), None)
        if any(interrupted for _, interrupted, _ in every):
            self.agreed = True
            raise KeyboardInterrupt
        return every[0][2]

    def rate(self, rule: Any) -> float | None:
        """That of the last update, on whichever rank something is trained."""
        if self._placed is None:
            found: float | None = rule.rate()
            return found
        own = max((state.step for state in rule.states()), default=0)
        every = gathered(self.comm, (own, rule.rate()), "the learning rate")
        most = max(done for done, _ in every)
        return next(rate for done, rate in every if done == most)

    def follow(self, rule: Any) -> None:
        """Let the numbers among the hyper-parameters of ``rule`` be those of rank 0."""
        names = getattr(rule, "hypers", ("lr",))
        own = {name: getattr(rule, name) for name in names}
        numbers = {name: value for name, value in own.items() if isinstance(value, (int, float))}
        for name, value in self.of_first(numbers, "the learning rate").items():
            if own[name] != value:
                setattr(rule, name, value)

    @contextmanager
    def taking_interrupts(self) -> Iterator[None]:
        """Let SIGINT end the fit on all ranks after the step in work; a second one acts at once."""
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

    def here(self, net: Model) -> Any:
        """What of ``net`` is on this rank: all of it, but where layers lie on several."""
        return net if self._placed is None else self._placed.part

    @property
    def places(self) -> dict[str, int]:
        """The stage of each layer, where layers lie on several ranks."""
        return {} if self._placed is None else dict(self._placed.places)

    @contextmanager
    def moved(self, places: Mapping[str, int]) -> Iterator[None]:
        """Let layers be where ``places`` says, where they may; back where the block fails."""
        placed, before = self._placed, self.places
        if placed is None or places == before or not placed.can_move(places):
            yield
            return
        placed.move(places)
        try:
            yield
        except BaseException:
            placed.move(before)
            raise

    def on_first(self, work: Callable[[], object]) -> None:
        """``work()`` on rank 0, where the parameters of all can be read meanwhile."""
        if self._placed is not None:
            self._placed.on_first(work)
        elif self.rank == 0:
            work()

    @property
    def apart(self) -> bool:
        """Whether each rank has parameters that others have not."""
        return self._placed is not None

    @property
    def has_measured(self) -> bool:
        """Whether what was gathered before counts on this rank, which is one of all."""
        return self.rank == self._measuring[0]

    def whole(self, own: Mapping[str, Source]) -> dict[str, Source]:
        """``own``, on rank 0 with parameters and optimizer's state of ranks that alone have them.

        ``own`` has `own_entries`, of which they are taken.
        """
        if self._placed is None:
            return dict(own)
        found: dict[str, Source] = {}
        for key, array in own.items():
            kind, _, rest = key.partition("/")
            rank, _, name = rest.partition("/")
            room, _, inner = name.partition("/")
            if kind not in ("rank", "absent") or room not in ("net", "optimizer"):
                found[key] = array
            elif kind == "rank" and self._owner(room, inner) == int(rank):
                found[name] = array
            elif kind == "rank":
                array.array()  # it was sent
        return found

    def _owner(self, room: str, name: str) -> int | None:
        """The rank whose the entry ``name`` of parameters, or of an optimizer's state, is."""
        assert self._placed is not None
        param = name if room == "net" else name.rpartition("/")[0]
        try:
            return self._placed.owner(param)
        except KeyError:
            return None

    def own_samples(self, measures: Measures) -> int:
        """How many this rank has seen in the epoch in work."""
        return measures.samples + self._uncounted

    def go_on(self, samples: int, measures: Measures) -> None:
        """Have seen so many ``samples``, whatever ``measures``, which were loaded, have counted."""
        self._uncounted = samples - measures.samples

    def train_by(self, optimizer: Any) -> None:
        """Steps go through ``optimizer`` from now on: what `fit` has made of the net's own."""
        self.stages = _waiting(optimizer)

    def unify(self, net: Model, samples: float = 1.0) -> None:
        """Let the running state of ``net`` be that of all ranks, each weighing by ``samples``."""
        for stage in self.stages:
            stage.unify(self.here(net), samples)

    def state_of_all(self, session: Any) -> list[dict[str, Any]]:
        """Position and generator of every rank, once state is unified and parameters compared."""
        net = session.net
        samples = self.own_samples(session.measures)
        self.unify(net, samples)
        self.expect_same_parameters(net)
        draws = net.rng.bit_generator.state
        own = {"data": dict(session.position()), "generator": draws, "samples": samples}
        return gathered(self.comm, own, "the state of a training")

    def spread(self, read: Any) -> dict[str, Array]:
        """The arrays that ``read()`` gives on rank 0, one after the other.

        Errors: those of ``read`` there, `RankError` elsewhere.
        """
        state: Mapping[str, Array] = {}
        failed: SingaNetError | None = None
        try:
            state = read() if self.rank == 0 else {}
        except SingaNetError as error:
            failed = error
        told = {name: (array.shape, array.dtype.str) for name, array in state.items()}
        known = self.of_first(str(failed) if failed else told, "what is resumed")
        if failed is not None:
            raise failed
        if isinstance(known, str):
            raise RankError(
                "net.fit, resume",
                expected="a state that rank 0 can read",
                received=known[:400],
                advice="mend what rank 0 says",
            )
        found = {}
        for name, (shape, dtype) in known.items():
            own = np.array(state[name], order="C") if state else np.empty(shape, dtype)
            found[name] = self.comm.broadcast(own, 0, f"the saved {name}")
        return found


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


def _mean(sums: Array) -> float:
    """Σ weighted / count of the losses of all outputs, rows (weighted sum, count)."""
    return float(sum(weighted / count for weighted, count in sums.tolist() if count))
