"""Which scores of a block are hidden, and which weights are dropped."""

from __future__ import annotations

from typing import Any

import numpy as np

from singanet.ops.attention import Attention
from singanet.ops.interface import Ops
from singanet.ops.numpy.attending.blocks import ScoreBlock, extent
from singanet.types import Array


class Hider:
    """Tells what the masks of ``case`` hide of one block after the other.

    Where kernels may look at values, blocks that are hidden as a whole are told.
    """

    def __init__(self, ops: Ops, case: Attention) -> None:
        self._xp, self._case, self._looks = ops.xp, case, ops.sees_values
        self._lengths = case.lengths
        # Blocks along the diagonal are hidden alike.
        self._by_position: dict[tuple[int, int, int], Array] = {}

    def range(self, samples: slice, queries: slice, keys: int) -> tuple[int, int]:
        """The keys beyond which all is hidden from all."""
        low, high = self._case.visible(queries, keys)
        if self._lengths is not None and self._looks:
            high = min(high, int(self._lengths[samples].max()))
        return min(low, high), high

    def hidden(self, place: ScoreBlock) -> tuple[Array | None, bool]:
        """True where hidden, to spread over (a, b, c, m, r), None where nothing; whether all is."""
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
            None if case.segments is None else _strangers(xp, case.segments, place),
        ]

    def _position(self, place: ScoreBlock) -> Array:
        rows, columns = extent(place.queries), extent(place.keys)
        # Where query 0 of the block stands, counted from its key 0.
        offset = self._case.first + place.queries.start - place.keys.start
        known = self._by_position.get((offset, rows, columns))
        if known is None:
            xp, case = self._xp, self._case
            behind = xp.arange(offset, offset + rows) - xp.arange(columns)[:, None, None]
            known = behind < 0 if case.causal else None
            if case.window is not None:
                old = behind >= case.window
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


def _strangers(xp: Any, segments: tuple[Array, Array], place: ScoreBlock) -> Array:
    """Where query and key are of different segments."""
    of_queries = segments[0][place.samples, place.queries]
    of_keys = segments[1][place.samples, place.keys]
    of_queries, of_keys = of_queries[:, None, None, None], of_keys[:, None, :, None, None]
    found: Array = xp.not_equal(of_queries, of_keys)
    return found


def block_of(mask: Array, place: ScoreBlock) -> Array:
    """What ``mask``, with the axes of the scores, says of a block: (a, b, c, m, r), or 1s."""
    slices = (place.samples, place.heads, place.queries, place.keys)
    pairs = zip(slices, mask.shape, strict=True)
    part = mask[tuple([slice(0, 1) if size == 1 else each for each, size in pairs])]
    groups = 1 if part.shape[1] == 1 else extent(place.groups)
    return part.reshape(len(part), groups, -1, *part.shape[2:]).transpose(0, 1, 4, 2, 3)


class Dropper:
    """Draws which weights of a block stay: the same ones each time it is asked of it."""

    def __init__(self, ops: Ops, case: Attention) -> None:
        # Drawn on the host, so that a seed gives the same weights on every device.
        host = np.asarray(ops.host(case.seeds), np.float64)  # type: ignore[arg-type]
        self._words = (host * 2.0**24).astype(np.uint64).tolist()
        self._asarray = ops.xp.asarray
        self._least = np.uint32(min(round(case.dropout * 2.0**32), 2**32 - 1))

    def kept(self, place: ScoreBlock, like: Array) -> Array:
        """True for each weight of the block that stays."""
        starts = (place.samples.start, place.heads.start, place.queries.start, place.keys.start)
        bits = np.random.PCG64(np.random.SeedSequence([*self._words, *starts]))
        drawn = bits.random_raw(-(-like.size // 2)).view(np.uint32)[: like.size]
        kept: Array = self._asarray(drawn.reshape(like.shape) >= self._least)
        return kept
