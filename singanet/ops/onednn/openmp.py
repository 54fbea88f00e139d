"""OpenMP's threads, which are oneDNN's."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from functools import lru_cache
from typing import Any

from singanet.ops.workers import do
from singanet.types import Parts

_SPINS = "GOMP_SPINCOUNT"
BY_USER = ("OMP_WAIT_POLICY", _SPINS)

_BRIDGED = "100000"
"""Looks for work, in some 2 ms: what lies between two kernels that are shared."""


@contextmanager
def long_waits() -> Iterator[None]:
    """While OpenMP is loaded, tell it how long threads without work shall wait awake.

    To wake one takes 50 microseconds and more, and a thread that slept comes back on the core of
    the one that woke it. See `neighbours` for what is done where other processes want the cores.
    ``OMP_WAIT_POLICY`` and ``GOMP_SPINCOUNT`` of the user's stand.
    """
    if any(name in os.environ for name in BY_USER):
        yield
        return
    os.environ[_SPINS] = _BRIDGED
    try:
        yield
    finally:
        del os.environ[_SPINS]


_Body = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Region:
    """GNU's ``GOMP_parallel``: what a team of OpenMP's threads does."""

    def __init__(self, c: Any) -> None:
        self._parallel = c.GOMP_parallel
        self._parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        self._parallel.restype = None
        self._nothing = ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p)

    def side_by_side(self, parts: Parts) -> None:
        """Do the parts, each in whichever thread comes first. Errors: the first of theirs.

        As `workers.side_by_side`, whose threads of Python would be a second team: it would find
        its core taken by a thread of the first that waits awake.
        """
        if len(parts) == 1:
            do(parts[0])
            return
        left, errors = iter(parts), []
        contexts = iter([copy_context() for _ in parts])
        caller, ended = threading.get_ident(), False

        def enter(_: Any) -> None:
            nonlocal ended
            called = threading.get_ident() == caller
            try:
                context = next(contexts)
                for part in left:
                    context.run(do, part)
            except BaseException as error:  # noqa: BLE001 - nothing may pass through C
                errors.append(error)
            ended = ended or called

        self._parallel(_Body(enter), None, len(parts), 0)
        if errors:
            raise errors[0]
        if not ended:
            # Ctrl-C outside of the block above, which ctypes tells and drops.
            raise KeyboardInterrupt

    def begin(self, threads: int) -> None:
        """Have so many threads of the calling one's own, which do nothing."""
        self._parallel(self._nothing, None, threads, 0)


@lru_cache(maxsize=8)
def region_of(c: Any) -> Region | None:
    """The parallel region of the OpenMP in ``c``; None if it is not GNU's."""
    return Region(c) if hasattr(c, "GOMP_parallel") else None


class Team(threading.local):
    """How many threads the next kernel of the calling thread uses; OpenMP keeps it for each."""

    size = 0

    def __init__(
        self, tell: Callable[[int], object] | None, look: Callable[[], None] | None = None
    ) -> None:
        self._tell, self._look = tell, look

    def use(self, count: int) -> None:
        """Let what is built or run next use ``count`` threads."""
        if count != self.size:
            if self._tell is not None:
                self._tell(count)
            self.size = count
        if count > 1 and self._look is not None:
            self._look()
