"""Interrupts at a chosen line of the library's code."""

import signal
import sys
import threading
import time
from pathlib import Path

import singanet

_OURS = str(Path(singanet.__file__).parent)
"""The package: what the folders around a checkout are called is nobody's business."""


class Struck(BaseException):
    """As KeyboardInterrupt, which pytest would take for its own."""


def _strike():
    raise Struck


def struck_at(line, action, strike=_strike):
    """Whether ``action`` was ended by an interrupt at the ``line``-th line that it ran of ours.

    Lines of contextlib count: an interrupt may strike between a block and what follows it.
    """
    left = line

    def trace(frame, event, argument):
        nonlocal left
        name = frame.f_code.co_filename
        if not name.startswith(_OURS) and not name.endswith("contextlib.py"):
            return None
        if event == "line":
            left -= 1
            if left == 0:
                strike()
        return trace

    before = sys.gettrace()
    try:
        sys.settrace(trace)
        action()
    except Struck:
        pass
    finally:
        sys.settrace(before)
    return left <= 0


def signalled_at(line, action):
    """As `struck_at`, but by Ctrl-C's signal, which code may let act later."""
    before = signal.signal(signal.SIGINT, lambda number, frame: _strike())
    try:
        return struck_at(line, action, lambda: signal.raise_signal(signal.SIGINT))
    finally:
        signal.signal(signal.SIGINT, before)


def threads_gone(before):
    """Whether, soon, no thread runs that was not there before."""
    deadline = time.monotonic() + 5
    while set(threading.enumerate()) - before and time.monotonic() < deadline:
        time.sleep(0.001)
    return not set(threading.enumerate()) - before
