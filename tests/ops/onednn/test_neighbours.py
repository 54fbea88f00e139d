"""Who else wants the cores: what a watch does about others, and about threads on one core."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from singanet.ops import threads
from singanet.ops.onednn import library


class Waits:
    """What a watch asks the system and OpenMP: times waited and worked, and teams begun."""

    def __init__(self, monkeypatch):
        self.now = self.waited = self.worked = 1
        self.begun, self.collide, self.parted = [], False, 0
        monkeypatch.setattr(library, "perf_counter_ns", lambda: self.now)
        monkeypatch.setattr(library, "thread_time_ns", lambda: self.worked)
        monkeypatch.setattr(library, "_waited", lambda: self.waited)
        monkeypatch.setattr(library, "_put_apart", self.put_apart)
        self.watch = library.Neighbours(self)
        self.watch.look()

    def put_apart(self):
        self.parted += self.collide
        return self.collide

    def begin(self, count):
        self.begun.append(count)

    def pass_by(self, looks, share, step=1.0, work=0.0):
        for _ in range(looks):
            passed = int(step * library._LOOK)
            self.now += passed
            self.waited += share * passed
            self.worked += work * passed
            self.watch.look()
        return self.watch.near


@pytest.fixture
def waits(monkeypatch):
    return Waits(monkeypatch)


def test_threads_stay_awake_only_while_nobody_else_wants_their_cores(waits):
    before = threading.enumerate()
    assert not waits.pass_by(50, 0.02)
    assert not waits.pass_by(1, 0.5), "a moment is no neighbour"
    assert not waits.pass_by(1, 0.0)
    assert not waits.pass_by(9, 0.9, step=50), "nobody ran kernels: threads of others waited"
    assert not waits.pass_by(1, 0.9, step=0.2), "threads that just woke"
    assert waits.pass_by(2, 0.4)
    # The tests' own process may have neighbours, too.
    now = [thread for thread in threading.enumerate() if thread not in before]
    held = [thread for thread in now if thread.name == library.KEPT]
    assert len(held) == 1
    assert waits.pass_by(9, 0.0)
    assert waits.pass_by(1, 0.4), "it was another one's pause"
    assert not waits.pass_by(10, 0.0)
    held[0].join(10)
    assert not held[0].is_alive()
    assert waits.begun == [max(2, threads.cores() - threads.default_threads() + 2)]


def test_a_kernel_that_waits_for_long_is_no_pause(waits):
    waits.pass_by(5, 0.0)
    assert not waits.pass_by(1, 0.5, step=9, work=0.9)
    assert waits.pass_by(1, 0.5, step=9, work=0.9)
    waits.watch._free.set()


def test_threads_in_each_others_way_are_nobody_else(waits):
    waits.pass_by(5, 0.0)
    waits.collide = True
    assert not waits.pass_by(20, 0.9)
    assert waits.parted == 20
    waits.pass_by(5, 0.1)
    assert waits.parted == 20, "those that do not wait are left alone"


def test_after_a_pause_it_looks_soon(waits):
    waits.pass_by(5, 0.0)
    waits.collide = True
    waits.pass_by(1, 0.9, step=30)
    assert not waits.parted, "of a pause nothing is known"
    waits.pass_by(1, 0.9, step=0.11)
    assert waits.parted == 1


@pytest.fixture
def two_cores():
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        pytest.skip("one core")
    yield sorted(before)[:2]
    os.sched_setaffinity(0, before)


# Pythons, which spin without the lock of this process.
SPIN = "import sys; sys.stdout.write('x'); sys.stdout.flush()\nwhile True: pass"


def test_two_on_one_core_are_put_apart_and_not_bound(two_cores, monkeypatch, tmp_path):
    """Two processes stand for two threads: the system tells of both alike."""
    spinning = [
        subprocess.Popen([sys.executable, "-c", SPIN], stdout=subprocess.PIPE) for _ in range(2)
    ]
    try:
        for process in spinning:
            assert process.stdout.read(1) == b"x"
            (tmp_path / str(process.pid)).symlink_to(f"/proc/{process.pid}/task/{process.pid}")
        monkeypatch.setattr(library, "_TASKS", tmp_path)
        for process in spinning:
            os.sched_setaffinity(process.pid, {two_cores[0]})
        assert not library._put_apart(), "their user bound them"
        # Bound to one core until the moment before.
        seen, ask = [], os.sched_getaffinity
        monkeypatch.setattr(os, "sched_getaffinity", lambda task: set(two_cores))
        monkeypatch.setattr(
            os, "sched_setaffinity", lambda task, cores: seen.append((task, set(cores)))
        )
        assert library._put_apart()
        (moved, where), (again, free) = seen
        assert moved == again
        assert where == {two_cores[1]}
        assert free == set(two_cores)
        assert ask(moved) == {two_cores[0]}
    finally:
        for process in spinning:
            process.kill()
            process.communicate()


def test_sleeping_threads_and_such_that_have_ended_are_none(tmp_path):
    sleeping = threading.Thread(target=time.sleep, args=(0.5,))
    sleeping.start()
    time.sleep(0.05)
    assert library._runs_on(Path(f"/proc/self/task/{sleeping.native_id}")) is None
    assert library._runs_on(tmp_path / "1") is None
    own = library._runs_on(Path(f"/proc/self/task/{threading.get_native_id()}"))
    assert own in os.sched_getaffinity(0)
    sleeping.join()
