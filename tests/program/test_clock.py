"""Times of kernels: who they belong to, which runs count."""

from __future__ import annotations

import pytest

import singanet.program.clock
from singanet.program.clock import Clock


@pytest.fixture
def now(monkeypatch):
    """A time that passes only when told to."""
    time = [0.0]
    monkeypatch.setattr(singanet.program.clock, "perf_counter", lambda: time[0])
    return time


def sleeper(now, durations):
    left = iter(durations)

    def call():
        now[0] += next(left)

    return call


def test_medians_of_the_runs_after_the_first_belong_to_their_kernels(now):
    clock = Clock(5)
    calls = [sleeper(now, [9, 1, 3, 2]), sleeper(now, [7, 5, 5, 5]), sleeper(now, [1, 4, 6, 8])]
    marks = [True, False, False, True, False]
    first, second = clock.around([calls[:2], calls[2:]], marks)
    for _ in range(4):
        for call in (*first, *second):
            call()
    assert clock.runs == 3
    assert clock.seconds() == [0.0, 2.0, 5.0, 0.0, 6.0]


def test_before_a_run_counts_there_are_no_seconds(now):
    clock = Clock(1, skip=2)
    ((call,),) = clock.around([[sleeper(now, [1, 1, 4])]], [False])
    for expected in (None, None, [4.0]):
        call()
        assert clock.seconds() == expected


def test_what_a_kernel_raises_goes_on_and_its_run_does_not_count():
    def broken():
        raise OSError("disk")

    clock = Clock(1, skip=0)
    ((call,),) = clock.around([[broken]], [False])
    with pytest.raises(OSError, match="disk"):
        call()
    assert clock.seconds() is None
