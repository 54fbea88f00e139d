"""Rows read from a table, and gradients added up by row."""

from __future__ import annotations

from typing import Any

import numpy as np

from singanet.types import Array


class Tables:
    """A table is (V, ...); indices are integers from 0 to V - 1, which the caller has checked."""

    xp: Any

    def gather_rows(self, table: Array, indices: Array) -> Array:
        """``table[indices]``, of shape ``indices.shape + table.shape[1:]``."""
        return self.xp.take(table, indices, axis=0)

    def sum_rows(self, indices: Array, rows: Array) -> tuple[Array, Array]:
        """The distinct ones of ``indices`` (K,), rising, as int64, and the sum of their rows.

        Equal indices are added in the order in which they stand, so the sums are the same to
        the last bit in every run.
        """
        xp = self.xp
        indices = indices.astype(np.int64, copy=False)
        if not len(indices):
            return indices, rows
        order = xp.argsort(indices, kind="stable")
        # Taking rows of a matrix is quicker than indexing them.
        ordered, rows = xp.take(indices, order), xp.take(rows, order, axis=0)
        first = xp.ones(len(ordered), bool)
        xp.not_equal(ordered[1:], ordered[:-1], out=first[1:])
        starts = xp.flatnonzero(first)
        return ordered[starts], xp.add.reduceat(rows, starts, axis=0)

    def add_to_rows(self, array: Array, indices: Array, rows: Array) -> Array:
        """A copy of ``array`` with ``rows`` added at the distinct ``indices``."""
        total: Array = array.copy()
        total[indices] += rows
        return total
