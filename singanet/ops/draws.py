"""Draw random numbers on several threads, equal to one thread's.

PCG64 can be advanced by any number of draws in no time (O'Neill 2014, after Brown 1994), so each
thread starts at the end of the previous one's range.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from singanet.types import Array, Parts

_EACH = 1 << 15
"""The least numbers for each thread: some 100 microseconds."""


def fill(rng: Any, out: Array, threads: int, do: Callable[[Parts], None]) -> None:
    """Fill the C-ordered float32 ``out`` like ``rng.random``, on ``threads`` threads.

    ``do`` runs parts concurrently. ``rng`` advances like ``rng.random``.
    """
    bits: Any = getattr(rng, "bit_generator", None)
    threads = min(threads, out.size // _EACH)
    if threads < 2 or type(bits) is not np.random.PCG64:
        rng.random(out=out, dtype=np.float32)
        return
    with bits.lock:
        state: Any = bits.state
        # A draw is two numbers; the second of the last draw may still be unused.
        odd = state["has_uint32"]
        each = (out.size - odd) // threads & ~1
        flat = out.reshape(-1)
        edges = [0, *(odd + each * k for k in range(1, threads)), out.size]
        twins = [_twin(state, edge) for edge in edges[:-1]]
        do(
            [
                [partial(twin.random, out=flat[first:last], dtype=np.float32)]
                for twin, first, last in zip(twins, edges, edges[1:], strict=False)
            ]
        )
        last: Any = twins[-1].bit_generator
        bits.state = last.state


def _twin(state: Any, numbers: int) -> np.random.Generator:
    """Return a generator in ``state``, advanced by ``numbers`` numbers of 32 bits."""
    bits: Any = np.random.PCG64(0)
    bits.state = state
    if numbers:
        bits.advance(numbers // 2)
    return np.random.Generator(bits)
