"""Dense parameters all-reduced, Embeddings served."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from singanet.base.arguments import checked_count
from singanet.engine.model import NetCore
from singanet.errors import ArgumentError
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.stages import stages_of
from singanet.optimizer.wrapper import Wrapper
from singanet.parallel.all_reduce import AllReduce
from singanet.parallel.cached.rows import Lookups, TableRows
from singanet.parallel.cached.serve import expect_served, serve
from singanet.parallel.communicator import Communicator
from singanet.parallel.round import Round
from singanet.parallel.server.messages import ServerRanks
from singanet.parallel.server.remote import Files, Servers
from singanet.parallel.server.table import Shard, Table
from singanet.parallel.start import servers as servers_of_job
from singanet.params.param import Param
from singanet.types import Array

_OF_PROCESS = ("comm", "table_of", "servers")
"""Arguments that a file, which other processes read, has no use for."""


class Hybrid(AllReduce):
    """`AllReduce` for dense parameters; the rows of Embeddings come from tables and go there.

    A table has the values and the rule of ``optimizer`` for them. A step pulls the rows that it
    looks up, but those that an Embedding's `layers.Cache` keeps, and pushes their gradients, each
    rank's by itself, weighed as in the mean of all. Steps are recorded. Evaluations and
    checkpoints see the tables, after all gradients were pushed. ``lookups`` tells what went to and
    fro. `meet` before the first pass keeps tables from ever being in the worker's memory.

    Tables are on the ``servers``, by default those of the job, which apply the gradients of a step
    at once: p workers train as one process. ``snapshots`` and ``every`` are as of
    `ParameterServer`. Else ``table_of`` makes the table of a parameter; one process has it in its
    own memory by default.
    """

    def __init__(
        self,
        optimizer: Optimizer | Wrapper,
        comm: Communicator | None = None,
        window: int = 4,
        dtype: str | None = None,
        table_of: Callable[[Param], Table] | None = None,
        servers: ServerRanks | None = None,
        snapshots: str | Path | None = None,
        every: int = 100,
    ) -> None:
        super().__init__(optimizer, comm, window, dtype)
        self.arguments = {k: v for k, v in self.arguments.items() if k not in _OF_PROCESS}
        self.table_of = table_of
        self.snapshots = None if snapshots is None else Path(snapshots)
        self.every = checked_count(type(self).__name__, "every", every, 1)
        self._ranks = servers_of_job() if comm is None and servers is None else servers
        self.servers: Servers | None = None
        self._state: Mapping[str, Array] | None = None
        self._rows: dict[str, TableRows] = {}

    def around(self, optimizer: Optimizer | Wrapper) -> Hybrid:
        """As `Reducer`."""
        where = self.table_of, self._ranks, self.snapshots, self.every
        return type(self)(optimizer, self.comm, self.window, self.dtype, *where)

    def meet(self, net: NetCore, around: Sequence[Wrapper] = ()) -> None:
        """As `AllReduce`; Embeddings that were not are served from now on.

        Errors: `ArgumentError` for stages that look at values; more ranks than one and no tables.
        """
        if self.is_new(net, around):
            inside = [stage for stage in stages_of(self)[0] if stage is not self]
            expect_served(type(self).__name__, (*around, *inside))
            _, rule = stages_of(self)
            self._rows = serve(net, rule, self._table_of, self._wrote)
            if self.servers is not None and self._state is not None and self.comm.rank == 0:
                self.servers.load_state_dict(self._state)
            self._state = None
        super().meet(net, around)

    def _wrote(self) -> bool:
        return self.comm.rank > 0 or (
            self.servers is not None and self.servers.restored is not None
        )

    def unify(self, net: Any, samples: float = 1.0) -> None:
        """As `Reducer`: gradients that wait are pushed, on all ranks before any goes on."""
        self.flush()
        self._finish()
        self.comm.barrier("the last gradients of rows")
        super().unify(net, samples)

    def state_dict(self) -> dict[str, Array]:
        """As `Wrapper`, with what the servers have."""
        served = {} if self.servers is None else self.servers.state_dict()
        return {**super().state_dict(), **served}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """As `Wrapper`; the servers go on from it at the next `meet`. All ranks have to do so."""
        super().load_state_dict(state)
        self._state, self._met = dict(state), ()

    def _close(self, opened: Round) -> None:
        super()._close(opened)
        self._finish()

    def _ended(self) -> None:
        super()._ended()
        self._finish()

    def _finish(self) -> None:
        """Let servers know that all gradients of a step are there."""
        if self.servers is not None:
            self.servers.follow()
            self.servers.finish(None)

    def flush(self) -> None:
        """Push all gradients of rows that wait."""
        for rows in self._rows.values():
            rows.flush()

    @property
    def lookups(self) -> dict[str, Lookups]:
        """By parameter, what training steps asked of its table."""
        return {name: rows.lookups for name, rows in self._rows.items()}

    def _table_of(self, param: Param) -> Table:
        if self.table_of is not None:
            return self.table_of(param)
        if self._ranks is not None:
            if self.servers is None:
                # Gradients are weighed here, as those that are all-reduced.
                files = Files(snapshots=self.snapshots, every=self.every)
                self.servers = Servers(self.comm, self._ranks, stages_of(self)[1], 0, True, files)
            self.servers.open([], [param], anew=self._state is not None)
            return self.servers.tables[param.name]
        if self.comm.size > 1:
            raise ArgumentError(
                type(self).__name__,
                expected="tables that all ranks have",
                received=f"{self.comm.size} ranks, and no table_of",
                advice="start servers, or pass table_of=",
            )
        rule = deepcopy(stages_of(self)[1])
        rule.load_state_dict({})
        return Shard(param, rule)
