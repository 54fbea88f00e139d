"""Limit the threads of NumPy's BLAS next to singanet's own."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import numpy as np

_CHOSEN_BY = "OPENBLAS_NUM_THREADS"

_PTHREADS = 1
"""OpenBLAS's code for threads of its own, not OpenMP's."""

_FORMS = ("scipy_openblas_{}64_", "scipy_openblas_{}", "openblas_{}64_", "openblas_{}")
"""Names of its functions in NumPy's wheels, and in builds for integers of 64 and 32 bits."""


@lru_cache(maxsize=1)
def stand_aside() -> None:
    """Limit NumPy's products to the calling thread, so that other threads have the cores.

    OpenBLAS's threads spin for some 25 ms after each shared product, on cores that others need, and
    calls from several threads wait for each other: a step of LeNet takes 1.4 to 4 times as long. A
    user's ``OPENBLAS_NUM_THREADS`` has precedence, and a BLAS with OpenMP's threads does not
    change. The limit is for the whole process: to change it around each product would cost as much
    as a small product.
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
    """Return the OpenBLAS files of this process; those next to NumPy if the system lists none."""
    with suppress(OSError):
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
        # Address, rights, offset, device and inode precede the path, which may contain spaces.
        found = {line.split(maxsplit=5)[5] for line in lines if "openblas" in line}
        return sorted(path for path in found if "openblas" in Path(path).name)
    numpy = Path(np.__file__).parent
    folders = (numpy.parent / "numpy.libs", numpy / ".dylibs")
    return sorted(str(path) for folder in folders for path in folder.glob("*openblas*"))
