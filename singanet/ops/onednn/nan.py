"""NaN that kernels pass over: found by sums, and marked in the results, of either type.

NumPy's arithmetic would hold the arrays between it in float32.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from singanet.ops.onednn.binding import BF16, Algorithm, Arg
from singanet.ops.onednn.builder import Builder
from singanet.types import Array

_NAN = {np.uint16: 0x7FC0, np.float32: np.nan}


def sums(build: Builder, n: int, values: int) -> None:
    """Operands: a sum for each sample, NaN if it has NaN or infinities of both signs; samples."""
    x, y = build.rows((n, values), build.kind(1)), build.rows((n, 1))
    desc = build.primitive_desc("reduction", int(Algorithm.REDUCTION_SUM), x, y, 0.0, 0.0)
    build.stage(desc, {Arg.DST: build.operand(0, y), Arg.SRC: build.operand(1, x)})


def marked(build: Builder, n: int, values: int, rows: int, count: int) -> Marking:
    """Operands: rows, one a sample or one for all, and samples.

    The first ``count`` of the ``values`` of a sample become NaN where its row is NaN.
    """
    return Marking((n, values), (rows, count), np.uint16 if build.kind(1) == BF16 else np.float32)


class Marking:
    """A plan like `KernelPlan`: a look at few numbers, and seldom more."""

    sizes = (0, 0)
    reads, writes = (0, 1), (1,)
    scratch, threads = 0, 1
    open, rounded = frozenset({1}), frozenset[int]()

    def __init__(self, samples: tuple[int, int], rows: tuple[int, int], kind: Any) -> None:
        self._samples, self._rows, self._kind = samples, rows, kind

    def run(self, addresses: Sequence[int], scratch: int) -> None:
        """See `KernelPlan`."""
        self.bound(addresses, scratch)()

    def bound(self, addresses: Sequence[int], scratch: int) -> Callable[[], None]:
        """See `KernelPlan`."""
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
