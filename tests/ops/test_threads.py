"""Threads: of OpenMP, of Python's workers and of NumPy's BLAS, and other users of the cores."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import pytest

from singanet.errors import ArgumentError
from singanet.ops import neighbours, numpy_ops, threads, workers
from singanet.ops.casts import has_compiler
from singanet.ops.llvm.pool import is_offered
from singanet.ops.onednn import find_library, library, set_threads
from singanet.ops.threads import within
from singanet.ops.workers import side_by_side
from tests.interrupts import struck_at
from tests.ops.kernel_rows import PLAIN


def python(code, *arguments, without=(), **variables):
    """The output of a new interpreter, since a process that hangs could not be ended from here."""
    environment = {k: v for k, v in os.environ.items() if not k.endswith(without or "-")}
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *map(str, arguments)],
        env={**environment, "PYTHONPATH": os.pathsep.join(sys.path), **variables},
        capture_output=True,
        check=True,
        text=True,
        timeout=120,
    ).stdout


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
        ops.conv2d(x, w, None, PLAIN)
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


def test_the_user_may_set_how_long_threads_wait_awake(monkeypatch):
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
    wrong = []

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(20):
            x = rng.random((2, 8, 8 + seed, 9), np.float32)
            w = rng.random((8, 8, 3, 3), np.float32)
            exact = numpy_ops.conv2d(x.astype(np.float64), w.astype(np.float64), None, PLAIN)
            if not np.allclose(ops.conv2d(x, w, None, PLAIN), exact, rtol=1e-5):
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
    assert json.loads(python(FORK, library_path, without="OMP_NUM_THREADS")) == [True, 1]


def test_openmp_has_a_number_of_threads_for_each_thread():
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


def test_runtimes_of_a_thread_know_what_others_told_openmp():
    told: list[int] = []
    tell = told.append
    several, alone = library.Team(tell), library.Team(tell)
    for team, count in ((several, 2), (alone, 1), (several, 2), (alone, 1), (alone, 1)):
        team.use(count)
        assert several.size == alone.size == count
    assert told == [2, 1, 2, 1]


@pytest.mark.skipif(threads.cores() < 2, reason="one core")
def test_threads_that_openmp_binds_are_counted(library_path):
    """libgomp binds the thread that loads it to one core."""
    code = (
        "import sys; from singanet.ops import threads; from singanet.ops.onednn import OneDnnOps; "
        "ops = OneDnnOps(sys.argv[1], True); ops.runtime(); print(threads.cores(), ops.threads)"
    )
    bound = {"OMP_PROC_BIND": "true", "PYTHONWARNINGS": "error"}
    printed = python(code, library_path, without="OMP_NUM_THREADS", **bound)
    assert printed.split() == [str(threads.cores())] * 2


def test_ctrl_c_that_ctypes_drops_comes_out(region):
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


# -- The library's own pool ----------------------------------------------------------------------


def pool_code(body):
    """A script with a convolution that two threads share, and its value by one."""
    return f"""
import os, signal, sys, threading, time
import numpy as np
from singanet.ops import threads
threads._setting.threads = 2
from singanet.ops.llvm import LlvmOps
x = np.ones((1, 64, 32, 32), np.float32)
w = np.full((64, 64, 3, 3), 2.0**-9, np.float32)
from tests.ops.kernel_rows import PLAIN
def predict(ops=LlvmOps()):
    return ops.conv2d_constant(x, w, None, PLAIN)
with threads.one_thread():
    wanted = LlvmOps().conv2d_constant(x, w, None, PLAIN)
def check(times=50):
    for _ in range(times):
        assert np.array_equal(predict(), wanted)
def others():
    return [t for t in threading.enumerate() if t.name == "singanet pool"]
check()
assert len(others()) == 1
{body}
print("right")
"""


needs_pool = pytest.mark.skipif(
    not (is_offered() and has_compiler()), reason="no pool on this system"
)

IN_A_FORK = """
for _ in range(3):
    child = os.fork()
    if not child:
        check()
        threads._changed(2)
        check()
        os._exit(0 if len(others()) == 1 else 1)
    assert os.waitpid(child, 0)[1] == 0
check()
"""
IN_TWO_THREADS = """
wrong = []
def work():
    try:
        check(300)
    except BaseException as error:
        wrong.append(error)
both = [threading.Thread(target=work) for _ in range(2)]
for each in both: each.start()
for each in both: each.join()
assert not wrong
"""
AFTER_CHANGES = """
for count in (1, 2, 1, 2):
    threads._changed(count)
    check()
assert len(others()) == 1
time.sleep(0.05)  # asleep
check()
"""
AFTER_INTERRUPTS = """
struck = 0
signal.signal(signal.SIGALRM, signal.default_int_handler)
for _ in range(20):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.002)
        check(500)
    except KeyboardInterrupt:
        struck += 1
signal.setitimer(signal.ITIMER_REAL, 0)
assert struck
check()
"""


@needs_pool
@pytest.mark.parametrize(
    "body",
    [IN_A_FORK, IN_TWO_THREADS, AFTER_CHANGES, AFTER_INTERRUPTS],
    ids=["fork", "two threads", "changes", "interrupts"],
)
def test_the_pool_gives_the_bits_of_one_thread(body):
    assert python(pool_code(body)).endswith("right\n")


# -- Other users of the cores --------------------------------------------------------------------


IDLE = neighbours._idle


class Waits:
    """Stands for the system and OpenMP: times waited and worked, and teams begun."""

    def __init__(self, monkeypatch):
        self.now = self.waited = self.worked = 1
        self.turns = self.idle = 0
        self.begun, self.collide, self.parted, self.busy = [], False, 0, False
        monkeypatch.setattr(neighbours, "perf_counter_ns", lambda: self.now)
        monkeypatch.setattr(neighbours, "thread_time_ns", lambda: self.worked)
        monkeypatch.setattr(neighbours, "_waits", lambda: {"1": (self.waited, self.turns)})
        monkeypatch.setattr(neighbours, "_idle", lambda: self.idle)
        monkeypatch.setattr(neighbours, "_put_apart", self.put_apart)
        monkeypatch.setattr(neighbours, "default_threads", lambda: 3)
        self.watch = neighbours.Neighbours(self)
        self.watch.look()

    def put_apart(self):
        self.parted += self.collide
        return self.collide

    def begin(self, count):
        self.begun.append(count)

    def make_way(self):
        pass

    def note_busy(self, busy):
        self.busy = busy

    def pass_by(self, looks, share, step=1.0, work=0.0, idle=1.5):
        for _ in range(looks):
            passed = int(step * neighbours._LOOK)
            self.now += passed
            self.waited += share * passed
            self.worked += work * passed
            self.idle += idle * passed
            self.watch.look()
        # Jobs run on one thread meanwhile.
        assert self.busy == self.watch.near
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
    held = [thread for thread in now if thread.name == neighbours.KEPT]
    assert len(held) == 1
    assert waits.pass_by(3, 0.0, step=0.5)
    assert waits.pass_by(1, 0.4), "it was another one's pause"
    assert waits.pass_by(3, 0.0, step=0.5)
    assert not waits.pass_by(1, 0.0, step=0.5)
    held[0].join(10)
    assert not held[0].is_alive()
    assert waits.begun == [max(2, threads.cores() - 3 + 2)]


def test_long_measurements_are_enough_to_be_alone(waits):
    assert waits.pass_by(2, 0.4)
    assert waits.pass_by(1, 0.0)
    assert not waits.pass_by(1, 0.0)


def test_contention_lasts_until_other_cores_are_idle(waits):
    """The calling thread may have a core to itself, and two processes the others."""
    assert waits.pass_by(2, 0.4)
    assert waits.pass_by(50, 0.0, step=0.5, idle=0.9)
    assert not waits.pass_by(8, 0.0, step=0.5, idle=1.1)


@pytest.mark.parametrize("text", [None, "cpu  0 0 0 0\n", "cpu0 0 0 0 0 0\n", "cpu0 a b\n", "\n"])
def test_contention_ends_where_nobody_tells_idle_times(waits, monkeypatch, tmp_path, text):
    monkeypatch.setattr(neighbours, "CORES", tmp_path / "stat")
    if text is not None:
        (tmp_path / "stat").write_text(text)
    monkeypatch.setattr(neighbours, "_idle", IDLE)
    assert neighbours._idle() == 0
    assert waits.pass_by(2, 0.4)
    assert not waits.pass_by(4, 0.0, step=0.5)


def test_idle_time_is_that_of_the_cores(two_cores):
    """Of two cores, one of which is kept busy, the other's is counted."""
    with subprocess.Popen([sys.executable, "-c", SPIN], stdout=subprocess.PIPE) as busy:
        try:
            os.sched_setaffinity(busy.pid, two_cores[:1])
            busy.stdout.read(1)
            found = []
            for core in two_cores:
                os.sched_setaffinity(0, {core})
                start = neighbours._idle()
                time.sleep(0.3)
                found.append(neighbours._idle() - start)
        finally:
            busy.kill()
    assert found[0] < 100_000_000
    assert all(time <= 400_000_000 for time in found)


def test_threads_that_wake_often_are_no_contention(waits):
    """Each time a free core takes some time to wake, up to a third of all here."""
    waits.pass_by(5, 0.0)
    for _ in range(20):
        waits.turns += 100
        assert not waits.pass_by(1, 0.3)


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


def test_threads_that_sleep_are_not_put_apart(waits):
    """Looking for them would take as long as a short kernel."""
    assert waits.pass_by(2, 0.4)
    waits.collide = True
    assert waits.pass_by(20, 0.9)
    assert not waits.parted
    waits.watch._free.set()


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
        monkeypatch.setattr(neighbours, "TASKS", tmp_path)
        for process in spinning:
            os.sched_setaffinity(process.pid, {two_cores[0]})
        assert not neighbours._put_apart(), "their user bound them"
        # Bound to one core until the moment before.
        seen, ask = [], os.sched_getaffinity
        monkeypatch.setattr(os, "sched_getaffinity", lambda task: set(two_cores))
        monkeypatch.setattr(
            os, "sched_setaffinity", lambda task, cores: seen.append((task, set(cores)))
        )
        assert neighbours._put_apart()
        (moved, where), (again, free) = seen
        assert moved == again
        assert where == {two_cores[1]}
        assert free == set(two_cores)
        assert ask(moved) == {two_cores[0]}
    finally:
        for process in spinning:
            process.kill()
            process.communicate()


def test_helpers_leave_the_core_of_its_caller(two_cores):
    go_on = threading.Event()
    worker = threading.Thread(target=go_on.wait)
    worker.start()
    allowed = os.sched_getaffinity(worker.native_id)
    helpers = neighbours.Helpers()
    for member in (worker.native_id, 2**22 + 1):
        helpers.add(member)
    for core in two_cores:
        os.sched_setaffinity(0, {core})
        helpers.make_way()
        assert os.sched_getaffinity(worker.native_id) == allowed - {core}
    os.sched_setaffinity(worker.native_id, {two_cores[0]})
    bound = neighbours.Helpers()
    bound.add(worker.native_id)
    os.sched_setaffinity(0, {two_cores[0]})
    bound.make_way()
    assert os.sched_getaffinity(worker.native_id) == {two_cores[0]}, "its user bound it"
    go_on.set()
    worker.join()
    bound.make_way()


def test_only_threads_that_run_have_a_core(tmp_path):
    sleeping = threading.Thread(target=time.sleep, args=(0.2,))
    sleeping.start()
    time.sleep(0.05)
    assert neighbours._runs_on(Path(f"/proc/self/task/{sleeping.native_id}")) is None
    assert neighbours._runs_on(tmp_path / "1") is None
    own = neighbours._runs_on(Path(f"/proc/self/task/{threading.get_native_id()}"))
    assert own in os.sched_getaffinity(0)
    sleeping.join()


# -- Workers -------------------------------------------------------------------------------------


class Slow:
    """Work that notes when it begins and ends."""

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


@pytest.mark.parametrize("callers", [True, False])
def test_an_error_of_one_part(callers):
    slow, begun = Slow(), threading.Event()

    def fails():
        assert not callers or begun.wait(60)
        raise LookupError("here")

    parts = [[fails], [begun.set, slow]] if callers else [[slow], [fails], [slow]]
    with pytest.raises(LookupError, match="here"):
        side_by_side(parts)
    assert len(slow.ended) == len(parts) - 1


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


# -- BLAS ----------------------------------------------------------------------------------------

COUNTS = """
import ctypes, json, sys
from pathlib import Path
import numpy as np
from singanet.ops import cpu_ops
from singanet.ops.onednn import OneDnnOps, set_threads
def counts():
    folder = Path(np.__file__).parent.parent / "numpy.libs"
    found = [ctypes.CDLL(str(path)) for path in folder.glob("libscipy_openblas64_*")]
    return [library.scipy_openblas_get_num_threads64_() for library in found]
kind, threads, path, seen = *sys.argv[1:], [counts()]
if threads != "all":
    set_threads(int(threads))
if kind == "softmax":
    OneDnnOps(path, True).softmax(np.ones((32, 256), np.float32))
elif kind == "its own large product":
    OneDnnOps(path, True).matmul(np.ones((1, 1024), np.float32), np.ones((1024, 512), np.float32))
else:
    cpu_ops()
seen.append(counts())
print(json.dumps(seen))
"""

KINDS = ["softmax", "its own large product", "numpy"]
SEVERAL_CORES = pytest.mark.skipif(threads.cores() < 2, reason="one core")


def counts(kind, count="all", **variables):
    """The threads of NumPy's BLAS before and after the first kernel."""
    path = find_library()
    if path is None and kind in KINDS[:2]:
        pytest.skip("no oneDNN library here: pip install onednn-cpu-gomp")
    variables["SINGANET_OPS"] = "numpy"
    before, after = json.loads(python(COUNTS, kind, count, path or "", without="_NUM_THREADS",
                                      **variables))  # fmt: skip
    if not before:
        pytest.skip("NumPy's BLAS here is not that of its wheels")
    return before, after


ALL = {"OPENBLAS_NUM_THREADS": str(threads.cores())}


@SEVERAL_CORES
@pytest.mark.parametrize(
    ("kind", "count", "variables", "becomes_one"),
    [*((kind, "all", {}, True) for kind in KINDS),
     # Beside a single thread, and if the user has set a number, BLAS keeps its own.
     *((kind, "1", {}, False) for kind in KINDS[::2]),
     *((kind, "all", ALL, False) for kind in KINDS[::2])],
)  # fmt: skip
def test_blas_has_one_thread_beside_several(kind, count, variables, becomes_one):
    before, after = counts(kind, count, **variables)
    assert max(before) > 1
    if variables:
        assert before == [threads.cores()] * len(before)
    assert after == ([1] * len(before) if becomes_one else before)


AMX, WIDE = {"amx-tile", "amx-bf16"}, {"avx512f", "avx512bf16", "avx10.1-512"}
NARROW = {"avx", "avx2", "fma"}


@pytest.mark.parametrize(
    ("limit", "left"),
    [("avx", {"avx"}), ("AVX2", NARROW), ("AVX2_VNNI_2", NARROW),
     ("AVX512_CORE_BF16", NARROW | WIDE), ("AVX10_1_512", NARROW | WIDE),
     *((limit, NARROW | WIDE | AMX)
       for limit in ("AVX512_CORE_AMX", "AVX10_1_512_AMX", "ALL", "AVX3"))],
)  # fmt: skip
def test_what_a_limit_leaves(limit, left, monkeypatch):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    found = within(dict.fromkeys(NARROW | WIDE | AMX, True))
    assert {name for name, there in found.items() if there} == left


def test_no_interrupt_leaves_a_thread_alone():
    def compute():
        with threads.one_thread(), threads.one_thread():
            assert threads.is_alone()
            assert threads.default_threads() == 1
        assert not threads.is_alone()

    line = 1
    while struck_at(line, compute):
        assert not threads.is_alone(), f"line {line}"
        line += 1
    assert line > 15
    assert not threads.is_alone()
