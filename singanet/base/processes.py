"""Forks, interrupts, the end of a process, and the folder of the cache."""

from __future__ import annotations

import os
import signal
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
            _held_locks.append(lock)
        else:
            return
        # Its holder may want one of those that we have: wait for it with none.
        _let_go()
        with lock:
            pass


def _let_go() -> None:
    while _held_locks:
        _held_locks.pop().release()


_one_fork = threading.Lock()
"""Held by the one thread that forks: `_held_locks` is its list."""


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
    """Let Ctrl-C act at the end of the block, not within it; none is lost."""
    before = signal.getsignal(signal.SIGINT)
    # Python runs handlers in the main thread alone, and others cannot set them.
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
    """``function``, which Ctrl-C lets end; `had_ended` then says so of the error."""

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
    """Whether ``error`` came as a function that is `done_whole` had ended; it is asked once."""
    return bool(vars(error).pop(_ENDED, False))


class Leaving:
    """What has become of the wish; a process has one, `LEAVING`."""

    def __init__(self) -> None:
        self.asked = False
        self.begun = False

    def ask(self, *_: object) -> None:
        """Ask for it; a handler of signals, too."""
        self.asked = True

    def leave(self) -> NoReturn:
        """End the training as Ctrl-C ends it, which all ranks do after the same step."""
        self.begun = True
        raise KeyboardInterrupt("the launcher goes on with other ranks from here")


LEAVING = Leaving()


def cache_folder() -> Path | None:
    """The user's own: ``$XDG_CACHE_HOME/singanet``, or else ``~/.cache/singanet``.

    None for a user without a home: a relative folder would be whatever the working directory has.
    """
    # The standard says that a relative one counts as unset.
    for folder in (os.environ.get("XDG_CACHE_HOME", ""), os.path.expanduser("~/.cache")):
        if os.path.isabs(folder):
            return Path(folder) / "singanet"
    return None
