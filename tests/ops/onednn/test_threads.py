"""Threads of oneDNN: how many, several of Python's at once, and processes that were forked."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from singanet.errors import ArgumentError
from singanet.ops import numpy_ops, threads
from singanet.ops.onednn import library, set_threads
from singanet.ops.window import Window

WINDOW = Window((3, 3), (1, 1), ((1, 1), (1, 1)))


@pytest.fixture
def setting(monkeypatch):
    monkeypatch.setattr(threads, "_setting", threads._Setting())


@pytest.mark.parametrize("count", [0, -1, 10_000, 1.5, True, "2"])
def test_refused_counts(setting, count):
    before = threads.default_threads(), threads.changes()
    with pytest.raises(ArgumentError, match="number of threads from 1 to"):
        set_threads(count)
    assert (threads.default_threads(), threads.changes()) == before


def test_set_threads_holds_from_the_next_call(setting, ops):
    x, w = np.ones((2, 16, 8, 8), np.float32), np.ones((16, 16, 3, 3), np.float32)
    for count in {1, threads.cores()}:
        set_threads(count)
        ops.conv2d(x, w, None, WINDOW)
        assert ops.runtime().threads == count


def test_the_environment(setting, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1,4")
    assert threads.default_threads() == 1
    for text in ("", "0", "-3", "many"):
        monkeypatch.setenv("OMP_NUM_THREADS", text)
        assert threads.default_threads() == threads.cores()


def test_more_threads_than_cores(setting, monkeypatch):
    cores = threads.cores()
    monkeypatch.setenv("OMP_NUM_THREADS", str(cores + 1))
    threads._from_environment.cache_clear()
    with pytest.warns(RuntimeWarning, match=f"at most {cores} threads.*received {cores + 1}"):
        assert threads.default_threads() == cores


def test_how_long_threads_wait_awake_is_the_users_to_say(monkeypatch):
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    with library.long_waits():
        assert int(os.environ["GOMP_SPINCOUNT"]) > 0
    assert "GOMP_SPINCOUNT" not in os.environ
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    with library.long_waits():
        assert "GOMP_SPINCOUNT" not in os.environ
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    with library.long_waits():
        assert os.environ["GOMP_SPINCOUNT"] == "7"
    assert os.environ["GOMP_SPINCOUNT"] == "7"


@pytest.mark.parametrize(
    ("text", "count"),
    [("max 100000", 1 << 20), ("250000 100000", 2), ("50000 100000", 1), ("odd", 1 << 20)],
)
def test_a_control_groups_share_of_the_time_counts(monkeypatch, tmp_path, text, count):
    (tmp_path / "cpu.max").write_text(text)
    monkeypatch.setattr(threads, "_GROUPS", tmp_path)
    assert threads._granted.__wrapped__() == count


@pytest.fixture
def region(library_path):
    c = ctypes.CDLL(library_path)
    if not hasattr(c, "GOMP_parallel"):
        pytest.skip("another OpenMP than GNU's")
    return library.Region(c)


def test_parts_are_done_by_openmps_threads(region):
    met, both = set(), threading.Barrier(2)
    done = []

    def work(part):
        both.wait(60)
        met.add(threading.get_native_id())
        done.append((part, np.geterr()["divide"]))

    with np.errstate(divide="raise"):
        region.side_by_side([[lambda: work(0)], [lambda: work(1)]])
    assert sorted(done) == [(0, "raise"), (1, "raise")]
    assert len(met) == 2
    assert threading.get_native_id() in met


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_errors_of_parts_come_out(region, error):
    def fail():
        raise error("here")

    with pytest.raises(error, match="here"):
        region.side_by_side([[lambda: None], [fail], [lambda: None]])


def test_more_parts_than_threads_are_all_done(region):
    done = []
    region.side_by_side([[lambda k=k: done.append(k)] for k in range(40)])
    assert sorted(done) == list(range(40))


def test_several_threads_at_once(ops):
    """Each has plans and scratch of its own."""
    wrong = []

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(20):
            x = rng.random((2, 8, 8 + seed, 9), np.float32)
            w = rng.random((8, 8, 3, 3), np.float32)
            exact = numpy_ops.conv2d(x.astype(np.float64), w.astype(np.float64), None, WINDOW)
            if not np.allclose(ops.conv2d(x, w, None, WINDOW), exact, rtol=1e-5):
                wrong.append(seed)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


FORK = """
import json, os, sys
import numpy as np
from singanet.ops.window import Window
from singanet.ops.onednn import OneDnnOps
ops, window = OneDnnOps(sys.argv[1], True), Window((3, 3), (1, 1), ((1, 1), (1, 1)))
x, w = np.random.rand(8, 16, 32, 32).astype("f"), np.random.rand(16, 16, 3, 3).astype("f")
y = ops.conv2d(x, w, None, window)
reader, writer = os.pipe()
child = os.fork()
if not child:
    same = bool(np.allclose(ops.conv2d(x, w, None, window), y, rtol=1e-5))
    os.write(writer, json.dumps([same, ops.runtime().threads]).encode())
    os._exit(0)
os.waitpid(child, 0)
print(os.read(reader, 100).decode())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked here")
def test_a_forked_child_uses_one_thread_and_does_not_hang(library_path):
    # In an interpreter of its own, since a child that hangs could not be ended from here.
    environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK, library_path],
        env={**environment, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        check=True,
        text=True,
        timeout=120,
    )
    assert json.loads(run.stdout) == [True, 1]


def test_openmp_is_told_by_each_thread_for_itself():
    """It keeps the number for each: a plan for one thread would start a team in a second one."""
    told = []
    team = library.Team(lambda count: told.append((threading.current_thread().name, count)))
    here = threading.current_thread().name
    for count in (1, 1, 2):
        team.use(count)
    worker = threading.Thread(target=team.use, args=(1,), name="worker")
    worker.start()
    worker.join()
    team.use(2)
    assert told == [(here, 1), (here, 2), ("worker", 1)]


@pytest.mark.skipif(threads.cores() < 2, reason="one core")
def test_threads_that_openmp_binds_are_counted(library_path):
    """libgomp binds the thread that loads it to one core: the others are there nevertheless."""
    code = (
        "from singanet.ops import threads; from singanet.ops.onednn import OneDnnOps; "
        f"ops = OneDnnOps({str(library_path)!r}, True); ops.runtime(); "
        "print(threads.cores(), ops.threads)"
    )
    environment = {**os.environ, "OMP_PROC_BIND": "true", "PYTHONWARNINGS": "error"}
    environment.pop("OMP_NUM_THREADS", None)
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == [str(threads.cores())] * 2


def test_ctrl_c_that_ctypes_drops_comes_out(region):
    """Where it strikes before a part is begun, and in noting the error of one."""
    done = []

    def trace(frame, event, argument):
        if frame.f_code.co_name == "enter" and event == "line":
            raise KeyboardInterrupt
        return trace

    def interrupted():
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            region.side_by_side([[lambda: done.append(0)], [lambda: done.append(1)]])
        finally:
            sys.settrace(before)

    dropped = []
    hook, sys.unraisablehook = sys.unraisablehook, lambda told: dropped.append(told.exc_type)
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted()
    finally:
        sys.unraisablehook = hook
    assert dropped == [KeyboardInterrupt]
