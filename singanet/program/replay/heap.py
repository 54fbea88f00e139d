"""Memory that the C library keeps for later, given back to the system."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache


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
