"""Training with parameter servers."""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

from singanet.base import terms
from singanet.base.arguments import checked_count
from singanet.base.described import changes
from singanet.base.files import path_of
from singanet.base.terms import Terms
from singanet.engine.model import NetCore
from singanet.errors import ArgumentError, UnknownNameError, brief, did_you_mean, one_of
from singanet.ops import ops_for
from singanet.optimizer.chain import UpdateChain, norm_of
from singanet.optimizer.clipping import ClipByGlobalNorm
from singanet.optimizer.hyper import Scale
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.reducer import GradientRound, ReducerTraits, Traffic
from singanet.optimizer.state import Grad, ParamState, ParamUpdate
from singanet.optimizer.wrapper import Handed, Wrapper
from singanet.parallel.cached_rows import (
    CachedRows,
    Lookups,
    TableRows,
    serve,
)
from singanet.parallel.communicators.communicator import Communicator, Exchanged
from singanet.parallel.pushes import Pushes
from singanet.parallel.reductions.all_reduce import Round
from singanet.parallel.reductions.rank_reducer import RankReducer, apart, spread
from singanet.parallel.server.messages import ServerRanks
from singanet.parallel.server.parameter_table import ServedTable
from singanet.parallel.server.remote import Files, Servers
from singanet.parallel.server.service import Load
from singanet.params.param import Param, ParamSpec
from singanet.params.storage import served_by
from singanet.types import Array


class Taking(Optimizer):
    """w = g, for values that arrive in place of gradients: ``rule`` has computed them on a server.

    ``learning_rate`` is the learning rate of the rule.
    """

    hypers = ()

    def __init__(self, rule: Optimizer | Wrapper) -> None:
        self.rule = rule
        # The rule has the rate.
        super().__init__(None)

    @property
    def learning_rate(self) -> Any:
        """The learning rate of the rule elsewhere."""
        return UpdateChain(self.rule).rule.learning_rate

    @learning_rate.setter
    def learning_rate(self, rate: Any) -> None:
        if rate is not None:
            UpdateChain(self.rule).rule.learning_rate = rate

    lr = learning_rate

    def register(self, name: str, spec: ParamSpec) -> None:
        """Register the parameter with the rule on the servers."""
        self.rule.register(name, spec)

    def _spec_of(self, param: Param) -> ParamSpec:
        found: ParamSpec = UpdateChain(self.rule).rule._spec_of(param)
        return found

    def _settle_as(self, name: str, spec: ParamSpec) -> None:
        self.state(name)

    def numbers(
        self, state: ParamState, lr: float | None = None
    ) -> tuple[float, tuple[float, ...]]:
        """Return no numbers."""
        return 0.0, ()

    def _scalars(self, state: ParamState, rate: float) -> tuple[float, ...]:
        return ()

    def _sweep(self, update: ParamUpdate) -> None:
        update.value[...] = update.grad

    def _sweep_rows(self, indices: Array, update: ParamUpdate) -> None:
        update.value[indices] = update.grad


_PREVIEWED = 4
"""Sums of gradients in flight at a time, for a norm."""

Consistency: TypeAlias = Literal["asp", "bsp", "ssp"]


class ParameterServer(RankReducer):
    """Updates by ``optimizer`` on servers, each with a share of the parameters.

    A worker pushes gradients during backward, small ones at the end of the step, and pulls new
    values in `end`. Of an Embedding a worker has only rows: a step pulls the rows that its batch
    looks up and pushes their gradients, or updates them in the `layers.Cache`. If stages around
    this one read values, a worker has whole tables, and pulls the rows that any worker has changed.

    Clipping by value belongs inside, and with "bsp" clipping by the global norm, too, for which the
    workers sum their gradients. Accumulation belongs outside. A single process without servers
    trains by itself.

    Args:
        optimizer: The optimizer, or a stage around one, that the servers apply.
        consistency: "bsp": the gradients of a step, weighed by samples, are one update, for which
            all workers wait; p workers train as one process. "asp": the gradients of each worker
            are an update of their own, applied at once, and no worker waits. "ssp": "asp" with a
            bound, ``staleness``.
        staleness: Maximum number of steps that a worker may be ahead of the slowest one, with
            "ssp" only.
        comm: Communicator of the workers, by default of all ranks that are not servers.
        servers: The server ranks, by default as ``singanet launch --servers`` sets them.
        snapshots: Path of a folder to which every server writes its part. A job starts from it,
            with ``restored`` steps. None writes nothing.
        every: Number of steps between two snapshots, a positive int.
    """

    comm: Communicator
    traits = ReducerTraits(
        needs=(terms.WORKERS,),
        takes=(terms.STATE,),
        inside=(terms.GRADIENTS, terms.SUMS, terms.ALIKE),
    )
    _meets_anew = True
    _ranks: ServerRanks | None = None

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
        self.consistency, self.staleness = consistency, _staleness(consistency, staleness)
        self._inner = optimizer
        super().__init__(optimizer, comm)
        self.snapshots = None if snapshots is None else path_of(snapshots, "snapshots")
        self.every = checked_count("ParameterServer", "every", every, 1)
        self._ranks = self._servers_of(servers)
        self.rule = optimizer
        self._norms = Round(self, _PREVIEWED)
        self.servers: Servers | None = None
        self._state: Mapping[str, Array] | None = None
        self._rows: dict[str, TableRows] = {}
        self._pulled: dict[str, int] = {}
        self._stale = True
        self._before_exchange = Exchanged(0, 0)
        self._clip: _ClippedPush | None = None
        clip = self._clip_of_workers
        if self._ranks is not None:
            self._before_exchange = self._ranks.world.exchanged
            self.rule = optimizer if clip is None else clip.optimizer
            self.optimizer = Taking(self.rule)
            if clip is not None:
                self.optimizer = self._clip = _ClippedPush(self.optimizer, clip.max_norm)
        several, recorded = consistency != "bsp", self._clip is None
        self.reduction: Pushes = Pushes(self, self._expect_servers, several, recorded)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the servers and their tables; a copy loads the state into its own servers."""
        own = (
            {}
            if self._alone
            else {"servers": None, "_rows": {}, "_state": self.state_dict() or None}
        )
        return {**super().__getstate__(), **own}

    @property
    def _clip_of_workers(self) -> ClipByGlobalNorm | None:
        """The clipping that workers do before they push, if any."""
        outermost = self._inner
        by_workers = isinstance(outermost, ClipByGlobalNorm) and self.consistency == "bsp"
        return cast("ClipByGlobalNorm", outermost) if by_workers else None

    @property
    def _terms(self) -> Terms:
        found = super()._terms
        if self._clip_of_workers is None:
            return replace(found, inside=(*found.inside, terms.NORM))
        # Each worker skips steps of its own.
        return replace(found, takes=(*found.takes, terms.TOGETHER))

    @property
    def _alone(self) -> bool:
        return self._ranks is None

    @property
    def _lone_optimizer(self) -> Optimizer | Wrapper:
        return self._inner

    @property
    def restored(self) -> int:
        """The steps in the snapshot that the servers started from, 0 without a snapshot."""
        return (self.servers and self.servers.restored) or 0

    def _remade(self, optimizer: Optimizer | Wrapper) -> ParameterServer:
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
        """Prepare ``net``; the parameters of rank 0, or of a snapshot, are copied to all ranks.

        Errors: the errors of `RankReducer.meet`.
        """
        if self._ranks is None:
            self._meets(net, around)
            return
        if self._is_new(net, around):
            self._serve(net, around, self._ranks)
        if self._meets(net, around):
            self._open()

    def _serve(self, net: NetCore, around: Sequence[Wrapper], ranks: ServerRanks) -> None:
        """Move the rows of Embeddings to servers, unless stages around read their values."""
        if self.servers is None:
            summed, files = self.consistency == "bsp", Files(None, self.snapshots, self.every)
            staleness = 0 if summed else self.staleness
            self.servers = Servers(self.comm, ranks, self.rule, staleness, summed, files)
        servers = self.servers

        def tables_of(params: Sequence[Param]) -> Mapping[str, ServedTable]:
            servers.open([], params, anew=self._state is not None)
            return servers.tables

        def wrote() -> bool:
            return self.comm.rank > 0 or servers.restored is not None

        # The norm covers row gradients, too.
        if self._clip is None and not any(terms.VALUES in each._terms.needs for each in around):
            self._rows = serve(net, UpdateChain(self.rule).rule, tables_of, wrote)

    def _begin_alike(self, net: NetCore) -> None:
        trained = self.order.by_name
        apart(self.comm, net.rng)
        others = (p for p in net.params() if p.name not in trained and not p.storage.by_rows)
        spread(self.comm, ((p.name, p.value) for p in others if not p.is_constant))

    def _open(self) -> None:
        servers = self._expect_servers()
        params = self.order.params
        replicas = [(p, ops_for(p.value).host(self._held(p))) for p in params]
        servers.open(replicas, anew=self._state is not None)
        if self._state is not None and self.comm.rank == 0:
            servers.load_state_dict(self._state)
        self._state = None
        self.reduction.group()
        self._pull()

    # -- a step -----------------------------------------------------------------------------------

    def take(
        self, names: Sequence[str], values: Sequence[Array], grads: Sequence[Grad], scale: Scale
    ) -> Iterator[Handed]:
        """Push gradients; with "asp" and "ssp" a worker without samples pushes no rows."""
        if not self._alone and self._clip is not None:
            scale = self._clip.of_push(float(scale))
        if not self._alone and self.reduction.without_step:
            pairs = zip(values, grads, strict=True)
            grads = [None if served_by(value) is not None else grad for value, grad in pairs]
        return super().take(names, values, grads, scale)

    def _ended(self) -> None:
        self._count_exchanged()
        super()._ended()

    @property
    def traffic(self) -> Traffic:
        """The traffic so far."""
        return self.reduction.traffic

    def _count_exchanged(self) -> None:
        """Add the traffic with servers to the counts of this worker's communicator."""
        assert self._ranks is not None
        now = self._ranks.world.exchanged
        told = now.since(self._before_exchange)
        host: Communicator = getattr(self.comm, "control", self.comm)
        host.bytes_sent += told.sent
        host.bytes_received += told.received
        self._before_exchange = now

    def case(self) -> Hashable:
        """Return the version of the grouping of parameters."""
        return self.reduction.version

    def previewed(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yield this rank's gradients, or, for clipping by a norm, the sums over all ranks."""
        if self._clip is None:
            yield from items
            return
        yield from GradientRound(self, self._norms, (), "preview").previewed(items)

    def _listen(self) -> None:
        """Join the sums that other workers make before they push, until no worker has a batch."""
        for heard, _ in () if self._by_itself else self._others():
            self._norms.join(heard)
            norm_of(GradientRound(self, self._norms, (), "preview", opened=True).previewed(()))

    def _agree(self, refused: str | None) -> str | None:
        """Return ``refused``: ranks take their own steps, and a refused step has no gradients."""
        if refused is not None and not self._alone:
            self._count = 0.0
            self.end()
        return refused

    @property
    def _by_itself(self) -> bool:
        return self.consistency != "bsp"

    def join(self) -> None:
        """Let the other workers continue until all have come here, then pull the values.

        Errors: `CallOrderError` before `meet`.
        """
        if self._alone:
            return
        self._expect_met()
        self._expect_servers().leave(self._listen)
        self._pull()

    def unify(self, net: Any, samples: float = 1.0) -> None:
        """Copy the values of the servers to all workers."""
        if not self._alone and self._has_met:
            self._push_gathered()
            self.comm.barrier("the same values on all ranks")
            if self._stale:
                self._pull()
        super().unify(net, samples)

    def _push_gathered(self) -> None:
        """Push the gradients in caches on all ranks, as a separate step."""
        if any(isinstance(rows, CachedRows) for rows in self._rows.values()):
            for rows in self._rows.values():
                rows.flush()
            self._expect_servers().finish(1.0)

    def begin(self, count: float | None) -> float | None:
        """Begin a step, after sending the values that rank 0 has changed since the last `unify`."""
        super().begin(count)
        if self.servers is None or self._stale:
            return count
        self._stale = True
        asked = [
            self.servers.start_put(param.name, ops_for(held).host(held))
            for param, held in ((p, self._held(p)) for p in self.order.params)
            if self.comm.rank == 0 and _digest(held) != self._pulled[param.name]
        ]
        for each in asked:
            each.wait()
        return count

    def _pull(self) -> None:
        """Copy the current values of the servers to the parameters; all ranks must call it."""
        for name, news in self.reduction.pulled():
            self._put(self.order.by_name[name], news)
        self._stale = False
        self._pulled = {p.name: _digest(self._held(p)) for p in self.order.params}
        self.comm.barrier("the pull of values by all ranks")

    def _put(self, param: Param, news: Any) -> None:
        """Copy a server's values to ``param``, which is not an update."""
        names, values = [param.name], [param.value]
        for stage in self._around:
            stage.refresh(names, values)
        where, what = news if isinstance(news, tuple) else (slice(None), news)
        target = self._held(param)
        target[where if target.ndim else ()] = what
        for stage in reversed(self._around):
            stage.written(names, values)

    def _held(self, param: Param) -> Array:
        """Return the array of ``param`` that matches the servers' array."""
        return self._settled(param.name, param.value)

    def prefetch(self, ids: Mapping[str, Array]) -> None:
        """Start to pull the rows that the next step looks up; ``ids`` by parameter name.

        Call it before the current step, which overlaps with the pull. Values are the same without
        it.
        """
        for name, looked_up in ids.items():
            if name in self._rows:
                self._rows[name].prefetch(looked_up)

    @property
    def lookups(self) -> dict[str, Lookups]:
        """The counts and the traffic of the lookups of training steps, by parameter."""
        return {name: rows.lookups for name, rows in self._rows.items()}

    def loads(self) -> list[dict[str, Load]]:
        """Return the load of each server by function: calls, bytes, rows, seconds."""
        return self._expect_servers().loads()[0]

    def _expect_servers(self) -> Servers:
        """Return the servers. Errors: `CallOrderError` before `meet`."""
        self._expect_met()
        assert self.servers is not None
        return self.servers

    # -- saving -----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Array]:
        """Return the state of the optimizers on all servers.

        All workers must call it, as each pushes the gradients in its caches first.
        """
        if self._alone:
            return super().state_dict()
        if self._state is not None or self.servers is None:
            return {**(self._state or {}), **self._hyper_state()}
        self._push_gathered()
        self.comm.barrier("the pushes of all ranks")
        there = self.servers.state_dict()
        own = {key: array for key, array in there.items() if not key.startswith("*/")}
        return {**own, **self._hyper_state()}

    def _hyper_state(self) -> dict[str, Array]:
        """Return the hyper-parameters of the rule on this rank, which the servers follow."""
        rule = UpdateChain(self.rule).own_rule
        return {} if rule is None else rule._hyper_state()

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Load ``state``; from the next `meet` on, training continues exactly from it.

        The values of rank 0 then go to the servers. All ranks must call it.
        """
        if self._alone:
            super().load_state_dict(state)
            return
        self._state, self._met_as = dict(state), None
        # The servers load the arrays; this rank needs the steps for the rate.
        for key, array in state.items():
            name, _, slot = key.rpartition("/")
            if slot == "step" and name:
                UpdateChain(self.optimizer).rule.state(name).step = int(array)
        rule = UpdateChain(self.rule).own_rule
        if rule is not None:
            rule._load_hyper_state({k: a for k, a in state.items() if k.startswith("*/")})
        # All ranks must call `meet` again, even if the net is unchanged.
        changes.add()


class _ClippedPush(ClipByGlobalNorm):
    """Clips the pushes of a worker; the rule inside receives values, not gradients."""

    def of_push(self, scale: float) -> float:
        """Return ``scale`` times the factor of clipping. Errors: no norm is known."""
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


def _staleness(consistency: str, staleness: int | None) -> int | None:
    known = ("asp", "bsp", "ssp")
    if consistency not in known:
        raise UnknownNameError(
            "ParameterServer(consistency=)",
            expected=one_of(known),
            received=brief(consistency),
            advice=did_you_mean(str(consistency), known, "bsp trains as one process"),
        )
    if (consistency == "ssp") != (staleness is not None):
        raise ArgumentError(
            "ParameterServer(staleness=)",
            expected="a number of steps with consistency='ssp', and no staleness otherwise",
            received=f"{staleness} with {consistency!r}",
            advice="write consistency='ssp', staleness=3",
        )
    return (
        None if staleness is None else checked_count("ParameterServer", "staleness", staleness, 0)
    )


def _digest(array: Array) -> int:
    return zlib.crc32(ops_for(array).host(array).tobytes())
