"""Run kernels of several calls on Python threads.

The calls release the interpreter's lock while they compute.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextvars import copy_context
from itertools import chain
from queue import SimpleQueue
from threading import Lock, Thread

from singanet.types import Parts, Work


def side_by_side(parts: Parts) -> None:
    """Run the first part here, and each other part on a free thread; return when all are done.

    After an error or Ctrl-C, no part still works on memory of the caller.
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
    """A part for another thread, unless it is cancelled before a thread starts it.

    A call from the caller may be interrupted anywhere, and repeated.
    """

    def __init__(self, part: Sequence[Work]) -> None:
        self.part = part
        self.error: BaseException | None = None
        # The caller's context, which contains NumPy's error state.
        self._context = copy_context()
        self._begun: dict[str, bool] = {}
        self._ended, self._lock = False, Lock()
        self._lock.acquire()

    def __call__(self) -> None:
        """Run the part, on another thread than the caller's."""
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
        """Cancel the part; return whether no thread has started it."""
        return not self._begun.setdefault("begun", False)

    def wait(self) -> None:
        """Wait until the part is done."""
        while not self._ended:
            self._lock.acquire()


def _end(others: Sequence[_Other]) -> None:
    """Wait until all started parts are done, despite interrupts."""
    try:
        for other in others:
            if not other.call_off():
                other.wait()
    except BaseException:
        _end(others)
        raise


def cuts(count: int, parts: int) -> list[tuple[int, int]]:
    """Return the bounds of ``parts`` ranges of about equal size, none of them empty."""
    parts = min(parts, count)
    return [(count * k // parts, count * (k + 1) // parts) for k in range(parts)]


def shared(
    numbers: tuple[int, ...], counts: Sequence[int], threads: int
) -> Sequence[Sequence[tuple[int, ...]]]:
    """Return the arguments of calls: ``numbers``, followed by a range of parts for each stage.

    With one thread, one call does all stages; with several, each call does parts of one stage.
    """
    if threads == 1:
        return [[(*numbers, *chain.from_iterable((0, count) for count in counts))]]
    stages = []
    for stage, count in enumerate(counts):
        before, after = (0, 0) * stage, (0, 0) * (len(counts) - stage - 1)
        calls = [(*numbers, *before, *cut, *after) for cut in cuts(count, threads)]
        stages += [calls] * bool(calls)
    return stages


def do(part: Sequence[Work]) -> None:
    """Run the calls one after the other."""
    for work in part:
        work()


# An interrupt in `submit` of a `concurrent.futures` pool may leave a thread unknown to the pool,
# and the process then waits for it at its end.
_waiting: SimpleQueue[_Other] = SimpleQueue()
_threads: list[Thread] = []


def _have(count: int) -> None:
    """Start threads until there are ``count``."""
    while len(_threads) < count:
        thread = Thread(target=_serve, name="singanet", daemon=True)
        # An interrupt here leaves one thread too many, not one that was never started.
        thread.start()
        _threads.append(thread)


def _begin_anew() -> None:
    """Reset the pool in a forked child, which has neither the threads nor the waiting parts."""
    global _waiting
    _threads.clear()
    _waiting = SimpleQueue()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


def _serve() -> None:
    while True:
        _waiting.get()()
