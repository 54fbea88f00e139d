"""Interrupts that wait for what has to be done whole."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


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
