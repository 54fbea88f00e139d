"""Provide the base of oneDNN's kernels, and kernels that restore NaN.

NumPy's arithmetic would store its intermediate arrays in float32.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from singanet.base.heap import small_pages
from singanet.errors import BackendError
from singanet.ops.costs import BUILT_IN, Costs, Speeds
from singanet.ops.kernel import Chooser
from singanet.ops.llvm.base import PlannedOps, in_memory_order, is_dense
from singanet.ops.llvm.plans import Build
from singanet.ops.numpy import NumpyOps
from singanet.ops.onednn.binding import BF16, Algorithm, Arg
from singanet.ops.onednn.builder import Builder
from singanet.ops.onednn.library import Library, load_library
from singanet.ops.onednn.runtime import Runtime
from singanet.ops.threads import changes, default_threads
from singanet.types import Array, Parts

_NAN = {np.uint16: 0x7FC0, np.float32: np.nan}


def sums(build: Builder, n: int, values: int) -> None:
    """Operands: a sum for each sample, NaN for NaN or infinities of both signs; samples."""
    x, y = build.rows((n, values), build.kind(1)), build.rows((n, 1))
    desc = build.primitive_desc("reduction", int(Algorithm.REDUCTION_SUM), x, y, 0.0, 0.0)
    build.stage(desc, {Arg.DST: build.operand(0, y), Arg.SRC: build.operand(1, x)})


def marked(build: Builder, n: int, values: int, rows: int, count: int) -> Marking:
    """Operands: rows, one a sample or one for all, and samples.

    The first ``count`` of the ``values`` of a sample become NaN at NaN of its row.
    """
    return Marking((n, values), (rows, count), np.uint16 if build.kind(1) == BF16 else np.float32)


class Marking:
    """A plan like `KernelPlan`: a check of a few numbers, and rarely a repair."""

    sizes = (0, 0)
    reads, writes = (0, 1), (1,)
    scratch, threads = 0, 1
    open, rounded = frozenset({1}), frozenset[int]()

    def __init__(self, samples: tuple[int, int], rows: tuple[int, int], kind: Any) -> None:
        self._samples, self._rows, self._kind = samples, rows, kind

    def run(self, addresses: Sequence[int], scratch: int) -> None:
        self.bound(addresses, scratch)()

    def bound(self, addresses: Sequence[int], scratch: int) -> Callable[[], None]:
        row = _at(addresses[0], self._rows, np.float32)
        first = _at(addresses[1], self._samples, self._kind)[:, : self._rows[1]]
        nan = _NAN[self._kind]

        def mark() -> None:
            found = np.isnan(row)
            if found.any():
                np.copyto(first, nan, where=found)

        return mark


def _at(address: int, shape: tuple[int, int], kind: Any) -> Array:
    size = shape[0] * shape[1] * np.dtype(kind).itemsize
    raw: Any = (ctypes.c_char * size).from_address(address)
    return np.frombuffer(raw, kind).reshape(shape)


class OneDnnBase(PlannedOps):
    """The base of kernels by the library at ``path``, loaded at the first call.

    ``required`` means that the user requested oneDNN by name: a library that does not work is then
    an error; otherwise NumPy's kernels serve. ``xp`` allocates the results.
    """

    name = "onednn"
    chooser: Chooser
    stores = False
    """Whether programs store arrays in bfloat16 that only such kernels use."""

    def __init__(self, path: str, required: bool, xp: Any = np) -> None:
        super().__init__(xp)
        self.path = path
        self.required = required
        self.failure: BackendError | None = None
        self.chooser = self.costs = Costs()

    def library(self) -> Library | None:
        """Return the loaded library; None if it does not work and was not required."""
        if self.failure is None:
            try:
                return load_library(self.path)
            except BackendError as error:
                self.failure = error
        if self.required:
            raise self.failure
        return None

    def _made(self) -> Runtime | None:
        library = self.library()
        return None if library is None else Runtime(library, default_threads(), self.narrow)

    def rounds_rows(self) -> bool:
        """Whether the library multiplies bfloat16 in registers."""
        library = self.library()
        return library is not None and library.bfloat16

    def shares_products(self) -> bool:
        """Whether the library's threads share products well.

        Without registers of 512 bits two threads take up to twice the time of one, and up to three
        times that of lanes, in which each multiplies by BLAS.
        """
        runtime = self.runtime()
        return runtime is None or runtime.threads == 1 or self.narrow or runtime.library.wide

    def lane_count(self, samples: int, multiplications: int) -> int:
        """Return 1 if the library's threads share products."""
        return 1 if self.shares_products() else super().lane_count(samples, multiplications)

    def team(self) -> tuple[int, Callable[[Parts], None]]:
        """Return the library's own threads; other threads would compete for their cores."""
        runtime = self.runtime()
        return super().team() if runtime is None else (runtime.threads, runtime.side_by_side)

    def settings(self) -> Hashable:
        """Return thread count changes, route version and dtypes; measuring may change routes."""
        return changes(), self.chooser.version, self.narrow, self.stores

    def speeds(self) -> Speeds:
        """Return the speeds for estimates: this processor's, from the file of routes."""
        runtime = self.runtime()
        return BUILT_IN if runtime is None else self.costs.speeds(runtime, self.calibrate)

    @staticmethod
    def calibrate(library: Library) -> Speeds:
        """Measure the speeds of this processor."""
        return BUILT_IN

    def remarks(self) -> Mapping[str, Sequence[str]]:
        """Return the number of measured choices in use, and the gain of bfloat16."""
        runtime = self.runtime()
        if runtime is None:
            return NumpyOps.remarks(self)
        told = [] if self.narrow else [self.costs.remark(runtime)]
        if runtime.library.bfloat16:
            speeds = self.speeds()
            gain = f"multiplies bfloat16 {speeds.narrow_gain:.1f} times as fast as float32"
            told.append(gain if speeds._narrow_pays else f'{gain}, too little for "auto"')
        return {**super().remarks(), self.name: told}

    def serves(self, least: int, *arrays: Array) -> bool:
        """Whether plans can serve these arrays; false without a working library."""
        return self.failure is None and super().serves(least, *arrays)

    def room(
        self, build: Build, key: tuple[Any, ...], operand: int, first: Array, passes: int = 1
    ) -> Array:
        """Return a byte array for an ``operand`` in oneDNN's layout; empty without a plan.

        The other arguments are like `runs`, with ``first`` as the first array.
        """
        runtime = self.runtime()
        plan = None if runtime is None else runtime.plan(build, key, first.size * passes)
        # Large parts of a recurrent layer's workspace are never written; large pages would use
        # memory for them.
        with small_pages():
            made: Array = self.xp.empty(0 if plan is None else plan.sizes[operand], np.uint8)
        return made

    def show_nan(self, y: Array, x: Array) -> None:
        """Write NaN into each sample of ``y`` whose sample of the dense ``x`` has one.

        For kernels that ignore NaN. In prepared mode, `pass_on_nan` does so once for the program.
        """
        if self.prepared is not None:
            self.prepared.drops_nan = True
        else:
            self._copy_nan(y, x)

    def pass_on_nan(self, y: Array, x: Array) -> None:
        """Write NaN into the first element of each sample of ``y`` that has NaN in ``x``."""
        if self.serves(1, x, y) and is_dense(x) and is_dense(y):
            self.where_nan(_mark, in_memory_order(y), in_memory_order(x))

    def where_nan(self, repair: Callable[[Array, Array], None], y: Array, seen: Array) -> None:
        """Call ``repair(y, seen)`` if the C-ordered ``seen`` has NaN.

        NaN is rare, and the check is much faster than a repair without effect.
        """
        self.repair_nan(y, repair, seen)

    @staticmethod
    def repair_nan(y: Array, repair: Callable[[Array, Array], None], seen: Array) -> None:
        """Call ``repair(y, seen)`` if ``seen`` has NaN, see `where_nan`."""
        # argmin returns the first NaN if there is one: NumPy's fastest check.
        least = seen.item(seen.argmin())
        if least != least:
            repair(y, seen)

    def _copy_nan(self, y: Array, x: Array) -> None:
        # Nothing here depends on values, so that it can be recorded.
        xp, n, values = self.xp, len(x), x.size // len(x)
        found: Array = xp.empty((n, 1), np.float32)
        if not (self.narrow and self.runs(sums, (n, values), found, x, passes=values)):
            found = xp.min(x.reshape(n, -1), axis=1, keepdims=True)
        self.show_nan_of(y, found)

    def show_nan_of(self, y: Array, rows: Array) -> None:
        """Write NaN into the first values of each sample of ``y`` whose row has one.

        ``rows`` are new, one for each sample or for all; they are overwritten.
        """
        xp, n, count = self.xp, len(y), rows.shape[-1]
        key = (n, y.size // n, rows.size // count, count)
        if self.narrow and self.runs(marked, key, rows, y):
            return
        # Zero for any number, also for infinity.
        xp.sign(rows, out=rows)
        xp.multiply(rows, 0.0, out=rows)
        first = y.reshape(n, -1)[:, :count]
        xp.add(first, rows, out=first)


def _mark(y: Array, x: Array) -> None:
    """Write NaN into the first element of each sample of ``y`` whose sample of ``x`` has one."""
    n = len(x)
    y.reshape(n, -1)[np.isnan(x).reshape(n, -1).any(axis=1), 0] = np.nan
