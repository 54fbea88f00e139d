"""Masks between queries and keys, and scores under them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from singanet.types import Array


@dataclass(frozen=True)
class Attention:
    """How the scores of queries (N, h, Tq, d) and keys (N, h', Tk, d) become weights.

    The scores are ``scale`` q kᵀ, with ``softcap`` cap·tanh(scores / cap), plus ``added``. The
    weights are their softmax over the keys that the query sees, each dropped with probability
    ``dropout``. Query i stands at the position ``first`` + i among the keys.

    What a query sees: with ``causal`` the keys up to its own position, with ``window`` those that
    are less than so many positions before it; the first ``lengths`` (N,) keys of each sample; where
    ``seen`` is not 0; keys of its own segment, by ``segments``, two arrays of ids (N, Tq) and
    (N, Tk). ``seen`` and ``added`` have the axes of the scores (N, h, Tq, Tk), any of extent 1.
    ``seeds`` are four float32 numbers from 0 to below 1: equal ones drop the same weights.
    """

    scale: float
    causal: bool = False
    first: int = 0
    window: int | None = None
    softcap: float | None = None
    lengths: Array | None = None
    seen: Array | None = None
    added: Array | None = None
    segments: tuple[Array, Array] | None = None
    dropout: float = 0.0
    seeds: Array | None = None

    def apart(self) -> tuple[Attention, dict[str, Any]]:
        """The same without its arrays, and the arrays that it has, by name."""
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        there = {name: array for name, array in arrays.items() if array is not None}
        nothing: dict[str, Any] = dict.fromkeys(there)
        return replace(self, **nothing), there

    def placed(self, xp: Any, first: int | Array, extents: tuple[int, int]) -> Attention:
        """The same, where the first of the queries stands ``first`` among the keys.

        Samples that have a place each, (N,), are shown by ``seen`` what positions hide.
        """
        if isinstance(first, int):
            return replace(self, first=first)
        queries, keys = extents
        behind = xp.asarray(first)[:, None, None] + xp.arange(queries)[:, None] - xp.arange(keys)
        seen = behind >= 0 if self.window is None else (behind >= 0) & (behind < self.window)
        if self.seen is not None:
            seen = seen[:, None] & (self.seen != 0)
        else:
            seen = seen[:, None]
        return replace(self, causal=False, window=None, seen=seen)

    def visible(self, queries: slice, keys: int) -> tuple[int, int]:
        """The range of the ``keys`` outside of which positions hide all from these queries."""
        low, high = 0, keys
        if self.causal:
            high = min(keys, max(0, self.first + queries.stop))
        if self.window is not None:
            low = min(high, max(0, self.first + queries.start - self.window + 1))
        return low, high

    def shows_all(self, queries: slice, keys: slice) -> bool:
        """Whether positions hide none of these keys from these queries."""
        before = not self.causal or keys.stop <= self.first + queries.start + 1
        last = self.first + queries.stop - 1
        return before and (self.window is None or keys.start > last - self.window)


_ARRAYS = ("lengths", "seen", "added", "segments", "seeds")
