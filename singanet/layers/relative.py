"""Positions as numbers that are added to the scores of attention."""

from __future__ import annotations

from functools import lru_cache
from math import log
from typing import Any

import numpy as np

from singanet.base.addresses import steps
from singanet.base.arguments import checked_count
from singanet.base.described import Configurable
from singanet.errors import ArgumentError
from singanet.layers.past import Counts
from singanet.ops.interface import Ops
from singanet.ops.kernel import in_float32
from singanet.types import Array

__all__ = ["RelativePositions"]

_ROWS = 128
"""Queries whose distances are summed up at once."""


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

    def added(self, ops: Ops, table: Array, queries: int, keys: int, first: Counts = 0) -> Array:
        """The summand of the scores, (1, heads, queries, keys); a view of one number a distance.

        Queries stand at the positions from ``first`` on, keys at those from 0 on. Where samples
        have a first position each, (N,), it is (N, heads, queries, keys).
        """
        if not isinstance(first, int):
            each = [self.added(ops, table, queries, keys, one) for one in first.tolist()]
            return ops.concat(each, axis=0)
        row = ops.empty((table.shape[1], queries + keys - 1), table)
        buckets = ops.xp.asarray(_buckets(queries, keys, first, *self._key))
        ops.copyto(row, ops.gather_rows(table, buckets).T)
        by_head, by_key = steps(row)
        of_the_first = row[:, queries - 1 :]
        shape, strides = (1, len(row), queries, keys), (0, by_head, -by_key, by_key)
        view: Array = ops.xp.lib.stride_tricks.as_strided(of_the_first, shape, strides)
        return view

    @in_float32
    def table_gradient(self, ops: Ops, dadded: Array) -> Array:
        """The gradient of the table, from that of what `added` made at ``first`` 0."""
        _, heads, queries, keys = dadded.shape
        drow = ops.zeros((heads, queries + keys - 1), dadded)
        for start in range(0, queries, _ROWS):
            stop = min(start + _ROWS, queries)
            rows, length = stop - start, stop - start + keys
            # Read with rows that are one shorter, each row is moved on by one: distances meet.
            flat = ops.zeros((heads, rows * length), dadded)
            last_first = dadded[0, :, start:stop][:, ::-1]
            ops.copyto(flat.reshape(heads, rows, length)[..., :keys], last_first)
            moved = flat[:, : rows * (length - 1)].reshape(heads, rows, length - 1)
            into = drow[:, queries - stop : queries - stop + length - 1]
            ops.add(into, ops.sum(moved, axis=1), out=into)
        here = ops.xp.asarray(_one_hot(queries, keys, drow.dtype, *self._key))
        return ops.matmul(here, drow.T)

    def buckets_of(self, distance: Array) -> Array:
        """The bucket of each ``distance``, the position of a key less that of its query."""
        return _bucket_of(distance, *self._key)

    @property
    def _key(self) -> tuple[int, int, bool]:
        return self.buckets, self.max_distance, self.bidirectional


def _bucket_of(distance: Array, buckets: int, longest: int, bidirectional: bool) -> Array:
    ways = 2 if bidirectional else 1
    each = buckets // ways
    exact = each // 2
    far = np.abs(distance) if bidirectional else np.maximum(-distance, 0)
    growth = np.log(np.maximum(far, exact) / exact) / log(longest / exact)
    grown = exact + (growth * (each - exact)).astype(np.int64)
    bucket = np.where(far < exact, far, np.minimum(grown, each - 1))
    return np.asarray(bucket + np.where(distance > 0, (ways - 1) * each, 0))


# Layers with equal buckets have the same arrays, which programs so hold once.
@lru_cache(maxsize=8)
def _buckets(queries: int, keys: int, first: int, *key: Any) -> Array:
    """The bucket of each distance, rising: from the last query's to the first key's, and on."""
    return _bucket_of(np.arange(1 - queries, keys) - first, *key)


@lru_cache(maxsize=8)
def _one_hot(queries: int, keys: int, dtype: np.dtype[Any], *key: Any) -> Array:
    """(buckets, distances): 1 where the distance has the bucket."""
    buckets = np.arange(key[0])[:, None]
    return (buckets == _buckets(queries, keys, 0, *key)).astype(dtype)
