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
    """As where parts share out parts, and all threads are at work."""
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


def test_errors_of_workers_come_out_when_all_are_done():
    done, begun = [], threading.Event()

    def fail():
        # A part that no thread has begun is called off.
        assert begun.wait(60)
        raise ZeroDivisionError

    def late():
        begun.set()
        time.sleep(0.05)
        done.append(1)

    with pytest.raises(ZeroDivisionError):
        side_by_side([[fail], [late]])
    assert done == [1]
    with pytest.raises(ZeroDivisionError):
        side_by_side([[late], [fail, late]])
    assert done == [1, 1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes are forked here")
def test_a_forked_child_has_threads_of_its_own():
    side_by_side([[int], [int]])
    child = os.fork()
    if not child:
        for _ in range(20):
            side_by_side([[int], [int]])
        deadline = time.monotonic() + 20
        while workers._waiting.qsize() and time.monotonic() < deadline:
            time.sleep(0.001)
        os._exit(workers._waiting.qsize())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_no_thread_is_counted_that_was_not_started(monkeypatch):
    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(workers, "_threads", [])
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        side_by_side([[int], [int]])
    assert not workers._threads
