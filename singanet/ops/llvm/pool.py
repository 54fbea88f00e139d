"""Keep threads that run jobs of compiled functions.

They wait awake for some 100 microseconds, the usual gap between two kernels, and then sleep.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from threading import Lock, Thread

import numpy as np

from singanet.base.heap import address
from singanet.base.processes import free_in_children
from singanet.ops.compiled.calls import Jobs, aligned, function_of
from singanet.ops.neighbours import TASKS, Helpers, Neighbours
from singanet.ops.threads import cores

_FUTEX = {"x86_64": 202, "aarch64": 98}
"""The number of Linux's system call."""


class Pool:
    """Threads of a process, apart from the calling ones; a forked child has a new pool."""

    def __init__(self) -> None:
        from singanet.ops.compiled.chain import LINE, POOL

        self._memory = aligned(LINE * len(POOL))
        self._busy = np.zeros(1, np.int64)
        self._states: list[object] = []
        self._helpers = Helpers()
        self._lock = free_in_children(Lock())
        self._watch = Neighbours(self) if TASKS.is_dir() and cores() > 1 else None
        given = {
            "busy": address(self._busy),
            "futex": _FUTEX[platform.machine()],
            "syscall": ctypes.cast(ctypes.CDLL(None).syscall, ctypes.c_void_p).value or 0,
        }
        for name, number in given.items():
            self._memory[LINE // 8 * POOL.index(name)] = number

    def jobs(self, threads: int) -> Jobs:
        """Return the maker of jobs for ``threads`` threads, which are started."""
        with self._lock:
            while len(self._states) < threads - 1:
                self._begin()
        look = None if self._watch is None else self._watch.look
        start = function_of("start").address
        return Jobs(threads, start, 0, self._busy, look, self._memory)

    def begin(self, threads: int) -> None:
        """Do nothing: the threads sleep while the cores are busy."""

    def note_busy(self, busy: bool) -> None:
        """Let jobs run on the calling thread, and the others sleep, while the cores are busy."""
        self._busy[0] = busy

    def make_way(self) -> None:
        """Keep the threads away from the core of the calling thread."""
        self._helpers.make_way()

    def _begin(self) -> None:
        state, serve = aligned(8), function_of("serve").call
        self._states.append(state)
        given = address(self._memory), address(state), len(self._states)
        # An interrupt may leave one that was not started; jobs do without it.
        thread = Thread(target=serve, args=given, name="singanet pool", daemon=True)
        thread.start()
        if thread.native_id is not None:
            self._helpers.add(thread.native_id)


def is_offered() -> bool:
    """Whether there can be a pool on this system."""
    return sys.platform == "linux" and platform.machine() in _FUTEX


class _Own:
    pool: Pool | None = None
    lock = free_in_children(Lock())


def pool() -> Pool:
    """Return the pool of this process."""
    with _Own.lock:
        _Own.pool = _Own.pool or Pool()
        return _Own.pool


def _begin_anew() -> None:
    """Forget the pool in a forked child, which has none of its threads."""
    _Own.pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
