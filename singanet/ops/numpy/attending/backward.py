"""Gradients of attention, whose weights are made again block by block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from singanet.ops.attention import Attention
from singanet.ops.interface import Ops
from singanet.ops.kernel import kernel
from singanet.ops.numpy.attending.blocks import (
    Blocks,
    ScoreBlock,
    carved,
    cut,
    done_by,
    extent,
    multiplied,
    rows_of,
    shaped,
)
from singanet.ops.numpy.attending.forward import copied, shift
from singanet.ops.numpy.attending.hidden import Dropper, Hider, block_of
from singanet.types import Array


@kernel(half="native")
def attend_backward(
    ops: Ops,
    dmeans: Array,
    q: Array,
    k: Array,
    v: Array,
    means: Array,
    lse: Array,
    case: Attention,
    mask_gradient: bool = False,
) -> tuple[Array, Array, Array, Array | None]:
    blocks = Blocks.of(ops, q, k, v)
    if mask_gradient:
        # All add to one array.
        blocks = blocks._replace(workers=1)
    made = [_lying_as_means(ops, array) for array in (q, k, v)]
    if mask_gradient:
        assert case.added is not None
        made.append(ops.empty(case.added.shape, q))
    plain, arrays = case.apart()
    fill = partial(_fill, blocks, plain)
    working = blocks.workers * sum(_sizes(blocks, case)), blocks.kind
    ops.as_one(fill, made, (dmeans, q, k, v, means, lse, arrays), working)
    dq, dk, dv, *dadded = made
    return dq, dk, dv, dadded[0] if dadded else None


def _lying_as_means(ops: Ops, array: Array) -> Array:
    n, heads, steps, size = array.shape
    return ops.empty((n, steps, heads, size), array).transpose(0, 2, 1, 3)


def _sizes(blocks: Blocks, case: Attention) -> list[int]:
    """Of what one worker needs.

    Queries, gradients of means, two of scores and another with a softcap, gradients of queries
    twice, keys, values, their gradients, one product of keys' or values'.
    """
    pairs, rows, scores = blocks.together_of
    of_queries, of_means = pairs * rows * blocks.size, pairs * rows * blocks.width
    of_keys, of_values = pairs * blocks.keys * blocks.size, pairs * blocks.keys * blocks.width
    block = pairs * blocks.columns * max(blocks.size, blocks.width)
    return [
        of_queries,
        of_means,
        max(scores, of_means),
        scores,
        scores * (case.softcap is not None),
        of_queries,
        of_queries,
        of_keys * blocks.copies,
        of_values * blocks.copies,
        of_keys,
        of_values,
        block,
    ]


def _fill(blocks: Blocks, case: Attention, ops: Ops, working: Array, *given: Any) -> None:
    dq, dk, dv, *dadded, dmeans, q, k, v, means, lse, arrays = given
    case = replace(case, **arrays)
    for each in dadded:
        ops.copyto(each, 0)
    if blocks.empty:
        for each in (dq, dk, dv):
            ops.copyto(each, 0)
        return
    sizes, read = _sizes(blocks, case), (q, k, v, dmeans, means, lse)
    made = _Made(dq, dk, dv, dadded[0] if dadded else None)
    workers = [
        _Backward(ops, blocks, case, read, made, carved(part, sizes))
        for part in carved(working, [sum(sizes)] * blocks.workers)
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
    added: Array | None


class _Backward:
    """One worker."""

    def __init__(
        self,
        ops: Ops,
        blocks: Blocks,
        case: Attention,
        read: Sequence[Array],
        made: _Made,
        memory: Sequence[Array],
    ) -> None:
        self.ops, self.blocks, self.case = ops, blocks, case
        self.q, self.k, self.v, self.dmeans, self.means, self.lse = read
        self.made, self.memory = made, memory
        self.product = multiplied(ops, alone=blocks.workers == 1)
        self.hider = Hider(ops, case)
        self.dropper = Dropper(ops, case) if case.dropout else None
        self.dk = self.dv = memory[0]

    def whole(self, units: Sequence[tuple[slice, slice]]) -> None:
        """The gradients of these units."""
        for unit in units:
            self.part(unit, 0, 1)
            self.hand_out(unit, ())

    def part(self, unit: tuple[slice, slice], number: int, count: int) -> None:
        """What some of the queries, those of one of so many workers, give to the unit."""
        blocks, ops = self.blocks, self.ops
        k, v = copied(ops, self.memory[7:9], (self.k, self.v), unit, blocks.copies)
        a, b = map(extent, unit)
        self.dk = shaped(self.memory[9], a, b, blocks.keys, blocks.size)
        self.dv = shaped(self.memory[10], a, b, blocks.keys, blocks.width)
        ops.copyto(self.dk, 0)
        ops.copyto(self.dv, 0)
        for queries in [*cut(slice(0, blocks.queries), blocks.rows)][number::count]:
            self._rows(k, v, *unit, queries)

    def hand_out(self, unit: tuple[slice, slice], others: Sequence[_Backward]) -> None:
        """Put the gradients of the unit's keys and values, the sum of all workers', where asked."""
        for other in others:
            self.ops.add(self.dk, other.dk, out=self.dk)
            self.ops.add(self.dv, other.dv, out=self.dv)
        self.ops.copyto(self.made.k[unit], self.dk)
        self.ops.copyto(self.made.v[unit], self.dv)

    def _rows(self, k: Array, v: Array, samples: slice, groups: slice, queries: slice) -> None:
        """The gradients of some queries, and what they give to keys and values."""
        xp, blocks, m = self.ops.xp, self.blocks, self.blocks.shared
        heads = slice(groups.start * m, groups.stop * m)
        low, high = self.hider.range(samples, queries, blocks.keys)
        here = ScoreBlock(samples, groups, heads, queries, slice(low, high))
        a, b, rows = *here.pairs, m * extent(queries)
        memory, size = self.memory, blocks.size
        q, total, more = (shaped(memory[number], a, b, rows, size) for number in (0, 5, 6))
        dmeans = shaped(memory[1], a, b, rows, blocks.width)
        xp.multiply(rows_of(self.q, here, m), self.case.scale, out=here.apart(q))
        means = here.apart(shaped(self.memory[2], a, b, rows, blocks.width))
        self.ops.copyto(here.apart(dmeans), rows_of(self.dmeans, here, m))
        # Σ of weight and its gradient, over all keys.
        xp.multiply(rows_of(self.means, here, m), here.apart(dmeans), out=means)
        inner = means.sum(axis=4).reshape(a, b, rows, 1)
        xp.multiply(dmeans, 1.0 / (1.0 - self.case.dropout), out=dmeans)
        lse = rows_of(self.lse, here, m).reshape(a, b, rows, 1)
        self.ops.copyto(total, 0)
        for keys in cut(here.keys, blocks.columns):
            place = here._replace(keys=keys)
            dscores = self._dscores(place, q, k, v, dmeans, lse, inner)
            if dscores is None:
                continue
            self._add(self.dk, keys, dscores.swapaxes(2, 3), q)
            self.product(dscores, k[:, :, keys], more)
            xp.add(total, more, out=total)
        xp.multiply(total, self.case.scale, out=total)
        at = samples, heads, queries
        self.ops.copyto(self.made.q[at], total.reshape(*map(extent, at), blocks.size))

    def _dscores(
        self,
        place: ScoreBlock,
        q: Array,
        k: Array,
        v: Array,
        dmeans: Array,
        lse: Array,
        inner: Array,
    ) -> Array | None:
        """The gradient of a block's scores; None where all is hidden."""
        xp, case, keys = self.ops.xp, self.case, place.keys
        hidden, whole = self.hider.hidden(place)
        if whole:
            return None
        a, b, rows, _ = q.shape
        softcap = case.softcap is not None
        weights, d, slope = (
            shaped(each, a, b, rows, extent(keys) * there)
            for each, there in zip(self.memory[2:5], (1, 1, softcap), strict=True)
        )
        self.product(q, k[:, :, keys].swapaxes(2, 3), weights)
        shift(xp, case, weights, place, hidden, slope)
        xp.subtract(weights, lse, out=weights)
        xp.exp(weights, out=weights)
        kept = None if self.dropper is None else self.dropper.kept(place, weights)
        if kept is None:
            self._add(self.dv, keys, weights.swapaxes(2, 3), dmeans)
        else:
            self._add(self.dv, keys, xp.multiply(weights, kept, out=d).swapaxes(2, 3), dmeans)
        self.product(dmeans, v[:, :, keys].swapaxes(2, 3), d)
        if kept is not None:
            xp.multiply(d, kept, out=d)
        xp.subtract(d, inner, out=d)
        xp.multiply(d, weights, out=d)
        if self.made.added is not None:
            into = block_of(self.made.added, place)
            xp.add(into, self.ops.sum_to(place.apart(d), into.shape), out=into)
        if case.softcap is not None:
            xp.multiply(d, slope, out=d)
        return d

    def _add(self, total: Array, keys: slice, x: Array, y: Array) -> None:
        """Add a product to what these keys have got."""
        a, b, _, size = y.shape
        made = shaped(self.memory[11], a, b, extent(keys), size)
        self.product(x, y, made)
        part = total[:, :, keys]
        self.ops.add(part, made, out=part)
