"""Python threads for kernels that are made of several calls.

The calls let go of the interpreter's lock while they compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import lru_cache

from singanet.types import Parts, Work


def side_by_side(parts: Parts) -> None:
    """Do the first part here and each other in a thread of its own; return when all are done."""
    # In the caller's context, which holds NumPy's error state.
    others = [_pool(len(parts) - 1).submit(copy_context().run, do, part) for part in parts[1:]]
    try:
        do(parts[0])
    finally:
        # None may still be at work on memory that the caller believes to be its own again.
        errors = [other.exception() for other in others]
    for error in errors:
        if error is not None:
            raise error


def cuts(count: int, parts: int) -> list[tuple[int, int]]:
    """The first and one past the last of ``parts`` of about the same size, none of them empty."""
    parts = min(parts, count)
    return [(count * k // parts, count * (k + 1) // parts) for k in range(parts)]


def do(part: Sequence[Work]) -> None:
    """Do one thing after the other."""
    for work in part:
        work()


@lru_cache(maxsize=4)
def _pool(size: int) -> ThreadPoolExecutor:
    # A forked child has one thread, so it never comes here with a pool whose threads are gone.
    return ThreadPoolExecutor(size, thread_name_prefix="singanet")
