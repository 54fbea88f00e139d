"""The memory of this process, and of its arrays on a GPU."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from singanet.base.heap import private_bytes
from singanet.device import Device


def held_bytes(device: Device) -> int | None:
    """Return the bytes of arrays on ``device``, or of a GPU's memory pool; None if unknown.

    On the CPU they are the bytes of the process.
    """
    xp = device.ops.xp
    if xp is np:
        return private_bytes()
    pool = getattr(xp, "get_default_memory_pool", None)
    return None if pool is None else int(pool().total_bytes())


def resident_bytes() -> int | None:
    """Return the resident bytes of the process; None if the system does not report them."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return None
    import resource

    return pages * resource.getpagesize()


def peak_bytes() -> int | None:
    """Return the peak of the resident bytes; None if the system does not report it."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts in KiB, macOS in bytes.
    return int(peak if sys.platform == "darwin" else peak * 1024)
