"""Which lines of a cache go for new rows: LRU, LFU, and LFU with lines that stay for good."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from singanet.types import Array

_NEVER = np.iinfo(np.int64).max
_TURNS = 40
"""Bits of a key that order by the last use; those above order by the number of uses."""
_MOST = (1 << (62 - _TURNS)) - 1
_SHARE = 8
"""The part of all lines that each search for candidates looks through."""


class Policy(ABC):
    """The worth of ``lines`` lines; lines of least worth are evicted first.

    A batch uses distinct lines; each use counts once. Of the lines used in one batch the first
    given is the oldest. The cost of a use does not grow with the number of lines: all of them are
    looked at only once in many evictions.
    """

    def __init__(self, lines: int) -> None:
        self.keys = np.full(lines, -1, np.int64)
        self.uses = np.zeros(lines, np.int64)
        self._turn = 0
        self._free = 0
        # Every line of a key below the threshold is a candidate.
        self._candidates = np.empty(0, np.int64)
        self._is_candidate = np.zeros(lines, np.bool_)
        self._threshold = -1

    @abstractmethod
    def worth(self, uses: Array, turns: Array) -> Array:
        """Keys of lines used so often, for the last time at ``turns``, which rise."""

    def use(self, lines: Array) -> None:
        """Count a use of each of ``lines``."""
        turns = np.arange(self._turn, self._turn + len(lines))
        self._turn += len(lines)
        self.uses[lines] += 1
        keys = self.keys[lines] = self.worth(self.uses[lines], turns)
        low = lines[(keys < self._threshold) & ~self._is_candidate[lines]]
        self._is_candidate[low] = True
        self._candidates = np.concatenate((self._candidates, low))

    def make_room(self, count: int, busy: Array) -> Array:
        """Up to ``count`` lines for new rows, none of the lines ``busy``: free ones, then others.

        Fewer where no more may go. They have no uses then.
        """
        free = np.arange(self._free, min(self._free + count, len(self.keys)))
        self._free += len(free)
        gone = self._least(count - len(free), busy)
        self.uses[gone] = 0
        self.keys[gone] = -1
        return np.concatenate((free, gone))

    def _least(self, count: int, busy: Array) -> Array:
        """Up to ``count`` used lines of least worth, rising, but those ``busy``."""
        if count <= 0:
            return np.empty(0, np.int64)
        found = self._among(self._candidates, count, busy)
        # A line that is no candidate is worth the threshold at least.
        few = len(found) < count or self.keys[found[-1]] >= self._threshold
        if few and self._threshold < _NEVER:
            self._seek(count + len(busy))
            found = self._among(self._candidates, count, busy)
        self._is_candidate[found] = False
        self._candidates = self._candidates[self._is_candidate[self._candidates]]
        return found

    def _among(self, candidates: Array, count: int, busy: Array) -> Array:
        taken = self._is_candidate[busy]
        self._is_candidate[busy] = False
        keys = self.keys[candidates]
        fits = self._is_candidate[candidates] & (keys >= 0) & (keys < _NEVER)
        self._is_candidate[busy] = taken
        candidates, keys = candidates[fits], keys[fits]
        if len(keys) > count:
            least = np.argpartition(keys, count - 1)[:count]
            candidates, keys = candidates[least], keys[least]
        found: Array = candidates[np.argsort(keys)]
        return found

    def _seek(self, count: int) -> None:
        """Make the lines of least worth candidates, at least ``count`` of them."""
        wanted = max(count, len(self.keys) // _SHARE)
        if wanted < len(self.keys):
            # Lines that wait for their first use are for nobody.
            keys = np.where(self.keys < 0, _NEVER, self.keys)
            least = np.argpartition(keys, wanted)
            self._threshold = int(keys[least[wanted]])
            self._candidates = least[:wanted]
        else:
            self._threshold, self._candidates = _NEVER, np.arange(len(self.keys))
        self._is_candidate[:] = False
        self._is_candidate[self._candidates] = True


class LRU(Policy):
    """The least recently used goes first."""

    def worth(self, uses: Array, turns: Array) -> Array:
        return turns


class LFU(Policy):
    """The least often used goes first, of those used equally often the least recently used."""

    def worth(self, uses: Array, turns: Array) -> Array:
        return (np.minimum(uses, _MOST) << _TURNS) + turns


class LFUOpt(LFU):
    """As `LFU`, but a line that was used ten times stays for good."""

    permanent = 10

    def worth(self, uses: Array, turns: Array) -> Array:
        return np.where(uses >= self.permanent, _NEVER, super().worth(uses, turns))


POLICIES: dict[str, type[Policy]] = {"lru": LRU, "lfu": LFU, "lfuopt": LFUOpt}
