"""Means of values by weights that are there for one block at a time."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from singanet.ops.attention import Attention
from singanet.ops.interface import Ops
from singanet.ops.kernel import kernel
from singanet.ops.numpy.attending.blocks import (
    Blocks,
    ScoreBlock,
    WorkingMemory,
    cut,
    done_by,
    extent,
    rows_of,
)
from singanet.ops.numpy.attending.hidden import Dropper, Hider, block_of
from singanet.ops.numpy.attending.products import BlockProducts
from singanet.types import Array


@kernel(half="native")
def attend(ops: Ops, q: Array, k: Array, v: Array, case: Attention) -> tuple[Array, Array]:
    return attend_by(BlockProducts, ops, q, k, v, case)


def attend_by(
    products: type[BlockProducts], ops: Ops, q: Array, k: Array, v: Array, case: Attention
) -> tuple[Array, Array]:
    """`Ops.attend` with these products."""
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
    """Of what one worker needs."""
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
    """Whether the queries of a block are no matrix in memory, or have to be changed."""
    return not blocks.copies or blocks.shared > 1 or products.rounds


def _fill(
    products: type[BlockProducts],
    blocks: Blocks,
    case: Attention,
    ops: Ops,
    working: Array,
    means: Array,
    lse: Array,
    q: Array,
    k: Array,
    v: Array,
    arrays: dict[str, Any],
) -> None:
    case = replace(case, **arrays)
    if blocks.empty:
        ops.copyto(means, 0)
        ops.copyto(lse, np.finfo(blocks.kind).max)
        return
    workers = [
        _Forward(products, ops, blocks, case, (q, k, v), (means, lse), memory)
        for memory in WorkingMemory.of_workers(working, _sizes(products, blocks), blocks.workers)
    ]
    done_by(
        ops, [partial(worker.run, number, len(workers)) for number, worker in enumerate(workers)]
    )


class _Forward:
    """One worker."""

    def __init__(
        self,
        products: type[BlockProducts],
        ops: Ops,
        blocks: Blocks,
        case: Attention,
        given: tuple[Array, Array, Array],
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
        """Make what is the share of this one of so many."""
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
        """The means of some queries."""
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
            # -inf - -inf is no number, so rows that see nothing are shifted by a finite value.
            xp.maximum(top, np.finfo(blocks.kind).min if before is None else before, out=top)
            xp.subtract(scores, top, out=scores)
            xp.exp(scores, out=scores)
            # As a product with ones a third of the time of NumPy's own sum.
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
        """Rows (a, b, R, d); unless keys are copied, multiplied by the scale."""
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
        """Scores (a, b, keys, rows) of a block, -inf for what is hidden; None where all is."""
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
        # Of rows that see nothing the sum is 0, of others at least exp(0) = 1.
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
    """Make of products what the softmax is taken of, -inf where ``hidden``.

    With a softcap ``slope`` gets its derivative.
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
    """A multiple of ``array`` in the memory ``name``, and behind each row so many ones."""
    *shape, size = array.shape
    copy = memory.get(name, *shape, size + more)
    if scale == 1.0:
        ops.copyto(copy[..., :size], array)
    else:
        ops.multiply(array, scale, out=copy[..., :size])
    if more:
        ops.copyto(copy[..., size:], 1)
    return copy
