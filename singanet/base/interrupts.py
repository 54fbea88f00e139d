"""Interrupts that wait for what has to be done whole."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

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
