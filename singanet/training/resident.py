"""The memory of this process, and that of its arrays on a GPU."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from singanet.base.heap import private_bytes
from singanet.device import Device


def held_bytes(device: Device) -> int | None:
    """Bytes that arrays on ``device`` take now, or as a GPU's pool keeps; None if it is not said.

    On the CPU they are those of the process.
    """
    xp = device.ops.xp
    if xp is np:
        return private_bytes()
    pool = getattr(xp, "get_default_memory_pool", None)
    return None if pool is None else int(pool().total_bytes())


def resident_bytes() -> int | None:
    """Bytes in memory now; None if the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return None
    import resource

    return pages * resource.getpagesize()


def peak_bytes() -> int | None:
    """The most bytes ever in memory; None if the system does not say."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts in KiB, macOS in bytes.
    return int(peak if sys.platform == "darwin" else peak * 1024)
