"""Memory of the process: its heap, peaks, lent arrays and addresses."""

from __future__ import annotations

import ctypes
import mmap
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from ctypes import addressof, c_char
from functools import cache
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from singanet.base.processes import free_in_children
from singanet.types import Array, Shape

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Options of ``mallopt``, from ``malloc.h``."""

LARGE = 1 << 18
"""The least bytes of an array with its own pages."""


def trim() -> None:
    """Return freed memory to the system, if the C library can (glibc).

    The step before a recording runs by the layers and frees arrays whose memory stays with the
    process; the following program does not need it.
    """
    _function("malloc_trim")(0)


@contextmanager
def large_arrays_apart() -> Iterator[None]:
    """Within the block, large arrays get their own pages, if the C library can (glibc).

    Untouched pages then take no memory, even for zeros, and freed memory returns to the system at
    once. This affects all threads, until the last of them leaves its block; afterwards freed memory
    is reused.
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
                _reuse_freed()


def reuse_freed() -> None:
    """Let large arrays be made in memory that others have left, if the C library can (glibc).

    It does so by itself from the first large array on that it has freed. New pages take ten times
    as long as zeros in memory that was used. See `trim`.
    """
    with _lock:
        if not _inside:
            _reuse_freed()


def _reuse_freed() -> None:
    # glibc's own values after it has freed large arrays.
    _function("mallopt")(_MMAP_THRESHOLD, 1 << 25)
    _function("mallopt")(_TRIM_THRESHOLD, 1 << 26)


def private_bytes() -> int | None:
    """Return the resident bytes without a file, such as arrays; None if unknown."""
    try:
        _, pages, shared, *_ = map(int, Path("/proc/self/statm").read_text().split())
    except (OSError, ValueError):
        return None
    import resource

    return (pages - shared) * resource.getpagesize()


@contextmanager
def once_in_a_process() -> Iterator[None]:
    """Count in `once_bytes` the memory of work in the block that stays, such as loading libraries.

    Of nested blocks only the outermost counts.
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
    """Return the private bytes that the blocks of `once_in_a_process` have taken."""
    return _once


def library_pages(**libraries: str) -> dict[str, int]:
    """Return the resident bytes of libraries' files; each is found by a part of its file's name.

    They are the files' own pages, which the system can drop and processes share. The result is
    empty if the system does not report them.
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
        # Another C library, or a system that cannot open the program this way.
        return lambda *_: None
    return found


@contextmanager
def small_pages() -> Iterator[None]:
    """Within the block, NumPy requests small pages for new arrays, if possible.

    The allocator writes the first bytes of an array that is never touched, and so takes a page: two
    megabytes if NumPy has requested large ones.
    """
    numpy: Any = np
    choose = getattr(numpy._core.multiarray, "_set_madvise_hugepage", lambda chosen: chosen)
    before = choose(False)
    try:
        yield
    finally:
        choose(before)


_POPULATE = 23
"""``MADV_POPULATE_WRITE`` of Linux, from ``mman.h``; older systems refuse the number."""


def populated(array: Array) -> Array:
    """Return a new ``array``, a large one with all its pages, if the system can.

    One by one, each at the first write to it, they take a quarter longer.
    """
    if array.nbytes >= LARGE and sys.platform == "linux":
        start = address(array)
        first = -start % mmap.PAGESIZE
        nbytes = (array.nbytes - first) // mmap.PAGESIZE * mmap.PAGESIZE
        place = ctypes.c_void_p(start + first)
        _function("madvise")(place, ctypes.c_size_t(nbytes), _POPULATE)
    return array


_PAGE = 1 << 21
"""Bytes of a large page."""
_BLOCK = 16 * _PAGE
"""Least bytes of memory that arrays of `lasting` share."""
_block: weakref.ref[mmap.mmap] | None = None
_filled = 0


def lasting(shape: Shape, dtype: Any) -> Array:
    """Return zeros for weights, which are read whole again and again and live as long as others.

    Arrays from 64 KiB share blocks of large pages, if the system has these: with small pages a
    processor reads at half its speed while it looks up addresses. A block is freed with its last
    array.
    """
    global _block, _filled
    kind = np.dtype(dtype)
    nbytes = kind.itemsize * prod(shape)
    if nbytes < 1 << 16 or not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.zeros(shape, kind)
    with _lock:
        block = None if _block is None else _block()
        if block is None or _filled + nbytes > len(block):
            size = max(_BLOCK, -(-nbytes // _PAGE) * _PAGE)
            block = own_pages(size)
            with suppress(OSError):
                block.madvise(mmap.MADV_HUGEPAGE)
            _block, _filled = weakref.ref(block), 0
        start = _filled
        _filled += -(-nbytes // 64) * 64
    return np.frombuffer(block, kind, prod(shape), start).reshape(shape)


def own_pages(nbytes: int) -> mmap.mmap:
    """Return zeros in pages of the process's own, which return to the system when freed."""
    if not hasattr(mmap, "MAP_PRIVATE"):
        return mmap.mmap(-1, nbytes)
    # Private: another process would see what is written to the memory that it inherits, and
    # `private_bytes` would not count it.
    return mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def mapped(stream: BinaryIO, nbytes: int) -> memoryview:
    """Return the first ``nbytes`` of a file just opened, read-only, if possible without a copy."""
    try:
        whole = mmap.mmap(stream.fileno(), nbytes, access=mmap.ACCESS_READ)
    except (OSError, ValueError):
        # Some file systems map nothing, and no system maps an empty or a shrunk file.
        return memoryview(stream.read(nbytes))
    # Of no bytes the system maps all of the file.
    return memoryview(whole)[:nbytes]


class LentMemory:
    """The memory of ``owner``, a contiguous array without other references, on any device.

    A lent array, and each view of it, references one array of all bytes. A weak reference to that
    array shows, on every Python, whether the memory is in use. Reference counts do not: they differ
    between versions.
    """

    __slots__ = ("_last_view", "_memory", "_of", "_whole", "nbytes")

    def __init__(self, owner: Array) -> None:
        self.nbytes = int(owner.nbytes)
        self._of = type(owner)
        # The base of a view of a view is the first array in the chain, which ends at this object:
        # a memoryview for NumPy's arrays, a pointer for a device's.
        self._memory: Any = owner.data
        self._whole: weakref.ref[Array] | None = None
        self._last_view: weakref.ref[Array] | None = None

    @property
    def is_lent(self) -> bool:
        """Whether a lent array, or a view of one, is alive."""
        return self._whole is not None and self._whole() is not None

    def lend(self, shape: Shape, dtype: np.dtype[Any]) -> Array:
        """Return all of it as an array of ``shape``: the lent one if that is still alive."""
        view = None if self._last_view is None else self._last_view()
        if view is None:
            whole = None if self._whole is None else self._whole()
            if whole is None:
                whole = self._new()
                self._whole = weakref.ref(whole)
            view = whole.view(dtype).reshape(shape)
            self._last_view = weakref.ref(view)
        return view

    def _new(self) -> Array:
        if self._of is np.ndarray:
            return np.frombuffer(self._memory, np.uint8)
        made: Array = self._of((self.nbytes,), np.uint8, self._memory)
        return made


def address(array: Any) -> int:
    """Return the address of the first element."""
    if isinstance(array, np.ndarray):
        flags = array.flags
        if flags.c_contiguous and flags.writeable and array.size and array.dtype.kind in "fiub":
            # A third of the time of NumPy's `ctypes.data`.
            memory: Any = array
            return addressof(c_char.from_buffer(memory))
        # Unlike `__array_interface__`, this builds no dict with newly interned keys.
        return int(array.ctypes.data)
    interface = getattr(array, "__cuda_array_interface__", None) or array.__array_interface__
    return int(interface["data"][0])


def steps(array: Any) -> tuple[int, ...]:
    """Return the bytes from one element to the next along each axis.

    NumPy's ``strides`` may be any number for an axis of one element, and for an empty array. Here
    such an axis has the stride of C order: the bytes that the next axis spans.
    """
    made: list[int] = []
    step, empty = array.itemsize, not array.size
    for extent, stride in zip(reversed(array.shape), reversed(array.strides), strict=True):
        made.append(step if empty or extent == 1 else stride)
        step = made[-1] * max(extent, 1)
    return tuple(reversed(made))
