"""Compute attention in blocks, without the matrix of scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
from math import prod
from typing import Any, ClassVar, NamedTuple

import numpy as np

from singanet.ops.blas import product
from singanet.ops.interface import Ops
from singanet.ops.kernel import kernel
from singanet.ops.numpy.linear import LEAST
from singanet.ops.window import Attention
from singanet.types import Array

_SCORES = 1 << 17
"""Scores of a block: half a megabyte in float32, which fits in a core's second-level cache."""

_SCORES_OF_A_DEVICE = 1 << 26

_KEYS = 512
"""Keys of a block with many queries: products lose little to a cut at this size."""


class Blocks(NamedTuple):
    """Extents (samples, heads, heads of keys, queries, keys, features) of all, and of a block.

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
        """Return the blocks for queries, keys and values of these shapes.

        ``alone`` is for products that use several threads themselves.
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
        # A copy of the keys pays if many queries are multiplied by them.
        copies = shared * rows >= _FEW or q.dtype != kind
        return cls(
            n, heads, groups, queries, keys, size, width,
            samples, together, rows, columns, workers, kind, copies,
        )  # fmt: skip

    @property
    def shared(self) -> int:
        """Query heads for each key head."""
        return self.heads // self.groups

    @property
    def empty(self) -> bool:
        """Whether the scores are empty."""
        return not self.n * self.heads * self.queries * self.keys

    @property
    def together_of(self) -> tuple[int, int, int]:
        """Of a whole block: pairs of sample and key head, rows of a pair, and scores."""
        pairs, rows = self.samples * self.together, self.shared * self.rows
        return pairs, rows, pairs * rows * self.columns

    def scores(self, case: Attention) -> int:
        """Return the number of scores in blocks that positions do not mask."""
        rows = cut(slice(0, self.queries), self.rows)
        ranges = [(extent(part), *case.visible(part, self.keys)) for part in rows]
        return self.n * self.heads * sum(count * (high - low) for count, low, high in ranges)

    def units(self) -> list[tuple[slice, slice]]:
        """Return the ranges of samples and key heads that blocks cover."""
        return [
            (samples, groups)
            for samples in cut(slice(0, self.n), self.samples)
            for groups in cut(slice(0, self.groups), self.together)
        ]


_FEW = 32


class ScoreBlock(NamedTuple):
    """The scores of one block: ranges of samples, key heads, heads, queries and keys."""

    samples: slice
    groups: slice
    heads: slice
    queries: slice
    keys: slice

    @property
    def pairs(self) -> tuple[int, int]:
        """The numbers of samples and key heads."""
        return extent(self.samples), extent(self.groups)

    def apart(self, columns: Array) -> Array:
        """Split the last axis of (samples, groups, ·, heads · queries) into heads and queries."""
        return columns.reshape(*columns.shape[:3], -1, extent(self.queries))


def extent(part: slice) -> int:
    """Return the length of a slice."""
    return int(part.stop - part.start)


def even(whole: int, most: int) -> int:
    """Return the size, at most ``most``, of the fewest equal parts."""
    return -(-whole // -(-whole // most)) if whole else 1


def cut(whole: slice, size: int) -> Iterator[slice]:
    """Yield slices of ``size``; the last may be smaller."""
    for start in range(whole.start, whole.stop, size):
        yield slice(start, min(start + size, whole.stop))


class WorkingMemory:
    """Named flat parts of one buffer."""

    def __init__(self, memory: Array, sizes: Mapping[str, int]) -> None:
        ends = pairwise(accumulate(sizes.values(), initial=0))
        self._parts = {name: memory[slice(*each)] for name, each in zip(sizes, ends, strict=True)}

    def get(self, name: str, *shape: int) -> Array:
        """Return the first elements of a part, in this shape."""
        return self._parts[name][: prod(shape)].reshape(shape)

    @classmethod
    def of_workers(cls, memory: Array, sizes: Mapping[str, int], count: int) -> list[WorkingMemory]:
        """Split ``memory`` into a workspace for each of ``count`` workers."""
        each = sum(sizes.values())
        return [cls(memory[k * each : (k + 1) * each], sizes) for k in range(count)]


def rows_of(array: Array, place: ScoreBlock) -> Array:
    """Return the block's rows of (N, h, T, ·), (a, b, m, r, ·)."""
    part = array[place.samples, place.heads, place.queries]
    a, b = place.pairs
    return part.reshape(a, b, -1, *part.shape[2:])


def done_by(ops: Ops, work: Sequence[Callable[[], None]]) -> None:
    """Run each part of ``work`` on a thread of its own."""
    if len(work) == 1:
        work[0]()
    else:
        ops.team()[1]([[part] for part in work])


class Hider:
    """The masks of ``case``, block by block.

    If kernels may read values, it also detects fully masked blocks.
    """

    def __init__(self, ops: Ops, case: Attention) -> None:
        self._xp, self._case, self._looks = ops.xp, case, ops.sees_values
        self._lengths = case.lengths
        # Blocks along the diagonal share a mask.
        self._by_position: dict[tuple[int, int, int], Array] = {}

    def range(self, samples: slice, queries: slice, keys: int) -> tuple[int, int]:
        """Return the range of keys outside of which all scores are masked."""
        low, high = self._case.visible(queries, keys)
        if self._lengths is not None and self._looks:
            high = min(high, int(self._lengths[samples].max()))
        return min(low, high), high

    def hidden(self, place: ScoreBlock) -> tuple[Array | None, bool]:
        """Return a mask broadcastable to (a, b, c, m, r), or None; and if all is hidden.

        True means hidden.
        """
        masks = [mask for mask in self._masks(place) if mask is not None]
        if not masks:
            return None, False
        whole = masks[0]
        for mask in masks[1:]:
            whole = self._xp.logical_or(whole, mask)
        if not self._looks:
            return whole, False
        if not bool(whole.any()):
            return None, False
        return whole, bool(whole.all())

    def _masks(self, place: ScoreBlock) -> list[Array | None]:
        case, xp = self._case, self._xp
        return [
            None if case.shows_all(place.queries, place.keys) else self._position(place),
            None if self._lengths is None else self._absent(self._lengths, place),
            None if case.seen is None else block_of(case.seen, place) == 0,
            None if case.segments is None else _other_segments(xp, case.segments, place),
        ]

    def _position(self, place: ScoreBlock) -> Array:
        rows, columns = extent(place.queries), extent(place.keys)
        # The position of the block's query 0, relative to its key 0.
        offset = self._case.first + place.queries.start - place.keys.start
        known = self._by_position.get((offset, rows, columns))
        if known is None:
            xp, case = self._xp, self._case
            behind = xp.arange(offset, offset + rows) - xp.arange(columns)[:, None, None]
            known = behind < 0 if case.causal else None
            if case.window is not None:
                old = (behind if case.causal else xp.abs(behind)) >= case.window
                known = old if known is None else xp.logical_or(known, old)
            assert known is not None
            self._by_position[offset, rows, columns] = known
        return known

    def _absent(self, lengths: Array, place: ScoreBlock) -> Array | None:
        there = lengths[place.samples]
        if self._looks and int(there.min()) >= place.keys.stop:
            return None
        keys = self._xp.arange(place.keys.start, place.keys.stop)
        absent: Array = keys >= there.reshape(-1, 1)
        return absent[:, None, :, None, None]


def _other_segments(xp: Any, segments: tuple[Array, Array], place: ScoreBlock) -> Array:
    """Return a mask of query and key pairs of different segments."""
    of_queries = segments[0][place.samples, place.queries]
    of_keys = segments[1][place.samples, place.keys]
    of_queries, of_keys = of_queries[:, None, None, None], of_keys[:, None, :, None, None]
    found: Array = xp.not_equal(of_queries, of_keys)
    return found


def block_of(mask: Array, place: ScoreBlock) -> Array:
    """Return the block of ``mask``, which has the scores' axes, as (a, b, c, m, r) or 1s."""
    slices = (place.samples, place.heads, place.queries, place.keys)
    pairs = zip(slices, mask.shape, strict=True)
    part = mask[tuple([slice(0, 1) if size == 1 else each for each, size in pairs])]
    groups = 1 if part.shape[1] == 1 else extent(place.groups)
    return part.reshape(len(part), groups, -1, *part.shape[2:]).transpose(0, 1, 4, 2, 3)


class Dropper:
    """A reproducible dropout mask: equal blocks drop equal weights."""

    def __init__(self, ops: Ops, case: Attention) -> None:
        # Drawn on the host, so that a seed gives the same weights on every device.
        host = np.asarray(ops.host(case.seeds), np.float64)  # type: ignore[arg-type]
        self._words = (host * 2.0**24).astype(np.uint64).tolist()
        self._asarray = ops.xp.asarray
        self._least = np.uint32(min(round(case.dropout * 2.0**32), 2**32 - 1))

    def kept(self, place: ScoreBlock, like: Array) -> Array:
        """Return a mask of the weights of the block that are not dropped."""
        starts = (place.samples.start, place.heads.start, place.queries.start, place.keys.start)
        bits = np.random.PCG64(np.random.SeedSequence([*self._words, *starts]))
        drawn = bits.random_raw(-(-like.size // 2)).view(np.uint32)[: like.size]
        kept: Array = self._asarray(drawn.reshape(like.shape) >= self._least)
        return kept


class BlockProducts:
    """Products of stacks (a, b, ·, ·), on one thread if ``others`` run."""

    rounds: ClassVar[bool] = False
    """Whether factors are rounded; terms that need full precision are then added separately."""

    def __init__(self, ops: Ops, memory: WorkingMemory, others: bool) -> None:
        self.ops, self.memory, self.others = ops, memory, others

    @classmethod
    def sizes(cls, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the sizes of the workspace's parts, with extra space for factors."""
        return dict(sizes)

    def factor(self, name: str, array: Array) -> Array:
        """Return ``array``, from the workspace's part ``name``, in its form as a factor."""
        return array

    def __call__(self, x: Array, y: Array, out: Array) -> None:
        """Write the product of two factors to ``out``."""
        # NumPy multiplies a single block, or one block of several threads, on one thread.
        if self.others or x.shape[:2] == (1, 1):
            product(self.ops.xp, x, y, out)
        else:
            self.ops.matmul(x, y, out=out)


@kernel(half="native")
def attend(ops: Ops, q: Array, k: Array, v: Array, case: Attention) -> tuple[Array, Array]:
    return attend_by(BlockProducts, ops, q, k, v, case)


@kernel(half="native")
def attend_few(
    ops: Ops, q: Array, k: Array, v: Array, case: Attention, first: int | Array, out: Array
) -> bool:
    return False


def attend_by(
    products: type[BlockProducts], ops: Ops, q: Array, k: Array, v: Array, case: Attention
) -> tuple[Array, Array]:
    """Compute `Ops.attend` with these products."""
    blocks = Blocks.of(ops, q, k, v, products.rounds)
    means = ops.empty((blocks.n, blocks.queries, blocks.heads, blocks.width), q)
    means = means.transpose(0, 2, 1, 3)
    lse = ops.xp.empty((blocks.n, blocks.heads, blocks.queries), blocks.kind)
    plain, arrays = case.apart()
    fill = partial(_fill, products, blocks, plain)
    ops.as_one(
        fill,
        (means, lse),
        (q, k, v, arrays),
        (blocks.workers * sum(_sizes(products, blocks).values()), blocks.kind),
        blocks.scores(case) * (blocks.size + blocks.width),
    )
    return means, lse


def _sizes(products: type[BlockProducts], blocks: Blocks) -> dict[str, int]:
    """Return the sizes of one worker's workspace."""
    pairs, rows, scores = blocks.together_of
    copied = pairs * blocks.keys * blocks.copies
    sizes = {
        "q": pairs * rows * blocks.size * _copies_queries(products, blocks),
        "scores": scores,
        "means": pairs * rows * blocks.width,
        "more": pairs * rows * blocks.width,
        "k": copied * blocks.size,
        "v": copied * blocks.width,
    }
    return products.sizes(sizes)


def _copies_queries(products: type[BlockProducts], blocks: Blocks) -> bool:
    """Whether a block's queries are not a matrix in memory, or have to be changed."""
    return not blocks.copies or blocks.shared > 1 or products.rounds


def _fill(
    products: type[BlockProducts],
    blocks: Blocks,
    case: Attention,
    ops: Ops,
    working: Array,
    *given: Any,
) -> None:
    means, lse, *read, arrays = given
    case = replace(case, **arrays)
    if blocks.empty:
        ops.copyto(means, 0)
        ops.copyto(lse, np.finfo(blocks.kind).max)
        return
    workers = [
        _Forward(products, ops, blocks, case, read, (means, lse), memory)
        for memory in WorkingMemory.of_workers(working, _sizes(products, blocks), blocks.workers)
    ]
    done_by(
        ops, [partial(worker.run, number, len(workers)) for number, worker in enumerate(workers)]
    )


class _Forward:
    """A worker of the forward pass."""

    def __init__(
        self,
        products: type[BlockProducts],
        ops: Ops,
        blocks: Blocks,
        case: Attention,
        given: Sequence[Array],
        made: tuple[Array, Array],
        memory: WorkingMemory,
    ) -> None:
        self.ops, self.blocks, self.case = ops, blocks, case
        self.q, self.k, self.v = given
        self.means, self.lse = made
        self.memory = memory
        self.product = products(ops, memory, blocks.workers > 1)
        self.copies_queries = _copies_queries(products, blocks)
        self.hider = Hider(ops, case)
        self.dropper = Dropper(ops, case) if case.dropout else None
        self.ones = ops.xp.ones((1, blocks.columns), blocks.kind)

    def run(self, number: int, count: int) -> None:
        """Compute the part of worker ``number`` of ``count``."""
        blocks = self.blocks
        units = blocks.units()
        queries = list(cut(slice(0, blocks.queries), blocks.rows))
        apart = len(units) % count != 0
        for unit in units if apart else units[number::count]:
            k, v = self.k[unit], self.v[unit]
            if blocks.copies:
                k = copied(self.ops, self.memory, "k", k, self.case.scale)
                v = copied(self.ops, self.memory, "v", v)
                k, v = self.product.factor("k", k), self.product.factor("v", v)
            for part in queries[number::count] if apart else queries:
                self._rows(k, v, *unit, part)

    def _rows(self, k: Array, v: Array, samples: slice, groups: slice, queries: slice) -> None:
        """Compute the outputs of a range of queries."""
        xp, blocks, m = self.ops.xp, self.blocks, self.blocks.shared
        heads = slice(groups.start * m, groups.stop * m)
        low, high = self.hider.range(samples, queries, blocks.keys)
        here = ScoreBlock(samples, groups, heads, queries, slice(low, high))
        pairs, rows = here.pairs, m * extent(queries)
        q = self._queries(here)
        means, more = (self.memory.get(name, *pairs, rows, blocks.width) for name in _MEANS)
        top: Array | None = None
        sums: Any = None
        for keys in cut(here.keys, blocks.columns):
            scores = self._scores(q, k, here._replace(keys=keys))
            if scores is None:
                continue
            before, top = top, scores.max(axis=2, keepdims=True)
            # -inf - -inf is NaN, so fully masked rows are shifted by a finite value.
            xp.maximum(top, np.finfo(blocks.kind).min if before is None else before, out=top)
            xp.subtract(scores, top, out=scores)
            xp.exp(scores, out=scores)
            # A product with ones takes a third of the time of NumPy's sum.
            found = xp.matmul(self.ones[:, : extent(keys)], scores)
            if self.dropper is not None:
                kept = self.dropper.kept(here._replace(keys=keys), scores)
                xp.multiply(scores, kept, out=scores)
            made = means if before is None else more
            weights = self.product.factor("scores", scores)
            self.product(weights.swapaxes(2, 3), v[:, :, keys], made)
            if before is None:
                sums = found
                continue
            less = xp.exp(xp.subtract(before, top))
            xp.multiply(means, less.swapaxes(2, 3), out=means)
            xp.add(means, more, out=means)
            xp.multiply(sums, less, out=sums)
            xp.add(sums, found, out=sums)
        self._finish(here, means, top, sums)

    def _queries(self, here: ScoreBlock) -> Array:
        """Return rows (a, b, R, d), multiplied by the scale unless the keys are copied."""
        rows, size = rows_of(self.q, here), self.blocks.size
        if self.copies_queries:
            copy = self.memory.get("q", *rows.shape)
            if self.blocks.copies:
                self.ops.copyto(copy, rows)
            else:
                self.ops.multiply(rows, self.case.scale, out=copy)
            rows = copy
        return self.product.factor("q", rows.reshape(*here.pairs, -1, size))

    def _scores(self, q: Array, k: Array, place: ScoreBlock) -> Array | None:
        """Return a block's scores (a, b, keys, rows), -inf if masked; None if all are masked."""
        hidden, whole = self.hider.hidden(place)
        if whole:
            return None
        scores = self.memory.get("scores", *place.pairs, extent(place.keys), q.shape[2])
        self.product(k[:, :, place.keys], q.swapaxes(2, 3), scores)
        shift(self.ops.xp, self.case, scores, place, hidden)
        return scores

    def _finish(self, here: ScoreBlock, means: Array, top: Array | None, sums: Any) -> None:
        xp, kind = self.ops.xp, self.blocks.kind
        at = here.samples, here.heads, here.queries
        if top is None:
            self.ops.copyto(self.means[at], 0)
            self.ops.copyto(self.lse[at], np.finfo(kind).max)
            return
        # The sum of a fully masked row is 0, of other rows at least exp(0) = 1.
        xp.add(top, xp.log(xp.maximum(sums, 1)), out=top)
        xp.copyto(top, np.finfo(kind).max, where=sums == 0)
        xp.maximum(sums, 1, out=sums)
        shape = tuple(map(extent, at))
        self.ops.copyto(self.lse[at], top.reshape(shape))
        if self.case.dropout:
            xp.multiply(sums, 1.0 - self.case.dropout, out=sums)
        into = self.means[at]
        if into.dtype != kind:
            into = means.reshape(into.shape)
        xp.divide(means.reshape(into.shape), sums.reshape(*shape, 1), out=into)
        if into.dtype != self.means.dtype:
            self.ops.copyto(self.means[at], into)


_MEANS = ("means", "more")


def shift(
    xp: Any,
    case: Attention,
    scores: Array,
    place: ScoreBlock,
    hidden: Array | None,
    slope: Array | None = None,
) -> None:
    """Turn products into scores in place, -inf at ``hidden`` positions.

    With a softcap, ``slope`` receives its derivative.
    """
    if case.softcap is not None:
        xp.multiply(scores, 1.0 / case.softcap, out=scores)
        xp.tanh(scores, out=scores)
        if slope is not None:
            xp.multiply(scores, scores, out=slope)
            xp.subtract(1.0, slope, out=slope)
        xp.multiply(scores, case.softcap, out=scores)
    apart = place.apart(scores)
    if case.added is not None:
        xp.add(apart, block_of(case.added, place), out=apart)
    if hidden is not None:
        xp.copyto(apart, scores.dtype.type(-np.inf), where=hidden)


def copied(
    ops: Ops, memory: WorkingMemory, name: str, array: Array, scale: float = 1.0, more: int = 0
) -> Array:
    """Return ``scale`` times ``array`` in the part ``name``, each row followed by ``more`` ones."""
    *shape, size = array.shape
    copy = memory.get(name, *shape, size + more)
    if scale == 1.0:
        ops.copyto(copy[..., :size], array)
    else:
        ops.multiply(array, scale, out=copy[..., :size])
    if more:
        ops.copyto(copy[..., size:], 1)
    return copy
