"""Parameters on servers: workers push gradients there, and pull values that the rule has made."""

from __future__ import annotations

import time
import zlib
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from singanet.base.arguments import checked_count
from singanet.engine.model import NetCore
from singanet.errors import ArgumentError, UnknownNameError, did_you_mean, one_of
from singanet.ops import ops_for
from singanet.optimizer.chain import UpdateChain
from singanet.optimizer.checks import Grad, check_lists
from singanet.optimizer.clip_by_global_norm import ClipByGlobalNorm
from singanet.optimizer.global_norm import norm_of
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.reducer import Reduction, Traffic
from singanet.optimizer.scale import Scale
from singanet.optimizer.wrapper import Handed, Wrapper
from singanet.parallel.cached.lines import CachedRows
from singanet.parallel.cached.rows import Lookups, TableRows
from singanet.parallel.cached.serve import looks_at_gradients_alone, serve
from singanet.parallel.communicators.communicator import Communicator, Exchanged, Request
from singanet.parallel.reductions.rank_reducer import RankReducer
from singanet.parallel.reductions.registration import apart, spread
from singanet.parallel.reductions.round import Announcement, Round, announced
from singanet.parallel.server.messages import ServerRanks
from singanet.parallel.server.remote import Files, Servers
from singanet.parallel.server.service import DENSE, NOTHING, ROWS, Load
from singanet.parallel.server.table import Table
from singanet.parallel.start import servers as servers_of_job
from singanet.parallel.taking import Taking
from singanet.params.param import Param
from singanet.params.served import served_by
from singanet.params.store import BUCKET, SMALL
from singanet.types import Array, RowSparse

_PREVIEWED = 4
"""Sums of gradients under way at a time, for a norm."""

Consistency: TypeAlias = Literal["asp", "bsp", "ssp"]


class ParameterServer(RankReducer):
    """Updates on servers, by ``optimizer`` as it is there: each with some of the parameters.

    With "bsp" the gradients of a step, weighed by samples, are one update, for which all workers
    wait: p workers train as one process. With "asp" each worker's are an update of their own at
    once, and it waits for nobody. "ssp" is as that, but no worker is more than ``staleness`` steps
    ahead of the slowest one. A worker pushes while the walk back goes on, and in `end` pulls what
    is new. Of Embeddings it has no more than rows: those that a batch looks up, pulled before and
    pushed after, or those of their `layers.Cache`. Where stages around look at their values, it
    has all of them, and pulls the rows that anybody has changed.

    ``snapshots`` is a folder in which every server writes its part after each ``every`` steps,
    and from which a job begins, with ``restored`` steps. Clipping by value belongs inside, with
    "bsp" by the global norm, too, for which the workers sum their gradients; accumulation outside.
    ``comm`` are the workers and ``servers`` who serves them, by default as
    ``singanet launch --servers`` says; a lone process without servers trains by itself.
    """

    comm: Communicator

    def __init__(
        self,
        optimizer: Optimizer | Wrapper,
        consistency: Consistency = "bsp",
        staleness: int | None = None,
        comm: Communicator | None = None,
        servers: ServerRanks | None = None,
        snapshots: str | Path | None = None,
        every: int = 100,
    ) -> None:
        super().__init__(optimizer, comm)
        self.arguments.pop("servers", None)
        self.consistency, self.staleness = consistency, _staleness(consistency, staleness)
        self.snapshots = None if snapshots is None else Path(snapshots)
        self.every = checked_count("ParameterServer", "every", every, 1)
        self._ranks = servers_of_job() if comm is None and servers is None else servers
        self.rule = self._inside = optimizer
        self.traffic = Traffic()
        self.servers: Servers | None = None
        self._state: Mapping[str, Array] | None = None
        self._version = 0
        self._sparse: set[str] = set()
        self._entries: list[list[Param]] = []
        self._given: dict[str, tuple[Any, Scale]] = {}
        self._served: list[tuple[str, Array, Grad, float]] = []
        self._flying: dict[int, Request] = {}
        self._rows: dict[str, TableRows] = {}
        self._pulled: dict[str, int] = {}
        self._stale = True
        self._began, self._told = 0.0, Exchanged(0, 0)
        self._clip: _ClippedPush | None = None
        stages = UpdateChain(optimizer).stages
        clip = stages[0] if stages and consistency == "bsp" else None
        if not isinstance(clip, ClipByGlobalNorm):
            clip = None
        for stage in stages if clip is None else stages[1:]:
            if stage.reads_gradients and not stage.by_element:
                kind = type(stage).__name__
                raise ArgumentError(
                    f"{kind} in ParameterServer",
                    expected="ClipByValue: a server sees some of the gradients, and one at a time;"
                    " or ClipByGlobalNorm around all, with 'bsp'",
                    received=kind,
                    advice="clip by one of these, or train by AllReduce",
                )
        if self._ranks is not None:
            self._ranks.expect_workers("ParameterServer", self.comm)
            self._told = self._ranks.world.exchanged
            self.rule = optimizer if clip is None else clip.optimizer
            self.optimizer = Taking(self.rule)
            if clip is not None:
                self.optimizer = self._clip = _ClippedPush(self.optimizer, clip.max_norm)
        elif self.comm.size > 1:
            raise ArgumentError(
                "ParameterServer",
                expected="ranks that serve",
                received=f"{self.comm.size} workers",
                advice="start it by singanet launch -n 3 --servers 1, or train by AllReduce",
            )

    @property
    def alone(self) -> bool:
        return self._ranks is None

    @property
    def inside(self) -> Optimizer | Wrapper:
        return self._inside

    @property
    def restored(self) -> int:
        """The steps that had been taken by the snapshot that the servers began from, 0 for none."""
        return (self.servers and self.servers.restored) or 0

    def around(self, optimizer: Optimizer | Wrapper) -> ParameterServer:
        chain = UpdateChain(optimizer)
        stages, inner = chain.stages, chain.rule
        if isinstance(inner, Taking):
            if stages:
                stages[-1].optimizer = inner.rule
            else:
                optimizer = inner.rule
        where = self.comm, self._ranks, self.snapshots, self.every
        return type(self)(optimizer, self.consistency, self.staleness, *where)

    def meet(self, net: NetCore, around: Sequence[Wrapper] = ()) -> None:
        """As `Reducer`. The parameters of rank 0, or of a snapshot, become those of all.

        Errors: as `RankReducer`; `ArgumentError` for clipping around, and for mixed precision
        around clipping by the global norm.
        """
        self._expect_outside(around)
        if self._clip is not None and any(stage.holds_all for stage in around):
            raise ArgumentError(
                "ParameterServer and ClipByGlobalNorm",
                expected="one precision, as each worker skips steps of its own in mixed precision",
                received="mixed precision, and a norm that all workers sum up",
                advice="leave one of them out, or train by AllReduce",
            )
        if self._ranks is None:
            self.met(net, around)
            return
        if self.is_new(net, around):
            self._serve(net, around, self._ranks)
        if self.met(net, around):
            self._open()

    def _serve(self, net: NetCore, around: Sequence[Wrapper], ranks: ServerRanks) -> None:
        """Let servers have the rows of Embeddings, but where stages around look at their values."""
        if self.servers is None:
            summed, files = self.consistency == "bsp", Files(None, self.snapshots, self.every)
            staleness = 0 if summed else self.staleness
            self.servers = Servers(self.comm, ranks, self.rule, staleness, summed, files)
        servers = self.servers

        def tables_of(params: Sequence[Param]) -> Mapping[str, Table]:
            servers.open([], params, anew=self._state is not None)
            return servers.tables

        def wrote() -> bool:
            return self.comm.rank > 0 or servers.restored is not None

        # The norm is of rows, too.
        if self._clip is None and all(map(looks_at_gradients_alone, around)):
            self._rows = serve(net, UpdateChain(self.rule).rule, tables_of, wrote)

    def _begin_alike(self, net: NetCore) -> None:
        trained = self._order.by_name
        apart(self.comm, net.rng)
        others = (p for p in net.params() if p.name not in trained and not p.storage.by_rows)
        spread(self.comm, ((p.name, p.value) for p in others if not p.is_constant))

    def _open(self) -> None:
        servers = self._expect_servers()
        params = self._order.params
        replicas = [(p, ops_for(p.value).host(self._held(p))) for p in params]
        servers.open(replicas, anew=self._state is not None)
        if self._state is not None and self.comm.rank == 0:
            servers.load_state_dict(self._state)
        self._state = None
        self._group()
        self._pull()

    def _group(self) -> None:
        """Put small parameters of one server together, and each with rows by itself."""
        servers = self._expect_servers()
        self._version += 1
        waiting: dict[int, list[Param]] = {}
        self._entries = []
        for param in self._order.params:
            nbytes = self._order.like(param).nbytes
            if param.name in self._sparse or nbytes > SMALL:
                self._entries.append([param])
                continue
            key = servers.replicas[param.name].server
            group = waiting.setdefault(key, [])
            group.append(param)
            types = {self._order.like(each).dtype for each in group}
            if len(types) > 1:
                group.pop()
                self._entries.append(waiting.pop(key))
                waiting[key] = [param]
            elif sum(self._order.like(each).nbytes for each in group) > BUCKET:
                self._entries.append(waiting.pop(key))
        self._entries += waiting.values()
        place = {param.name: k for k, param in enumerate(self._order.params)}
        self._entries.sort(key=lambda entry: place[entry[-1].name])

    # -- a step by the layers ---------------------------------------------------------------------

    def update(
        self,
        names: Sequence[str],
        values: Sequence[Array],
        grads: Sequence[Grad],
        scale: float = 1.0,
    ) -> None:
        """As `Optimizer.update`, in `end`; ``grads`` may be let go at once.

        Errors: `CallOrderError` before `meet` or `begin`.
        """
        if self.alone:
            self.optimizer.update(names, values, grads, scale)
            return
        check_lists("ParameterServer", names, values, grads)
        self._expect_begun()
        if self._clip is not None:
            scale = self._clip.of_push(scale)
        for name, value, grad in zip(names, values, grads, strict=True):
            if grad is not None and served_by(value) is not None:
                self._served.append((name, value, grad, scale))
            elif grad is not None:
                self._given[name] = grad, scale
        for number, entry in enumerate(self._entries):
            if number not in self._flying and all(p.name in self._given for p in entry):
                self._start(number)

    def end(self) -> None:
        """As `Wrapper.end`: what was not given counts as zeros, and new values are there."""
        if self.alone:
            return
        self._expect_begun()
        for number in range(len(self._entries)):
            if number not in self._flying:
                self._start(number)
        served, self._served = self._served, []
        for name, value, grad, scale in () if self._without_step else served:
            self.optimizer.update([name], [value], [grad], scale)
        self._finish()
        for number, entry in enumerate(self._entries):
            found = self._land(number)
            params = [param for param in entry if param.name in found]
            if params:
                names = [param.name for param in params]
                news = [found[name] for name in names]
                self._hand_on(names, [param.value for param in params], news, 1.0)
        self._ended()

    @property
    def _without_step(self) -> bool:
        """Whether nothing that this worker has is to be updated by, though a rule moves by zeros.

        With "bsp" a step is of all workers: rows that only this one looked up are among it.
        """
        return self._count == 0 and self.consistency != "bsp"

    def _start(self, number: int) -> None:
        """Push the gradients of an entry, and ask for what is new."""
        given = [self._given.pop(param.name, (None, 1.0)) for param in self._entries[number]]
        rows = {p.name for p, (g, _) in zip(self._entries[number], given, strict=True) if _rows(g)}
        if not rows <= self._sparse:
            self._sparse |= rows
        self._send(number, [_scaled(grad, scale) for grad, scale in given])

    def _send(self, number: int, grads: Sequence[Any]) -> None:
        servers = self._expect_servers()
        entry, arrays, layout = self._entries[number], [], []
        none = self._without_step
        for param, grad in zip(entry, grads, strict=True):
            how = NOTHING if grad is None or none else ROWS if _rows(grad) else DENSE
            layout.append((servers.replicas[param.name].number, how))
            if how != NOTHING:
                arrays += list(grad) if how == ROWS else [grad]
        if not self._flying:
            self._began = time.perf_counter()
        self.traffic.sums += 1
        self.traffic.nbytes += sum(array.nbytes for array in arrays)
        server = servers.replicas[entry[0].name].server
        host = [np.ascontiguousarray(ops_for(array).host(array)) for array in arrays]
        self._flying[number] = servers.start_step(server, np.array(layout, np.int64), host)

    def _finish(self) -> None:
        """Say that all gradients of this step were pushed."""
        servers = self._expect_servers()
        servers.follow()
        servers.finish(self._count)

    def _land(self, number: int) -> dict[str, Any]:
        """What is new of the parameters of an entry, by name: values, or some rows of them."""
        began = time.perf_counter()
        layout, *arrays = self._flying.pop(number).wait()
        self.traffic.waited += time.perf_counter() - began
        found: dict[str, Any] = {}
        rest = iter(arrays)
        for param, (_, how) in zip(self._entries[number], layout.tolist(), strict=True):
            xp = ops_for(param.value).xp
            if how == DENSE:
                found[param.name] = xp.asarray(next(rest)).reshape(param.shape)
            elif how == ROWS:
                found[param.name] = RowSparse(xp.asarray(next(rest)), xp.asarray(next(rest)))
        return found

    def _count_exchanged(self) -> None:
        """Let what was said to servers be among what this worker has said."""
        assert self._ranks is not None
        now = self._ranks.world.exchanged
        told = now.since(self._told)
        host: Communicator = getattr(self.comm, "control", self.comm)
        host.bytes_sent += told.sent
        host.bytes_received += told.received
        self._told = now

    def _ended(self) -> None:
        self._count_exchanged()
        self._said = False
        self.comm.step += 1
        if any(
            len(entry) > 1 and self._sparse & {p.name for p in entry} for entry in self._entries
        ):
            self._group()

    # -- as `Reducer` -----------------------------------------------------------------------------

    def reduction(self) -> Reduction | None:
        """As `Reducer`: what it finishes are values, which the rule inside here takes."""
        if self.alone or not self._met or self._clip is not None:
            return None
        from_servers: Reduction = _FromServers(self)
        return from_servers

    def case(self) -> Hashable:
        """As `Wrapper.case`: which parameters travel together."""
        return self._version

    def previewed(self, items: Iterable[Any]) -> Iterator[Any]:
        """As `Reducer`: the rank's own; where a norm clips, the sums of all."""
        if self._clip is None:
            yield from items
            return
        self._expect_begun()
        weight = 1.0 if self._count is None else self._count
        yield from self._preview(announced(self.comm, "preview", self._count), weight).sums(items)

    def _preview_of_others(self) -> None:
        """Take part in the sums that others clip by, until nobody has any."""
        while self._clip is not None:
            heard = announced(self.comm, "")
            if not heard.wait().kind:
                return
            norm_of(self._preview(heard, 0.0).sums(()))

    def _preview(self, heard: Announcement, weight: float) -> Round:
        return Round(self.comm, self._order, _PREVIEWED, None, heard, weight, self.traffic)

    def agree(self, refused: str | None) -> str | None:
        """As `Reducer`: each rank takes its own steps; one that is refused has no gradients."""
        if refused is not None and not self.alone:
            self._count = 0.0
            self.end()
        return refused

    def shares(self, samples: float, counts: Mapping[str, float | None]) -> Mapping[str, float]:
        """As `Reducer`. Errors: `ArgumentError` where workers are to be one process."""
        if self.alone or self.consistency != "bsp":
            return {}
        raise ArgumentError(
            f"{type(self).__name__}, the loss of several outputs",
            expected="losses that weigh alike, as workers tell each other nothing within a step",
            received=f"losses of {one_of(counts)} that ignore labels or steps, or that are sums",
            advice="train by AllReduce, or let consistency be 'ssp' or 'asp'",
        )

    def join(self) -> None:
        """As `Reducer`: others go on without this rank. Errors: `CallOrderError` before `meet`."""
        if self.alone:
            return
        self._expect_met()
        self._expect_servers().leave(self._preview_of_others)
        self._pull()

    def unify(self, net: Any, samples: float = 1.0) -> None:
        """As `Reducer`: all have the values that the servers have."""
        if not self.alone and self._met:
            if any(isinstance(rows, CachedRows) for rows in self._rows.values()):
                for rows in self._rows.values():
                    rows.flush()
                # What caches had gathered is a step of its own.
                self._expect_servers().finish(1.0)
            self.comm.barrier("values that are the same on all ranks")
            if self._stale:
                self._pull()
        super().unify(net, samples)

    def begin(self, count: float | None) -> float | None:
        """As `Wrapper.begin`. What rank 0 changed since all had the same goes to the servers."""
        super().begin(count)
        if self.servers is None or self._stale:
            return count
        self._stale = True
        asked = [
            self.servers.start_put(param.name, ops_for(held).host(held))
            for param, held in ((p, self._held(p)) for p in self._order.params)
            if self.comm.rank == 0 and _digest(held) != self._pulled[param.name]
        ]
        for each in asked:
            each.wait()
        return count

    def _pull(self) -> None:
        """Let parameters be what they are on the servers now; all ranks come here."""
        servers = self._expect_servers()
        for number, entry in enumerate(self._entries):
            known = [servers.replicas[param.name] for param in entry]
            layout = np.array([(each.number, NOTHING) for each in known], np.int64)
            self._flying[number] = servers.start_step(known[0].server, layout, now=True)
        for number, entry in enumerate(self._entries):
            landed = self._land(number)
            for param in (each for each in entry if each.name in landed):
                self._put(param, landed[param.name])
        self._stale = False
        self._pulled = {p.name: _digest(self._held(p)) for p in self._order.params}
        self.comm.barrier("values that all ranks have")

    def _put(self, param: Param, news: Any) -> None:
        """Let ``param`` be as a server has it, which is no update."""
        names, values = [param.name], [param.value]
        for stage in self._around:
            stage.refresh(names, values)
        where, what = news if _rows(news) else (slice(None), news)
        target = self._held(param)
        target[where if target.ndim else ()] = what
        for stage in reversed(self._around):
            stage.written(names, values)

    def _held(self, param: Param) -> Array:
        """What the servers have of ``param``, as it is here."""
        return self.settled(param.name, param.value)

    def prefetch(self, ids: Mapping[str, Array]) -> None:
        """Begin to pull the rows that the next step looks up, by the names of their parameters.

        Call it before the step that is to go by meanwhile. Values are as without it.
        """
        for name, looked_up in ids.items():
            if name in self._rows:
                self._rows[name].prefetch(looked_up)

    @property
    def lookups(self) -> dict[str, Lookups]:
        """By parameter, what training steps asked of its table."""
        return {name: rows.lookups for name, rows in self._rows.items()}

    def loads(self) -> list[dict[str, Load]]:
        """By server and function what was asked of it: calls, bytes, rows, seconds."""
        return self._expect_servers().loads()[0]

    def _expect_servers(self) -> Servers:
        self._expect_met()
        assert self.servers is not None
        return self.servers

    # -- saving -----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Array]:
        """The state of the optimizers on all servers."""
        if self.alone:
            return super().state_dict()
        if self._state is not None or self.servers is None:
            return dict(self._state or {})
        return self.servers.state_dict()

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Go on exactly where the one of the `state_dict` stood, from the next `meet` on.

        The values of rank 0 go to the servers then. All ranks have to do so.
        """
        if self.alone:
            super().load_state_dict(state)
            return
        self._state, self._met = dict(state), ()
        # Here nothing is kept of it but how far it is, which the rate goes by.
        for key, array in state.items():
            name, _, slot = key.rpartition("/")
            if slot == "step" and name:
                UpdateChain(self.optimizer).rule.state(name).step = int(array)


class _ClippedPush(ClipByGlobalNorm):
    """Clips what a worker pushes; what comes to the rule inside here are values."""

    def of_push(self, scale: float) -> float:
        """What gradients are multiplied by where ``scale`` was said. Errors: no norm is known."""
        ((_, _, _, clipped),) = super().take((), (), (), scale)
        return float(clipped)

    def take(
        self,
        names: Sequence[str],
        values: Sequence[Array],
        grads: Sequence[Grad],
        scale: Scale,
    ) -> Iterator[Handed]:
        yield names, values, grads, scale


class _FromServers(Reduction):
    """Buffers of gradients go to the servers, and come back with values."""

    factor = share = 1.0
    rows_first = True
    under_way = False

    def __init__(self, owner: ParameterServer) -> None:
        self._owner, self.rank, self.traffic = owner, owner.comm.rank, owner.traffic
        self.entries: Sequence[Sequence[str]] = [
            [param.name for param in entry] for entry in owner._entries
        ]
        self.window = len(self.entries)
        self.sparse = frozenset(owner._sparse)
        self._finished = False

    def like(self, name: str) -> Array:
        order = self._owner._order
        return order.like(order.by_name[name])

    def open(self, kind: str) -> None:
        """As `Reduction`. Errors: `CallOrderError` before `begin`."""
        self._owner._expect_begun()
        self._finished = False

    def start(self, entry: int, buffer: Array, scales: Sequence[Scale]) -> None:
        parts = self._parts(entry, buffer)
        self._owner._send(entry, [_scaled(*each) for each in zip(parts, scales, strict=True)])

    def start_rows(self, entry: int, grad: RowSparse, scale: Scale) -> None:
        self._owner._send(entry, [_scaled(grad, scale)])

    def test(self) -> None:
        for request in list(self._owner._flying.values()):
            request.test()

    def finish(self, entry: int, buffer: Array) -> None:
        """As `Reduction`: values that are not new are those that there are."""
        found = self._landed(entry)
        for name, part in zip(self.entries[entry], self._parts(entry, buffer), strict=True):
            new: Any = found.get(name)
            old = self._owner._held(self._owner._order.by_name[name])
            part[...] = old if new is None or _rows(new) else new
            if _rows(new):
                part[new[0]] = new[1]

    def finish_rows(self, entry: int) -> RowSparse:
        """As `Reduction`: the rows that are new."""
        ((name, new),) = self._landed(entry).items() or ((self.entries[entry][0], None),)
        like = self.like(name)
        if new is None:
            return RowSparse(np.empty(0, np.int64), np.empty((0, *like.shape[1:]), like.dtype))
        return new if isinstance(new, RowSparse) else RowSparse(np.arange(len(new)), new)

    def close(self, kind: str) -> None:
        self._owner._ended()

    def _landed(self, entry: int) -> dict[str, Any]:
        if not self._finished:
            self._finished = True
            self._owner._finish()
        return self._owner._land(entry)

    def _parts(self, entry: int, buffer: Array) -> list[Array]:
        likes = [self.like(name) for name in self.entries[entry]]
        ends = np.cumsum([0, *(like.size for like in likes)]).tolist()
        pairs = zip(likes, ends, strict=False)
        return [buffer[at : at + like.size].reshape(like.shape) for like, at in pairs]


def _staleness(consistency: str, staleness: int | None) -> int | None:
    known = ("asp", "bsp", "ssp")
    if consistency not in known:
        raise UnknownNameError(
            "ParameterServer(consistency=)",
            expected=one_of(known),
            received=repr(consistency),
            advice=did_you_mean(str(consistency), known, "bsp trains as one process"),
        )
    if (consistency == "ssp") != (staleness is not None):
        raise ArgumentError(
            "ParameterServer(staleness=)",
            expected="a number of steps with consistency='ssp', and only there",
            received=f"{staleness} with {consistency!r}",
            advice="write consistency='ssp', staleness=3",
        )
    return (
        None if staleness is None else checked_count("ParameterServer", "staleness", staleness, 0)
    )


def _digest(array: Array) -> int:
    return zlib.crc32(ops_for(array).host(array).tobytes())


def _rows(grad: Any) -> bool:
    return isinstance(grad, tuple)


def _scaled(grad: Any, scale: Scale) -> Any:
    factor = float(scale)
    if grad is None or factor == 1.0:
        return grad
    if isinstance(grad, tuple):
        return RowSparse(grad[0], grad[1] * grad[1].dtype.type(factor))
    return grad * grad.dtype.type(factor)
