"""Competition for the cores of OpenMP's threads: by other processes, or by each other."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from time import perf_counter_ns, thread_time_ns

from singanet.ops.onednn.openmp import BY_USER, Region
from singanet.ops.threads import cores, default_threads

_TASKS = Path("/proc/self/task")

_LOOK = 20_000_000
"""Nanoseconds between two looks at who has the cores, which take some 50 microseconds."""

_SOON = 2_000_000
"""Nanoseconds to the look after a pause, from which threads come back on one core."""

_PAUSE = 4 * _LOOK
"""After such a pause the last look tells nothing of the threads, unless the caller was at work."""

_CONTENDED = 0.2
"""The share of the time that threads wait for a core where others want it: some 0.3 to 0.9.

It is below 0.02 where they have their cores, but for moments.
"""

KEPT = "singanet neighbours"
"""The name of the thread that keeps a team asleep."""

_TWICE, _CALM = 2, 10
"""Looks in a row after which other processes count as near, and as gone."""

_OFTEN = 4
"""How much more often to look while others are near: kernels are slow in the meantime."""

_STATE, _CORE = 0, 36
"""Where the file ``stat`` of a thread has them, behind its name."""


class Neighbours:
    """Lets OpenMP's threads sleep as soon as they are without work while others want their cores.

    A thread that waits awake beside a busy process uses up its share of the core, and is not let
    on when there is work: a kernel takes as long as the other's turn. How long ours have waited for
    a core the system tells. Where they stood in each other's way they are put apart: the system
    wakes a thread on the core of the one that wakes it, and takes up to 100 ms to see that another
    is free. Else it was somebody else. GNU's OpenMP reads how long to stay awake once, but is short
    about it while it has more threads than cores: so another team is kept for as long as it takes,
    asleep.
    """

    def __init__(self, region: Region) -> None:
        self._region = region
        self._lock = threading.Lock()
        self._next = self._since = self._waited = self._worked = self._alike = 0
        self._free: threading.Event | None = None

    @property
    def near(self) -> bool:
        """Whether they want the cores."""
        return self._free is not None

    @property
    def _pace(self) -> int:
        return _LOOK // _OFTEN if self.near else _LOOK

    def look(self) -> None:
        """Look, if it is time to."""
        now = perf_counter_ns()
        if now < self._next or not self._lock.acquire(blocking=False):
            return
        try:
            waited, worked, passed = _waited(), thread_time_ns(), now - self._since
            contended = waited - self._waited > _CONTENDED * passed
            # A kernel may take longer than a pause where its threads wait for each other.
            paused = passed >= _PAUSE and not 2 * (worked - self._worked) > passed
            soon = paused or (contended and _put_apart())
            if not soon and passed >= self._pace:
                self._judge(contended)
            self._since, self._waited, self._worked = now, waited, worked
            self._next = now + (_SOON if soon else self._pace)
        finally:
            self._lock.release()

    def _judge(self, contended: bool) -> None:
        # How many looks in a row say the contrary of what is held to be so.
        self._alike = self._alike + 1 if contended != self.near else 0
        if self._alike < (_CALM if self.near else _TWICE):
            return
        self._alike = 0
        if self._free is not None:
            self._free.set()
            self._free = None
        else:
            self._free = threading.Event()
            threading.Thread(None, self._hold, KEPT, (self._free,), daemon=True).start()

    def _hold(self, free: threading.Event) -> None:
        """Have so many threads more that they outnumber the cores, until ``free``."""
        self._region.begin(max(2, cores() - default_threads() + 2))
        free.wait()


@lru_cache(maxsize=8)
def neighbours_of(region: Region) -> Neighbours | None:
    """The one watch of this process; None if the user says how long threads stay awake."""
    told = any(name in os.environ for name in BY_USER)
    return None if told or not _TASKS.is_dir() else Neighbours(region)


def _waited() -> int:
    """Nanoseconds that the threads of this process have waited for a core."""
    total = 0
    for task in _TASKS.iterdir():
        # One that has ended in the meantime.
        with suppress(OSError, IndexError):
            total += int((task / "schedstat").read_bytes().split()[1])
    return total


def _put_apart() -> bool:
    """Give threads of this process that run on one core others that none of them runs on.

    Whether any had to go. They are not bound: the system may put them elsewhere again.
    """
    caller = threading.get_native_id()
    # What has worked on its core for long stays there.
    tasks = sorted(_TASKS.iterdir(), key=lambda task: int(task.name) != caller)
    running = [(int(task.name), core) for task in tasks if (core := _runs_on(task)) is not None]
    free = os.sched_getaffinity(0) - {core for _, core in running}
    taken, moved = set[int](), False
    for thread, core in running:
        if core in taken and free:
            moved |= _moved(thread, free.pop())
        taken.add(core)
    return moved


def _runs_on(task: Path) -> int | None:
    """The core of a thread that runs or waits for it; None for one that sleeps or has ended."""
    try:
        fields = (task / "stat").read_text().rpartition(")")[2].split()
        return int(fields[_CORE]) if fields[_STATE] == "R" else None
    except (OSError, IndexError):
        return None


def _moved(thread: int, core: int) -> bool:
    """Whether the thread may run on the core, where it is now."""
    try:
        allowed = os.sched_getaffinity(thread)
        if core not in allowed:
            return False
        os.sched_setaffinity(thread, {core})
        os.sched_setaffinity(thread, allowed)
    except OSError:
        return False
    return True
