"""Python threads for kernels that are made of several calls.

The calls let go of the interpreter's lock while they compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import lru_cache
from threading import Lock

from singanet.types import Parts, Work


def side_by_side(parts: Parts) -> None:
    """Do the first part here and each other in a thread of its own; return when all are done.

    So it is after an error and Ctrl-C too: none is at work any more on memory that the caller
    then gives back.
    """
    others = [_Other(part) for part in parts[1:]]
    try:
        for other in others:
            _pool(len(others)).submit(other)
        do(parts[0])
        for other in others:
            other.wait()
    except BaseException:
        _end(others)
        raise
    for other in others:
        if other.error is not None:
            raise other.error


class _Other:
    """A part that another thread does, unless it is called off before that thread comes to it.

    Nothing here is lost where an interrupt strikes, and what was interrupted may be called again.
    """

    def __init__(self, part: Sequence[Work]) -> None:
        self.error: BaseException | None = None
        self._part = part
        # The caller's, which holds NumPy's error state.
        self._context = copy_context()
        self._begun: dict[str, bool] = {}
        self._ended, self._lock = False, Lock()
        self._lock.acquire()

    def __call__(self) -> None:
        if not self._begun.setdefault("begun", True):
            return
        try:
            self._context.run(do, self._part)
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
            self.error = error
        finally:
            self._ended = True
            self._lock.release()

    def wait(self) -> None:
        """Return when it is done."""
        while not self._ended:
            self._lock.acquire()

    def end(self) -> None:
        """Return when it is done, or will never be begun."""
        if self._begun.setdefault("begun", False):
            self.wait()


def _end(others: Sequence[_Other]) -> None:
    """End all of them, whatever interrupts it: the error is raised afterwards."""
    try:
        for other in others:
            other.end()
    except BaseException:
        _end(others)
        raise


def cuts(count: int, parts: int) -> list[tuple[int, int]]:
    """The first and one past the last of ``parts`` of about the same size, none of them empty."""
    parts = min(parts, count)
    return [(count * k // parts, count * (k + 1) // parts) for k in range(parts)]


def do(part: Sequence[Work]) -> None:
    """Do one thing after the other."""
    for work in part:
        work()


@lru_cache(maxsize=4)
def _pool(size: int) -> ThreadPoolExecutor:
    # A forked child has one thread, so it never comes here with a pool whose threads are gone.
    return ThreadPoolExecutor(size, thread_name_prefix="singanet")
