"""Memory of the process: its heap, peaks, lent arrays and addresses."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import addressof, c_char
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from singanet.base.processes import free_in_children
from singanet.types import Array, Shape

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


class LentMemory:
    """The memory of ``owner``, an array in one piece that nobody else has, on any device.

    An array that is lent, and each view of it, keeps one array of all bytes alive. A weak reference
    to that one tells, on every Python, whether somebody has the memory. Counts of references do
    not: what they include differs from version to version.
    """

    __slots__ = ("_lent", "_memory", "_of", "_whole", "nbytes")

    def __init__(self, owner: Array) -> None:
        self.nbytes = int(owner.nbytes)
        self._of = type(owner)
        # The base of a view of a view is the first array, as far down as there are arrays. They end
        # at this: a memoryview of NumPy's arrays, a pointer of a device's.
        self._memory: Any = owner.data
        self._whole: weakref.ref[Array] | None = None
        self._lent: weakref.ref[Array] | None = None

    @property
    def is_lent(self) -> bool:
        """Whether somebody has an array that was lent, or a view of one."""
        return self._whole is not None and self._whole() is not None

    def lend(self, shape: Shape, dtype: np.dtype[Any]) -> Array:
        """All of it as an array of ``shape``: the one that was lent, if somebody still has that."""
        lent = None if self._lent is None else self._lent()
        if lent is None:
            whole = None if self._whole is None else self._whole()
            if whole is None:
                whole = self._new()
                self._whole = weakref.ref(whole)
            lent = whole.view(dtype).reshape(shape)
            self._lent = weakref.ref(lent)
        return lent

    def _new(self) -> Array:
        if self._of is np.ndarray:
            return np.frombuffer(self._memory, np.uint8)
        made: Array = self._of((self.nbytes,), np.uint8, self._memory)
        return made


def address(array: Any) -> int:
    """Where the first element lies."""
    if isinstance(array, np.ndarray):
        flags = array.flags
        if flags.c_contiguous and flags.writeable and array.size and array.dtype.kind in "fiub":
            # A third of the time that NumPy takes to tell it.
            memory: Any = array
            return addressof(c_char.from_buffer(memory))
        # A dict made anew each time would have its keys enter and leave Python's interned strings.
        return int(array.ctypes.data)
    told = getattr(array, "__cuda_array_interface__", None) or array.__array_interface__
    return int(told["data"][0])


def steps(array: Any) -> tuple[int, ...]:
    """The bytes from one element to the next along each axis.

    NumPy's ``strides`` may hold any number for an axis of one element, and for an empty array. Here
    such an axis has the step of C order: the bytes that the next axis spans.
    """
    made: list[int] = []
    step, empty = array.itemsize, not array.size
    for extent, stride in zip(reversed(array.shape), reversed(array.strides), strict=True):
        made.append(step if empty or extent == 1 else stride)
        step = made[-1] * max(extent, 1)
    return tuple(reversed(made))
