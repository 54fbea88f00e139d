"""OpenMP's threads, which are oneDNN's."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import lru_cache
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from singanet.ops.threads import cores, default_threads
from singanet.ops.workers import Parts, do

_SPINS = "GOMP_SPINCOUNT"
_BY_USER = ("OMP_WAIT_POLICY", _SPINS)

_BRIDGED = "100000"
"""Looks for work, in some 2 ms: what lies between two kernels that are shared."""

_TASKS = Path("/proc/self/task")

_LOOK = 20_000_000
"""Nanoseconds between two looks at who has the cores, which take some 50 microseconds."""

_CONTENDED = 0.2
"""The share of the time that threads wait for a core where others want it: some 0.3 to 0.9.

It is below 0.02 where they have their cores, but for moments.
"""

KEPT = "singanet neighbours"
"""The name of the thread that keeps a team asleep."""

_TWICE, _CALM = 2, 10
"""Looks in a row that tell that others are near, and that they are gone."""


@contextmanager
def long_waits() -> Iterator[None]:
    """While OpenMP is loaded, tell it how long threads without work shall wait awake.

    To wake one takes 50 microseconds and more, and a thread that slept comes back on the core of
    the one that woke it. See `Neighbours` for what is done where other processes want the cores.
    ``OMP_WAIT_POLICY`` and ``GOMP_SPINCOUNT`` of the user's stand.
    """
    if any(name in os.environ for name in _BY_USER):
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

        def enter(_: Any) -> None:
            try:
                context = next(contexts)
                for part in left:
                    context.run(do, part)
            except BaseException as error:  # noqa: BLE001 - nothing may pass through C
                errors.append(error)

        self._parallel(_Body(enter), None, len(parts), 0)
        if errors:
            raise errors[0]

    def begin(self, threads: int) -> None:
        """Have so many threads of the calling one's own, which do nothing."""
        self._parallel(self._nothing, None, threads, 0)


class Neighbours:
    """Lets OpenMP's threads sleep as soon as they are without work while others want their cores.

    A thread that waits awake beside a busy process uses up its share of the core, and is not let
    on when there is work: a kernel takes as long as the other's turn. How long ours have waited for
    a core the system tells. GNU's OpenMP reads how long to stay awake once, but is short about it
    while it has more threads than cores: so another team is kept for as long as it takes, asleep.
    """

    def __init__(self, region: Region) -> None:
        self._region = region
        self._lock = threading.Lock()
        self._next = self._since = self._waited = self._alike = 0
        self._free: threading.Event | None = None

    @property
    def near(self) -> bool:
        """Whether they want the cores."""
        return self._free is not None

    def look(self) -> None:
        """Look, if it is time to."""
        now = perf_counter_ns()
        if now < self._next or not self._lock.acquire(blocking=False):
            return
        try:
            waited, passed = _waited(), now - self._since
            share = (waited - self._waited) / passed
            # After a while without kernels nobody knows what the threads did.
            if passed < 4 * _LOOK:
                self._judge(share)
            self._since, self._waited, self._next = now, waited, now + _LOOK
        finally:
            self._lock.release()

    def _judge(self, share: float) -> None:
        # How many looks in a row say the contrary of what is held to be so.
        self._alike = self._alike + 1 if (share > _CONTENDED) != self.near else 0
        if self._alike < (_CALM if self.near else _TWICE):
            return
        self._alike = 0
        if self._free is not None:
            self._free.set()
            self._free = None
        else:
            self._free = threading.Event()
            threading.Thread(None, self._hold, KEPT, (self._free,), daemon=True).start()

    def _hold(self, free: threading.Event) -> None:
        """Have so many threads more that they outnumber the cores, until ``free``."""
        self._region.begin(max(2, cores() - default_threads() + 2))
        free.wait()


@lru_cache(maxsize=8)
def region_of(c: Any) -> Region | None:
    """That of the OpenMP in ``c``; None where it is not GNU's."""
    return Region(c) if hasattr(c, "GOMP_parallel") else None


@lru_cache(maxsize=8)
def neighbours_of(region: Region) -> Neighbours | None:
    """The one watch of this process; None where the user says how long threads stay awake."""
    return None if any(name in os.environ for name in _BY_USER) else Neighbours(region)


def _waited() -> int:
    """Nanoseconds that the threads of this process have waited for a core."""
    total = 0
    for task in _TASKS.iterdir():
        # One that has ended in the meantime.
        with suppress(OSError, IndexError):
            total += int((task / "schedstat").read_bytes().split()[1])
    return total


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
