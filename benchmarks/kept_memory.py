"""Freed memory that stays with the process, as the arena of a program does."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_NEVER = 1 << 30


def keep_memory() -> bool:
    """Ask glibc to give nothing back, so that no run pays for fresh pages; whether it agreed.

    Which of several runs pays depends on what was freed before it, by up to half of a kernel's
    time. Holds for NumPy and PyTorch alike.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return all(mallopt(setting, _NEVER) for setting in (_TRIM_THRESHOLD, _MMAP_THRESHOLD))
