"""Load oneDNN's library, and control its threads."""

from __future__ import annotations

import ctypes
import os
import platform
import site
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from singanet.errors import BackendError
from singanet.ops.compiled.calls import Jobs, LookAround, ThreadCount
from singanet.ops.neighbours import TASKS, Helpers, Neighbours
from singanet.ops.onednn.binding import Version, declare
from singanet.ops.workers import do
from singanet.types import Parts

_SPINS = "GOMP_SPINCOUNT"
BY_USER = ("OMP_WAIT_POLICY", _SPINS)

_BRIDGED = "100000"
"""Spins while waiting for work, some 2 ms: the usual gap between two shared kernels."""


@contextmanager
def long_waits() -> Iterator[None]:
    """Set how long OpenMP's idle threads spin, while the library is loaded.

    To wake a thread takes 50 microseconds and more, and a woken thread starts on the core of the
    thread that woke it. `Neighbours` handles other processes on the cores. A user's
    ``OMP_WAIT_POLICY`` or ``GOMP_SPINCOUNT`` has precedence.
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


class _OwnTeam(threading.local):
    """The OpenMP threads of the calling thread, which has a team of its own."""

    helpers: Helpers | None = None


class Region:
    """GNU's ``GOMP_parallel``, which runs a function on a team of OpenMP's threads."""

    def __init__(self, c: Any) -> None:
        self._parallel = c.GOMP_parallel
        self._parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        self._parallel.restype = None
        self._nothing = ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p)
        self._number = c.omp_get_thread_num
        self.neighbours: Neighbours | None = None
        self._busy = np.zeros(1, np.int64)
        self._mine = _OwnTeam()
        self.threads = 1

    def jobs(self, threads: int, look: Callable[[], None] | None) -> Jobs:
        """Return the maker of jobs for ``threads`` threads."""
        start, number = (
            ctypes.cast(function, ctypes.c_void_p).value or 0
            for function in (self._parallel, self._number)
        )
        return Jobs(threads, start, number, self._busy, look)

    def note_busy(self, busy: bool) -> None:
        """Let jobs run on the calling thread while other processes use the cores."""
        self._busy[0] = busy

    def make_way(self) -> None:
        """Keep the calling thread's team of ``threads`` away from its core."""
        helpers = self._mine.helpers
        if helpers is None:
            helpers = self._mine.helpers = self._gathered()
        helpers.make_way()

    def _gathered(self) -> Helpers:
        caller, helpers = threading.get_native_id(), Helpers()

        def note(_: Any) -> None:
            if (member := threading.get_native_id()) != caller:
                helpers.add(member)

        self._parallel(_Body(note), None, self.threads, 0)
        return helpers

    def side_by_side(self, parts: Parts) -> None:
        """Run the parts, each on the first free thread. Errors: the first error of a part.

        `workers.side_by_side` does the same on Python threads, but these would be a second team, on
        cores where OpenMP's threads spin.
        """
        if self.neighbours is not None:
            self.neighbours.look()
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
            # Ctrl-C outside of the block above, which ctypes reports and drops.
            raise KeyboardInterrupt

    def begin(self, threads: int) -> None:
        """Start ``threads`` idle OpenMP threads of the calling thread's own team."""
        self._parallel(self._nothing, None, threads, 0)


@lru_cache(maxsize=8)
def region_of(c: Any) -> Region | None:
    """Return the parallel region of the OpenMP in ``c``; None if it is not GNU's."""
    return Region(c) if hasattr(c, "GOMP_parallel") else None


class _Told(threading.local):
    """The thread counts that the calling thread has told, by ids of the functions of OpenMP."""

    def __init__(self) -> None:
        # With the functions, whose ids would otherwise be used again.
        self.sizes: dict[int, tuple[object, int]] = {}


_told = _Told()


class Team:
    """The thread count of the calling thread's next kernel; OpenMP has one for each thread.

    The runtimes of a thread, of several threads and of it alone, tell the same OpenMP.
    """

    def __init__(
        self, tell: Callable[[int], object] | None, look: Callable[[], None] | None = None
    ) -> None:
        self._tell, self._look = tell, look

    @property
    def size(self) -> int:
        """The thread count, 0 if OpenMP has not been told."""
        return _told.sizes.get(id(self._tell), (None, 0))[1]

    @size.setter
    def size(self, count: int) -> None:
        _told.sizes[id(self._tell)] = self._tell, count

    def call(self, count: int) -> Callable[[], object]:
        """Return a call of `use`, which a chain of C may include."""
        if self._tell is None:
            return partial(self.use, count)
        made = ThreadCount(self.use, count)
        function = ctypes.cast(cast("Any", self._tell), ctypes.c_void_p).value or 0
        made.record = (function, 0, count, 0, 0, 0)
        made.settled = partial(setattr, self, "size", count)
        if count > 1 and self._look is not None:
            made.look = LookAround(self._look)
        return made

    def use(self, count: int) -> None:
        """Let the next build or run use ``count`` threads."""
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
"""Measured by ``benchmarks/default_install.py``: convolution nets, dense and recurrent nets."""
GAIN_OVER_LLVM = "nets train 1.0 to 1.4 times as fast, predict 1.0 to 1.5 times"
"""The same beside LLVM's kernels."""

MAJOR = 3
"""The major version of the C interface: oneDNN 3.x."""

_FILE = "libdnnl.so.3"
_RUNTIMES = {1: "sequential", 2: "OpenMP", 4: "TBB"}
_MULTIPLIES_BFLOAT16 = 0x80
"""The bit of ``dnnl_cpu_isa_t`` in all instruction sets with bfloat16 products."""

_HAS_WIDE = 0x20
"""The bit in all instruction sets with 512-bit registers."""

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

    ``bfloat16`` means that the processor has bfloat16 products; oneDNN would emulate them slowly.
    ``wide`` means that its code uses registers of 512 bits.
    """

    path: str
    version: str
    runtime: str
    c: Any
    bfloat16: bool = False
    wide: bool = True


def find_library() -> str | None:
    """Return the path of the library, from the file system alone, without loading anything.

    `PATH_VARIABLE` comes first, then the prefix of this Python, with the wheel's or conda's
    library, then the folders of ``LD_LIBRARY_PATH`` and the system.
    """
    named = os.environ.get(PATH_VARIABLE)
    if named:
        return named
    folders = [Path(sys.prefix) / "lib"]
    # Without a home directory it would be in the working directory, which anybody may write.
    if os.path.isabs(site.getuserbase()):
        folders.append(Path(site.getuserbase()) / "lib")
    folders += [Path(p) for p in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if p]
    folders += [Path(folder) for folder in _SYSTEM_FOLDERS]
    for folder in folders:
        if (folder / _FILE).exists():
            return str(folder / _FILE)
    return None


def has_wheel() -> bool:
    """Whether `INSTALL` has the library for this platform."""
    return sys.platform == "linux" and platform.machine() == "x86_64"


@lru_cache(maxsize=8)
def load_library(path: str) -> Library:
    """Load and check the library. Errors: `BackendError` with the file and its version."""
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
        # GPU memory is not plain memory, and other runtimes need threads from the caller.
        kinds = " or ".join(_RUNTIMES.values())
        received = f"oneDNN {version} built for the runtime {found.cpu_runtime}"
        raise _refused(path, f"a {kinds} build of oneDNN", received)
    try:
        declare(c)
    except AttributeError as error:
        received = f"oneDNN {version} without one of them: {error}"
        raise _refused(path, "the functions of oneDNN 3", received) from error
    bfloat16 = bool(c.dnnl_get_effective_cpu_isa() & _MULTIPLIES_BFLOAT16)
    return Library(path, version, runtime, c, bfloat16, is_wide(c))


def is_wide(c: Any) -> bool:
    """Return whether the code of the library ``c`` uses registers of 512 bits."""
    return bool(c.dnnl_get_effective_cpu_isa() & _HAS_WIDE)


def _refused(path: str, expected: str, received: str) -> BackendError:
    return BackendError(
        f"oneDNN library {path!r}",
        expected=expected,
        received=received,
        advice=f"{INSTALL}, or let {PATH_VARIABLE} name another libdnnl.so.3",
    )


@lru_cache(maxsize=8)
def neighbours_of(region: Region) -> Neighbours | None:
    """Return the process's watch; None if the user sets how long threads spin."""
    told = any(name in os.environ for name in BY_USER)
    region.neighbours = None if told or not TASKS.is_dir() else Neighbours(region)
    return region.neighbours
