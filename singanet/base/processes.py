"""Forks, interrupts, the end of a process, and the cache folder."""

from __future__ import annotations

# In the place of `signal`, whose functions look for each handler among names: 5 microseconds.
import _signal as signal  # type: ignore[import-not-found]
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeVar

_Lock = TypeVar("_Lock")

_locks: weakref.WeakSet[Any] = weakref.WeakSet()
_held_locks: list[Any] = []


def free_in_children(lock: _Lock) -> _Lock:
    """Register ``lock``, which no other thread than the forking one may have during a fork.

    A child process has only that thread. A lock of another thread would never be released in it,
    and the data under the lock would stay inconsistent.
    """
    _locks.add(lock)
    return lock


def _take_all() -> None:
    while True:
        locks = list(_locks)
        for lock in locks:
            if not lock.acquire(blocking=False):
                break
            _held_locks.append(lock)
        else:
            return
        # Its thread may wait for a lock of ours: release all before waiting.
        _let_go()
        with lock:
            pass


def _let_go() -> None:
    while _held_locks:
        _held_locks.pop().release()


_one_fork = threading.Lock()
"""The lock of the forking thread, which uses `_held_locks`."""


def _before() -> None:
    _one_fork.acquire()
    _take_all()


def _after() -> None:
    _let_go()
    _one_fork.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after)


_ENDED = "_function_had_ended"


@contextmanager
def interrupted_after() -> Iterator[None]:
    """Delay Ctrl-C in the block until its end; none is lost."""
    before = signal.getsignal(signal.SIGINT)
    # Only the main thread runs and sets signal handlers in Python.
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        yield
        return
    heard: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        for number in heard:
            before(number, None)


def done_whole(function: Callable[..., None]) -> Callable[..., None]:
    """Return ``function`` with Ctrl-C delayed until it ends; see `had_ended`."""

    def call(*given: Any) -> None:
        ended = False
        try:
            with interrupted_after():
                function(*given)
                ended = True
        except BaseException as error:
            setattr(error, _ENDED, ended)
            raise

    return call


def had_ended(error: BaseException) -> bool:
    """Return whether a `done_whole` function had ended when it raised ``error``; only once."""
    return bool(vars(error).pop(_ENDED, False))


class Leaving:
    """The state of a request to end the process; there is one, `LEAVING`."""

    def __init__(self) -> None:
        self.asked = False
        self.begun = False

    def ask(self, *_: object) -> None:
        """Request the end; also usable as a signal handler."""
        self.asked = True

    def leave(self) -> NoReturn:
        """End the training as Ctrl-C does; all ranks call it after the same step."""
        self.begun = True
        raise KeyboardInterrupt("the launcher continues with other ranks from here")


LEAVING = Leaving()


def cache_folder() -> Path | None:
    """Return the user's cache: ``$XDG_CACHE_HOME/singanet``, or else ``~/.cache/singanet``.

    None for a user without a home: a relative folder would depend on the working directory.
    """
    # In the standard, a relative one counts as unset.
    for folder in (os.environ.get("XDG_CACHE_HOME", ""), os.path.expanduser("~/.cache")):
        if os.path.isabs(folder):
            return Path(folder) / "singanet"
    return None
