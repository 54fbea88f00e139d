"""Memory of this process as the system has it: freed, on pages of its own, of libraries."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from singanet.base.forks import free_in_children

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Of ``mallopt``, in ``malloc.h``."""

LARGE = 1 << 18
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
        _function("mallopt")(_MMAP_THRESHOLD, LARGE)
        _function("mallopt")(_TRIM_THRESHOLD, 4 * LARGE)
    try:
        yield
    finally:
        with _lock:
            _inside.pop()
            if not _inside:
                # As glibc has it once large arrays have come and gone.
                _function("mallopt")(_MMAP_THRESHOLD, 1 << 25)
                _function("mallopt")(_TRIM_THRESHOLD, 1 << 26)


def private_bytes() -> int | None:
    """Bytes in memory now that no file backs, as those of arrays; None if it is not said."""
    try:
        _, pages, shared, *_ = map(int, Path("/proc/self/statm").read_text().split())
    except (OSError, ValueError):
        return None
    import resource

    return (pages - shared) * resource.getpagesize()


@contextmanager
def once_in_a_process() -> Iterator[None]:
    """Inside is done what stays with the process, for all nets: libraries are loaded, say.

    What it takes is in `once_bytes`; of blocks in each other that of the outermost counts.
    """
    global _once
    with _lock:
        _doing.append(private_bytes() or 0)
    try:
        yield
    finally:
        with _lock:
            before = _doing.pop()
            if not _doing:
                _once += max(0, (private_bytes() or 0) - before)


def once_bytes() -> int:
    """Private bytes that the blocks `once_in_a_process` have taken."""
    return _once


def library_pages(**libraries: str) -> dict[str, int]:
    """Bytes in memory of the files of libraries, each known by a part of its file's name.

    They are the files' own pages, which the system can drop and processes share. Nothing is found
    where the system does not say.
    """
    found = dict.fromkeys(libraries, 0)
    name = ""
    try:
        lines = Path("/proc/self/smaps").read_text(errors="replace").splitlines()
    except OSError:
        return {}
    for line in lines:
        key, _, rest = line.partition(":")
        if " " in key:
            path = line.rpartition("/")[2] if "/" in line else ""
            name = next((each for each, part in libraries.items() if part in path), "")
        elif name and key in ("Rss", "Anonymous"):
            size = int(rest.split()[0]) << 10
            found[name] += size if key == "Rss" else -size
    return {each: size for each, size in found.items() if size}


_once = 0
_doing: list[int] = []
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
