"""Work shared by threads: none is at it any more when the caller goes on, whatever struck."""

from __future__ import annotations

import os
import signal
import threading
import time
from queue import SimpleQueue

import pytest

from singanet.ops import workers
from singanet.ops.workers import side_by_side
from tests.interrupts import struck_at


class Slow:
    """Work that notes when it begins and ends, in whatever thread."""

    def __init__(self, seconds=0.1):
        self.seconds, self.begun, self.ended = seconds, [], []

    def __call__(self):
        self.begun.append(None)
        time.sleep(self.seconds)
        self.ended.append(None)

    @property
    def at_work(self):
        return len(self.begun) - len(self.ended)


def test_without_threads_the_caller_does_all(monkeypatch):
    """As in a forked child, whose threads are gone, and where parts share out parts."""
    monkeypatch.setattr(workers, "_have", lambda count: None)
    monkeypatch.setattr(workers, "_waiting", SimpleQueue())
    slow = Slow(0)
    side_by_side([[slow], [slow, slow], [lambda: side_by_side([[slow], [slow]])]])
    assert len(slow.ended) == 5


@pytest.mark.parametrize("times", [1, 3])
def test_ctrl_c_in_the_wait_for_others(times):
    slow, begun = Slow(0.3), threading.Event()

    def strikes():
        begun.wait(60)
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.05)

    with pytest.raises(KeyboardInterrupt):
        side_by_side([[lambda: None], [strikes], [begun.set, slow]])
    assert len(slow.ended) == 1


def test_an_error_in_the_callers_part():
    slow, begun = Slow(), threading.Event()

    def fails():
        begun.wait(60)
        raise LookupError

    with pytest.raises(LookupError):
        side_by_side([[fails], [begun.set, slow]])
    assert len(slow.ended) == 1


def test_an_error_in_anothers_part():
    slow = Slow()

    def fails():
        raise LookupError("other")

    with pytest.raises(LookupError, match="other"):
        side_by_side([[slow], [fails], [slow]])
    assert len(slow.ended) == 2


def test_wherever_it_is_interrupted_no_part_is_at_work_afterwards():
    line, struck = 0, True
    while struck:
        line += 1
        slow = Slow(0.001)
        struck = struck_at(line, lambda: side_by_side([[int], [slow], [slow]]))  # noqa: B023
        assert not slow.at_work, line
        now = len(slow.begun)
        # Nor is one begun later.
        time.sleep(0.002)
        assert len(slow.begun) == now, line
        assert struck or now == 2
    assert line > 20
