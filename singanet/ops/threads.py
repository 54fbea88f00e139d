"""Count threads for kernels, and the features of the processor."""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache, lru_cache
from pathlib import Path

from singanet.errors import ArgumentError, brief


class _Setting:
    """The requested thread count, and the number of its changes: older runtimes are stale."""

    threads: int | None = None
    changes = 0


_setting = _Setting()


class _AloneBlock:
    """A block of `one_thread`: an object of its frame."""


class _Caller(threading.local):
    """The block whose kernels use no other thread, if it still runs.

    An interrupt may end a block before it says so. Then the block's frame is gone.
    """

    block: weakref.ref[_AloneBlock] | None = None


_caller = _Caller()


_GROUPS = Path("/sys/fs/cgroup")


def _allowed() -> int:
    if hasattr(os, "sched_getaffinity"):
        return min(len(os.sched_getaffinity(0)), _granted())
    return os.cpu_count() or 1


@cache
def _granted() -> int:
    """Return the whole cores that a container or a control group of version 2 allows."""
    least = 1 << 20
    with suppress(OSError, ValueError):
        own = Path("/proc/self/cgroup").read_text().rpartition("0::/")[2].strip()
        group = _GROUPS / own
        for folder in (group, *group.parents):
            with suppress(OSError, ValueError):
                quota, period = (folder / "cpu.max").read_text().split()
                # "max" is not a number. Threads beyond the quota would pause in each period.
                least = min(least, max(1, int(quota) // int(period)))
    return least


_FIRST = _allowed()
"""The cores before a library, such as OpenMP, bound this thread to one of them."""


def cores() -> int:
    """Return the number of cores that this process may use."""
    bound = os.environ.get("OMP_PROC_BIND", "false").lower() != "false"
    return max(_allowed(), _FIRST) if bound or "GOMP_CPU_AFFINITY" in os.environ else _allowed()


def default_threads() -> int:
    """Return the count of `set_threads`, or of ``OMP_NUM_THREADS``, or one thread for each core."""
    if is_alone():
        return 1
    return _setting.threads or _from_environment(os.environ.get("OMP_NUM_THREADS", ""))


def set_threads(count: int) -> None:
    """Use ``count`` threads from the next call on, in oneDNN and NumPy's convolutions.

    NumPy's matrix products have threads of their own (``OPENBLAS_NUM_THREADS``). Errors:
    `ArgumentError` if the count is below 1 or above the number of cores, since such threads would
    take turns.
    """
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= cores():
        raise ArgumentError(
            "onednn.set_threads",
            expected=f"a number of threads from 1 to {cores()}, the cores of this process",
            received=brief(count),
            advice="more threads than cores take turns and slow each other down",
        )
    _changed(count)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let the kernels of this thread use no other inside the block."""
    block, before = _AloneBlock(), _caller.block
    _caller.block = weakref.ref(block)
    try:
        yield
    finally:
        _caller.block = before


def is_alone() -> bool:
    """Whether this thread is in a block of `one_thread`."""
    block = _caller.block
    return block is not None and block() is not None


def changes() -> int:
    """Return the number of changes of the thread count."""
    return _setting.changes


def _changed(count: int) -> None:
    _setting.threads = count
    _setting.changes += 1


if hasattr(os, "register_at_fork"):
    # A child process lacks the parent's threads, and OpenMP would wait for them forever.
    os.register_at_fork(after_in_child=lambda: _changed(1))


@lru_cache(maxsize=8)
def _from_environment(text: str) -> int:
    # OpenMP has a list for nested parallel regions; the outermost counts.
    first = text.partition(",")[0].strip()
    wanted = int(first) if first.isdecimal() and int(first) > 0 else cores()
    if wanted > cores():
        warnings.warn(
            f"OMP_NUM_THREADS: expected at most {cores()} threads, one a core; received {wanted}; "
            f"kernels use {cores()}",
            RuntimeWarning,
            stacklevel=2,
        )
    return min(wanted, cores())


_VARIABLES = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")

_WITHOUT = {
    "SSE41": ("avx", "fma", "f16c", "vaes", "vpclmulqdq", "xop", "amx"),
    "AVX": ("avx2", "avx512", "avx10", "avxvnni", "avxifma", "avxneconvert", "fma", "vaes", "amx"),
    "AVX2": ("avx512", "avx10", "amx"),
    "AVX512": ("amx",),
    "AVX10": ("amx",),
}
"""Prefixes of LLVM features beyond a limit, by the limit's name up to "_"."""


def limit() -> str:
    """Return oneDNN's limit of instruction sets, such as "AVX2"; empty without a limit."""
    found = next((os.environ[name] for name in _VARIABLES if name in os.environ), "").upper()
    return "" if found in ("ALL", "DEFAULT") else found


def within(features: Mapping[str, bool]) -> dict[str, bool]:
    """Return LLVM's features of the processor, without features beyond the limit."""
    told = limit()
    # AVX2_VNNI counts as AVX2; a name unknown to oneDNN sets no limit.
    without = () if "AMX" in told else _WITHOUT.get(told.partition("_")[0], ())
    return {name: there and not name.startswith(without) for name, there in features.items()}
