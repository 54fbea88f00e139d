"""Rows of a served parameter that stay in a cache, within bounds on how old they are."""

from __future__ import annotations

import numpy as np

from singanet.errors import ArgumentError
from singanet.layers.cache import Cache
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.wrapper import Wrapper, rule_of
from singanet.parallel.cached.ids import KnownIds
from singanet.parallel.cached.policy import POLICIES
from singanet.parallel.cached.rows import TableRows
from singanet.parallel.cached.rules import bare_copy, follow
from singanet.parallel.server.remote import by_element
from singanet.parallel.server.table import ServedTable
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
        self._rule.register(param.name, rule_of(rule).spec_of(param))

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
