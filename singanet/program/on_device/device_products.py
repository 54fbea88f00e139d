"""Products on a device by cuBLAS, and CUDA graphs.

CuPy's own products cannot be captured.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np

from singanet.base.heap import address
from singanet.program.lower_sweeps import Ready
from singanet.types import Array

_LETTERS = {np.dtype(np.float32): "s", np.dtype(np.float64): "d"}
WORKSPACE = 32 << 20
"""The bytes of cuBLAS's workspace, its own default on large devices."""


class Matrix(NamedTuple):
    """Matrices of a stack in memory: their order, and the distance of lines.

    ``at`` are the addresses of the first elements.
    """

    by_columns: bool
    leading: int
    at: tuple[int, ...]


class Blas(Protocol):
    """A library of products; the `Matrix` of a result is in row order."""

    def ready(
        self, kind: np.dtype[Any], shape: tuple[int, int, int], a: Matrix, b: Matrix, c: Matrix
    ) -> Callable[[], None]:
        """The products of m × k by k × n matrices of ``shape`` (m, k, n)."""


def product(blas: Blas, a: Array, b: Array, out: Array) -> Callable[[], None] | None:
    """``matmul(a, b, out=out)``, or None if BLAS does not support the arrays' layouts."""
    if not a.dtype == b.dtype == out.dtype or out.dtype not in _LETTERS or not out.size:
        return None
    if a.ndim == 1:
        a, out = a[None], out[..., None, :] if b.ndim > 1 else out[..., None]
    if b.ndim == 1:
        b, out = b[:, None], out[..., None]
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    if not k or out.ndim < 2:
        return None
    if out.strides[-1] != out.itemsize and out.shape[-1] > 1:
        # Compute its transpose, with exchanged factors.
        a, b, out = b.swapaxes(-1, -2), a.swapaxes(-1, -2), out.swapaxes(-1, -2)
        m, n = n, m
    matrices = [_matrix(array, out.shape[:-2]) for array in (a, b, out)]
    if None in matrices or matrices[2].by_columns:  # type: ignore[union-attr]
        return None
    return blas.ready(out.dtype, (m, k, n), *matrices)  # type: ignore[arg-type]


def _matrix(array: Array, ahead: Sequence[int]) -> Matrix | None:
    """The layout of the last two axes, in a stack broadcast to ``ahead``."""
    size = array.itemsize
    (rows, columns), (down, across) = array.shape[-2:], array.strides[-2:]
    if columns == 1 or across == size:
        by_columns, leading, least = False, down, columns
    elif rows == 1 or down == size:
        by_columns, leading, least = True, across, rows
    else:
        return None
    if (columns if by_columns else rows) == 1:
        leading = least * size
    if leading % size or leading // size < least:
        return None
    strides = (0,) * (len(ahead) - (array.ndim - 2)) + array.strides[:-2]
    shape = (1,) * (len(ahead) - (array.ndim - 2)) + array.shape[:-2]
    steps = [0 if one == 1 else step for one, step in zip(shape, strides, strict=True)]
    offsets = np.zeros((), np.int64)
    for count, step in zip(ahead, steps, strict=True):
        offsets = offsets[..., None] + np.arange(count) * step
    at = tuple((address(array) + offsets).ravel().tolist())
    return Matrix(by_columns, leading // size, at)


class CuBlas:
    """cuBLAS of the current device, through the bindings of nvmath."""

    def __init__(self, cupy: Any, library: Any) -> None:
        self._cupy, self._library = cupy, library
        self._handle = library.create()
        self._room = cupy.empty(WORKSPACE, np.uint8)
        # Numbers that cuBLAS reads when it is called.
        self._numbers = {kind: (np.ones((), kind), np.zeros((), kind)) for kind in _LETTERS}

    def ready(
        self, kind: np.dtype[Any], shape: tuple[int, int, int], a: Matrix, b: Matrix, c: Matrix
    ) -> Callable[[], None]:
        """Return the product B' times A', since cuBLAS works in column order."""
        m, k, n = shape
        letter, count = _LETTERS[kind], len(c.at)
        one, zero = (int(number.ctypes.data) for number in self._numbers[kind])
        sizes: tuple[int, ...] = (int(b.by_columns), int(a.by_columns), n, m, k, one)
        steps = [_even(matrix.at, kind.itemsize) for matrix in (b, a, c)]
        if None in steps:
            many = getattr(self._library, f"{letter}gemm_batched")
            lists = [self._cupy.asarray(matrix.at, np.uint64) for matrix in (b, a, c)]
            first, second, filled = (array.data.ptr for array in lists)
            places = first, b.leading, second, a.leading, zero, filled, c.leading, count
            return partial(self._run, many, (*sizes, *places), lists)
        evenly = getattr(self._library, f"{letter}gemm_strided_batched")
        factors = b.at[0], b.leading, steps[0], a.at[0], a.leading, steps[1]
        return partial(
            self._run, evenly, (*sizes, *factors, zero, c.at[0], c.leading, steps[2], count)
        )

    def _run(
        self, function: Callable[..., object], given: tuple[Any, ...], held: object = None
    ) -> None:
        """Call ``function``; ``held`` keeps alive the arrays that it reads by address."""
        library, handle = self._library, self._handle
        library.set_stream(handle, self._cupy.cuda.get_current_stream().ptr)
        # For a new stream it would allocate memory, which a capture must not.
        library.set_workspace(handle, self._room.data.ptr, WORKSPACE)
        function(handle, *given)


def _even(at: Sequence[int], size: int) -> int | None:
    """The elements from each of the addresses to the next, None if they differ."""
    if len(at) == 1:
        return 0
    step = at[1] - at[0]
    even = step >= 0 and step % size == 0
    even = even and all(two - one == step for one, two in pairwise(at))
    return step // size if even else None


_own = threading.local()


def has_cublas() -> bool:
    """Whether nvmath's bindings are installed."""
    return find_spec("nvmath") is not None


def cublas(device: int) -> CuBlas | None:
    """The cuBLAS of this thread on ``device``, None if nvmath's bindings are not installed.

    Threads that shared it would change each other's stream.
    """
    known: dict[int, CuBlas | None] = _own.__dict__.setdefault("known", {})
    if device not in known:
        try:
            import cupy
            from nvmath.bindings import cublas as library
        except ImportError:
            known[device] = None
        else:
            known[device] = CuBlas(cupy, library)
    return known[device]


class Graphs:
    """``calls`` one after the other at first, and as CUDA graphs from the second time on.

    The first time compiles kernels and fills pools. Calls that CUDA cannot capture run between the
    graphs, with reasons in ``refused``. Temporary memory of the calls stays reserved for them.
    ``graphs`` counts the graphs, ``captured`` their calls.
    """

    def __init__(self, cupy: Any, calls: Sequence[Ready]) -> None:
        self._cupy, self._calls = cupy, tuple(calls)
        self._pool = cupy.cuda.MemoryPool()
        self._parts: list[Ready] | None = None
        self._begun = False
        self.refused: dict[int, str] = {}
        self.graphs = self.captured = 0

    def __len__(self) -> int:
        return len(self._calls)

    def __call__(self) -> None:
        """Make the calls."""
        if self._parts is None and self._begun:
            self._parts = self._captured()
        self._begun = True
        for call in self._calls if self._parts is None else self._parts:
            call()

    def _captured(self) -> list[Ready]:
        parts: list[Ready] = []
        calls, start = self._calls, 0
        while start < len(calls):
            graph, end = self._graph(start, len(calls))
            if end < len(calls) and end > start + 1:
                graph, end = self._graph(start, end)
            if graph is None:
                parts += calls[start:end]
            else:
                parts.append(graph.launch)
                self.graphs += 1
                self.captured += end - start
            # The call that was refused.
            parts += calls[end : end + 1]
            start = end + 1
        return parts

    def _graph(self, start: int, stop: int) -> tuple[Any, int]:
        """A graph of the calls from ``start`` to ``stop``, None if there is none, and its end."""
        runtime, stream = self._cupy.cuda.runtime, self._cupy.cuda.Stream(non_blocking=True)
        graph, at = None, start
        with stream, self._cupy.cuda.using_allocator(self._pool.malloc):
            stream.begin_capture()
            try:
                for at in range(start, stop):
                    self._calls[at]()
                at = stop
            except Exception as error:  # noqa: BLE001 - after any error, call it outside
                self.refused[at] = f"{type(error).__name__}: {error}"
            finally:
                try:
                    graph = stream.end_capture()
                except runtime.CUDARuntimeError as error:
                    self.refused.setdefault(start, str(error))
        return (graph if at == stop else None), at
