"""Find other processes on this process's cores, and threads that share one core."""

from __future__ import annotations

import ctypes
import os
import threading
from contextlib import suppress
from pathlib import Path
from time import perf_counter_ns, thread_time_ns
from typing import Protocol

from singanet.ops.threads import cores, default_threads

TASKS = Path("/proc/self/task")
CORES = Path("/proc/stat")

_LOOK = 20_000_000
"""Nanoseconds between two measurements of waiting, which take some 50 microseconds."""

_SOON = 2_000_000
"""Nanoseconds to the measurement after a pause, when threads may wake on one core."""

_PAUSE = 4 * _LOOK
"""Pause after which the last measurement is void, unless the caller was computing."""

_CONTENDED = 0.2
"""The least share of time waiting for a core that means contention: some 0.3 to 0.9.

Without contention it is below 0.02, apart from moments.
"""

KEPT = "singanet neighbours"
"""The name of the thread that makes a team sleep."""

_TURN = 150_000
"""Nanoseconds that a thread may wait when it wakes, even if its core is free.

A virtual machine's idle core takes some 50 microseconds to wake.
"""

_TWICE, _CALM = 2, 4
"""Measurements in a row after which contention counts as started, and as ended."""

_FREE = 0.5
"""The least share of the other threads' cores that is idle once contention has ended.

One thread may have a core to itself while two processes share the other one.
"""

_JIFFY = 10_000_000
"""Nanoseconds in which the system counts the idle time of cores."""

_OFTEN = 2
"""The factor of the measuring rate during contention, when kernels are slow."""

_STATE, _CORE = 0, 36
"""The fields' indices in a thread's file ``stat``, after its name."""


class Waiting(Protocol):
    """Threads that wait for work."""

    def begin(self, threads: int) -> None:
        """Start more idle threads than there are cores, so that none of them spins."""

    def note_busy(self, busy: bool) -> None:
        """Note whether other processes use the cores."""

    def make_way(self) -> None:
        """Keep the threads away from the core of the calling thread."""


class Helpers:
    """The threads that work for a caller, and leave its core to it.

    The system may wake a thread on the core of its waker although another core is free. The woken
    thread then waits for the rest of a time slice, and its caller for it.
    """

    def __init__(self) -> None:
        self._allowed: dict[int, set[int]] = {}
        self._core_of_caller = ctypes.PyDLL(None).sched_getcpu
        self._core = -1

    def add(self, member: int) -> None:
        """Add a thread, by its system's id."""
        with suppress(OSError):
            self._allowed[member] = os.sched_getaffinity(member)
            self._core = -1

    def make_way(self) -> None:
        """Forbid the threads the core of the calling thread, if they may use another."""
        core = self._core_of_caller()
        if core == self._core:
            return
        self._core = core
        for member, allowed in self._allowed.items():
            # A thread may have ended; a forked child has none of them.
            if (TASKS / str(member)).exists():
                with suppress(OSError):
                    os.sched_setaffinity(member, allowed - {core} or allowed)


class Neighbours:
    """A watch that lets OpenMP's idle threads sleep at once while other processes use the cores.

    A thread that spins next to a busy process uses up its share of the core, and then waits when
    there is work: a kernel takes as long as the other's time slice. The system reports how long a
    thread has waited for a core. If threads of this process share a core they are moved apart: the
    system wakes a thread on the core of its waker, and takes up to 100 ms to move it. Otherwise
    another process has the cores. GNU's OpenMP reads its spin count once, but spins briefly while
    it has more threads than cores: so a second team, asleep, exists during contention.
    """

    def __init__(self, region: Waiting) -> None:
        self._region = region
        self._lock = threading.Lock()
        self._next = self._since = self._worked = self._alike = 0
        self._waits: dict[str, tuple[int, int]] = {}
        self._idle = 0, 0
        self._free: threading.Event | None = None

    @property
    def near(self) -> bool:
        """Whether other processes use the cores."""
        return self._free is not None

    @property
    def _pace(self) -> int:
        return _LOOK // _OFTEN if self.near else _LOOK

    def look(self) -> None:
        """Measure, if the interval has passed; let the threads leave the caller's core."""
        self._region.make_way()
        now = perf_counter_ns()
        if now < self._next or not self._lock.acquire(blocking=False):
            return
        try:
            waits, worked, passed = _waits(), thread_time_ns(), now - self._since
            contended = _waited(self._waits, waits) > _CONTENDED * passed
            # A kernel may take longer than a pause if its threads wait for each other.
            paused = passed >= _PAUSE and not 2 * (worked - self._worked) > passed
            # While others use the cores, the calling thread works alone.
            soon = paused or (contended and not self.near and _put_apart())
            if not soon and passed >= self._pace:
                self._judge(contended, passed, now)
            self._since, self._waits, self._worked = now, waits, worked
            self._next = now + (_SOON if soon else self._pace)
        finally:
            self._lock.release()

    def _judge(self, contended: bool, passed: int, now: int) -> None:
        # Count the measurements in a row that contradict the state. One without contention may have
        # taken as long as several.
        count = max(1, passed // self._pace) if self.near else 1
        self._alike = self._alike + count if contended != self.near else 0
        if self._alike < (_CALM if self.near else _TWICE):
            return
        self._alike = 0
        (before, idle), self._idle = self._idle, (now, _idle())
        if self._free is None:
            self._region.note_busy(True)
            self._free = threading.Event()
            threading.Thread(None, self._hold, KEPT, (self._free,), daemon=True).start()
        elif not idle or self._idle[1] - idle >= _FREE * (default_threads() - 1) * (now - before):
            self._free.set()
            self._free = None
            self._region.note_busy(False)

    def _hold(self, free: threading.Event) -> None:
        """Have more OpenMP threads than cores, until ``free`` is set."""
        self._region.begin(max(2, cores() - default_threads() + 2))
        free.wait()


def _waits() -> dict[str, tuple[int, int]]:
    """Return, by thread, the nanoseconds it has waited for a core, and how often it got one."""
    found = {}
    for task in os.listdir(TASKS):
        # A thread may have ended. A buffer, and objects for paths, would take twice as long.
        with suppress(OSError, ValueError), open(f"{TASKS}/{task}/schedstat", "rb", 0) as file:
            _, waited, turns = file.read().split()
            found[task] = int(waited), int(turns)
    return found


def _waited(before: dict[str, tuple[int, int]], now: dict[str, tuple[int, int]]) -> int:
    """Return the nanoseconds that threads have waited since, beyond the time to wake."""
    total = 0
    for thread, (waited, turns) in now.items():
        was, had = before.get(thread, (0, 0))
        total += max(0, waited - was - _TURN * (turns - had))
    return total


def _idle() -> int:
    """Return the nanoseconds that this process's cores have been idle; 0 if nobody tells."""
    names = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    with suppress(OSError, ValueError, IndexError):
        lines = [line.split() for line in CORES.read_text().splitlines()]
        # After the name: user, nice, system, idle, waiting for a disk.
        return sum(_JIFFY * (int(line[4]) + int(line[5])) for line in lines if line[0] in names)
    return 0


def _put_apart() -> bool:
    """Move threads of this process that share a core to free cores; return whether any moved.

    They are not bound: the system may move them again.
    """
    caller = threading.get_native_id()
    # The calling thread does not move.
    tasks = sorted(TASKS.iterdir(), key=lambda task: int(task.name) != caller)
    running = [(int(task.name), core) for task in tasks if (core := _runs_on(task)) is not None]
    free = os.sched_getaffinity(0) - {core for _, core in running}
    taken, moved = set[int](), False
    for thread, core in running:
        if core in taken and free:
            moved |= _moved(thread, free.pop())
        taken.add(core)
    return moved


def _runs_on(task: Path) -> int | None:
    """Return the core of a running or waiting thread; None if it sleeps or has ended."""
    try:
        fields = (task / "stat").read_text().rpartition(")")[2].split()
        return int(fields[_CORE]) if fields[_STATE] == "R" else None
    except (OSError, IndexError):
        return None


def _moved(thread: int, core: int) -> bool:
    """Move a thread to a core once; return whether it may run there."""
    try:
        allowed = os.sched_getaffinity(thread)
        if core not in allowed:
            return False
        os.sched_setaffinity(thread, {core})
        os.sched_setaffinity(thread, allowed)
    except OSError:
        return False
    return True
