"""The worker's interface to the tables of parameter servers."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from singanet.base.collectives import of_first
from singanet.errors import ArgumentError, SingaNetError
from singanet.initializer import Constant
from singanet.optimizer.chain import UpdateChain
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.wrapper import Wrapper, rule_of
from singanet.parallel.communicators.communicator import Communicator, Request, joint
from singanet.parallel.server.messages import Message, MessageKind, ServerRanks, pickled, unpickled
from singanet.parallel.server.parameter_table import ServedTable
from singanet.parallel.server.service import Load, Opening, ServedParam
from singanet.params.param import Param
from singanet.types import Array

Way: TypeAlias = Literal["hash", "range"]


@dataclass(frozen=True)
class RowSplit:
    """The split of ``rows`` over ``servers``: "hash" (row i on server i mod p) or "range".

    Frequent ids are often neighbours, which "hash" distributes.
    """

    rows: int
    servers: Sequence[int]
    way: Way = "hash"

    def owned(self) -> Iterator[tuple[int, slice]]:
        """Yield each server and its rows."""
        count = len(self.servers)
        for k, server in enumerate(self.servers):
            if self.way == "hash":
                yield server, slice(k, None, count)
            else:
                yield server, slice(self.rows * k // count, self.rows * (k + 1) // count)

    def places(self, rows: Array) -> Iterator[tuple[int, Array | slice, Array]]:
        """Yield each server, the positions of its rows in ``rows``, and their row numbers on it."""
        count = len(self.servers)
        if count == 1:
            yield self.servers[0], slice(None), rows
            return
        if self.way == "hash":
            owners, local = rows % count, rows // count
        else:
            starts = np.array([part.start for _, part in self.owned()])
            owners = np.searchsorted(starts, rows, "right") - 1
            local = rows - starts[owners]
        for k, server in enumerate(self.servers):
            found = np.flatnonzero(owners == k)
            yield server, found, local[found]


class Replica(NamedTuple):
    """A parameter that a server and all workers have whole: its number and its server."""

    number: int
    server: int


@dataclass(frozen=True)
class Files:
    """Folders of the servers: ``mapped`` for tables larger than memory, and ``snapshots``.

    Servers write snapshots after every ``every`` steps; a job starts from the last ones.
    """

    mapped: Path | None = None
    snapshots: Path | None = None
    every: int = 100


class Servers:
    """One optimizer on the servers, from the side of worker ``comm.rank`` of ``comm``.

    All workers construct it and `open` it at the same time. ``staleness`` k lets a worker be k
    steps ahead of the slowest one, None any number. With ``summed`` the weighed gradients of a step
    are one update, when all workers have pushed theirs.
    """

    def __init__(
        self,
        comm: Communicator,
        ranks: ServerRanks,
        optimizer: Optimizer | Wrapper,
        staleness: int | None = None,
        summed: bool = False,
        files: Files | None = None,
    ) -> None:
        self.comm, self.ranks, self.optimizer = comm, ranks, optimizer
        self.finished = 0
        self.restored: int | None = None
        self.replicas: dict[str, Replica] = {}
        self.tables: dict[str, RemoteTable] = {}
        files = files or Files()
        self._service = ranks.services
        ranks.services += 1
        where = files.mapped, files.snapshots, files.every
        self._opening = Opening(optimizer, staleness, summed, (), *where)
        self._count = 0
        self._sent: bytes | None = None
        # The sent hyper-parameters if all are numbers.
        self._numbers: dict[str, Any] | None = None
        self._known: frozenset[str] = frozenset()

    @property
    def servers(self) -> range:
        """The numbers of the servers."""
        return range(len(self.ranks.ranks))

    def open(
        self,
        replicas: Sequence[tuple[Param, Array]],
        tables: Sequence[Param] = (),
        split: Way = "hash",
        anew: bool = False,
    ) -> None:
        """Create parameters on the servers: ``replicas`` whole, ``tables`` split by rows.

        Replicas get the values of worker 0, and the servers draw the values of tables; a snapshot
        replaces both, unless ``anew``. All workers call it, and again for more parameters or for
        replicas with changed values. Errors: an optimizer that cannot be pickled.
        """
        held: dict[int, list[ServedParam]] = {server: [] for server in self.servers}
        load = dict.fromkeys(self.servers, 0)
        self._known = frozenset(self.replicas)
        for param, value in replicas:
            known = self.replicas.get(param.name)
            if known is None:
                known = Replica(self._next(), min(self.servers, key=lambda k: load[k]))
            load[known.server] += value.nbytes
            self.replicas[param.name] = known
            bare = self._bare(param, value.dtype, Constant(0.0))
            held[known.server].append(ServedParam(known.number, bare, replicated=True))
        for param in tables:
            number, bare = self._next(), self._bare(param, param.dtype, param.initializer)
            whole = not by_element(self.optimizer, param)
            servers = [min(self.servers, key=lambda k: load[k])] if whole else [*self.servers]
            made = RowSplit(param.shape[0], servers, split)
            for server, owned in made.owned():
                held[server].append(ServedParam(number, bare, owned))
            self.tables[param.name] = RemoteTable(self, param, number, made)
        if self.comm.rank == 0:
            self._send_to_all(held, replicas, anew)
        self.restored = of_first(self.comm, self.restored, "the snapshot of the servers")
        self.finished = self.finished or self.restored or 0

    def _send_to_all(
        self,
        held: Mapping[int, Sequence[ServedParam]],
        replicas: Sequence[tuple[Param, Array]],
        anew: bool,
    ) -> None:
        first, known = self._sent is None, self._known
        if self._opening.snapshots is not None and first and not anew:
            steps = [set(unpickled(a[0])) for a in self._all(MessageKind.OPEN, self._as_data(None))]
            self.restored = max(set.intersection(*steps), default=None)
        # Parameters opened later start from the snapshot, too; existing ones do not.
        fresh = not any(param.name in known for param, _ in replicas)
        restore = self.restored if fresh and not anew else None
        asked = [
            self._ask(server, MessageKind.OPEN, arrays=self._as_data(held[server], restore))
            for server in self.servers
        ]
        if restore is None:
            asked += [self.start_put(param.name, value) for param, value in replicas]
        for each in asked:
            each.wait()
        # The first message has the optimizer; later ones have changes of its hyper-parameters.
        self._sent = self._sent or self._hypers()

    def _bare(self, param: Param, dtype: Any, initializer: Any) -> Param:
        """Return ``param`` for the servers, without its values."""
        spec = UpdateChain(self.optimizer).rule._spec_of(param)
        made = Param(spec, param.shape, initializer, param.fans)
        made.dtype, made.seed = np.dtype(dtype), param.seed
        return made

    def _hypers(self) -> bytes:
        rule = rule_of(self.optimizer)
        now = {name: getattr(rule, name) for name in rule.hypers}
        if self._sent is not None and now == self._numbers:
            # A schedule may change inside, a number cannot.
            return self._sent
        self._numbers = now if all(type(value) in (int, float) for value in now.values()) else None
        return pickle.dumps(now)

    def follow(self) -> None:
        """Send the current hyper-parameters of worker 0 to the servers."""
        if self.comm.rank == 0 and self._sent != (now := self._hypers()):
            self._sent = now
            self._all(MessageKind.SET, [np.frombuffer(now, np.uint8)])

    def _as_data(
        self, held: Sequence[ServedParam] | None, restore: int | None = None
    ) -> list[Array]:
        opening = replace(self._opening, held=held, restore=restore)
        try:
            return [pickled(opening)]
        except SingaNetError:
            raise
        except Exception as error:
            raise ArgumentError(
                "an optimizer of servers",
                expected="an optimizer that pickle can serialize",
                received=f"{type(error).__name__}: {error}"[:200],
                advice="define its classes and functions in a module that servers can import",
            ) from error

    # -- steps ------------------------------------------------------------------------------------

    def start_step(
        self, server: int, layout: Array, arrays: Sequence[Array] = (), now: bool = False
    ) -> Request:
        """Push gradients of replicas on ``server``, and pull the new values for the next step.

        ``layout`` (n, 2) has the replicas' numbers and codes: no gradient (0), a dense one (1) or
        rows (2), which are two of ``arrays``. The answer has the same form, with new values;
        ``now`` does not wait for the step.
        """
        need = 0 if now else self.finished + 1
        given = [layout, *arrays]
        return self._ask(server, MessageKind.STEP, 0, need, given, "a step", later=not now)

    def finish(self, weight: float | None) -> None:
        """End the pushes of a step with ``weight`` samples of a mean, or None for a sum.

        The delayed requests of the step are sent, too.
        """
        arrays = [np.array([] if weight is None else [weight], np.float64)]
        for server in self.servers:
            more = server != self.servers[-1]
            self._ask(server, MessageKind.FINISH, arrays=arrays, later=more)
        self.finished += 1

    def leave(self, meanwhile: Callable[[], object]) -> None:
        """Let other workers continue until all have left; this one calls ``meanwhile``."""
        for each in [self._ask(server, MessageKind.LEAVE) for server in self.servers]:
            each.wait()
        meanwhile()
        steps = self.comm.all_reduce(np.array([self.finished]), "max", "the end of an epoch")
        self.finished = int(steps[0])

    # -- values and state -------------------------------------------------------------------------

    def start_put(self, name: str, values: Array) -> Request:
        """Replace the values of a replica, for the next pulls."""
        number, server = self.replicas[name]
        return self._ask(server, MessageKind.PUT, number, arrays=[np.ascontiguousarray(values)])

    def state_dict(self) -> dict[str, Array]:
        """Return the state of the optimizer from all servers."""
        found: dict[str, Array] = {}
        for server, (state,) in zip(self.servers, self._all(MessageKind.STATE), strict=True):
            for key, part in unpickled(state).items():
                table = self.tables.get(key.rpartition("/")[0])
                if table is None or part.ndim == 0 or len([*table.split.owned()]) == 1:
                    # A rule that does not work by rows, nor its state, has one server.
                    found[key] = part
                else:
                    whole = np.empty((table.rows, *part.shape[1:]), part.dtype)
                    found.setdefault(key, whole)[dict(table.split.owned())[server]] = part
        return found

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Load ``state`` into the optimizers of all servers, each its part."""
        asked = []
        for server in self.servers:
            part = {}
            for key, array in state.items():
                name = key.rpartition("/")[0]
                table = self.tables.get(name)
                owned = dict(table.split.owned()) if table is not None else {}
                if name in self.replicas and self.replicas[name].server != server:
                    continue
                if table is not None and server not in owned:
                    continue
                by_rows = table is not None and array.ndim and len(owned) > 1
                part[key] = array[owned[server]] if by_rows else array
            asked.append(self._ask(server, MessageKind.LOAD, arrays=[pickled(part)]))
        for each in asked:
            each.wait()

    def loads(self) -> tuple[list[dict[str, Load]], int]:
        """Return the load of each server, and the most steps that a worker was ahead."""
        answers = [unpickled(arrays[0]) for arrays in self._all(MessageKind.LOADS)]
        return [loads for loads, _ in answers], max(ahead for _, ahead in answers)

    # -- messages ---------------------------------------------------------------------------------

    def _next(self) -> int:
        self._count += 1
        return self._count

    def _all(self, kind: MessageKind, arrays: Sequence[Array] = ()) -> list[Any]:
        asked = [self._ask(server, kind, arrays=arrays) for server in self.servers]
        return [each.wait() for each in asked]

    def _ask(
        self,
        server: int,
        kind: MessageKind,
        subject: int = 0,
        need: int = 0,
        arrays: Sequence[Array] = (),
        what: str = "",
        later: bool = False,
    ) -> Request:
        message = Message(kind, 0, self._service, subject, need, arrays)
        what = what or f"{kind.name.lower().replace('_', ' ')} at a server"
        return self.ranks.ask(server, message, what, later)


class RemoteTable(ServedTable):
    """A table that is split over servers."""

    def __init__(self, servers: Servers, param: Param, number: int, split: RowSplit) -> None:
        self.name, self.split = param.name, split
        self.rows, self.width = param.shape[0], int(np.prod(param.shape[1:]))
        self.dtype = param.dtype
        self._servers, self._number = servers, number
        self._ahead: list[tuple[int, Array, Request]] = []

    def start_pull(self, rows: Array) -> Request:
        rows, now = self._checked(rows), self._servers.finished
        self._ahead = [each for each in self._ahead if each[0] >= now]
        for k, (due, known, request) in enumerate(self._ahead):
            if due == now and np.array_equal(known, rows):
                del self._ahead[k]
                return request
        return self._pulled(rows, 0)

    def prefetch(self, rows: Array) -> None:
        """Start to pull ``rows``; servers answer when this worker may start the next step."""
        rows = self._checked(rows)
        self._ahead.append((self._servers.finished + 1, rows, self._pulled(rows, 1)))

    def _pulled(self, rows: Array, ahead: int) -> Request:
        def merged(answers: Sequence[tuple[Array | slice, Any]]) -> tuple[Array, Array]:
            if len(answers) == 1 and isinstance(answers[0][0], slice):
                # A single server has all rows.
                values, clocks = answers[0][1]
                return values, clocks
            values = np.empty((len(rows), self.width), self.dtype)
            clocks = np.empty(len(rows), np.int64)
            for at, (some, counts) in answers:
                values[at], clocks[at] = some, counts
            return values, clocks

        parts = [(s, at, [local]) for s, at, local in self.split.places(rows) if len(local)]
        return self._start(MessageKind.PULL, parts, merged, ahead)

    def start_push(self, rows: Array, grads: Array, clocks_added: Array | None = None) -> Request:
        """Update ``rows``. Every server gets a message, as its rule counts the update, too."""
        rows = self._checked(rows)
        more = [] if clocks_added is None else [clocks_added]
        parts = [
            (server, at, [local, grads[at], *(each[at] for each in more)])
            for server, at, local in self.split.places(rows)
        ]
        return self._start(MessageKind.PUSH, parts, lambda _: None)

    def start_newer(self, rows: Array, clocks: Array, bound: int) -> Request:
        rows, most = self._checked(rows), np.array([bound], np.int64)
        parts = [
            (server, at, [local, clocks[at], most])
            for server, at, local in self.split.places(rows)
            if len(local)
        ]

        def merged(answers: Sequence[tuple[Array | slice, Any]]) -> tuple[Array, Array, Array]:
            numbers = np.arange(len(rows))
            found = [numbers[at][ahead] for at, (ahead, _, _) in answers]
            positions = np.concatenate(found) if found else numbers[:0]
            order = np.argsort(positions, kind="stable")
            empty = np.empty((0, self.width), self.dtype)
            values = np.concatenate([empty, *(each[1] for _, each in answers)])
            newer = np.concatenate([numbers[:0], *(each[2] for _, each in answers)])
            return positions[order], values[order], newer[order]

        return self._start(MessageKind.NEWER, parts, merged)

    def start_write(self, rows: Array, values: Array) -> Request:
        rows = self._checked(rows)
        parts = [
            (server, at, [local, values[at]])
            for server, at, local in self.split.places(rows)
            if len(local)
        ]
        return self._start(MessageKind.WRITE, parts, lambda _: None)

    def _start(
        self,
        kind: MessageKind,
        parts: Sequence[tuple[int, Array | slice, Sequence[Array]]],
        merged: Callable[[Any], Any],
        ahead: int = 0,
    ) -> Request:
        need = self._servers.finished + ahead
        what = f"{kind.name.lower().replace('_', ' ')} of {self.name}"
        # The answers of pushes and of prefetches are not needed at once.
        later = kind is MessageKind.PUSH or ahead > 0
        asked = [
            (at, self._servers._ask(server, kind, self._number, need, arrays, what, later))
            for server, at, arrays in parts
        ]
        requests = [request for _, request in asked]
        return joint(requests, lambda: merged([(at, request.wait()) for at, request in asked]))

    def _checked(self, rows: Array) -> Array:
        return super()._checked(rows).astype(np.int64, copy=False)


def by_element(optimizer: Optimizer | Wrapper, param: Param) -> bool:
    """Return True if updates of rows of ``param`` do not depend on the other rows."""
    chain = UpdateChain(optimizer)
    apart = all(stage.traits.reads in ("elements", "nothing") for stage in chain.stages)
    return chain.treats_alike(param) and apart
