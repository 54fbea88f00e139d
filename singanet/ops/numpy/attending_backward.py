"""Compute gradients of attention, with the weights computed again block by block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from singanet.ops.interface import Ops
from singanet.ops.kernel import kernel
from singanet.ops.numpy.attending import (
    BlockProducts,
    Blocks,
    Dropper,
    Hider,
    ScoreBlock,
    WorkingMemory,
    block_of,
    copied,
    cut,
    done_by,
    extent,
    rows_of,
    shift,
)
from singanet.ops.window import Attended, Attention
from singanet.types import Array


@kernel(half="native")
def attend_backward(
    ops: Ops, dmeans: Array, made: Attended, case: Attention, mask_gradient: bool = False
) -> tuple[Array, Array, Array, Array | None]:
    return attend_back_by(BlockProducts, ops, dmeans, made, case, mask_gradient)


def attend_back_by(
    products: type[BlockProducts],
    ops: Ops,
    dmeans: Array,
    forward: Attended,
    case: Attention,
    mask_gradient: bool = False,
) -> tuple[Array, Array, Array, Array | None]:
    """Compute `Ops.attend_backward` with these products."""
    q, k, v, *rest = forward
    blocks = Blocks.of(ops, q, k, v, products.rounds)._replace(copies=True)
    if mask_gradient:
        # All blocks add to one array.
        blocks = blocks._replace(workers=1)
    made = [_empty_by_steps(ops, array) for array in (q, k, v)]
    if mask_gradient:
        assert case.added is not None
        made.append(ops.empty(case.added.shape, q))
    plain, arrays = case.apart()
    fill = partial(_fill, products, blocks, plain)
    working = blocks.workers * sum(_sizes(products, blocks, case).values()), blocks.kind
    adds = blocks.scores(case) * (3 * blocks.size + 2 * blocks.width)
    ops.as_one(fill, made, (dmeans, q, k, v, *rest, arrays), working, adds)
    dq, dk, dv, *dadded = made
    return dq, dk, dv, dadded[0] if dadded else None


def _empty_by_steps(ops: Ops, array: Array) -> Array:
    n, heads, steps, size = array.shape
    return ops.empty((n, steps, heads, size), array).transpose(0, 2, 1, 3)


def _folds(products: type[BlockProducts], case: Attention) -> bool:
    """Whether a row's subtracted terms can be one more term of its products."""
    plain = case.softcap is None and case.added is None and not case.dropout
    return plain and not products.rounds


def _sizes(products: type[BlockProducts], blocks: Blocks, case: Attention) -> dict[str, int]:
    """Return the sizes of one worker's workspace."""
    pairs, rows, scores = blocks.together_of
    size, width, more = blocks.size, blocks.width, _folds(products, case)
    sizes = {
        "q": pairs * rows * (size + more),
        "dmeans": pairs * rows * (width + more),
        "weights": max(scores, pairs * rows * width),
        "dscores": scores,
        "slope": scores * (case.softcap is not None),
        "dq": pairs * rows * size,
        "more": pairs * rows * size,
        "k": pairs * blocks.keys * (size + more),
        "v": pairs * blocks.keys * (width + more),
        "dk": pairs * blocks.keys * size,
        "dv": pairs * blocks.keys * width,
        "block": pairs * blocks.columns * max(size, width),
    }
    return products.sizes(sizes)


def _fill(
    products: type[BlockProducts],
    blocks: Blocks,
    case: Attention,
    ops: Ops,
    working: Array,
    *given: Any,
) -> None:
    *made, dmeans, q, k, v, means, lse, arrays = given
    case = replace(case, **arrays)
    for each in made if blocks.empty else made[3:]:
        ops.copyto(each, 0)
    if blocks.empty:
        return
    sizes, read = _sizes(products, blocks, case), (Attended(q, k, v, means, lse), dmeans)
    workers = [
        _Backward(products, ops, blocks, case, read, _Made(*made), memory)
        for memory in WorkingMemory.of_workers(working, sizes, blocks.workers)
    ]
    units = blocks.units()
    if len(units) % len(workers) == 0:
        done_by(ops, [partial(w.whole, units[n :: len(workers)]) for n, w in enumerate(workers)])
        return
    for unit in units:
        done_by(ops, [partial(w.part, unit, n, len(workers)) for n, w in enumerate(workers)])
        workers[0].hand_out(unit, workers[1:])


class _Made(NamedTuple):
    """The gradients, to be filled."""

    q: Array
    k: Array
    v: Array
    added: Array | None = None


class _Rows(NamedTuple):
    """The rows of a block's queries (a, b, R, ·).

    ``lse`` and ``inner``, the sum over all keys of weight times gradient, are (a, b, 1, R). If they
    are folded in, their negatives are the last features of ``q`` and ``dmeans``.
    """

    q: Array
    dmeans: Array
    lse: Array
    inner: Array


class _Backward:
    """A worker of the backward pass."""

    def __init__(
        self,
        products: type[BlockProducts],
        ops: Ops,
        blocks: Blocks,
        case: Attention,
        read: tuple[Attended, Array],
        made: _Made,
        memory: WorkingMemory,
    ) -> None:
        self.ops, self.blocks, self.case = ops, blocks, case
        (self.q, self.k, self.v, self.means, self.lse), self.dmeans = read
        self.made, self.memory = made, memory
        self.folds = _folds(products, case)
        self.product = products(ops, memory, blocks.workers > 1)
        self.hider = Hider(ops, case)
        self.dropper = Dropper(ops, case) if case.dropout else None
        self.dk = self.dv = self.lse

    def whole(self, units: Sequence[tuple[slice, slice]]) -> None:
        """Compute the gradients of these units."""
        for unit in units:
            self.part(unit, 0, 1)
            self.hand_out(unit, ())

    def part(self, unit: tuple[slice, slice], number: int, count: int) -> None:
        """Compute the share of the queries of worker ``number``, of ``count``, in the unit."""
        blocks, ops = self.blocks, self.ops
        k = copied(ops, self.memory, "k", self.k[unit], self.case.scale, self.folds)
        v = copied(ops, self.memory, "v", self.v[unit], 1.0, self.folds)
        k, v = self.product.factor("k", k), self.product.factor("v", v)
        at = *map(extent, unit), blocks.keys
        self.dk = self.memory.get("dk", *at, blocks.size)
        self.dv = self.memory.get("dv", *at, blocks.width)
        ops.copyto(self.dk, 0)
        ops.copyto(self.dv, 0)
        for queries in [*cut(slice(0, blocks.queries), blocks.rows)][number::count]:
            self._block_row(k, v, *unit, queries)

    def hand_out(self, unit: tuple[slice, slice], others: Sequence[_Backward]) -> None:
        """Write the gradients of the unit's keys and values, summed over all workers."""
        for other in others:
            self.ops.add(self.dk, other.dk, out=self.dk)
            self.ops.add(self.dv, other.dv, out=self.dv)
        self.ops.multiply(self.dk, self.case.scale, out=self.dk)
        self.ops.copyto(self.made.k[unit], self.dk)
        self.ops.copyto(self.made.v[unit], self.dv)

    def _block_row(self, k: Array, v: Array, samples: slice, groups: slice, queries: slice) -> None:
        """Compute the gradients of some queries, and add their share to keys and values."""
        xp, blocks, m = self.ops.xp, self.blocks, self.blocks.shared
        heads = slice(groups.start * m, groups.stop * m)
        low, high = self.hider.range(samples, queries, blocks.keys)
        here = ScoreBlock(samples, groups, heads, queries, slice(low, high))
        rows = self._rows(here)
        shape = *rows.q.shape[:3], blocks.size
        dq, more = (self.memory.get(name, *shape) for name in ("dq", "more"))
        seen = False
        for keys in cut(here.keys, blocks.columns):
            dscores = self._dscores(here._replace(keys=keys), rows, k, v)
            if dscores is None:
                continue
            dscores = self.product.factor("dscores", dscores)
            self._add(self.dk, keys, dscores, rows.q[..., : blocks.size])
            made = more if seen else dq
            self.product(dscores.swapaxes(2, 3), k[:, :, keys, : blocks.size], made)
            if seen:
                xp.add(dq, more, out=dq)
            seen = True
        if not seen:
            self.ops.copyto(dq, 0)
        at = samples, heads, queries
        self.ops.copyto(self.made.q[at], dq.reshape(*map(extent, at), blocks.size))

    def _rows(self, here: ScoreBlock) -> _Rows:
        xp, blocks, case, folds = self.ops.xp, self.blocks, self.case, self.folds
        a, b = here.pairs
        m, r = blocks.shared, extent(here.queries)
        q = self.memory.get("q", a, b, m, r, blocks.size + folds)
        dmeans = self.memory.get("dmeans", a, b, m, r, blocks.width + folds)
        products = self.memory.get("weights", a, b, m, r, blocks.width)
        self.ops.copyto(q[..., : blocks.size], rows_of(self.q, here))
        given = dmeans[..., : blocks.width]
        self.ops.copyto(given, rows_of(self.dmeans, here))
        inner = xp.multiply(rows_of(self.means, here), given, out=products).sum(axis=4)
        if case.dropout:
            xp.multiply(given, 1.0 / (1.0 - case.dropout), out=given)
        lse = self.lse[here.samples, here.heads, here.queries].reshape(a, b, m, r)
        if folds:
            # Keys and values have a one there. NumPy's negative (2.4, AVX-512) reads the wrong
            # elements if its input has a stride of 64 bytes and its output has gaps, too.
            xp.multiply(lse, -1.0, out=q[..., blocks.size])
            xp.multiply(inner, -1.0, out=dmeans[..., blocks.width])
        q, dmeans = (
            self.product.factor(name, each.reshape(a, b, m * r, each.shape[4]))
            for name, each in (("q", q), ("dmeans", dmeans))
        )
        return _Rows(q, dmeans, *(each.reshape(a, b, 1, m * r) for each in (lse, inner)))

    def _dscores(self, place: ScoreBlock, rows: _Rows, k: Array, v: Array) -> Array | None:
        """Return the gradient of a block's scores (a, b, keys, R); None if all are masked."""
        xp, case, keys = self.ops.xp, self.case, place.keys
        hidden, whole = self.hider.hidden(place)
        if whole:
            return None
        shape = (*place.pairs, extent(keys), rows.q.shape[2])
        weights, d = (self.memory.get(name, *shape) for name in ("weights", "dscores"))
        slope = None if case.softcap is None else self.memory.get("slope", *shape)
        self.product(k[:, :, keys], rows.q.swapaxes(2, 3), weights)
        shift(xp, case, weights, place, hidden, slope)
        if not self.folds:
            xp.subtract(weights, rows.lse, out=weights)
        xp.exp(weights, out=weights)
        kept = None if self.dropper is None else self.dropper.kept(place, weights)
        left = weights if kept is None else xp.multiply(weights, kept, out=d)
        left = self.product.factor("weights", left)
        self._add(self.dv, keys, left, rows.dmeans[..., : self.blocks.width])
        self.product(v[:, :, keys], rows.dmeans.swapaxes(2, 3), d)
        if kept is not None:
            xp.multiply(d, kept, out=d)
        if not self.folds:
            xp.subtract(d, rows.inner, out=d)
        xp.multiply(d, weights, out=d)
        if self.made.added is not None:
            into = block_of(self.made.added, place)
            xp.add(into, self.ops.sum_to(place.apart(d), into.shape), out=into)
        if slope is not None:
            xp.multiply(d, slope, out=d)
        return d

    def _add(self, total: Array, keys: slice, x: Array, y: Array) -> None:
        """Add a product to the gradient of these keys."""
        a, b, _, size = y.shape
        made = self.memory.get("block", a, b, extent(keys), size)
        self.product(x, y, made)
        part = total[:, :, keys]
        self.ops.add(part, made, out=part)
