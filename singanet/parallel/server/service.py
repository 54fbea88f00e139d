"""The service of a parameter server."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias, TypeVar

import numpy as np

from singanet.checkpoint.formats import open_state, write_state
from singanet.errors import SingaNetError, StateMismatchError
from singanet.ops import numpy_ops
from singanet.optimizer.chain import Together, UpdateChain
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.wrapper import Wrapper
from singanet.parallel.server.messages import (
    ANSWER,
    ASK,
    Message,
    MessageKind,
    Post,
    ServerRanks,
    parsed,
    pickled,
    unpickled,
)
from singanet.parallel.server.parameter_table import Shard
from singanet.params.grads import dense_gradient
from singanet.params.param import Param
from singanet.params.storage import lay_as_one
from singanet.types import Array, Gradient, RowSparse, Shape


class WorkerProgress:
    """The number of steps that each worker has finished; it limits reads ahead.

    With ``staleness`` k a worker starts step s, counted from 0, when all others have finished s −
    k; None sets no limit. Workers that are ``away`` have no batches left, and others do not wait
    for them. When all are away, all return, at the step of the furthest.
    """

    def __init__(self, workers: int, staleness: int | None) -> None:
        self.finished = [0] * workers
        self.staleness = staleness
        self.away: set[int] = set()
        self.ahead = 0

    @property
    def least(self) -> int:
        """The number of steps that all present workers have finished."""
        if not self.away:
            return min(self.finished)
        there = [n for worker, n in enumerate(self.finished) if worker not in self.away]
        return min(there) if there else max(self.finished)

    def allows(self, worker: int, need: int) -> bool:
        """Return True if ``worker``, at step ``need``, may read for it now."""
        if self.finished[worker] < need:
            return False
        lead = need - self.least
        if self.staleness is not None and lead > self.staleness:
            return False
        self.ahead = max(self.ahead, lead)
        return True

    def finish(self, worker: int) -> None:
        """Count a finished step of ``worker``."""
        self.finished[worker] += 1
        self.away.discard(worker)

    def leave(self, worker: int) -> bool:
        """Mark ``worker`` as without batches; True if all are, who then return."""
        self.away.add(worker)
        if len(self.away) < len(self.finished):
            return False
        self.finished = [max(self.finished)] * len(self.finished)
        self.away.clear()
        return True


_OPTIMIZER = "optimizer/"
_KEPT = 2
"""Snapshots kept per server: if servers are killed, all still have a common one."""


class Snapshots:
    """Snapshots of one service on server ``number`` of ``servers``, in ``folder``, by steps."""

    def __init__(self, folder: Path, service: int, number: int, servers: int, every: int) -> None:
        self._folder, self._every = folder, every
        self._name = f"service-{service}-server-{number}-of-{servers}-step-"
        folder.mkdir(parents=True, exist_ok=True)

    def due(self, step: int) -> bool:
        """Return True if ``step`` is a multiple of the interval."""
        return self._every > 0 and step % self._every == 0

    def steps(self) -> list[int]:
        """Return the steps of the snapshots in the folder, ascending."""
        pattern = re.compile(re.escape(self._name) + r"(\d+)\.safetensors")
        found = (pattern.fullmatch(path.name) for path in self._folder.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def write(self, step: int, shards: Iterable[Shard], optimizer: Optimizer | Wrapper) -> None:
        """Write values, clocks and state after ``step`` steps; older snapshots are removed."""
        arrays = {f"{_OPTIMIZER}{key}": array for key, array in optimizer.state_dict().items()}
        for shard in shards:
            arrays |= {f"values/{shard.name}": shard.values, f"clocks/{shard.name}": shard.clocks}
        write_state(self._path(step), arrays)
        for old in self.steps()[:-_KEPT]:
            self._path(old).unlink(missing_ok=True)

    def restore(
        self, step: int, shards: Iterable[Shard], optimizer: Optimizer | Wrapper | None
    ) -> None:
        """Load the snapshot of ``step`` into ``shards`` and ``optimizer``.

        Errors: the file is damaged, or has other parameters.
        """
        path = self._path(step)
        with open_state(path) as reader:
            for shard in shards:
                entry = reader.entries.get(f"values/{shard.name}")
                if entry is None or entry.shape != shard.values.shape:
                    raise StateMismatchError(
                        f"snapshot {str(path)!r}",
                        expected=f"{shard.name} of shape {shard.values.shape}",
                        received="none" if entry is None else f"shape {entry.shape}",
                        advice="train the net of this snapshot, or pass an empty folder",
                    )
                shard.values[...] = reader.read(f"values/{shard.name}")
                shard.clocks[...] = reader.read(f"clocks/{shard.name}")
            if optimizer is not None:
                names = [name for name in reader.entries if name.startswith(_OPTIMIZER)]
                state = {name[len(_OPTIMIZER) :]: reader.read(name) for name in names}
                optimizer.load_state_dict(state)
        for shard in shards:
            shard.keep_state()

    def _path(self, step: int) -> Path:
        return self._folder / f"{self._name}{step}.safetensors"


class Replicas:
    """The ``shards`` of one dtype whose values are consecutive parts of the flat ``values``.

    Their gradients are one flat array, too, and one update of ``optimizer`` if its rule is
    elementwise. Each shard keeps its values, in a new place.
    """

    def __init__(self, shards: Sequence[Shard], optimizer: Optimizer | Wrapper) -> None:
        self.shards = tuple(shards)
        laid = lay_as_one([shard.values for shard in shards], np.asarray)
        self._clocks = np.concatenate([shard.clocks for shard in shards])
        start = value = 0
        for shard, values in zip(shards, laid, strict=True):
            shard.lie_in(values, self._clocks[start : start + shard.rows])
            start, value = start + shard.rows, value + values.size
        # Each part is a view of the whole array.
        whole = laid[0].base
        assert whole is not None
        self.values: Array = whole[:value]
        self._together = Together(optimizer, [shard.name for shard in shards], laid)

    def update(self, grad: Array, scale: float = 1.0) -> None:
        """Update all shards once by ``scale`` · ``grad``."""
        self._together.update(grad, scale)
        self._clocks += 1

    def parts(self, flat: Array) -> list[Array]:
        """Split ``flat`` into the parts of the shards."""
        ends = np.cumsum([shard.values.size for shard in self.shards])
        return np.split(flat, ends[:-1])


NOTHING, DENSE, ROWS, FLAT = range(4)
"""Codes of a parameter in a step: no gradient or value, all rows, some rows, or ``FLAT``.

``FLAT`` is all rows as a part of one flat array for all parameters of a message."""


@dataclass(frozen=True, slots=True)
class ServedParam:
    """A parameter on one server: its number and rows, and whether workers have it, too."""

    number: int
    param: Param
    owned: slice = field(default_factory=lambda: slice(None))
    replicated: bool = False


@dataclass(frozen=True, slots=True)
class Opening:
    """The request to open a service; ``restore`` is the step of the snapshot to start from.

    With ``summed`` the weighed gradients of all workers in a step are one update. If ``held`` is
    None, nothing is opened, and the answer lists the snapshots.
    """

    optimizer: Optimizer | Wrapper
    staleness: int | None
    summed: bool
    held: Sequence[ServedParam] | None
    folder: Path | None = None
    snapshots: Path | None = None
    every: int = 0
    restore: int | None = None


@dataclass
class Load:
    """The load of a server by one kind of request so far."""

    calls: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    rows: int = 0
    seconds: float = 0.0

    def count(self, message: Message) -> None:
        """Count the request ``message``, without its time and its answer."""
        self.calls += 1
        for array in message.arrays:
            self.bytes_in += array.nbytes
        self.rows += len(message.arrays[0]) if message.kind in _OF_ROWS else 0


_Key = TypeVar("_Key")
_Gathered: TypeAlias = dict[_Key, dict[int, list[tuple[Gradient, Array | None]]]]
"""Gradients by subject and by worker, with the growth of clocks."""


@dataclass
class _Step:
    """The gradients of an incomplete step, by shard and worker, and their weights.

    ``flat`` has gradients of several shards each.
    """

    grads: _Gathered[int] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    flat: _Gathered[tuple[int, ...]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    weights: dict[int, float | None] = field(default_factory=dict)


class Service:
    """One optimizer and its shards on this server; `take` serves the requests of workers."""

    def __init__(self, opening: Opening, workers: int, snapshots: Snapshots | None) -> None:
        self.optimizer, self.summed = opening.optimizer, opening.summed
        self.progress = WorkerProgress(workers, opening.staleness)
        self.shards: dict[int, Shard] = {}
        self.loads: dict[MessageKind, Load] = defaultdict(Load)
        self._snapshots = snapshots
        self._replicas: dict[tuple[int, ...], Replicas] = {}
        self._unread: dict[int, list[list[Array] | None]] = {}
        self._steps: dict[int, _Step] = defaultdict(_Step)
        self._applied = 0
        self._waiting: list[tuple[int, Message]] = []
        self._failed: Exception | None = None
        self.hold(opening)

    def hold(self, opening: Opening) -> None:
        """Create the shards of ``opening``, from its snapshot if it names one."""
        made = []
        for held in opening.held or ():
            known = self.shards.get(held.number)
            if known is not None and known.values.shape == held.param.shape:
                self.optimizer.register(held.param.name, held.param.spec)
                continue
            shard = Shard(held.param, self.optimizer, held.owned, opening.folder)
            self.shards[held.number] = shard
            self._scatter([held.number])
            made.append(shard)
            if held.replicated:
                self._unread[held.number] = [None] * len(self.progress.finished)
        if opening.restore is not None and self._snapshots is not None:
            first = len(made) == len(self.shards)
            self._snapshots.restore(opening.restore, made, self.optimizer if first else None)
            if first:
                steps = [opening.restore] * len(self.progress.finished)
                self.progress.finished, self._applied = steps, opening.restore

    def take(self, worker: int, message: Message) -> list[tuple[int, Message]]:
        """Serve the request of ``worker``; return the answers that are ready, and their workers."""
        load, began = self.loads[message.kind], time.perf_counter()
        try:
            answers = self._served(worker, message)
        finally:
            load.seconds += time.perf_counter() - began
        load.count(message)
        return answers

    def _served(self, worker: int, message: Message) -> list[tuple[int, Message]]:
        if self._failed is not None:
            return (
                []
                if message.kind is MessageKind.FINISH
                else [_failure(worker, message, self._failed)]
            )
        if message.kind in _PUSHES:
            self._push(worker, message)
        elif message.kind is MessageKind.FINISH:
            if self.summed:
                weight = message.arrays[0].tolist()
                self._steps[self.progress.finished[worker]].weights[worker] = (*weight, None)[0]
            self.progress.finish(worker)
        elif message.kind is MessageKind.LEAVE:
            self.progress.leave(worker)
        if message.kind in (MessageKind.FINISH, MessageKind.LEAVE):
            return self._released(worker, message)
        if message.kind in _READS and not self.progress.allows(worker, message.need):
            self._waiting.append((worker, message))
            return []
        return [(worker, self._answer(worker, message))]

    def _released(self, worker: int, message: Message) -> list[tuple[int, Message]]:
        """Return the answers that a finished step releases."""
        try:
            self._apply_complete()
        except Exception as error:  # noqa: BLE001 - reported to the next request
            self._failed = error
            waiting, self._waiting = self._waiting, []
            return [_failure(*each, error) for each in waiting]
        done = [] if message.kind is MessageKind.FINISH else [(worker, _answered(message))]
        waiting, self._waiting = self._waiting, []
        for who, asked in waiting:
            if self.progress.allows(who, asked.need):
                done.append((who, self._answer(who, asked)))
            else:
                self._waiting.append((who, asked))
        return done

    # -- gradients --------------------------------------------------------------------------------

    def _push(self, worker: int, message: Message) -> None:
        if message.kind is MessageKind.STEP:
            layout, arrays = message.arrays[0].tolist(), iter(message.arrays[1:])
            if layout and layout[0][1] == FLAT:
                self._gather_flat(worker, tuple([number for number, _ in layout]), next(arrays))
                return
            for number, how in layout:
                if how == DENSE:
                    self._gather(worker, number, next(arrays))
                elif how == ROWS:
                    self._gather(worker, number, RowSparse(next(arrays), next(arrays)))
            return
        rows, grads, *more = message.arrays
        added = more[0] if more else None
        if self.summed:
            self._gather(worker, message.subject, RowSparse(rows, grads), added)
        else:
            self.shards[message.subject].push(rows, grads, added)

    def _gather(self, worker: int, number: int, grad: Gradient, added: Array | None = None) -> None:
        if self.summed:
            step = self._steps[self.progress.finished[worker]]
            # The gradient keeps the memory of its message alive.
            step.grads[number][worker].append((grad, added))
        else:
            self._update(number, grad, 1.0, added)

    def _gather_flat(self, worker: int, numbers: tuple[int, ...], grad: Array) -> None:
        if self.summed:
            step = self._steps[self.progress.finished[worker]]
            step.flat[numbers][worker].append((grad, None))
        else:
            self._update_flat(numbers, grad, 1.0)

    def _update_flat(self, numbers: tuple[int, ...], grad: Array, scale: float) -> None:
        self._together(numbers).update(grad, scale)
        for number in numbers:
            unread = self._unread[number]
            unread[:] = [None] * len(unread)

    def _together(self, numbers: tuple[int, ...]) -> Replicas:
        """Return the replicas ``numbers``, made contiguous first."""
        found = self._replicas.get(numbers)
        if found is None:
            self._scatter(numbers)
            shards = [self.shards[number] for number in numbers]
            found = self._replicas[numbers] = Replicas(shards, self.optimizer)
        return found

    def _scatter(self, numbers: Collection[int]) -> None:
        """Remove ``numbers`` from contiguous replicas."""
        gone = {*numbers}
        for known in [each for each in self._replicas if not gone.isdisjoint(each)]:
            del self._replicas[known]

    def _update(
        self, number: int, grad: Gradient, scale: float, added: Array | None = None
    ) -> None:
        shard = self.shards[number]
        shard.update(grad, scale, added)
        for worker, unread in enumerate(self._unread.get(number, ())):
            if not isinstance(grad, RowSparse):
                self._unread[number][worker] = None
            elif unread is not None:
                unread.append(grad.indices)
                if sum(map(len, unread)) > shard.rows:
                    self._unread[number][worker] = None

    def _apply_complete(self) -> None:
        """Apply the steps that all workers have finished."""
        while self._applied < self.progress.least:
            step = self._steps.pop(self._applied, None)
            if step is not None:
                self._apply(step)
            self._applied += 1
            if self._snapshots is not None and self._snapshots.due(self._applied):
                self.write_snapshot()

    def _apply(self, step: _Step) -> None:
        factors, scale = _factors(step.weights)
        self._split_where_mixed(step)
        for number, by_worker in sorted(step.grads.items()):
            shape = self.shards[number].values.shape
            self._update(number, *_sum(shape, _weighed(by_worker, factors), scale))
        for numbers, by_worker in sorted(step.flat.items()):
            whole = self._together(numbers).values.shape
            total, factor, _ = _sum(whole, _weighed(by_worker, factors), scale)
            assert not isinstance(total, RowSparse)
            self._update_flat(numbers, total, factor)

    def _split_where_mixed(self, step: _Step) -> None:
        """Split flat gradients of shards that also have separate ones: each shard has one update.

        A worker sends separate gradients if a gradient does not exist, or has rows for the first
        time.
        """
        seen = [number for numbers in step.flat for number in numbers]
        if len({*seen}) == len(seen) and step.grads.keys().isdisjoint(seen):
            return
        for numbers, by_worker in step.flat.items():
            replicas = self._together(numbers)
            for worker, given in by_worker.items():
                for grad, _ in given:
                    assert not isinstance(grad, RowSparse)
                    for number, part in zip(numbers, replicas.parts(grad), strict=True):
                        step.grads[number][worker].append((part, None))
        step.flat.clear()

    def write_snapshot(self) -> None:
        """Write a snapshot now. Errors: `FileAccessError`."""
        if self._snapshots is not None:
            self._snapshots.write(self._applied, self.shards.values(), self.optimizer)

    # -- answers ----------------------------------------------------------------------------------

    def _answer(self, worker: int, message: Message) -> Message:
        arrays = _ANSWERS[message.kind](self, worker, message)
        load = self.loads[message.kind]
        for array in arrays:
            load.bytes_out += array.nbytes
        return _answered(message, arrays)

    def _new_values(self, worker: int, message: Message) -> list[Array]:
        layout, found = message.arrays[0].copy(), []
        numbers = tuple(layout[:, 0].tolist())
        replicas = self._replicas.get(numbers)
        by_number = [self._unread[number] for number in numbers]
        if replicas is not None and all(each[worker] is None for each in by_number):
            for each in by_number:
                each[worker] = []
            layout[:, 1] = FLAT
            return [layout, replicas.values]
        for row in layout:
            number = int(row[0])
            unread, shard = self._unread[number][worker], self.shards[number]
            self._unread[number][worker] = []
            if unread is None:
                row[1] = DENSE
                found.append(shard.values)
            elif unread:
                row[1] = ROWS
                rows = np.unique(np.concatenate(unread))
                found += [rows, shard.values[rows]]
            else:
                row[1] = NOTHING
        return [layout, *found]

    def _pulled(self, worker: int, message: Message) -> list[Array]:
        return list(self.shards[message.subject].pull(message.arrays[0]))

    def _newer(self, worker: int, message: Message) -> list[Array]:
        rows, clocks, bound = message.arrays
        return list(self.shards[message.subject].newer(rows, clocks, int(bound[0])))

    def _write(self, worker: int, message: Message) -> list[Array]:
        self.shards[message.subject].write(*message.arrays)
        return []

    def _put(self, worker: int, message: Message) -> list[Array]:
        shard = self.shards[message.subject]
        shard.values[...] = message.arrays[0].reshape(shard.values.shape)
        if message.subject in self._unread:
            self._unread[message.subject] = [None] * len(self.progress.finished)
        return []

    def _state(self, worker: int, message: Message) -> list[Array]:
        return [pickled(self.optimizer.state_dict())]

    def _load(self, worker: int, message: Message) -> list[Array]:
        self.optimizer.load_state_dict(unpickled(message.arrays[0]))
        for shard in self.shards.values():
            shard.keep_state()
        return []

    def _set(self, worker: int, message: Message) -> list[Array]:
        rule = UpdateChain(self.optimizer).rule
        for name, value in unpickled(message.arrays[0]).items():
            setattr(rule, name, value)
        return []

    def _nothing(self, worker: int, message: Message) -> list[Array]:
        return []

    def _loads(self, worker: int, message: Message) -> list[Array]:
        by_name = {kind.name.lower(): load for kind, load in self.loads.items()}
        return [pickled((by_name, self.progress.ahead))]


_PUSHES = (MessageKind.STEP, MessageKind.PUSH)
_READS = (MessageKind.STEP, MessageKind.PULL, MessageKind.NEWER)
_OF_ROWS = (MessageKind.PUSH, MessageKind.PULL, MessageKind.NEWER, MessageKind.WRITE)
_ANSWERS: dict[MessageKind, Callable[[Service, int, Message], list[Array]]] = {
    MessageKind.STEP: Service._new_values,
    MessageKind.PULL: Service._pulled,
    MessageKind.PUSH: Service._nothing,
    MessageKind.NEWER: Service._newer,
    MessageKind.PUT: Service._put,
    MessageKind.WRITE: Service._write,
    MessageKind.STATE: Service._state,
    MessageKind.LOAD: Service._load,
    MessageKind.LOADS: Service._loads,
    MessageKind.SET: Service._set,
}


def _answered(message: Message, arrays: Sequence[Array] = ()) -> Message:
    _, number, service, subject, need, _ = message
    return Message(MessageKind.DONE, number, service, subject, need, arrays)


def _failure(worker: int, message: Message, error: Exception) -> tuple[int, Message]:
    return worker, failed(message, error)


def failed(message: Message, error: Exception) -> Message:
    """Return the answer to ``message`` that reports ``error``."""
    return message._replace(kind=MessageKind.FAILED, arrays=[pickled(str(error))])


def _factors(weights: Mapping[int, float | None]) -> tuple[dict[int, float], float]:
    """Return the factors of the workers' gradients, and the factor of their sum.

    Equal weights are factors of 1, which need no product; None is the weight of a sum.
    """
    found = {worker: weight or 0.0 for worker, weight in weights.items()}
    if None in weights.values():
        return dict.fromkeys(weights, 1.0), 1.0
    if len(set(found.values())) == 1 and min(found.values()) > 0:
        return dict.fromkeys(weights, 1.0), 1.0 / len(found)
    # If nothing counts, the sums are zeros.
    return found, 1.0 / (sum(found.values()) or 1.0)


def _weighed(
    by_worker: Mapping[int, Sequence[tuple[Gradient, Array | None]]], factors: Mapping[int, float]
) -> list[tuple[Gradient, float, Array | None]]:
    return [
        (grad, factors[worker], added)
        for worker, given in sorted(by_worker.items())
        for grad, added in given
    ]


def _sum(
    shape: Shape, weighed: Sequence[tuple[Gradient, float, Array | None]], scale: float
) -> tuple[Gradient, float, Array | None]:
    """Return Σ weight · gradient, as rows if all are rows, and the growth of clocks."""
    if all(isinstance(grad, RowSparse) for grad, _, _ in weighed):
        rows = np.concatenate([grad[0] for grad, _, _ in weighed])
        parts = [grad[1].reshape(-1, *shape[1:]) for grad, _, _ in weighed]
        parts = [_times(part, weight) for part, (_, weight, _) in zip(parts, weighed, strict=True)]
        added = None
        if any(each is not None for _, _, each in weighed):
            counts = [np.ones(len(g[0]), np.int64) if c is None else c for g, _, c in weighed]
            found, inverse = np.unique(rows, return_inverse=True)
            added = np.bincount(inverse, np.concatenate(counts), len(found)).astype(np.int64)
        return RowSparse(*numpy_ops.sum_rows(rows, np.concatenate(parts))), scale, added
    total: Array | None = None
    for grad, weight, _ in weighed:
        if isinstance(grad, RowSparse):
            grad = dense_gradient(numpy_ops, grad, shape)
        part = _times(grad.reshape(shape), weight)
        # A product of arrays without axes is a scalar.
        total = np.array(part) if total is None else np.add(total, part, out=total)
    assert total is not None
    return total, scale, None


def _times(array: Array, weight: float) -> Array:
    return array if weight == 1.0 else array * array.dtype.type(weight)


_REQUEST, _ANSWER = "a question of a worker", "an answer"


def serve(ranks: ServerRanks) -> None:
    """Answer the workers until all of them have ended; the program of a server rank."""
    Server(ranks).run()


class Server:
    """A server among ``ranks``, with its services."""

    def __init__(self, ranks: ServerRanks) -> None:
        self._ranks, self._world = ranks, ranks.world
        self._post = Post(ranks.world, ANSWER)
        self._workers = {rank: worker for worker, rank in enumerate(ranks.workers)}
        self.services: dict[int, Service] = {}

    def run(self) -> None:
        """Answer the workers until all of them have ended."""
        # Workers may compute or evaluate for any time.
        self._world.deadline = float("inf")
        sources = self._ranks.workers
        while (came := self._world._next_message(sources, ASK, what=_REQUEST)) is not None:
            for message in parsed(came[1]):
                self._take(self._workers[came[0]], message)
            self._post.send(_ANSWER)
        self._post.flush()

    def _take(self, worker: int, message: Message) -> None:
        try:
            if message.kind is MessageKind.OPEN:
                self._send(worker, self._opened(message))
                return
            answers = self.services[message.service].take(worker, message)
        except SingaNetError as error:
            self._send(worker, failed(message, error))
            return
        for to, answer in answers:
            self._send(to, answer)

    def _send(self, worker: int, answer: Message) -> None:
        self._post.give(answer, self._ranks.workers[worker], _ANSWER)

    def _opened(self, message: Message) -> Message:
        """Open the service, or list its snapshots."""
        try:
            opening: Opening = unpickled(message.arrays[0])
        except Exception as error:  # noqa: BLE001 - reported to the worker
            return failed(message, error)
        own, servers = self._ranks.ranks.index(self._world.rank), len(self._ranks.ranks)
        snapshots = None
        if opening.snapshots is not None:
            where = opening.snapshots, message.service, own, servers, opening.every
            snapshots = Snapshots(*where)
        if opening.held is None:
            steps = [] if snapshots is None else snapshots.steps()
            return message._replace(kind=MessageKind.DONE, arrays=[pickled(steps)])
        if message.service in self.services:
            self.services[message.service].hold(opening)
        else:
            self.services[message.service] = Service(opening, len(self._workers), snapshots)
        return message._replace(kind=MessageKind.DONE, arrays=[])
