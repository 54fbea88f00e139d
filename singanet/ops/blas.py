"""NumPy's BLAS: its threads next to singanet's own, and a way around a false flag of its."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from singanet.types import Array

_CHOSEN_BY = "OPENBLAS_NUM_THREADS"

_FALSE_FLAGS = 5
"""Length of the sums of a float32 product with a vector for which OpenBLAS 0.3.31 may report an
invalid value that there is not: for AVX-512 it computes with whatever lies beyond the row."""

_PTHREADS = 1
"""OpenBLAS's code for threads of its own, not OpenMP's."""

_FORMS = ("scipy_openblas_{}64_", "scipy_openblas_{}", "openblas_{}64_", "openblas_{}")
"""Names of its functions in NumPy's wheels, and in builds for integers of 64 and 32 bits."""


def product(xp: Any, a: Array, b: Array, out: Array | None = None) -> Array:
    """Return ``xp.matmul(a, b, out=out)`` without false flags: a vector is multiplied twice."""
    if a.shape[-1] != _FALSE_FLAGS or (b.ndim > 1 and 1 not in (a.shape[-2], b.shape[-1])):
        plain: Array = xp.matmul(a, b, out=out)
        return plain
    if b.ndim == 1:
        made = xp.matmul(a, xp.concatenate((b[:, None], b[:, None]), axis=-1))[..., 0]
    elif b.shape[-1] == 1:
        made = xp.matmul(a, xp.concatenate((b, b), axis=-1))[..., :1]
    else:
        made = xp.matmul(xp.concatenate((a, a), axis=-2), b)[..., :1, :]
    return xp.multiply(made, 1, out=out)


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
