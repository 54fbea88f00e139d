"""Summands of attention scores by the distance of a key from its query."""

from __future__ import annotations

from functools import lru_cache
from math import log
from typing import Any

import numpy as np

from singanet.base.arguments import checked_count
from singanet.base.described import Configurable
from singanet.base.heap import steps
from singanet.errors import ArgumentError, brief
from singanet.layers.kv_cache import Counts
from singanet.ops.interface import Ops
from singanet.ops.kernel import in_float32
from singanet.types import Array

_ROWS = 128
"""The number of queries in one block of the sum over distances."""


class RelativePositions(Configurable):
    """A learned bias of `MultiHeadAttention` for each head and distance of a key from its query.

    Distances share buckets (Raffel et al. 2020, T5): half of the buckets have one distance each,
    the others widen with the logarithm of the distance up to ``max_distance``, and the last has all
    larger ones. The table is ``relative_weight`` (buckets, heads), which all layers of a stack
    share: ``relative_specs=first.params["relative_weight"]``.

    Args:
        buckets: Int, the number of buckets.
        max_distance: Int, the distance at which the last bucket starts.
        bidirectional: Whether later keys have buckets of their own; otherwise they have the bucket
            of distance 0.

    Examples:
        >>> x = singanet.Input("x", (10, 64))
        >>> relative = singanet.layers.RelativePositions(buckets=32)
        >>> singanet.layers.MultiHeadAttention(num_heads=4, relative=relative)(x).shape
        (10, 64)
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
                received=brief(buckets),
                advice="32 are usual",
            )

    def added(self, ops: Ops, table: Array, queries: int, keys: int, first: Counts = 0) -> Array:
        """Return the summand of the scores (1, heads, queries, keys), a view.

        ``table`` (buckets, heads) has the parameter, ``ops`` are the kernels. The positions of the
        ``queries`` start at ``first``, the positions of the ``keys`` at 0. If each sample has its
        own first position, (N,), the result is (N, heads, queries, keys).
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
    def _table_gradient(self, ops: Ops, dadded: Array) -> Array:
        """Return the gradient of the table, given the gradient of `added` at ``first`` 0."""
        _, heads, queries, keys = dadded.shape
        drow = ops.zeros((heads, queries + keys - 1), dadded)
        for start in range(0, queries, _ROWS):
            stop = min(start + _ROWS, queries)
            rows, length = stop - start, stop - start + keys
            # Reading rows one element shorter shifts each by one, which aligns the distances.
            flat = ops.zeros((heads, rows * length), dadded)
            last_first = dadded[0, :, start:stop][:, ::-1]
            ops.copyto(flat.reshape(heads, rows, length)[..., :keys], last_first)
            moved = flat[:, : rows * (length - 1)].reshape(heads, rows, length - 1)
            into = drow[:, queries - stop : queries - stop + length - 1]
            ops.add(into, ops.sum(moved, axis=1), out=into)
        here = ops.xp.asarray(_one_hot(queries, keys, drow.dtype, *self._key))
        return ops.matmul(here, drow.T)

    def _buckets_of(self, distance: Array) -> Array:
        """Return the bucket of each ``distance``, key position minus query position."""
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


# Layers with equal buckets share these arrays, so that programs store them once.
@lru_cache(maxsize=8)
def _buckets(queries: int, keys: int, first: int, *key: Any) -> Array:
    """Return the bucket of each distance, in rising order, from the last query to the first key."""
    return _bucket_of(np.arange(1 - queries, keys) - first, *key)


@lru_cache(maxsize=8)
def _one_hot(queries: int, keys: int, dtype: np.dtype[Any], *key: Any) -> Array:
    """Return (buckets, distances), 1 if the distance has the bucket."""
    buckets = np.arange(key[0])[:, None]
    return (buckets == _buckets(queries, keys, 0, *key)).astype(dtype)


class Alibi(Configurable):
    """A summand of `MultiHeadAttention` that falls linearly with the distance of a key.

    It has no parameters, and replaces positions (ALiBi: Press et al. 2022; BLOOM). Head k of n,
    counted from 1, has the slope 2^(-8k/n), if n is a power of two. Of other numbers the first
    heads have the slopes of the next smaller power p, the others every second one of 2p.

    Examples:
        >>> x = singanet.Input("x", (10, 64))
        >>> alibi = singanet.layers.Alibi()
        >>> singanet.layers.MultiHeadAttention(num_heads=4, causal=True, relative=alibi)(x).shape
        (10, 64)
    """

    def added(self, ops: Ops, heads: int, keys: int, dtype: np.dtype[Any]) -> Array:
        """Return the summand of the scores (1, ``heads``, 1, ``keys``) in the float ``dtype``.

        It is relative to the last key: a number that all keys of a query share does not change
        the weights. ``ops`` are the kernels.
        """
        row = _slanted(heads, 1 << (keys - 1).bit_length(), dtype)
        found: Array = ops.xp.asarray(row[:, :, :, row.shape[3] - keys :])
        return found


@lru_cache(maxsize=8)
def _slanted(heads: int, keys: int, dtype: np.dtype[Any]) -> Array:
    """Return `Alibi.added` for ``keys``."""
    return (slopes(heads)[None, :, None, None] * np.arange(1 - keys, 1)).astype(dtype)


def slopes(heads: int) -> Array:
    """Return the slopes of `Alibi`."""
    power = 1 << (heads.bit_length() - 1)
    first = 2.0 ** (-8.0 * np.arange(1, power + 1) / power)
    more = 2.0 ** (-4.0 * np.arange(1, 2 * (heads - power) + 1, 2) / power)
    return np.concatenate([first, more])
