"""The communicator of processes with a GPU each: NCCL for device arrays, MPI otherwise.

Not yet run on GPUs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from singanet.errors import ArgumentError, BackendError
from singanet.ops import ops_for
from singanet.parallel.communicators.communicator import (
    Communicator,
    ReduceOp,
    Request,
    checked_bounds,
    checked_peer,
    late,
)
from singanet.types import Array

_NAP = 2e-5
"""Seconds between two polls of a request."""

_TYPES = {
    "float16": "NCCL_FLOAT16",
    "float32": "NCCL_FLOAT32",
    "float64": "NCCL_FLOAT64",
    "int32": "NCCL_INT32",
    "int64": "NCCL_INT64",
    "uint8": "NCCL_UINT8",
}


class NcclCommunicator(Communicator):
    """The ranks of ``control``, by default all MPI ranks, each with the CUDA device ``index``.

    NCCL reduces, gathers and broadcasts CuPy arrays on a separate stream, which waits for the
    kernels that compute them. ``control`` handles NumPy arrays, point-to-point messages, barriers
    and the exchange of NCCL's id. Errors: `BackendError` if CuPy has no NCCL.
    """

    _on_device = True

    def __init__(self, index: int, control: Communicator | None = None, cupy: Any = None) -> None:
        self._cupy = _cupy() if cupy is None else cupy
        self._nccl = self._cupy.cuda.nccl
        if not getattr(self._nccl, "available", False):
            raise BackendError(
                "parallel, NCCL",
                expected="a CuPy that finds NCCL",
                received="a CuPy without NCCL",
                advice="pip install nvidia-nccl-cu13, or train by MPI: pass parallel.init()",
            )
        if control is None:
            # The import initializes MPI.
            from singanet.parallel.communicators.mpi import MpiCommunicator

            control = MpiCommunicator()
        self.control, self.index = control, index
        self.rank, self.size, self.deadline = control.rank, control.size, control.deadline
        with self._cupy.cuda.Device(index):
            own = self._nccl.get_unique_id() if self.rank == 0 else (0,) * 128
            told = control.broadcast(np.array(own, np.int8), 0, "the id of NCCL")
            self._comm = self._nccl.NcclCommunicator(self.size, tuple(told.tolist()), self.rank)
            self._stream = self._cupy.cuda.Stream(non_blocking=True)

    def start_all_reduce(
        self, array: Array, op: ReduceOp = "sum", what: str = "an all-reduce"
    ) -> Request:
        if _is_on_host(array):
            return self._by_control(self.control.start_all_reduce, array, op, what)
        kind = getattr(self._nccl, f"NCCL_{op.upper()}")

        def start(stream: int) -> None:
            pointer = _pointer(array)
            self._comm.allReduce(pointer, pointer, array.size, self._type(array), kind, stream)

        self._count_reduced(array.nbytes)
        return self._started(start, array, what)

    def _start_all_gather(self, array: Array, what: str = "an all-gather") -> Request:
        """Start an all-gather; parts are padded to the longest, as NCCL needs equal lengths."""
        if _is_on_host(array):
            return self._by_control(self.control._start_all_gather, array, what)
        own = np.array([len(array)], np.int64)
        lengths = np.concatenate(self.control.all_gather(own, f"the lengths of {what}")).tolist()

        def cut(made: Any) -> list[Array]:
            return [part[:length] for part, length in zip(made, lengths, strict=True)]

        return self._gathered(array, max(lengths), what, cut)

    def _start_reduce_scatter(
        self, array: Array, bounds: Sequence[int], what: str = "a reduce-scatter"
    ) -> Request:
        """Start a reduce-scatter; parts are padded to the longest, as NCCL needs equal lengths."""
        if _is_on_host(array):
            return self._by_control(self.control._start_reduce_scatter, array, bounds, what)
        start, stop = checked_bounds(self, array, bounds)
        lengths = np.diff(bounds)
        longest = int(lengths.max())
        with self._cupy.cuda.Device(self.index):
            sent = array
            if (lengths != longest).any():
                sent = self._cupy.zeros(self.size * longest, array.dtype)
                for rank, (first, last) in enumerate(pairwise(bounds)):
                    sent[rank * longest : rank * longest + last - first] = array[first:last]
            made = self._cupy.empty(longest, array.dtype)

        def begin(stream: int) -> None:
            kind, add = self._type(array), self._nccl.NCCL_SUM
            self._comm.reduceScatter(_pointer(sent), _pointer(made), longest, kind, add, stream)

        def put(_: Any) -> Array:
            own = array[start:stop]
            own[...] = made[: stop - start]
            return own

        self._count_scattered(made.nbytes, self.size * made.nbytes)
        return self._started(begin, (sent, made), what, put)

    def _start_gather_parts(
        self, array: Array, bounds: Sequence[int], what: str = "a gathering of parts"
    ) -> Request:
        """Start a gather of parts, padded to the longest, as NCCL needs equal lengths."""
        if _is_on_host(array):
            return self._by_control(self.control._start_gather_parts, array, bounds, what)
        start, stop = checked_bounds(self, array, bounds)

        def put(made: Any) -> Array:
            for part, (first, last) in zip(made, pairwise(bounds), strict=True):
                array[first:last] = part[: last - first]
            return array

        return self._gathered(array[start:stop], int(np.diff(bounds).max()), what, put)

    def _gathered(
        self, own: Array, longest: int, what: str, put: Callable[[Any], Any]
    ) -> _OnStream:
        """Gather all ranks' arrays, padded to the length ``longest``, and apply ``put``."""
        with self._cupy.cuda.Device(self.index):
            sent = self._cupy.zeros((longest, *own.shape[1:]), own.dtype)
            sent[: len(own)] = own
            made = self._cupy.empty((self.size, *sent.shape), own.dtype)

        def start(stream: int) -> None:
            kind = self._type(own)
            self._comm.allGather(_pointer(sent), _pointer(made), sent.size, kind, stream)

        self._count_gathered(sent.nbytes, made.nbytes)
        return self._started(start, (sent, made), what, lambda _: put(made))

    def _start_broadcast(self, array: Array, root: int = 0, what: str = "a broadcast") -> Request:
        root = checked_peer(what, root, self.size)
        if _is_on_host(array):
            return self._by_control(self.control._start_broadcast, array, root, what)

        def start(stream: int) -> None:
            pointer = _pointer(array)
            self._comm.broadcast(pointer, pointer, array.size, self._type(array), root, stream)

        self._count_broadcast(root, array.nbytes)
        return self._started(start, array, what)

    def _start_send(self, array: Array, to: int, tag: int = 0, what: str = "a send") -> Request:
        """Send a NumPy array by MPI, as NCCL has no tags."""
        return self._by_control(self.control._start_send, array, to, tag, what)

    def _start_receive(
        self, array: Array, source: int, tag: int = 0, what: str = "a receive"
    ) -> Request:
        """Receive into a NumPy array by MPI, as NCCL has no tags."""
        return self._by_control(self.control._start_receive, array, source, tag, what)

    def _start_barrier(self, what: str = "a barrier") -> Request:
        return self.control._start_barrier(what)

    def group(self, ranks: Sequence[int]) -> NcclCommunicator:
        return NcclCommunicator(self.index, self.control.group(ranks), self._cupy)

    @property
    def bytes_sent(self) -> int:
        """The bytes sent by NCCL and by MPI."""
        return self._sent + self.control.bytes_sent

    @bytes_sent.setter
    def bytes_sent(self, count: int) -> None:
        self._sent = count - self.control.bytes_sent

    @property
    def bytes_received(self) -> int:
        """The bytes received by NCCL and by MPI."""
        return self._received + self.control.bytes_received

    @bytes_received.setter
    def bytes_received(self, count: int) -> None:
        self._received = count - self.control.bytes_received

    _sent = _received = 0

    def _by_control(self, start: Callable[..., Request], *arguments: Any) -> Request:
        self.control.step, self.control.deadline = self.step, self.deadline
        return start(*arguments)

    def _type(self, array: Array) -> int:
        if array.dtype.name not in _TYPES or not array.flags.c_contiguous:
            raise ArgumentError(
                "NcclCommunicator",
                expected=f"a contiguous array of {', '.join(_TYPES)}",
                received=f"an array of {array.dtype}",
                advice="pass cupy.ascontiguousarray(array), and copy the result back",
            )
        return int(getattr(self._nccl, _TYPES[array.dtype.name]))

    def _started(
        self,
        start: Callable[[int], None],
        arrays: Any,
        what: str,
        made: Callable[[Any], Any] | None = None,
    ) -> _OnStream:
        """Start work on NCCL's stream, after the pending work of the current stream."""
        cuda = self._cupy.cuda
        with cuda.Device(self.index):
            ready, done = cuda.Event(), cuda.Event()
            ready.record()
            self._stream.wait_event(ready)
            start(self._stream.ptr)
            done.record(self._stream)
        return _OnStream(self, done, arrays, what, made)


class _OnStream(Request):
    """NCCL work on the stream up to the event ``done``; it owns its ``arrays``."""

    def __init__(
        self,
        comm: NcclCommunicator,
        done: Any,
        arrays: Any,
        what: str,
        made: Callable[[Any], Any] | None,
    ) -> None:
        self._comm, self._done, self._what = comm, done, what
        self._result, self._made = arrays, made

    def test(self) -> bool:
        """Return True if it is done; the GPU needs no polling to advance."""
        return bool(self._done.done)

    def wait(self) -> Any:
        began = time.monotonic()
        while not self._done.done:
            if time.monotonic() - began > self._comm.deadline:
                raise late(self._comm, self._what)
            time.sleep(_NAP)
        if self._made is not None:
            self._result, self._made = self._made(self._result), None
        return self._result


def _pointer(array: Any) -> int:
    found: int = array.data.ptr
    return found


def _is_on_host(array: Array) -> bool:
    return ops_for(array).xp is np


def _cupy() -> Any:
    try:
        import cupy
        import cupy.cuda.nccl
    except ImportError as error:
        raise BackendError(
            "parallel, NCCL",
            expected="the package cupy",
            received=str(error),
            advice="run: pip install cupy-cuda13x nvidia-nccl-cu13",
        ) from error
    return cupy
