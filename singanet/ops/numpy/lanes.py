"""Samples shared among threads, for kernels that are made of many calls.

A kernel goes through its lanes one after the other. A recorded program, which has the calls of each
lane by themselves, does the lanes side by side. NumPy's own calls use one thread but for large
products.
"""

from __future__ import annotations

from itertools import pairwise

from singanet.ops.interface import Ops
from singanet.types import Array

LEAST = 1 << 24
"""Multiplications below which a kernel is done before a second thread has woken."""


def sum_of(ops: Ops, sums: list[Array]) -> Array:
    """The sum of what lanes have summed up, in the first."""
    for other in sums[1:]:
        ops.xp.add(sums[0], other, out=sums[0])
    return sums[0]


def parts(samples: int, count: int) -> list[slice]:
    """``count`` slices of about equal length."""
    edges = [samples * part // count for part in range(count + 1)]
    return [slice(first, last) for first, last in pairwise(edges)]
