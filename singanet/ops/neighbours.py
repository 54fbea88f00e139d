"""Find other processes on this process's cores, and threads that share one core."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from time import perf_counter_ns, thread_time_ns
from typing import Protocol

from singanet.ops.threads import cores, default_threads

TASKS = Path("/proc/self/task")

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

_TWICE, _CALM = 2, 10
"""Measurements in a row after which contention counts as started, and as ended."""

_OFTEN = 4
"""The factor of the measuring rate during contention, when kernels are slow."""

_STATE, _CORE = 0, 36
"""The fields' indices in a thread's file ``stat``, after its name."""


class Waiting(Protocol):
    """Threads that wait for work."""

    def begin(self, threads: int) -> None:
        """Start more idle threads than there are cores, so that none of them spins."""

    def note_busy(self, busy: bool) -> None:
        """Note whether other processes use the cores."""


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
        self._next = self._since = self._waited = self._worked = self._alike = 0
        self._free: threading.Event | None = None

    @property
    def near(self) -> bool:
        """Whether other processes use the cores."""
        return self._free is not None

    @property
    def _pace(self) -> int:
        return _LOOK // _OFTEN if self.near else _LOOK

    def look(self) -> None:
        """Measure, if the interval has passed."""
        now = perf_counter_ns()
        if now < self._next or not self._lock.acquire(blocking=False):
            return
        try:
            waited, worked, passed = _waited(), thread_time_ns(), now - self._since
            contended = waited - self._waited > _CONTENDED * passed
            # A kernel may take longer than a pause if its threads wait for each other.
            paused = passed >= _PAUSE and not 2 * (worked - self._worked) > passed
            soon = paused or (contended and _put_apart())
            if not soon and passed >= self._pace:
                self._judge(contended)
            self._since, self._waited, self._worked = now, waited, worked
            self._next = now + (_SOON if soon else self._pace)
        finally:
            self._lock.release()

    def _judge(self, contended: bool) -> None:
        # Count the measurements in a row that contradict the state.
        self._alike = self._alike + 1 if contended != self.near else 0
        if self._alike < (_CALM if self.near else _TWICE):
            return
        self._alike = 0
        if self._free is not None:
            self._free.set()
            self._free = None
            self._region.note_busy(False)
        else:
            self._region.note_busy(True)
            self._free = threading.Event()
            threading.Thread(None, self._hold, KEPT, (self._free,), daemon=True).start()

    def _hold(self, free: threading.Event) -> None:
        """Have more OpenMP threads than cores, until ``free`` is set."""
        self._region.begin(max(2, cores() - default_threads() + 2))
        free.wait()


def _waited() -> int:
    """Return the nanoseconds that threads of this process have waited for a core."""
    total = 0
    for task in TASKS.iterdir():
        # A thread may have ended.
        with suppress(OSError, IndexError):
            total += int((task / "schedstat").read_bytes().split()[1])
    return total


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
