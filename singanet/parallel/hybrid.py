"""Training with all-reduced dense parameters and served embedding tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from singanet.base import terms
from singanet.base.terms import Terms
from singanet.engine.model import NetCore
from singanet.errors import UnknownNameError, brief, did_you_mean, one_of
from singanet.optimizer.chain import UpdateChain
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.reducer import ReducerTraits
from singanet.optimizer.wrapper import Wrapper, expect_inside
from singanet.parallel.cached_rows import (
    Lookups,
    TableRows,
    bare_copy,
    follow,
    serve,
    to_serve,
)
from singanet.parallel.communicators.communicator import Communicator
from singanet.parallel.reductions.all_reduce import AllReduce
from singanet.parallel.server.messages import ServerRanks
from singanet.parallel.server.parameter_table import ServedTable, Shard
from singanet.parallel.server.remote import Servers
from singanet.params.param import Param
from singanet.types import Array, Gradient

SUMMED = (terms.GRADIENTS, terms.SUMS, terms.NORM)
"""What servers take that sum the gradients of rows, of which a worker has its own."""


class Hybrid(AllReduce):
    """`AllReduce` for dense parameters, with embedding tables on servers.

    Servers store the tables and apply the rule of ``optimizer`` to them; a process without servers
    stores them itself. A step pulls the rows that it looks up, unless the `layers.Cache` of the
    Embedding has them, and pushes their gradients, each weighed as in the mean of all ranks. Steps
    are recorded. `unify`, which pushes pending gradients, precedes evaluations and checkpoints.
    ``lookups`` has the counts and the traffic. A `meet` before the first pass avoids tables in the
    worker's memory.

    Args:
        optimizer: The optimizer, or a stage around one, of the dense parameters and the tables.
        comm: Communicator of the workers, by default of all ranks that are not servers.
        window: Maximum number of sums in flight, a positive int.
        dtype: "float16" to send gradients in half the bytes, or None, as for `AllReduce`.
        consistency: "bsp" or "asp". With "bsp" the pushes of all ranks in a step are one update of
            the tables, as in one process. With "asp" the push of each rank is an update of its own,
            applied at once.
        servers: The server ranks, by default as ``singanet launch --servers`` sets them.
    """

    traits = ReducerTraits(takes=(terms.STATE, terms.VALUES), inside=(terms.ALIKE,))
    _meets_anew = True
    _ranks: ServerRanks | None = None

    def __init__(
        self,
        optimizer: Optimizer | Wrapper,
        comm: Communicator | None = None,
        window: int = 4,
        dtype: str | None = None,
        consistency: Literal["bsp", "asp"] = "bsp",
        servers: ServerRanks | None = None,
    ) -> None:
        super().__init__(optimizer, comm, window, dtype)
        if consistency not in ("bsp", "asp"):
            raise UnknownNameError(
                "Hybrid(consistency=)",
                expected=one_of(("bsp", "asp")),
                received=brief(consistency),
                advice=did_you_mean(str(consistency), ("bsp", "asp"), "bsp trains as one process"),
            )
        self.consistency: Literal["bsp", "asp"] = consistency
        self._ranks = self._servers_of(servers)
        self._rows: dict[str, TableRows] = {}
        self._holder: Servers | _OwnTables | None = None
        # State of the tables until they are made.
        self._carried: dict[str, Array] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the tables; a copy loads their state into its own tables."""
        carried = {k: a for k, a in self.state_dict().items() if self._is_served(k)}
        own = {"_rows": {}, "_holder": None, "_carried": {**self._carried, **carried}}
        return {**super().__getstate__(), **own}

    @property
    def _terms(self) -> Terms:
        found = super()._terms
        return found if self._alone else replace(found, needs=(*found.needs, terms.WORKERS))

    @property
    def _alone(self) -> bool:
        return self._ranks is None

    def _settings(self) -> dict[str, Any]:
        return {**super()._settings(), "servers": self._ranks}

    def meet(self, net: NetCore, around: Sequence[Wrapper] = ()) -> None:
        """Prepare ``net`` as `AllReduce` does, and serve the tables of its Embeddings.

        Errors: `ArgumentError` for clipping by norms inside, if servers sum gradients of rows.
        """
        if self._is_new(net, around):
            summed = not self._alone and self.consistency == "bsp"
            if summed and to_serve(net):
                own = self._terms
                expect_inside(self, replace(own, inside=(*own.inside, *SUMMED)))
            # The servers clip sums.
            rule = self.optimizer if summed else self._rule
            self._rows = serve(net, rule, self._tables_of, lambda: self.comm.rank > 0)
            for rows in self._rows.values():
                rows.sums_first = summed
        super().meet(net, around)

    def unify(self, net: Any, samples: float = 1.0) -> None:
        """Push pending gradients on all ranks, then unify the values of ``net``."""
        self._arrive()
        super().unify(net, samples)

    def _arrive(self) -> None:
        """Push all pending gradients of rows, and wait until all ranks have done so."""
        for rows in self._rows.values():
            rows.flush()
        self._finish()
        self.comm.barrier("the last gradients of rows")

    @property
    def lookups(self) -> dict[str, Lookups]:
        """The counts and the traffic of the lookups of training steps, by parameter."""
        return {name: rows.lookups for name, rows in self._rows.items()}

    def state_dict(self) -> dict[str, Array]:
        """Return the optimizer's state, with the state of the tables' rules.

        If there are several ranks, all must call it, so that all pushed gradients arrive first.
        """
        if self._holder is None:
            return {**super().state_dict(), **self._carried}
        self._arrive()
        there = self._holder.state_dict()
        # The tables' rules follow the schedules and rates of the rule of this rank.
        own = {key: array for key, array in there.items() if not key.startswith("*/")}
        return {**super().state_dict(), **own}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Load ``state``; the tables get their part, at `meet` if they do not exist yet."""
        there = {key: array for key, array in state.items() if self._is_served(key)}
        self._carried = {}
        super().load_state_dict({key: a for key, a in state.items() if key not in there})
        if self._holder is not None and self.comm.rank == 0:
            self._load_tables(there)

    @property
    def _rule(self) -> Optimizer:
        rule: Optimizer = UpdateChain(self.optimizer).rule
        return rule

    def _is_served(self, key: str) -> bool:
        return key.rpartition("/")[0] in self._rows

    def _tables_of(self, params: Sequence[Param]) -> Mapping[str, ServedTable]:
        """Make the tables of ``params``, with the state that was loaded for them."""
        rule, names = self._rule, {param.name for param in params}
        if self._holder is None and self._ranks is None:
            self._holder = _OwnTables(rule)
        elif self._holder is None and self._ranks is not None:
            summed = self.consistency == "bsp"
            staleness = 0 if summed else None
            self._copy = bare_copy(self.optimizer if summed else rule)
            self._holder = Servers(self.comm, self._ranks, self._copy, staleness, summed)
        assert self._holder is not None
        self._holder.open((), params)
        loaded = rule.state_dict()
        there = {key: a for key, a in loaded.items() if key.rpartition("/")[0] in names}
        if there:
            rule.load_state_dict({key: a for key, a in loaded.items() if key not in there})
        there, self._carried = {**self._carried, **there}, {}
        if there and self.comm.rank == 0:
            self._load_tables(there)
        return self._holder.tables

    def _load_tables(self, state: Mapping[str, Array]) -> None:
        """Load ``state`` into the rules of the tables, with the rates of this rank."""
        assert self._holder is not None
        self._holder.load_state_dict({**state, **self._rule._hyper_state()})

    def _ended(self) -> None:
        super()._ended()
        self._finish()

    def _finish(self) -> None:
        """End the pushes of this rank in a step; their gradients are already weighed."""
        if isinstance(self._holder, Servers):
            follow(self._copy, self._rule)
            self._holder.follow()
            self._holder.finish(None)


class _OwnTables:
    """Tables in the memory of a process without servers; the interface of `Servers`."""

    def __init__(self, rule: Optimizer) -> None:
        self._rule = rule
        self.tables: dict[str, _OwnShard] = {}

    def open(self, replicas: tuple[()], tables: Sequence[Param]) -> None:
        """Add ``tables``."""
        self.tables |= {param.name: _OwnShard(param, self._rule) for param in tables}

    def state_dict(self) -> dict[str, Array]:
        """Return the state of the rules of all tables."""
        shards = self.tables.values()
        return {key: a for shard in shards for key, a in shard.optimizer.state_dict().items()}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Load ``state`` into the rules of the tables."""
        for name, shard in self.tables.items():
            own = {key: a for key, a in state.items() if key.rpartition("/")[0] in (name, "*")}
            shard.optimizer.load_state_dict(own)


class _OwnShard(Shard):
    """A table with a copy of ``rule``, which follows its hyper-parameters."""

    def __init__(self, param: Param, rule: Optimizer) -> None:
        self._copy, self._followed = bare_copy(rule), rule
        super().__init__(param, self._copy)

    def _change(
        self, grad: Gradient, scale: float, clocks_added: Array | None, checked: bool = False
    ) -> None:
        follow(self._copy, self._followed)
        super()._change(grad, scale, clocks_added, checked)
