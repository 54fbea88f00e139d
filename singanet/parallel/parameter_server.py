"""Training with a parameter server."""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from singanet.base.arguments import checked_count
from singanet.base.described import changes
from singanet.base.files import path_of
from singanet.engine.model import NetCore
from singanet.errors import ArgumentError, UnknownNameError, did_you_mean, one_of
from singanet.ops import ops_for
from singanet.optimizer.chain import UpdateChain, norm_of
from singanet.optimizer.clipping import ClipByGlobalNorm
from singanet.optimizer.hyper import Scale
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.reducer import GradientRound, Traffic
from singanet.optimizer.state import Grad, ParamState, ParamUpdate
from singanet.optimizer.wrapper import Handed, Wrapper
from singanet.parallel.cached_rows import (
    CachedRows,
    Lookups,
    TableRows,
    looks_at_gradients_alone,
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
    """w = what comes in the place of a gradient: values that ``rule`` has made elsewhere.

    ``learning_rate`` is that of the rule.
    """

    hypers = ()

    def __init__(self, rule: Optimizer | Wrapper) -> None:
        self.rule = rule
        # The rule keeps its rate.
        super().__init__(None)

    @property
    def learning_rate(self) -> Any:
        """The learning rate of the rule elsewhere."""
        return UpdateChain(self.rule).rule.learning_rate

    @learning_rate.setter
    def learning_rate(self, rate: Any) -> None:
        if rate is not None:
            UpdateChain(self.rule).rule.learning_rate = rate

    def register(self, name: str, spec: ParamSpec) -> None:
        """As `Optimizer`: it is the rule that is told."""
        self.rule.register(name, spec)

    def _spec_of(self, param: Param) -> ParamSpec:
        """As `Optimizer`: what the rule goes by."""
        found: ParamSpec = UpdateChain(self.rule).rule._spec_of(param)
        return found

    def _settle_as(self, name: str, spec: ParamSpec) -> None:
        self.state(name)

    def numbers(
        self, state: ParamState, lr: float | None = None
    ) -> tuple[float, tuple[float, ...]]:
        """As `Optimizer`: none."""
        return 0.0, ()

    def _scalars(self, state: ParamState, rate: float) -> tuple[float, ...]:
        return ()

    def _sweep(self, update: ParamUpdate) -> None:
        update.value[...] = update.grad

    def _sweep_rows(self, indices: Array, update: ParamUpdate) -> None:
        update.value[indices] = update.grad


_PREVIEWED = 4
"""Sums of gradients under way at a time, for a norm."""

Consistency: TypeAlias = Literal["asp", "bsp", "ssp"]


class ParameterServer(RankReducer):
    """Updates on servers, by ``optimizer`` as it is there: each with some of the parameters.

    With "bsp" the gradients of a step, weighed by samples, are one update, for which all workers
    wait: p workers train as one process. With "asp" the gradients of each worker are an update of
    their own at once, and it waits for nobody. "ssp" is "asp" with a bound: no worker is more than
    ``staleness`` steps ahead of the slowest one. A worker pushes during the walk back, what is
    small with the step's end, and pulls new values in `end`. Of an Embedding it has rows alone: the
    rows that a batch looks up, pulled before and pushed after, or the rows in its `layers.Cache`.
    If stages around it look at the values, a worker has whole tables, and pulls the rows that any
    worker has changed.

    ``snapshots`` is a folder in which every server writes its part after each ``every`` steps,
    and from which a job begins, with ``restored`` steps. Clipping by value belongs inside, with
    "bsp" by the global norm, too, for which the workers sum their gradients; accumulation outside.
    ``comm`` are the workers and ``servers`` who serves them, by default as
    ``singanet launch --servers`` says; a lone process without servers trains by itself.
    """

    comm: Communicator
    _meets_anew = True

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
        self.consistency, self.staleness = consistency, _staleness(consistency, staleness)
        self.snapshots = None if snapshots is None else path_of(snapshots, "snapshots")
        self.every = checked_count("ParameterServer", "every", every, 1)
        self._ranks = self._servers_of(servers)
        self.rule = self._inner = optimizer
        self._norms = Round(self, _PREVIEWED)
        self.servers: Servers | None = None
        self._state: Mapping[str, Array] | None = None
        self._rows: dict[str, TableRows] = {}
        self._pulled: dict[str, int] = {}
        self._stale = True
        self._told = Exchanged(0, 0)
        self._clip: _ClippedPush | None = None
        stages = UpdateChain(optimizer).stages
        clip = stages[0] if stages and consistency == "bsp" else None
        if not isinstance(clip, ClipByGlobalNorm):
            clip = None
        for stage in stages if clip is None else stages[1:]:
            if stage._reads_gradients and not stage._by_element:
                kind = type(stage).__name__
                raise ArgumentError(
                    f"{kind} in ParameterServer",
                    expected="ClipByValue: a server sees some of the gradients, and one at a time;"
                    " or ClipByGlobalNorm around all, with 'bsp'",
                    received=kind,
                    advice="clip by one of these, or train by AllReduce",
                )
        if self._ranks is not None:
            self._told = self._ranks.world.exchanged
            self.rule = optimizer if clip is None else clip.optimizer
            self.optimizer = Taking(self.rule)
            if clip is not None:
                self.optimizer = self._clip = _ClippedPush(self.optimizer, clip.max_norm)
        several, recorded = consistency != "bsp", self._clip is None
        self.reduction: Pushes = Pushes(self, self._expect_servers, several, recorded)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the servers and what they hold; a copy loads the state into its own servers."""
        own = (
            {}
            if self._alone
            else {"servers": None, "_rows": {}, "_state": self.state_dict() or None}
        )
        return {**super().__getstate__(), **own}

    @property
    def _alone(self) -> bool:
        return self._ranks is None

    @property
    def _lone_optimizer(self) -> Optimizer | Wrapper:
        return self._inner

    @property
    def restored(self) -> int:
        """The steps that had been taken by the snapshot that the servers began from, 0 for none."""
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
        """As `Reducer`. The parameters of rank 0, or of a snapshot, become those of all.

        Errors: as `RankReducer`; `ArgumentError` for clipping around, and for mixed precision
        around clipping by the global norm.
        """
        self._expect_outside(around)
        if self._clip is not None and any(stage._holds_all for stage in around):
            raise ArgumentError(
                "ParameterServer and ClipByGlobalNorm",
                expected="one precision, as each worker skips steps of its own in mixed precision",
                received="mixed precision, and a norm that all workers sum up",
                advice="leave one of them out, or train by AllReduce",
            )
        if self._ranks is None:
            self._meets(net, around)
            return
        if self._is_new(net, around):
            self._serve(net, around, self._ranks)
        if self._meets(net, around):
            self._open()

    def _serve(self, net: NetCore, around: Sequence[Wrapper], ranks: ServerRanks) -> None:
        """Let servers have the rows of Embeddings, but where stages around look at their values."""
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

        # The norm is of rows, too.
        if self._clip is None and all(map(looks_at_gradients_alone, around)):
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
        """As `Reducer`; a worker without samples pushes no rows, where each's are an update."""
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
        """Let what was said to servers be among what this worker has said."""
        assert self._ranks is not None
        now = self._ranks.world.exchanged
        told = now.since(self._told)
        host: Communicator = getattr(self.comm, "control", self.comm)
        host.bytes_sent += told.sent
        host.bytes_received += told.received
        self._told = now

    def case(self) -> Hashable:
        """As `Wrapper.case`: which parameters travel together."""
        return self.reduction.version

    def previewed(self, items: Iterable[Any]) -> Iterator[Any]:
        """As `Reducer`: the rank's own; where a norm clips, the sums of all."""
        if self._clip is None:
            yield from items
            return
        yield from GradientRound(self, self._norms, (), "preview").previewed(items)

    def _listen(self) -> None:
        """Join the sums that other workers make before they push, until none has a batch."""
        for heard, _ in () if self._by_itself else self._others():
            self._norms.join(heard)
            norm_of(GradientRound(self, self._norms, (), "preview", opened=True).previewed(()))

    def _agree(self, refused: str | None) -> str | None:
        """As `Reducer`: each rank takes its own steps; one that is refused has no gradients."""
        if refused is not None and not self._alone:
            self._count = 0.0
            self.end()
        return refused

    @property
    def _by_itself(self) -> bool:
        return self.consistency != "bsp"

    def join(self) -> None:
        """As `Reducer`: others go on without this rank. Errors: `CallOrderError` before `meet`."""
        if self._alone:
            return
        self._expect_met()
        self._expect_servers().leave(self._listen)
        self._pull()

    def unify(self, net: Any, samples: float = 1.0) -> None:
        """As `Reducer`: all have the values that the servers have."""
        if not self._alone and self._has_met:
            self._push_gathered()
            self.comm.barrier("values that are the same on all ranks")
            if self._stale:
                self._pull()
        super().unify(net, samples)

    def _push_gathered(self) -> None:
        """Push the gradients in caches, on all ranks, as a step of their own."""
        if any(isinstance(rows, CachedRows) for rows in self._rows.values()):
            for rows in self._rows.values():
                rows.flush()
            self._expect_servers().finish(1.0)

    def begin(self, count: float | None) -> float | None:
        """As `Wrapper.begin`. What rank 0 changed since all had the same goes to the servers."""
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
        """Let parameters be what they are on the servers now; all ranks come here."""
        for name, news in self.reduction.pulled():
            self._put(self.order.by_name[name], news)
        self._stale = False
        self._pulled = {p.name: _digest(self._held(p)) for p in self.order.params}
        self.comm.barrier("values that all ranks have")

    def _put(self, param: Param, news: Any) -> None:
        """Let ``param`` be as a server has it, which is no update."""
        names, values = [param.name], [param.value]
        for stage in self._around:
            stage.refresh(names, values)
        where, what = news if isinstance(news, tuple) else (slice(None), news)
        target = self._held(param)
        target[where if target.ndim else ()] = what
        for stage in reversed(self._around):
            stage.written(names, values)

    def _held(self, param: Param) -> Array:
        """The servers' array of ``param``, in its form here."""
        return self._settled(param.name, param.value)

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
        """The servers. Errors: `CallOrderError` before `meet`."""
        self._expect_met()
        assert self.servers is not None
        return self.servers

    # -- saving -----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Array]:
        """The state of the optimizers on all servers.

        All workers call it, so that the gradients in their caches are pushed first.
        """
        if self._alone:
            return super().state_dict()
        if self._state is not None or self.servers is None:
            return dict(self._state or {})
        self._push_gathered()
        self.comm.barrier("what all have pushed")
        there = self.servers.state_dict()
        own = {key: array for key, array in there.items() if not key.startswith("*/")}
        return {**own, **self._hyper_state()}

    def _hyper_state(self) -> dict[str, Array]:
        """The `Optimizer._hyper_state` of the rule here: servers follow its schedules and rates."""
        rule = UpdateChain(self.rule).own_rule
        return {} if rule is None else rule._hyper_state()

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Go on exactly where the one of the `state_dict` stood, from the next `meet` on.

        The values of rank 0 go to the servers then. All ranks have to do so.
        """
        if self._alone:
            super().load_state_dict(state)
            return
        self._state, self._met = dict(state), None
        # Here nothing is kept of it but how far it is, which the rate goes by.
        for key, array in state.items():
            name, _, slot = key.rpartition("/")
            if slot == "step" and name:
                UpdateChain(self.optimizer).rule.state(name).step = int(array)
        rule = UpdateChain(self.rule).own_rule
        if rule is not None:
            rule._load_hyper_state({k: a for k, a in state.items() if k.startswith("*/")})
        # All meet again, whether the net has changed or not.
        changes.add()


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
