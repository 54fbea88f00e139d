"""The blocks in which attention is computed, the memory that they take, and who computes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np

from singanet.ops.attention import Attention
from singanet.ops.interface import Ops
from singanet.ops.numpy.lanes import LEAST
from singanet.types import Array

_SCORES = 1 << 17
"""Of a block: half a megabyte in float32, which a core's second cache holds."""

_SCORES_OF_A_DEVICE = 1 << 26

_KEYS = 512
"""Of a block, where it has many queries: products lose little by being cut there."""


class Blocks(NamedTuple):
    """Extents of all (samples, heads, heads of keys, queries, keys, features), and of a block.

    A block has ``rows`` queries of all heads that ``together`` heads of keys serve, in ``samples``
    samples, and ``columns`` keys. ``workers`` threads share the blocks.
    """

    n: int
    heads: int
    groups: int
    queries: int
    keys: int
    size: int
    width: int
    samples: int
    together: int
    rows: int
    columns: int
    workers: int
    kind: np.dtype[Any]
    copies: bool

    @classmethod
    def of(cls, ops: Ops, q: Array, k: Array, v: Array, alone: bool = False) -> Blocks:
        """For queries, keys and values of these shapes, of a size that does not change.

        ``alone`` is for products that share the threads by themselves.
        """
        n, heads, queries, size = q.shape
        groups, keys, width = k.shape[1], k.shape[2], v.shape[3]
        most = _SCORES if ops.on_host else _SCORES_OF_A_DEVICE
        shared = heads // max(groups, 1)
        columns = even(keys, max(_KEYS, most // max(1, shared * queries)))
        rows = even(queries, max(1, most // max(1, shared * columns)))
        left = max(1, most // max(1, shared * rows * columns))
        together = even(groups, left)
        samples = even(n, max(1, left // max(1, together))) if together == groups else 1
        work = n * heads * queries * keys * (size + width)
        workers = ops.team()[0] if ops.on_host and work >= LEAST and not alone else 1
        kind = np.result_type(q.dtype, np.float32)
        # A copy of the keys pays where many queries are multiplied by them.
        copies = shared * rows >= _FEW or q.dtype != kind
        return cls(
            n, heads, groups, queries, keys, size, width,
            samples, together, rows, columns, workers, kind, copies,
        )  # fmt: skip

    @property
    def shared(self) -> int:
        """Heads of queries that one head of keys serves."""
        return self.heads // self.groups

    @property
    def empty(self) -> bool:
        """Whether there is no score at all."""
        return not self.n * self.heads * self.queries * self.keys

    @property
    def together_of(self) -> tuple[int, int, int]:
        """Of a whole block: its pairs of sample and head of keys, the rows of each, its scores."""
        pairs, rows = self.samples * self.together, self.shared * self.rows
        return pairs, rows, pairs * rows * self.columns

    def scores(self, case: Attention) -> int:
        """How many there are in blocks that positions do not hide."""
        rows = cut(slice(0, self.queries), self.rows)
        ranges = [(extent(part), *case.visible(part, self.keys)) for part in rows]
        return self.n * self.heads * sum(count * (high - low) for count, low, high in ranges)

    def units(self) -> list[tuple[slice, slice]]:
        """The samples, and heads of keys, of blocks that differ in them."""
        return [
            (samples, groups)
            for samples in cut(slice(0, self.n), self.samples)
            for groups in cut(slice(0, self.groups), self.together)
        ]


_FEW = 32


class ScoreBlock(NamedTuple):
    """The scores of one block: samples, heads of keys, heads of queries, queries, keys."""

    samples: slice
    groups: slice
    heads: slice
    queries: slice
    keys: slice

    @property
    def pairs(self) -> tuple[int, int]:
        """How many samples and heads of keys."""
        return extent(self.samples), extent(self.groups)

    def apart(self, columns: Array) -> Array:
        """(samples, groups, ·, heads · queries) with an axis of heads and one of queries."""
        return columns.reshape(*columns.shape[:3], -1, extent(self.queries))


def extent(part: slice) -> int:
    """How many it holds."""
    return int(part.stop - part.start)


def even(whole: int, most: int) -> int:
    """The extent of at most ``most`` of the fewest equal parts."""
    return -(-whole // -(-whole // most)) if whole else 1


def cut(whole: slice, size: int) -> Iterator[slice]:
    """Parts of ``size``, the last perhaps smaller."""
    for start in range(whole.start, whole.stop, size):
        yield slice(start, min(start + size, whole.stop))


class WorkingMemory:
    """Flat parts of one piece of memory, by name."""

    def __init__(self, memory: Array, sizes: Mapping[str, int]) -> None:
        ends = pairwise(accumulate(sizes.values(), initial=0))
        self._parts = {name: memory[slice(*each)] for name, each in zip(sizes, ends, strict=True)}

    def get(self, name: str, *shape: int) -> Array:
        """The first elements of a part."""
        return self._parts[name][: prod(shape)].reshape(shape)

    @classmethod
    def of_workers(cls, memory: Array, sizes: Mapping[str, int], count: int) -> list[WorkingMemory]:
        """Working memory for each of ``count`` workers, all of it in ``memory``."""
        each = sum(sizes.values())
        return [cls(memory[k * each : (k + 1) * each], sizes) for k in range(count)]


def rows_of(array: Array, place: ScoreBlock) -> Array:
    """The block's rows of (N, h, T, ·), (a, b, m, r, ·)."""
    part = array[place.samples, place.heads, place.queries]
    a, b = place.pairs
    return part.reshape(a, b, -1, *part.shape[2:])


def done_by(ops: Ops, work: Sequence[Callable[[], None]]) -> None:
    """Do each part of ``work`` in a thread of its own."""
    if len(work) == 1:
        work[0]()
    else:
        ops.team()[1]([[part] for part in work])
