"""Provide the base of kernels that run plans: LLVM's, and oneDNN's on top of them."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from singanet.base.kinds import Ranges
from singanet.ops.casts import has_compiler
from singanet.ops.compiled.calls import Jobs
from singanet.ops.costs import ADDS_A_PASS, BUILT_IN, Speeds
from singanet.ops.llvm.plans import Build, PlanRuntime
from singanet.ops.llvm.pool import is_offered, pool
from singanet.ops.numpy import NumpyOps
from singanet.ops.threads import changes, default_threads, is_alone
from singanet.types import Array

_F32 = np.dtype(np.float32)


class PlannedOps(NumpyOps):
    """Kernels with plans, made once for each size and thread."""

    narrow = False
    """Whether kernels may multiply bfloat16, see `singanet.ops.onednn.products`."""
    few = False
    """Whether float32 arithmetic of few rows may be compiled, as for a decoder.

    Elsewhere LLVM's library, of 40 MB, would be loaded for a last batch.
    """

    def __init__(self, xp: Any = np) -> None:
        super().__init__(xp)
        self._local = threading.local()

    def runtime(self) -> Any:
        """Return the calling thread's runtime, made at its first kernel; None without plans."""
        name = "alone" if is_alone() else "runtime"
        found: PlanRuntime | None = getattr(self._local, name, None)
        if found is None or found.changes != changes():
            found = self._made()
            setattr(self._local, name, found)
        return found

    def _made(self) -> Any:
        threads = default_threads()
        shares = threads > 1 and is_offered() and has_compiler()
        return PlanRuntime(threads, pool().jobs(threads) if shares else None)

    def jobs(self) -> Jobs | None:
        """Return the maker of jobs for the threads of compiled functions."""
        runtime = self.runtime()
        return None if runtime is None else runtime.jobs

    @property
    def threads(self) -> int:
        """The thread count of the calling thread's runtime; 1 without one."""
        runtime = self.runtime()
        return 1 if runtime is None else runtime.threads

    def speeds(self) -> Speeds:
        """Return the speeds for estimates."""
        return BUILT_IN

    def passes(self, adds: int) -> int:
        """Return the passes that ``adds`` multiply-adds for each first element take."""
        # float32 needs no measured speeds.
        a_pass = self.speeds().narrow_adds_a_pass if self.narrow else ADDS_A_PASS
        # Rounded: half a pass of arithmetic exceeds waiting for memory, see `Call.passes`.
        return 1 + (adds + a_pass // 2) // a_pass

    def trim(self, prepared: bool = False) -> None:
        """Free the calling thread's scratch memory, and with ``prepared`` its plans."""
        for name in ("runtime", "alone"):
            runtime: PlanRuntime | None = getattr(self._local, name, None)
            if runtime is not None:
                runtime.trim(prepared)

    def serves(self, least: int, *arrays: Array) -> bool:
        """Whether plans can serve a call: all arrays float32, the first of ``least`` elements.

        This is the only check of dtypes. An array smaller than ``least`` costs more to pass on than
        NumPy needs.
        """
        if arrays[0].size < least:
            return False
        return all(array.dtype == _F32 and array.size for array in arrays)

    def runs(self, build: Build, key: tuple[Any, ...], *arrays: Array, passes: int = 1) -> bool:
        """Run the plan of ``build`` and ``key`` on C-ordered ``arrays``; return if there is one."""
        runtime = self.runtime()
        if runtime is None:
            return False
        plan = runtime.plan(build, key, arrays[0].size * passes)
        if plan is None:
            return False
        runtime.run(plan, arrays)
        return True

    def written(self, build: Build, key: tuple[Any, ...], passes: int = 1) -> Mapping[int, Ranges]:
        """Return the byte ranges that a plan writes, of operands that it writes in part: none."""
        return {}

    def remarks(self) -> Mapping[str, Sequence[str]]:
        """Return the backends; LLVM's has a note on its functions."""
        found = super().remarks()
        told = ["convolves and multiplies, pools and normalises if that is faster"]
        return {**found, **({"llvm": told} if "llvm" in found else {})}

    def ordered(self, array: Array) -> Array:
        """Return ``array`` in C order, itself if it already is."""
        return array if array.flags.c_contiguous else self.xp.ascontiguousarray(array)


def is_dense(x: Array) -> bool:
    """Whether the elements are contiguous, in C order or channels last."""
    return bool(in_memory_order(x).flags.c_contiguous)


def in_memory_order(x: Array) -> Array:
    """Return ``x``, or its C-ordered view if the channels come last."""
    return x.transpose(0, 2, 3, 1) if x.ndim == 4 and not x.flags.c_contiguous else x
