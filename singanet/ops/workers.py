"""Python threads for kernels that are made of several calls.

The calls let go of the interpreter's lock while they compute.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextvars import copy_context
from queue import SimpleQueue
from threading import Lock, Thread

from singanet.types import Parts, Work


def side_by_side(parts: Parts) -> None:
    """Do the first part here, each other in a thread of its own if one is free; all are done then.

    After an error, and Ctrl-C, none is at work any more on memory that the caller gives back.
    """
    others = [_Other(part) for part in parts[1:]]
    try:
        _have(len(others))
        for other in others:
            _waiting.put(other)
        do(parts[0])
        for other in others:
            if other.call_off():
                do(other.part)
            else:
                other.wait()
    except BaseException:
        _end(others)
        raise
    for other in others:
        if other.error is not None:
            raise other.error


class _Other:
    """A part that another thread does, unless it is called off before that thread comes to it.

    What the caller asks of it may be interrupted anywhere, and asked again.
    """

    def __init__(self, part: Sequence[Work]) -> None:
        self.part = part
        self.error: BaseException | None = None
        # The caller's, which holds NumPy's error state.
        self._context = copy_context()
        self._begun: dict[str, bool] = {}
        self._ended, self._lock = False, Lock()
        self._lock.acquire()

    def __call__(self) -> None:
        """Do it, in another thread than the caller's."""
        if not self._begun.setdefault("begun", True):
            return
        try:
            self._context.run(do, self.part)
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
            self.error = error
        finally:
            self._ended = True
            self._lock.release()

    def call_off(self) -> bool:
        """Whether no thread has begun it, nor ever will."""
        return not self._begun.setdefault("begun", False)

    def wait(self) -> None:
        """Return when it is done."""
        while not self._ended:
            self._lock.acquire()


def _end(others: Sequence[_Other]) -> None:
    """Return when those that were begun are done, whatever interrupts it."""
    try:
        for other in others:
            if not other.call_off():
                other.wait()
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


# A pool of `concurrent.futures` whose `submit` is interrupted may have a thread that it does not
# know, for which the process waits at its end.
_waiting: SimpleQueue[_Other] = SimpleQueue()
_threads: list[Thread] = []


def _have(count: int) -> None:
    """Have so many threads."""
    while len(_threads) < count:
        thread = Thread(target=_serve, name="singanet", daemon=True)
        # An interrupt on the way leaves one more thread, not one that nobody has started.
        thread.start()
        _threads.append(thread)


def _begin_anew() -> None:
    """In a forked child: the threads are gone, and nobody takes what waits for them."""
    global _waiting
    _threads.clear()
    _waiting = SimpleQueue()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


def _serve() -> None:
    while True:
        _waiting.get()()
