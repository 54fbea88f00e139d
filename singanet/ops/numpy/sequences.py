"""Layouts of batches of sequences: time-major memory for the kernels, ragged batches by counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from singanet.types import Array, Shape


class Sequences:
    """Outside, a batch of sequences is (N, T, F); inside the recurrent kernels it is (T, N, F).

    In a ragged batch the samples stand in order of falling length, so that step t concerns the
    first ``counts[t]`` rows and no kernel needs a mask.
    """

    xp: Any

    def host(self, array: Array) -> Array:
        """``array`` in NumPy; from a device this waits and copies."""
        return array.get() if hasattr(array, "get") else np.asarray(array)

    def take_rows(self, array: Array, order: Array | None) -> Array:
        """The rows of axis 0 in ``order``; the array itself when there is none."""
        if order is None:
            return array
        return self.xp.take(array, order, axis=0)

    def time_major(
        self, x: Array, order: Array | None = None, counts: Sequence[int] | None = None
    ) -> Array:
        """(N, T, F) as contiguous (T, N, F), the rows past each count zero.

        Without ``counts`` nothing is copied where memory lies so already.
        """
        rows = self.take_rows(x, order).transpose(1, 0, 2)
        if counts is None:
            return self.xp.ascontiguousarray(rows)
        copy: Array = self.xp.array(rows, order="C")
        self.clear_past(copy, counts)
        return copy

    def batch_major(self, y: Array, inverse: Array | None = None) -> Array:
        """(T, N, F) as (N, T, F), the samples in their old order; a view where that is kept."""
        return self.take_rows(y.transpose(1, 0, 2), inverse)

    def clear_past(self, rows: Array, counts: Sequence[int]) -> None:
        """Zero the rows past each step's count, in place."""
        for t, count in enumerate(counts):
            if count < rows.shape[1]:
                rows[t, count:] = 0

    def side_by_side(self, parts: Sequence[Array], counts: Sequence[int] | None) -> Array:
        """The outputs (T, N, H) of each direction as one (T, N, D·H), zero past the counts."""
        if len(parts) == 1 and counts is None:
            return parts[0]
        joined: Array = self.xp.concatenate(parts, axis=2)
        if counts is not None:
            self.clear_past(joined, counts)
        return joined

    def state_buffer(self, shape: Shape, start: Array | None, like: Array, reverse: bool) -> Array:
        """An array (T + 1, N, H) whose first, or in reverse last, entry is ``start`` or zero."""
        states: Array = self.xp.empty(shape, like.dtype)
        states[-1 if reverse else 0] = 0 if start is None else start
        return states


def walk(steps: int, reverse: bool) -> range:
    """The steps in the order in which a direction takes them."""
    return range(steps - 1, -1, -1) if reverse else range(steps)


def around(t: int, reverse: bool) -> tuple[int, int]:
    """Where the states before and after step ``t`` lie in an array of T + 1 states."""
    return (t + 1, t) if reverse else (t, t + 1)


def befores(states: Array, reverse: bool) -> Array:
    """The states before every step, (T, N, H)."""
    return states[1:] if reverse else states[:-1]


def afters(states: Array, reverse: bool) -> Array:
    """The states after every step, (T, N, H)."""
    return states[:-1] if reverse else states[1:]
