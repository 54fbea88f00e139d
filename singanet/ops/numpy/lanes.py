"""Samples shared among threads, for kernels that are made of many calls.

A kernel goes through its lanes one after the other. A recorded program, which has the calls of each
lane by themselves, does the lanes side by side. NumPy's own calls use one thread but for large
products.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from singanet.ops.threads import default_threads
from singanet.types import Array

LEAST = 1 << 24
"""Multiplications below which a kernel is done before a second thread has woken."""


class Lanes:
    """Whose kernels have lanes."""

    xp: Any

    @property
    def on_host(self) -> bool:
        """Whether the arrays are NumPy's, which want blocks that stay in the cache."""
        return bool(self.xp.__name__ == "numpy")

    def lanes(self, samples: int, multiplications: int) -> Iterator[slice]:
        """The samples in as many parts as threads are worth it; all in one for less work.

        What one lane writes no other one reads or writes. The last bit of sums over samples may
        depend on the number of lanes.
        """
        yield from parts(samples, self.lane_count(samples, multiplications))

    def lane_count(self, samples: int, multiplications: int) -> int:
        """How many lanes so much work is worth."""
        if not self.on_host or multiplications < LEAST:
            return 1
        return max(1, min(default_threads(), samples))

    def total(self, sums: list[Array]) -> Array:
        """The sum of what lanes have summed up, in the first."""
        for other in sums[1:]:
            self.xp.add(sums[0], other, out=sums[0])
        return sums[0]


def parts(samples: int, count: int) -> list[slice]:
    """``count`` slices of about equal length."""
    edges = [samples * part // count for part in range(count + 1)]
    return [slice(first, last) for first, last in pairwise(edges)]
