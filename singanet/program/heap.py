"""Memory that the C library keeps for later, given back to the system, and pages of arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np


def trim() -> None:
    """Give freed memory back, where the C library can (glibc).

    The step by the layers before a recording frees arrays whose memory stays with the process;
    the program that follows needs none of it.
    """
    give_back = _malloc_trim()
    if give_back is not None:
        give_back(0)


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        # Another C library, or a system whose programs cannot be opened so.
        return None


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
