"""Locks that a forked process finds free."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any, TypeVar

_Lock = TypeVar("_Lock")

_locks: weakref.WeakSet[Any] = weakref.WeakSet()
_held: list[Any] = []


def free_in_children(lock: _Lock) -> _Lock:
    """``lock``, which no thread but the one that forks holds while a process is forked.

    A child has that thread alone. A lock that another one held would never be let go in it, and
    what the lock guards would stay half changed.
    """
    _locks.add(lock)
    return lock


def _take_all() -> None:
    while True:
        locks = list(_locks)
        for lock in locks:
            if not lock.acquire(blocking=False):
                break
            _held.append(lock)
        else:
            return
        # Its holder may want one of those that we have: wait for it with none.
        _let_go()
        with lock:
            pass


def _let_go() -> None:
    while _held:
        _held.pop().release()


_one_fork = threading.Lock()
"""Held by the one thread that forks: `_held` is its list."""


def _before() -> None:
    _one_fork.acquire()
    _take_all()


def _after() -> None:
    _let_go()
    _one_fork.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after)
