"""Threads of kernels, and what the processor can do."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path

from singanet.errors import ArgumentError


class _Setting:
    """What was asked for, and a count of the changes: runtimes made before the last are stale."""

    threads: int | None = None
    changes = 0


_setting = _Setting()


_GROUPS = Path("/sys/fs/cgroup")


def _allowed() -> int:
    if hasattr(os, "sched_getaffinity"):
        return min(len(os.sched_getaffinity(0)), _granted())
    return os.cpu_count() or 1


@cache
def _granted() -> int:
    """The whole cores whose time a container or a control group of version 2 leaves us."""
    least = 1 << 20
    with suppress(OSError, ValueError):
        own = Path("/proc/self/cgroup").read_text().rpartition("0::/")[2].strip()
        group = _GROUPS / own
        for folder in (group, *group.parents):
            with suppress(OSError, ValueError):
                quota, period = (folder / "cpu.max").read_text().split()
                # "max" is no number. Threads beyond would stand still for a part of each period.
                least = min(least, max(1, int(quota) // int(period)))
    return least


_FIRST = _allowed()
"""The cores before a library bound this thread to one of them, as OpenMP does where told to."""


def cores() -> int:
    """The cores that this process may use."""
    bound = os.environ.get("OMP_PROC_BIND", "false").lower() != "false"
    return max(_allowed(), _FIRST) if bound or "GOMP_CPU_AFFINITY" in os.environ else _allowed()


def default_threads() -> int:
    """What `set_threads` said, else ``OMP_NUM_THREADS``, else a thread a core; at most that."""
    return _setting.threads or _from_environment(os.environ.get("OMP_NUM_THREADS", ""))


def set_threads(count: int) -> None:
    """Let kernels use ``count`` threads from the next call on: oneDNN's, or NumPy's convolutions.

    NumPy's matrix products have threads of their own (``OPENBLAS_NUM_THREADS``). Errors: a count
    below 1 or above the number of cores, whose threads would take turns.
    """
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= cores():
        raise ArgumentError(
            "onednn.set_threads",
            expected=f"a number of threads from 1 to {cores()}, the cores of this process",
            received=repr(count),
            advice="more threads than cores take turns and slow each other down",
        )
    _changed(count)


def changes() -> int:
    """How often the number of threads was changed."""
    return _setting.changes


def _changed(count: int) -> None:
    _setting.threads = count
    _setting.changes += 1


if hasattr(os, "register_at_fork"):
    # The parent's threads are not there in a child, and OpenMP would wait for them forever.
    os.register_at_fork(after_in_child=lambda: _changed(1))


@lru_cache(maxsize=8)
def _from_environment(text: str) -> int:
    # OpenMP's form for nested parallel regions is a list; the outermost counts.
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
"""How the names of LLVM's features begin that a limit leaves out, by how that begins, up to "_"."""


def limit() -> str:
    """The most that oneDNN may use of the processor, such as "AVX2"; empty without a limit."""
    found = next((os.environ[name] for name in _VARIABLES if name in os.environ), "").upper()
    return "" if found in ("ALL", "DEFAULT") else found


def within(features: Mapping[str, bool]) -> dict[str, bool]:
    """LLVM's features of the processor, without those beyond the limit."""
    told = limit()
    # AVX2_VNNI is as AVX2; what oneDNN does not know either is no limit.
    without = () if "AMX" in told else _WITHOUT.get(told.partition("_")[0], ())
    return {name: there and not name.startswith(without) for name, there in features.items()}
