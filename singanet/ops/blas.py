"""NumPy's BLAS beside threads of ours: oneDNN's, or those of lanes."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import numpy as np

_CHOSEN_BY = "OPENBLAS_NUM_THREADS"

_PTHREADS = 1
"""What OpenBLAS says of itself where its threads are its own, and not OpenMP's."""

_FORMS = ("scipy_openblas_{}64_", "scipy_openblas_{}", "openblas_{}64_", "openblas_{}")
"""The names of its functions in NumPy's wheels, and in builds for integers of 64 and 32 bits."""


@lru_cache(maxsize=1)
def stand_aside() -> None:
    """Leave the cores to threads of ours: what is NumPy's product runs in the calling one.

    OpenBLAS's threads look for more work for some 25 ms after each product that they share, on
    cores that others need, and calls from several threads wait for each other: a step of LeNet
    takes 1.4 to 4 times as long. ``OPENBLAS_NUM_THREADS`` of the user's stands, and so does a
    BLAS whose threads are OpenMP's own. It holds for the process: to change the number around
    each product would cost as much as a small one.
    """
    if _CHOSEN_BY in os.environ:
        return
    for path in _loaded():
        library = ctypes.CDLL(path)
        for form in _FORMS:
            if hasattr(library, form.format("get_parallel")):
                if getattr(library, form.format("get_parallel"))() == _PTHREADS:
                    getattr(library, form.format("set_num_threads"))(1)
                break


def _loaded() -> list[str]:
    """The files of OpenBLAS in this process; beside NumPy where the system does not tell."""
    with suppress(OSError):
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
        # Address, rights, offset, device and inode come before the path, which may have spaces.
        found = {line.split(maxsplit=5)[5] for line in lines if "openblas" in line}
        return sorted(path for path in found if "openblas" in Path(path).name)
    numpy = Path(np.__file__).parent
    folders = (numpy.parent / "numpy.libs", numpy / ".dylibs")
    return sorted(str(path) for folder in folders for path in folder.glob("*openblas*"))
