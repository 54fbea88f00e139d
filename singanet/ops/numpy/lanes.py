"""Samples shared among threads, for kernels that are made of many calls.

A kernel goes through its lanes one after the other. A recorded program, which has the calls of each
lane by themselves, does the lanes side by side. NumPy's own calls use one thread but for large
products.
"""

from __future__ import annotations

from itertools import pairwise

from singanet.ops.interface import Ops
from singanet.ops.threads import default_threads
from singanet.types import Array

LEAST = 1 << 24
"""Multiplications below which a kernel is done before a second thread has woken."""

SWEEP = 16
"""Multiplications of a product in the time in which a value passes through memory."""


def count(samples: int, multiplications: int) -> int:
    """How many lanes so much work on NumPy's arrays is worth."""
    if multiplications < LEAST:
        return 1
    return max(1, min(default_threads(), samples))


def sum_of(ops: Ops, sums: list[Array]) -> Array:
    """The sum of what lanes have summed up, in the first."""
    for other in sums[1:]:
        ops.xp.add(sums[0], other, out=sums[0])
    return sums[0]


def parts(samples: int, number: int) -> list[slice]:
    """``number`` slices of about equal length."""
    edges = [samples * part // number for part in range(number + 1)]
    return [slice(first, last) for first, last in pairwise(edges)]
