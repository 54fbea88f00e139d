"""The rows of a served parameter: pulled for each step, and pushed with their gradients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np

from singanet.ops import ops_for
from singanet.ops.interface import Runs
from singanet.parallel.cached.ids import KnownIds, distinct
from singanet.parallel.communicators.communicator import Done, Request
from singanet.parallel.server.table import ServedTable
from singanet.params.served import ServedRows
from singanet.types import Array, RowSparse

_PIECE = 1 << 24
"""Bytes of a table that are read or written at a time."""


@dataclass
class Lookups:
    """Lookups of training steps in a served table, and their traffic.

    ``rows`` were read and ``updates`` made, distinct ones of each step. Of the rows, ``hits`` were
    in the cache, of which ``refreshed`` were read anew, after ``behind`` updates altogether and
    ``most_behind`` at most. ``pushed`` gradients were sent, each the sum of ``most_gathered`` at
    most. ``nbytes`` went to and fro: row numbers, clocks, values and gradients.
    ``nbytes_uncached`` would have, without clocks, had each row been pulled and pushed.
    """

    rows: int = 0
    hits: int = 0
    refreshed: int = 0
    behind: int = 0
    most_behind: int = 0
    updates: int = 0
    pushed: int = 0
    most_gathered: int = 0
    nbytes: int = 0
    nbytes_uncached: int = 0

    @property
    def hit_rate(self) -> float:
        """The part of the rows that were in the cache."""
        return self.hits / self.rows if self.rows else 0.0

    @property
    def saved(self) -> float:
        """The part of the bytes that did not have to go to and fro."""
        return 1.0 - self.nbytes / self.nbytes_uncached if self.nbytes_uncached else 0.0

    def as_dict(self) -> dict[str, float]:
        """The figures by name."""
        return {**asdict(self), "hit_rate": self.hit_rate, "saved": self.saved}


class TableRows(ServedRows):
    """Rows of ``table`` without a cache: each step pulls the rows that it looks up.

    Tables of one net share what is ``known`` of ids.
    """

    def __init__(self, name: str, table: ServedTable, known: KnownIds | None = None) -> None:
        super().__init__(name, (table.rows, table.width), table.dtype)
        self.table = table
        self._ids = KnownIds() if known is None else known
        self._ids.join()
        self.lookups = Lookups()
        self._pushing: Request = Done()
        self._row_bytes = table.width * self.dtype.itemsize
        self.piece = max(1, _PIECE // max(1, self._row_bytes))

    def look_up(self, ids: Array, out: Array) -> None:
        found = self._ids.of(ids)
        rows = found.rows
        self.lookups.rows += len(rows)
        self.lookups.nbytes_uncached += len(rows) * (8 + self._row_bytes)
        _spread(self._fetched(rows), found.places, out)

    def runs(self, ids: Array) -> Runs:
        return self._ids.of(ids).runs

    def see(self, ids: Array, out: Array) -> None:
        self.flush()
        found = distinct(ids.reshape(-1))
        _spread(self.table.pull(found.rows)[0], found.places, out)

    def push(self, grad: RowSparse, scale: float) -> None:
        # A table and its caches are on the host, wherever the net computes.
        host = ops_for(grad.rows).host
        rows, grads = host(grad.indices).astype(np.int64, copy=False), host(grad.rows)
        if scale != 1.0:
            grads = grads * self.dtype.type(scale)
        self.lookups.updates += len(rows)
        self.lookups.nbytes_uncached += len(rows) * (8 + self._row_bytes)
        self._take(rows, grads)

    def flush(self) -> None:
        """Push all gradients that wait."""
        self._pushing.wait()

    def parts(self) -> Iterator[Array]:
        self.flush()
        for rows in self._pieces():
            yield self.table.pull(rows)[0]

    def write(self, array: Array) -> None:
        """As `ServedRows`; gradients that wait are dropped with the values that they are of."""
        host = ops_for(array).host
        for rows in self._pieces():
            self.table.write(rows, host(array[rows]).astype(self.dtype, copy=False))

    def prefetch(self, ids: Array) -> None:
        """Begin to pull what the next step will look up, as it is after the one under way."""
        self.table.prefetch(self._ids.of(np.asarray(ids)).rows)

    def _fetched(self, rows: Array) -> Array:
        """The values of distinct ``rows``, rising, for a training step."""
        values, _ = self.table.pull(rows)
        self._count_pull(len(rows))
        return values

    def _take(self, rows: Array, grads: Array) -> None:
        """Update distinct ``rows``, rising, by their gradients."""
        self._push(rows, grads, None)

    def _push(self, rows: Array, grads: Array, clocks_added: Array | None) -> None:
        if len(rows):
            # What comes next to the table comes after it: only its errors are waited for.
            self._pushing.wait()
            self._pushing = self.table.start_push(rows, grads, clocks_added)
            self._count_push(rows, clocks_added)

    def _count_pull(self, count: int) -> None:
        self.lookups.nbytes += count * (16 + self._row_bytes)

    def _count_push(self, rows: Array, clocks_added: Array | None) -> None:
        counts = 1 if clocks_added is None else int(clocks_added.max())
        self.lookups.pushed += len(rows)
        self.lookups.most_gathered = max(self.lookups.most_gathered, counts)
        self.lookups.nbytes += len(rows) * ((8 if clocks_added is None else 16) + self._row_bytes)

    def _pieces(self) -> list[Array]:
        step, count = self.piece, self.table.rows
        return [np.arange(start, min(start + step, count)) for start in range(0, count, step)]


def _spread(values: Array, places: Array, out: Array) -> None:
    np.take(values, places, 0, out.reshape(-1, out.shape[-1]), "clip")
