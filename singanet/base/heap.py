"""Memory that the C library keeps for later, given back to the system, and pages of arrays."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from singanet.base.forks import free_in_children

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Of ``mallopt``, in ``malloc.h``."""

_LARGE = 1 << 18
"""Bytes of an array from which it gets pages of its own."""


def trim() -> None:
    """Give freed memory back, where the C library can (glibc).

    The step by the layers before a recording frees arrays whose memory stays with the process;
    the program that follows needs none of it.
    """
    _function("malloc_trim")(0)


@contextmanager
def large_arrays_apart() -> Iterator[None]:
    """Inside, large arrays have pages of their own, where the C library can (glibc).

    What nobody writes on takes no memory then, also zeros, and what is freed goes back at once. It
    is so for all threads, until the last of them leaves; then memory is kept for reuse.
    """
    with _lock:
        _inside.append(None)
        _function("mallopt")(_MMAP_THRESHOLD, _LARGE)
        _function("mallopt")(_TRIM_THRESHOLD, 4 * _LARGE)
    try:
        yield
    finally:
        with _lock:
            _inside.pop()
            if not _inside:
                # As glibc has it once large arrays have come and gone.
                _function("mallopt")(_MMAP_THRESHOLD, 1 << 25)
                _function("mallopt")(_TRIM_THRESHOLD, 1 << 26)


_lock = free_in_children(threading.Lock())
_inside: list[None] = []


@cache
def _function(name: str) -> Callable[..., Any]:
    try:
        found: Callable[..., Any] = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):
        # Another C library, or a system whose programs cannot be opened so.
        return lambda *_: None
    return found


@contextmanager
def small_pages() -> Iterator[None]:
    """New arrays lie on small pages inside, as far as NumPy can be told.

    Of an array that is never touched the allocator writes the first bytes, and takes a page: of
    two megabytes, where NumPy has asked the system for large ones.
    """
    numpy: Any = np
    choose = getattr(numpy._core.multiarray, "_set_madvise_hugepage", lambda chosen: chosen)
    before = choose(False)
    try:
        yield
    finally:
        choose(before)
