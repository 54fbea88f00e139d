"""oneDNN's library and its threads."""

from __future__ import annotations

import ctypes
import os
import platform
import site
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from time import perf_counter_ns, thread_time_ns
from typing import Any

from singanet.errors import BackendError
from singanet.ops.onednn.binding import Version, declare
from singanet.ops.threads import cores, default_threads
from singanet.ops.workers import do
from singanet.types import Parts

_SPINS = "GOMP_SPINCOUNT"
BY_USER = ("OMP_WAIT_POLICY", _SPINS)

_BRIDGED = "100000"
"""Looks for work, in some 2 ms: what lies between two kernels that are shared."""


@contextmanager
def long_waits() -> Iterator[None]:
    """While OpenMP is loaded, tell it how long threads without work shall wait awake.

    To wake one takes 50 microseconds and more, and a thread that slept comes back on the core of
    the one that woke it. See `neighbours` for what is done where other processes want the cores.
    ``OMP_WAIT_POLICY`` and ``GOMP_SPINCOUNT`` of the user's stand.
    """
    if any(name in os.environ for name in BY_USER):
        yield
        return
    os.environ[_SPINS] = _BRIDGED
    try:
        yield
    finally:
        del os.environ[_SPINS]


_Body = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Region:
    """GNU's ``GOMP_parallel``: what a team of OpenMP's threads does."""

    def __init__(self, c: Any) -> None:
        self._parallel = c.GOMP_parallel
        self._parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        self._parallel.restype = None
        self._nothing = ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p)

    def side_by_side(self, parts: Parts) -> None:
        """Do the parts, each in whichever thread comes first. Errors: the first of theirs.

        As `workers.side_by_side`, whose threads of Python would be a second team: it would find
        its core taken by a thread of the first that waits awake.
        """
        if len(parts) == 1:
            do(parts[0])
            return
        left, errors = iter(parts), []
        contexts = iter([copy_context() for _ in parts])
        caller, ended = threading.get_ident(), False

        def enter(_: Any) -> None:
            nonlocal ended
            called = threading.get_ident() == caller
            try:
                context = next(contexts)
                for part in left:
                    context.run(do, part)
            except BaseException as error:  # noqa: BLE001 - nothing may pass through C
                errors.append(error)
            ended = ended or called

        self._parallel(_Body(enter), None, len(parts), 0)
        if errors:
            raise errors[0]
        if not ended:
            # Ctrl-C outside of the block above, which ctypes tells and drops.
            raise KeyboardInterrupt

    def begin(self, threads: int) -> None:
        """Have so many threads of the calling one's own, which do nothing."""
        self._parallel(self._nothing, None, threads, 0)


@lru_cache(maxsize=8)
def region_of(c: Any) -> Region | None:
    """The parallel region of the OpenMP in ``c``; None if it is not GNU's."""
    return Region(c) if hasattr(c, "GOMP_parallel") else None


class Team(threading.local):
    """How many threads the next kernel of the calling thread uses; OpenMP keeps it for each."""

    size = 0

    def __init__(
        self, tell: Callable[[int], object] | None, look: Callable[[], None] | None = None
    ) -> None:
        self._tell, self._look = tell, look

    def use(self, count: int) -> None:
        """Let what is built or run next use ``count`` threads."""
        if count != self.size:
            if self._tell is not None:
                self._tell(count)
            self.size = count
        if count > 1 and self._look is not None:
            self._look()


PATH_VARIABLE = "SINGANET_ONEDNN"
"""The environment variable with the path of a oneDNN library."""

INSTALL = "run: pip install onednn-cpu-gomp"
GAIN = "nets train 1.2 to 1.8 times as fast, predict 1.4 to 2.2 times"
"""By ``benchmarks/default_install.py``: convolution nets, and dense and recurrent ones."""

MAJOR = 3
"""The C interface that the binding speaks: oneDNN 3.x."""

_FILE = "libdnnl.so.3"
_RUNTIMES = {1: "sequential", 2: "OpenMP", 4: "TBB"}
_MULTIPLIES_BFLOAT16 = 0x80
"""The bit of ``dnnl_cpu_isa_t`` that all instruction sets with such products share."""

HAS_WIDE = 0x20
"""The bit of all with registers of 512 bits."""

_SYSTEM_FOLDERS = (
    "/usr/local/lib",
    "/usr/local/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
)


@dataclass(frozen=True)
class Library:
    """A loaded oneDNN; ``c`` are its functions.

    ``bfloat16`` says that the processor multiplies it by itself; else oneDNN would play it slowly.
    """

    path: str
    version: str
    runtime: str
    c: Any
    bfloat16: bool = False


def find_library() -> str | None:
    """The path of the library, by a few looks at the file system and without loading anything.

    What `PATH_VARIABLE` names comes first, then the wheel's or conda's place in this Python's
    prefix, then the folders of ``LD_LIBRARY_PATH`` and the system.
    """
    named = os.environ.get(PATH_VARIABLE)
    if named:
        return named
    folders = [Path(sys.prefix) / "lib"]
    # Without a home it is a folder of the working directory, which may be anybody's.
    if os.path.isabs(site.getuserbase()):
        folders.append(Path(site.getuserbase()) / "lib")
    folders += [Path(p) for p in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if p]
    folders += [Path(folder) for folder in _SYSTEM_FOLDERS]
    for folder in folders:
        if (folder / _FILE).exists():
            return str(folder / _FILE)
    return None


def has_wheel() -> bool:
    """Whether `INSTALL` brings the library to a machine of this kind."""
    return sys.platform == "linux" and platform.machine() == "x86_64"


@lru_cache(maxsize=8)
def load_library(path: str) -> Library:
    """Load and check the library. Errors: `BackendError` that names the file and its version."""
    try:
        with long_waits():
            c = ctypes.CDLL(path)
    except OSError as error:
        raise _refused(path, "a library that can be loaded", str(error)) from error
    try:
        c.dnnl_version.restype = ctypes.POINTER(Version)
        found = c.dnnl_version().contents
    except AttributeError as error:
        raise _refused(path, "the function dnnl_version", "a library without it") from error
    version = f"{found.major}.{found.minor}.{found.patch}"
    if found.major != MAJOR:
        raise _refused(path, f"oneDNN {MAJOR}.x", f"oneDNN {version}")
    runtime = _RUNTIMES.get(found.cpu_runtime)
    if runtime is None:
        # Their memory is not plain memory, or their threads are the caller's business.
        kinds = " or ".join(_RUNTIMES.values())
        received = f"oneDNN {version} built for the runtime {found.cpu_runtime}"
        raise _refused(path, f"a {kinds} build of oneDNN", received)
    try:
        declare(c)
    except AttributeError as error:
        received = f"oneDNN {version} without one of them: {error}"
        raise _refused(path, "the functions of oneDNN 3", received) from error
    bfloat16 = bool(c.dnnl_get_effective_cpu_isa() & _MULTIPLIES_BFLOAT16)
    return Library(path, version, runtime, c, bfloat16)


def _refused(path: str, expected: str, received: str) -> BackendError:
    return BackendError(
        f"oneDNN library {path!r}",
        expected=expected,
        received=received,
        advice=f"{INSTALL}, or let {PATH_VARIABLE} name another libdnnl.so.3",
    )


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
