"""Dense parameters all-reduced, Embeddings served."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

from singanet.engine.model import NetCore
from singanet.errors import ArgumentError
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.stages import stages_of
from singanet.optimizer.wrapper import Wrapper
from singanet.parallel.all_reduce import AllReduce
from singanet.parallel.cached.rows import Lookups, TableRows
from singanet.parallel.cached.serve import serve
from singanet.parallel.communicator import Communicator
from singanet.parallel.server.table import Shard, Table
from singanet.params.param import Param


class Hybrid(AllReduce):
    """`AllReduce` for dense parameters; the rows of Embeddings come from tables and go there.

    A table has the values and the rule of ``optimizer`` for them. A step pulls the rows that it
    looks up, but those that an Embedding's `layers.Cache` keeps, and pushes their gradients, each
    rank's by itself, weighed as in the mean of all. Steps are recorded. Evaluations and
    checkpoints see the tables, after all gradients were pushed. ``lookups`` tells what went to and
    fro. `meet` before the first pass keeps tables from ever being in the worker's memory.

    ``table_of`` makes the table of a parameter; one process has it in its own memory by default.
    """

    def __init__(
        self,
        optimizer: Optimizer | Wrapper,
        comm: Communicator | None = None,
        window: int = 4,
        dtype: str | None = None,
        table_of: Callable[[Param], Table] | None = None,
    ) -> None:
        super().__init__(optimizer, comm, window, dtype)
        self.arguments.pop("table_of", None)
        self.table_of = table_of
        self._rows: dict[str, TableRows] = {}

    def around(self, optimizer: Optimizer | Wrapper) -> Hybrid:
        """As `Reducer`."""
        return type(self)(optimizer, self.comm, self.window, self.dtype, self.table_of)

    def meet(self, net: NetCore, around: Sequence[Wrapper] = ()) -> None:
        """As `AllReduce`; Embeddings that were not are served from now on.

        Errors: `ArgumentError` for stages that look at values; more ranks than one and no tables.
        """
        if self.is_new(net, around):
            for stage in (*around, *stages_of(self)[0]):
                if stage is not self and not _clips(stage):
                    kind = type(stage).__name__
                    raise ArgumentError(
                        f"{type(self).__name__} and {kind}",
                        expected="no other stages than clipping, since values are elsewhere",
                        received=kind,
                        advice=f"use AllReduce with {kind}",
                    )
            _, rule = stages_of(self)
            self._rows = serve(net, rule, self._table_of, wrote=self.comm.rank > 0)
        super().meet(net, around)

    def unify(self, net: Any, samples: float = 1.0) -> None:
        """As `Reducer`: gradients that wait are pushed, on all ranks before any goes on."""
        self.flush()
        self.comm.barrier("the last gradients of rows")
        super().unify(net, samples)

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


def _clips(stage: Wrapper) -> bool:
    """Whether a stage looks at gradients alone."""
    return type(stage).settle is Wrapper.settle and type(stage).updated is Wrapper.updated
