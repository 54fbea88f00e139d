"""The lines of a cache, and their service."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from singanet.engine.net import Net
from singanet.errors import ArgumentError
from singanet.layers.embedding import Cache, Embedding
from singanet.ops import ops_for
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.wrapper import Wrapper, rule_of
from singanet.parallel.cached.cached_rows import POLICIES, KnownIds, TableRows, bare_copy, follow
from singanet.parallel.server.parameter_table import ServedTable
from singanet.parallel.server.remote import by_element
from singanet.params.param import Param
from singanet.types import Array, RowSparse


class CachedRows(TableRows):
    """Rows of ``table`` of which ``cache`` says how many stay, which, and how old they may be.

    A line has a row as it was pulled at ``clocks``, updated since by the gradients that it was
    given here. Those wait in ``pending``, ``gathered`` so many, until they are pushed as one. A row
    that the table has updated more than ``pull_bound`` times since, by these pushes or others, is
    pulled anew, and updated by what waits. ``rule``, as the table's, updates lines; its state of
    a row is that of its updates here. A cell of memory for each row tells its line.
    """

    def __init__(
        self,
        param: Param,
        table: ServedTable,
        cache: Cache,
        rule: Optimizer | Wrapper,
        known: KnownIds | None = None,
    ) -> None:
        super().__init__(param.name, table, known)
        if not by_element(rule, param):
            raise ArgumentError(
                f"parameter {param.name!r}, cache",
                expected="a rule that treats each element by itself, such as SGD, AdaGrad or Adam",
                received=repr(rule),
                advice="leave the cache of its Embedding out, or use another rule",
            )
        self.cache = cache
        lines = cache.lines(table.rows)
        self._policy = POLICIES[cache.policy](lines)
        self._line_of = np.full(table.rows, -1, np.int32)
        self._row_of = np.full(lines, -1, np.int64)
        self.values = np.zeros((lines, table.width), self.dtype)
        self.clocks = np.zeros(lines, np.int64)
        # A sum that begins at −0 has the sign of its first zero.
        self.pending = np.full((lines, table.width), -0.0, self.dtype)
        self.gathered = np.zeros(lines, np.int64)
        self._followed, self._rule = rule, bare_copy(rule)
        self._rule.register(param.name, rule_of(rule)._spec_of(param))

    def flush(self) -> None:
        waiting = np.flatnonzero(self.gathered)
        for start in range(0, len(waiting), self.piece):
            self._send(waiting[start : start + self.piece], waiting[:0], self.pending[:0])

    def prefetch(self, ids: Array) -> None:
        """As `TableRows`: nothing, since it depends on the step which rows are here after it."""

    def write(self, array: Array) -> None:
        self._forget(np.flatnonzero(self._row_of >= 0))
        super().write(array)

    def _fetched(self, rows: Array) -> Array:
        found = np.empty((len(rows), self.table.width), self.dtype)
        lines = self._line_of[rows]
        is_here = lines >= 0
        hits, missing = lines[is_here].astype(np.int64), rows[~is_here]
        newer = self.table.start_newer(rows[is_here], self.clocks[hits], self.cache.pull_bound)
        self._policy.use(hits)
        if len(missing):
            found[~is_here] = self._entered(missing, self._policy.make_room(len(missing), hits))
        self._refresh(hits, *newer.wait())
        found[is_here] = self.values[hits]
        self.lookups.hits += len(hits)
        return found

    def _entered(self, rows: Array, lines: Array) -> Array:
        """The values of ``rows``, of which the first have ``lines`` now."""
        given = lines[self.gathered[lines] > 0]
        given = given[np.argsort(self._row_of[given])]
        pulled = self.table.start_pull(rows)
        # What a table hears in the middle of a step it may apply at its end.
        self._push(self._row_of[given], self.pending[given], self.gathered[given])
        values, clocks = pulled.wait()
        self._count_pull(len(rows))
        self._forget(lines[self._row_of[lines] >= 0])
        stay = len(lines)
        self._row_of[lines], self._line_of[rows[:stay]] = rows[:stay], lines
        self.values[lines], self.clocks[lines] = values[:stay], clocks[:stay]
        self._policy.use(lines)
        return values

    def _forget(self, lines: Array) -> None:
        """Let the rows of ``lines`` go, with what waits."""
        self._line_of[self._row_of[lines]] = -1
        self._row_of[lines] = -1
        self.pending[lines], self.gathered[lines] = -0.0, 0
        for array in rule_of(self._rule).state(self.name).arrays:
            array.reshape(self.values.shape)[lines] = 0

    def _refresh(self, hits: Array, places: Array, values: Array, clocks: Array) -> None:
        """Take what the table has of the lines ``hits[places]``, and what waits on top of it."""
        lines = hits[places]
        behind = clocks - self.clocks[lines]
        told = self.lookups
        told.refreshed += len(lines)
        told.behind += int(behind.sum())
        told.most_behind = max(told.most_behind, int(behind.max(initial=0)))
        told.nbytes += 16 * len(hits) + len(lines) * (16 + self._row_bytes)
        self.values[lines], self.clocks[lines] = values, clocks
        self._update(lines[self.gathered[lines] > 0])

    def _update(self, lines: Array, grads: Array | None = None) -> None:
        """Update ``lines`` by gradients, by default by all that wait."""
        order = np.argsort(lines)
        lines = lines[order]
        rows = self.pending[lines] if grads is None else grads[order]
        follow(self._rule, self._followed)
        self._rule.update([self.name], [self.values], [RowSparse(lines, rows)])

    def _take(self, rows: Array, grads: Array) -> None:
        lines = self._line_of[rows].astype(np.int64)
        is_here = lines >= 0
        here = lines[is_here]
        self.pending[here] += grads[is_here]
        self.gathered[here] += 1
        self._update(here, grads[is_here])
        due = here[self.gathered[here] > self.cache.push_bound]
        self._send(due, rows[~is_here], grads[~is_here])

    def _send(self, lines: Array, rows: Array, grads: Array) -> None:
        """Push what waits of ``lines``, and the gradients of ``rows``, which have none."""
        rows = np.concatenate((self._row_of[lines], rows))
        grads = np.concatenate((self.pending[lines], grads))
        counts = np.concatenate((self.gathered[lines], np.ones(len(rows) - len(lines), np.int64)))
        order = np.argsort(rows)
        self._push(rows[order], grads[order], counts[order])
        self.pending[lines], self.gathered[lines] = -0.0, 0


_PIECE = 1 << 20
"""Elements that are drawn at a time."""


def serve(
    net: Any,
    rule: Optimizer | Wrapper,
    tables_of: Callable[[Sequence[Param]], Mapping[str, ServedTable]],
    wrote: Callable[[], bool] = lambda: False,
) -> dict[str, TableRows]:
    """Let tables have the rows of the trained Embeddings of ``net``, by parameter name.

    ``tables_of`` makes the tables of parameters that were not served before, with the values that
    they begin with. Where a parameter has others, they are written there, unless somebody
    ``wrote`` them; one that has none never gets any in memory, where this comes before the first
    pass. ``rule`` updates what stays in caches. Tables that other layers read, too, are left.
    Errors: `ArgumentError` for a cache of such a table, and for caches that differ.
    """
    found = to_serve(net)
    new = [(param, cache) for param, cache in found if not param.storage.by_rows]
    for param, _ in new:
        if not param.filled:
            param.seed, param.dtype = net.seed, net.dtype
        # What a net was converted to, a table keeps too; the first values are written there then.
        param.dtype = param.array_type
    tables = tables_of([param for param, _ in new]) if new else {}
    known = KnownIds()
    for param, cache in new:
        table = tables[param.name]
        rows = (
            TableRows(param.name, table, known)
            if cache is None
            else CachedRows(param, table, cache, rule, known)
        )
        if param.filled and not wrote() and not _is_as_drawn(param):
            rows.write(param.value)
        param.storage = rows
    return {p.name: p.served for p, _ in found if isinstance(p.served, TableRows)}


def looks_at_gradients_alone(stage: Wrapper) -> bool:
    """Whether a stage has no part in what becomes of values."""
    return type(stage).settle is Wrapper.settle and type(stage).updated is Wrapper.updated


def _is_as_drawn(param: Param) -> bool:
    """Whether the values are those that the parameter began with."""
    flat = ops_for(param.value).host(param.value).reshape(-1)
    return all(
        np.array_equal(flat[start : start + piece.size], piece.astype(flat.dtype))
        for start, piece in param.initial_pieces(_PIECE)
    )


def to_serve(net: Any) -> list[tuple[Param, Cache | None]]:
    """The parameters that Embeddings alone read and that are trained, and their caches."""
    found: dict[int, tuple[Param, Cache | None]] = {}
    read_whole: set[int] = set()
    # Planned only, a net does not fill its parameters.
    plan = net.planned() if isinstance(net, Net) else net._execution_plan()
    layers = {id(step.layer): step.layer for step in plan.steps if not step.frozen}
    for layer in layers.values():
        for param in layer.params.values():
            key = id(param.root)
            # A class of a user's own may read the whole array.
            if type(layer) is not Embedding:
                read_whole.add(key)
            elif param.trainable:
                before = found.setdefault(key, (param, layer.cache))[1]
                if repr(before) != repr(layer.cache):
                    raise ArgumentError(
                        f"layer {layer.name!r}, argument cache",
                        expected=f"{before}, as of the other Embedding of {param.name!r}",
                        received=repr(layer.cache),
                        advice="give Embeddings that share a table the same cache",
                    )
    for key in read_whole & found.keys():
        param, cache = found.pop(key)
        if cache is not None:
            raise ArgumentError(
                f"parameter {param.name!r}, cache",
                expected="a table that Embeddings alone read",
                received="one that another layer reads as a whole",
                advice="leave the cache out: such a table is not served",
            )
    return list(found.values())
