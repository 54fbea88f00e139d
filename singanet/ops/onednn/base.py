"""What the oneDNN kernels share: which calls they serve, threads, and the runtime."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from singanet.errors import BackendError
from singanet.ops.numpy import NumpyOps
from singanet.ops.onednn.library import Library, load_library
from singanet.ops.onednn.runtime import Build, Runtime
from singanet.ops.onednn.threads import changes, default_threads
from singanet.types import Array

_F32 = np.dtype(np.float32)


class OneDnnBase(NumpyOps):
    """Kernels of the library at ``path``, loaded when the first of them is called.

    ``required`` says that oneDNN was asked for by name: a library that does not work is then an
    error, and else leaves NumPy's kernels in its place.
    """

    name = "onednn"

    def __init__(self, path: str, required: bool) -> None:
        super().__init__(np)
        self.path = path
        self.required = required
        self.failure: BackendError | None = None
        self._local = threading.local()

    def library(self) -> Library | None:
        """The loaded library; None where it does not work and was not required."""
        if self.failure is None:
            try:
                return load_library(self.path)
            except BackendError as error:
                self.failure = error
        if self.required:
            raise self.failure
        return None

    def runtime(self) -> Runtime | None:
        """The calling thread's runtime, made at its first kernel; None without a library."""
        found: Runtime | None = getattr(self._local, "runtime", None)
        if found is None or found.changes != changes():
            library = self.library()
            if library is None:
                return None
            found = self._local.runtime = Runtime(library, default_threads())
        return found

    def serves(self, least: int, *arrays: Array) -> bool:
        """Whether a call is oneDNN's: float32 throughout, the first of ``least`` elements.

        This is the one place that decides by type; what is smaller than ``least`` costs more to
        hand over than NumPy needs to do it.
        """
        if arrays[0].size < least or self.failure is not None:
            return False
        return all(array.dtype == _F32 and array.size for array in arrays)

    def runs(self, build: Build, key: tuple[Any, ...], *arrays: Array, passes: int = 1) -> bool:
        """Run the plan of ``build`` and ``key`` on C-ordered ``arrays``, where there is one.

        ``passes`` tells how often about the first array is gone over.
        """
        runtime = self.runtime()
        if runtime is None:
            return False
        plan = runtime.plan(build, key, arrays[0].size * passes)
        if plan is None:
            return False
        runtime.run(plan, arrays)
        return True


def ordered(array: Array) -> Array:
    """``array`` in C order, itself where it is so already."""
    return np.ascontiguousarray(array)


def is_finite(array: Array) -> bool:
    """Whether the dense ``array`` is free of NaN and infinity; may say no for values past 1e19.

    The sum of squares is NaN or infinite otherwise, and takes a fraction of any other look.
    """
    flat = array.reshape(-1) if array.flags.c_contiguous else array.ravel(order="K")
    return bool(np.isfinite(np.dot(flat, flat)))
