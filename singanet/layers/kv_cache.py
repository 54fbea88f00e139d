"""The KV cache: the state of layers between the steps of their sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from singanet.errors import CallOrderError, ShapeError
from singanet.ops.interface import Ops
from singanet.types import Array

Counts = int | Array
"""A number of steps: one for all sequences, or (N,) if they differ."""


def together(counts: Counts) -> Counts:
    """Return one number if all are equal."""
    if isinstance(counts, int):
        return counts
    if not counts.ndim:
        return int(counts)
    first = int(counts[0])
    return first if bool((counts == first).all()) else counts


def most(counts: Counts) -> int:
    """Return the largest number."""
    return counts if isinstance(counts, int) else int(counts.max())


def least(counts: Counts) -> int:
    """Return the smallest number."""
    return counts if isinstance(counts, int) else int(counts.min())


def each_of(counts: Counts, samples: int) -> Array:
    """Return (N,) numbers."""
    return np.array(np.broadcast_to(counts, (samples,)), np.int64)


class RingBuffer:
    """Vectors (N, h, steps, d) of the steps of N sequences; the oldest ones are removed.

    ``first`` is the step of each sequence in column 0. Other decoders also read the columns before
    ``shared``: a write there copies the buffer. ``last`` is the number of steps that a step sees,
    including itself; None for all.
    """

    def __init__(self, array: Array, first: Counts, last: int | None, shared: int = 0) -> None:
        self.array, self.first, self.last, self.shared = array, first, last, shared

    def fork(self, ends: Counts, rows: Array | None) -> RingBuffer:
        """Return a buffer of some sequences, now at step ``ends``; of all in the same memory."""
        width = most(ends - self.first)
        if rows is None:
            self.shared = max(self.shared, width)
            return RingBuffer(self.array[:, :, :width], self.first, self.last, width)
        first = self.first if isinstance(self.first, int) else together(self.first[rows])
        return RingBuffer(self.array[rows, :, :width], first, self.last)

    def copied(self, ops: Ops, first: Counts, ends: Counts, room: int) -> RingBuffer:
        """Copy the steps from ``first`` up to ``ends`` to new memory of ``room`` steps."""
        array = self.array
        # Zeros: the steps after a shorter sequence are masked, but must be numbers.
        made = RingBuffer(
            ops.zeros((*array.shape[:2], room, array.shape[3]), array), together(first), self.last
        )
        self.copy_into(ops, made, range(len(array)), first, ends)
        return made

    def copy_into(
        self, ops: Ops, made: RingBuffer, places: Sequence[int], first: Counts, ends: Counts
    ) -> None:
        """Copy the steps from ``first`` up to ``ends`` into the rows ``places`` of ``made``."""
        low, size = together(first - self.first), together(ends - first)
        if isinstance(low, int) and isinstance(size, int) and [*places] == [*range(len(places))]:
            here = made.array[: len(places)]
            ops.copyto(here[:, :, :size], self.array[:, :, low : low + size])
            return
        lows, sizes = each_of(low, len(places)), each_of(size, len(places))
        for n, (place, at, many) in enumerate(zip(places, lows, sizes, strict=True)):
            ops.copyto(made.array[place, :, :many], self.array[n, :, at : at + many])

    def write(self, ops: Ops, starts: Counts, new: Array) -> None:
        """Write ``new`` (N, h, t, d) at the steps from ``starts``."""
        begin = together(starts - self.first)
        if isinstance(begin, int):
            ops.copyto(self.array[:, :, begin : begin + new.shape[2]], new)
            return
        for n, at in enumerate(begin):
            ops.copyto(self.array[n, :, at : at + new.shape[2]], new[n])


class KVCache:
    """The state of one layer between the parts of its sequences, at most ``limit`` steps.

    A context has one if sequences come in parts. The layer then computes as if the earlier steps
    were in front of the new ones: it reads `get` and `starts`, and stores the arrays of `put` and
    `extended`. They count after the whole net has processed the part (`advance`), so the part may
    be repeated after an error. Sequences may have different numbers of steps. ``spare`` is the
    number of steps that `go_back` may undo if old ones are removed. ``fixed`` are the numbers of
    the layer's inputs that are the same for all parts; `once` stores what the layer computes of
    these alone.
    """

    def __init__(
        self, limit: int | None = None, spare: int = 0, fixed: frozenset[int] = frozenset()
    ) -> None:
        self.limit, self.spare, self.fixed = limit, spare, fixed
        self.counts = False
        self._starts: Counts = 0
        self._states: dict[str, list[Array]] = {}
        self._new_states: dict[str, list[Array]] = {}
        self._rows: dict[str, RingBuffer] = {}
        self._once: dict[str, Array] = {}
        # The first step that the last `extended` returned.
        self._shown: dict[str, Counts] = {}

    @property
    def starts(self) -> Counts:
        """The number of earlier steps: (N,) if sequences differ.

        A layer that reads it has a limit.
        """
        self.counts = True
        return self._starts

    @property
    def begun(self) -> bool:
        """Whether any sequence has earlier steps."""
        return most(self._starts) > 0

    @property
    def now(self) -> KVCache:
        """The cache itself; a recorded one returns the cache of the replay."""
        return self

    def by_starts(self, ops: Ops, function: Callable[..., Array], *given: Any) -> Array:
        """Return ``function(starts, *given)`` as an array of the device."""
        found: Array = ops.xp.asarray(function(self.starts, *given))
        return found

    @property
    def before(self) -> int:
        """The number of earlier steps of each sequence. Errors: different numbers."""
        if isinstance(starts := self.starts, int):
            return starts
        raise CallOrderError(
            "ctx.before",
            expected="sequences with equal numbers of steps",
            received=f"{starts.tolist()[:8]} steps",
            advice="use ctx.starts, a number for each sequence, or decode them one by one",
        )

    @property
    def nbytes(self) -> int:
        """The bytes of the stored arrays."""
        left = [part for parts in self._states.values() for part in parts]
        kept = [*self._once.values(), *(kept.array for kept in self._rows.values())]
        return sum(array.nbytes for array in [*left, *kept])

    @property
    def has_states(self) -> bool:
        """Whether an array was `put` there, whose earlier values are not stored."""
        return bool(self._states)

    @property
    def is_unused(self) -> bool:
        """Whether the layer has neither read the number of earlier steps nor stored an array."""
        return not (self.counts or self._states or self._rows or self._once)

    @property
    def lets_go(self) -> bool:
        """Whether old steps are removed."""
        return any(kept.last is not None for kept in self._rows.values())

    def get(self, key: str) -> Any:
        """Return the arrays that the last part has `put` there, None before the first."""
        return self._states.get(key)

    def put(self, key: str, arrays: list[Array]) -> None:
        """Store ``arrays`` (N, ...) for the next part."""
        self._new_states[key] = arrays

    def once(self, key: str, new: Array | None = None) -> Array:
        """Return the array (N, ...) of fixed inputs alone, after storing a copy of ``new``, if any.

        A layer computes it if no sequence has `begun`, else it passes None.
        """
        if new is not None:
            self._once[key] = new.copy()
        return self._once[key]

    def extended(self, ops: Ops, key: str, new: Array, last: int | None = None) -> Array:
        """Append ``new`` (N, h, t, d); return the steps so far (N, h, steps, d).

        They start at the step `shown_from`. With ``last`` a step sees that number of steps,
        including itself, and steps that no later one sees are removed. For shorter sequences the
        values after their last step have no meaning.
        """
        kept, low, end = self.reserved(ops, key, new, last)
        kept.write(ops, self._starts, new)
        return kept.array[:, :, low:end]

    def reserved(
        self, ops: Ops, key: str, new: Array, last: int | None = None
    ) -> tuple[RingBuffer, int, int]:
        """Return a buffer with room for ``new``, and the range of columns of `extended`."""
        starts, kept = self.starts, self._rows.get(key)
        ends = starts + new.shape[2]
        if kept is not None and last is None and isinstance(starts, int):
            # The usual case, for each layer and token.
            assert isinstance(ends, int)
            if kept.shared <= starts and ends <= kept.array.shape[2]:
                self._shown[key] = 0
                return kept, 0, ends
        wanted = self._first_of(starts, last, self.spare)
        if kept is not None and last is not None:
            # Sequences that went back have fewer spare steps.
            wanted = together(np.maximum(wanted, kept.first))
        if kept is None:
            # Without spare room, since more steps may not follow.
            room = most(ends - wanted)
            kept = RingBuffer(ops.zeros((*new.shape[:2], room, new.shape[3]), new), wanted, last)
            self._rows[key] = kept
        elif self._is_full(kept, starts, ends):
            kept = kept.copied(ops, wanted, starts, self._room(kept, most(ends - wanted)))
            self._rows[key] = kept
        low = least(wanted - kept.first)
        self._shown[key] = together(kept.first + low)
        return kept, low, most(ends - kept.first)

    def kept(self, key: str) -> Array:
        """Return all steps (N, h, steps, d) that were `extended` without ``last``."""
        return self._rows[key].array

    def shown_from(self, key: str) -> Counts:
        """Return the first step that `extended` last returned; 0 if there is none."""
        return self._shown.get(key, 0)

    def _first_of(self, starts: Counts, last: int | None, spare: int) -> Counts:
        """Return the first step that the next one sees, minus ``spare`` steps."""
        if last is None:
            return 0
        first: Counts = starts - last + 1 - spare
        return max(0, first) if isinstance(first, int) else np.maximum(0, first)

    def _is_full(self, kept: RingBuffer, starts: Counts, ends: Counts) -> bool:
        """Whether there is no memory for the steps up to ``ends``, or others read it."""
        over = most(ends - kept.first) > kept.array.shape[2]
        return over or least(starts - kept.first) < kept.shared

    def _room(self, kept: RingBuffer, needed: int) -> int:
        """Return the number of steps to allocate: twice the present steps, or the visible ones."""
        there = kept.array.shape[2]
        room = max(needed, 2 * min(there, kept.last or there))
        return min(room, max(self.limit or room, needed))

    def advance(self, steps: int) -> None:
        """Count a part of ``steps`` steps that the whole net has processed."""
        self._starts = self._starts + steps
        if self._new_states:
            self._states.update(self._new_states)
            self._new_states.clear()

    def expect_back(self, starts: Counts) -> None:
        """Errors: the state after ``starts`` steps is not stored."""
        of_states = self.has_states and bool(np.any(starts != self._starts))
        early = [
            kept
            for kept in self._rows.values()
            if np.any(self._first_of(starts, kept.last, 0) < kept.first)
        ]
        if of_states or early:
            raise CallOrderError(
                "decoder.back",
                expected="layers that store earlier steps"
                + f", for windows {self.spare} in addition" * bool(early),
                received="a layer that stores only its last state"
                if of_states
                else f"{most(self._starts - starts)} steps",
                advice="fork the decoder earlier, and continue with the fork"
                if of_states
                else "build it with net.decoder(spare=...), the number of steps to take back",
            )

    def go_back(self, starts: Counts) -> None:
        """Return to the state after ``starts`` steps; call `expect_back` first."""
        self._starts = starts

    def fork(self, rows: Array | None) -> KVCache:
        """Return a cache of the sequences ``rows``; of all in the same memory."""
        made = KVCache(self.limit, self.spare, self.fixed)
        made.counts, made._starts = self.counts, self._starts
        if rows is not None and not isinstance(self._starts, int):
            made._starts = together(self._starts[rows])
        for key, arrays in self._states.items():
            made._states[key] = arrays if rows is None else [array[rows] for array in arrays]
        for key, array in self._once.items():
            made._once[key] = array if rows is None else array[rows]
        for key, kept in self._rows.items():
            made._rows[key] = kept.fork(self._starts, rows)
        return made

    @staticmethod
    def joined(ops: Ops, pasts: Sequence[KVCache], samples: Sequence[int], order: Array) -> KVCache:
        """Join several caches with ``samples`` sequences each; row k becomes ``order[k]``."""
        made = KVCache(pasts[0].limit, pasts[0].spare, pasts[0].fixed)
        made.counts = pasts[0].counts
        total, starts = len(order), np.empty(len(order), np.int64)
        cuts = np.cumsum([0, *samples])
        places = [order[a:b] for a, b in pairwise(cuts.tolist())]
        for past, there, count in zip(pasts, places, samples, strict=True):
            starts[there] = each_of(past._starts, count)
        made._starts = together(starts)
        back = np.argsort(order)
        for key, first in pasts[0]._states.items():
            parts = [past._states[key] for past in pasts]
            made._states[key] = [
                ops.concat([part[k] for part in parts], axis=0)[back] for k in range(len(first))
            ]
        for key in pasts[0]._once:
            made._once[key] = ops.concat([past._once[key] for past in pasts], axis=0)[back]
        for key, kept in pasts[0]._rows.items():
            firsts = each_of(made._first_of(starts, kept.last, made.spare), total)
            for past, there, count in zip(pasts, places, samples, strict=True):
                old = each_of(past._rows[key].first, count)
                firsts[there] = np.maximum(firsts[there], old)
            needed = int((starts - firsts).max())
            room = min(2 * needed, max(made.limit or needed, needed))
            shape = (total, kept.array.shape[1], room, kept.array.shape[3])
            into = RingBuffer(ops.zeros(shape, kept.array), together(firsts), kept.last)
            for past, there in zip(pasts, places, strict=True):
                past._rows[key].copy_into(ops, into, there.tolist(), firsts[there], starts[there])
            made._rows[key] = into
        return made

    def expect_rows(self, layer: str, samples: int) -> None:
        """Errors: a stored array that does not have a row for each of ``samples`` sequences."""
        shapes = [array.shape for arrays in self._states.values() for array in arrays]
        if any(not shape or shape[0] != samples for shape in shapes):
            raise ShapeError(
                f"layer {layer!r}, ctx.past.put",
                expected=f"arrays ({samples}, ...), a row for each sequence",
                received=str(shapes),
                advice="put the axis of samples first",
            )
