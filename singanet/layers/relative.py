"""Positions as numbers that are added to the scores of attention."""

from __future__ import annotations

from math import log
from typing import Any

import numpy as np

from singanet.base.arguments import checked_count
from singanet.base.described import Configurable
from singanet.errors import ArgumentError
from singanet.ops.interface import Ops
from singanet.types import Array

__all__ = ["RelativePositions"]


class RelativePositions(Configurable):
    """Of a `MultiHeadAttention`: a number for each head and distance of a key from its query.

    Distances share ``buckets`` (Raffel et al. 2020, T5): a half of them has one distance each, the
    others grow with its logarithm up to ``max_distance``, and the last has all beyond. Keys that
    follow have buckets of their own where it is ``bidirectional``; else they have the bucket of
    distance 0. The table is ``relative_weight`` (buckets, heads), which all layers of a stack
    share: ``relative_specs=first.params["relative_weight"]``.
    """

    def __init__(
        self, buckets: int = 32, max_distance: int = 128, bidirectional: bool = True
    ) -> None:
        ways = 2 if bidirectional else 1
        self.buckets = checked_count("RelativePositions", "buckets", buckets, 2 * ways)
        exact = self.buckets // ways // 2
        self.max_distance = checked_count(
            "RelativePositions", "max_distance", max_distance, exact + 1, 2**31
        )
        self.bidirectional = bool(bidirectional)
        if self.buckets % (2 * ways):
            raise ArgumentError(
                "RelativePositions, buckets",
                expected=f"a multiple of {2 * ways}",
                received=repr(buckets),
                advice="32 are usual",
            )

    def added(self, ops: Ops, table: Array, queries: int, keys: int, first: int = 0) -> Array:
        """What is added to the scores, (1, heads, queries, keys).

        Queries stand at the positions from ``first`` on, keys at those from 0 on.
        """
        heads, length = table.shape[1], queries + keys
        row = ops.gather_rows(table, ops.xp.asarray(self._row(queries, keys, first))).T
        # Read with rows that are one shorter, equal rows are each moved on by one.
        rows = ops.empty((heads, queries, length), table)
        ops.copyto(rows, row[:, None])
        flat = rows.reshape(heads, queries * length)[:, : queries * (length - 1)]
        return flat.reshape(1, heads, queries, length - 1)[..., :keys]

    def table_gradient(self, ops: Ops, dadded: Array) -> Array:
        """The gradient of the table, from that of what `added` made at ``first`` 0."""
        heads, queries, keys = dadded.shape[1:]
        length = queries + keys
        flat = ops.zeros((heads, queries * length), dadded)
        moved = flat[:, : queries * (length - 1)].reshape(heads, queries, length - 1)
        ops.copyto(moved[..., :keys], dadded[0])
        drow = ops.sum(flat.reshape(heads, queries, length), axis=1)
        here = self._row(queries, keys, 0)[:, None] == np.arange(self.buckets)
        like: Any = ops.xp.asarray
        return ops.matmul(like(here.T, drow.dtype), drow.T)

    def buckets_of(self, distance: Array) -> Array:
        """The bucket of each ``distance``, the position of a key less that of its query."""
        ways = 2 if self.bidirectional else 1
        each = self.buckets // ways
        exact = each // 2
        far = np.abs(distance) if self.bidirectional else np.maximum(-distance, 0)
        growth = np.log(np.maximum(far, exact) / exact) / log(self.max_distance / exact)
        grown = exact + (growth * (each - exact)).astype(np.int64)
        bucket = np.where(far < exact, far, np.minimum(grown, each - 1))
        return np.asarray(bucket + np.where(distance > 0, (ways - 1) * each, 0))

    def _row(self, queries: int, keys: int, first: int) -> Array:
        """The bucket of each distance from the first query, up to the last key; negative ones last.

        There is one more between them, which nobody reads.
        """
        distance = np.concatenate([np.arange(keys), np.arange(-queries, 0)]) - first
        return self.buckets_of(distance)
