"""Copy between host and device, and draw random numbers on a device.

Each thread starts at its own offset in the stream and advances by strides (O'Neill 2014, after
Brown 1994).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache, lru_cache
from math import prod
from typing import Any

import numpy as np

from singanet.types import Array, Shape


class Transfers:
    """A copier to and from arrays of ``xp``, through pinned host memory and a stream of its own.

    A copy waits for the computations already started in the stream that was current at
    construction, and is complete when it returns. ``scope()`` selects the device of new arrays.
    Only one thread may use it at a time.
    """

    def __init__(self, xp: Any, scope: Callable[[], AbstractContextManager[Any]]) -> None:
        self._xp, self._scope = xp, scope
        self._staging: Array = np.empty(0, np.uint8)
        with scope():
            self._stream = xp.cuda.Stream(non_blocking=True)
            self._computing = xp.cuda.get_current_stream()

    def new(self, shape: Shape, dtype: np.dtype[Any]) -> Array:
        """Return an uninitialized array on the device."""
        with self._copying():
            made: Array = self._xp.empty(shape, dtype)
        return made

    def staged(self, array: Array) -> Array:
        """Return host memory of the shape and dtype of ``array``; all arrays share it."""
        if self._staging.nbytes < array.nbytes:
            pinned = self._xp.cuda.alloc_pinned_memory(array.nbytes)
            self._staging = np.frombuffer(pinned, np.uint8)
        return self._staging[: array.nbytes].view(array.dtype).reshape(array.shape)

    def send(self, array: Array) -> None:
        """Copy the `staged` memory of ``array`` to it."""
        with self._copying():
            array.set(self.staged(array))  # type: ignore[attr-defined]

    def fetch(self, array: Array) -> Array:
        """Copy ``array`` to its `staged` memory, and return that."""
        found = self.staged(array)
        with self._copying():
            array.get(out=found)  # type: ignore[attr-defined]
        return found

    @contextmanager
    def _copying(self) -> Iterator[None]:
        with self._scope():
            # The computing thread releases an array before it is read or freed here, but perhaps
            # before the kernels that it started have finished with it.
            self._stream.wait_event(self._computing.record())
            with self._stream:
                yield
            self._stream.synchronize()


def compiles_for_cuda(xp: Any) -> bool:
    """Whether ``xp`` compiles CUDA kernels, whose libraries take the addresses of its arrays.

    CuPy does.
    """
    return hasattr(xp, "RawKernel")


_THREADS = 256
_PAIRS = 8
"""Pairs of numbers that a thread draws; finding its first one takes some thirty products."""

_HALF, _ALL = (1 << 64) - 1, (1 << 128) - 1
_FACTOR = 2549297995355413924 << 64 | 4865540595714422341

_MADE = {
    np.dtype(np.float32): "#define MADE(drawn) (((drawn) >> 8) * (1.0f / 16777216.0f))\n"
    "typedef float made;\n",
    np.dtype(np.uint32): "#define MADE(drawn) (drawn)\ntypedef unsigned made;\n",
}
"""Conversions of 32 random bits, by dtype."""

_SOURCE = r"""
typedef unsigned __int128 number;
typedef unsigned long long half;

__device__ number joined(half high, half low) { return ((number)high << 64) | low; }

__device__ void jump(number steps, number factor, number term, number* times, number* plus) {
    *times = 1;
    *plus = 0;
    for (; steps; steps >>= 1) {
        if (steps & 1) {
            *times *= factor;
            *plus = *plus * factor + term;
        }
        term *= factor + 1;
        factor *= factor;
    }
}

extern "C" __global__ void fill(made* out, long long count, int left, unsigned first,
                                half state_high, half state_low, half term_high, half term_low) {
    const number factor = joined(2549297995355413924ULL, 4865540595714422341ULL);
    const number term = joined(term_high, term_low);
    const long long thread = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    const long long threads = (long long)gridDim.x * blockDim.x;
    number times, plus, far, further;
    jump(thread + 1, factor, term, &times, &plus);
    jump(threads, factor, term, &far, &further);
    number state = times * joined(state_high, state_low) + plus;
    if (left && thread == 0) out[0] = MADE(first);
    for (long long at = left + 2 * thread; at < count; at += 2 * threads) {
        const half mixed = (half)(state >> 64) ^ (half)state;
        const unsigned turn = (unsigned)(state >> 122);
        const half drawn = (mixed >> turn) | (mixed << ((64 - turn) & 63));
        out[at] = MADE((unsigned)drawn);
        if (at + 1 < count) out[at + 1] = MADE((unsigned)(drawn >> 32));
        state = far * state + further;
    }
}
"""


def fill(rng: Any, xp: Any, *outs: Array) -> None:
    """Fill the C-ordered ``outs`` of ``xp``, one after the other.

    float32 arrays get the numbers of ``rng.random``, uint32 arrays those of ``rng.integers`` over
    all 32 bits, and ``rng`` advances equally. If the generator is not `PCG64`, or CUDA compiles no
    kernels, numbers are drawn on the host.
    """
    bits: Any = getattr(rng, "bit_generator", None)
    arrays: Any = [out for out in outs if out.size]
    if type(bits) is not np.random.PCG64 or not compiles_for_cuda(xp):
        for array in arrays:
            array.set(_on_host(rng, array))
        return
    with bits.lock:
        state: Any = bits.state
        for array in arrays:
            _drawn_into(array, state)
        bits.state = state


def words(rng: Any, shape: Shape, xp: Any) -> Array:
    """Return the numbers of ``rng.integers(0, 1 << 16, shape, np.uint16)`` on the device."""
    count = prod(shape)
    both = xp.empty(-(-count // 2), np.uint32)
    fill(rng, xp, both)
    halves: Array = xp.empty((both.size, 2), np.uint16)
    halves[:, 0], halves[:, 1] = both & 0xFFFF, both >> 16
    return halves.reshape(-1)[:count].reshape(shape)


def _on_host(rng: Any, like: Array) -> Array:
    made: Array = (
        rng.random(like.shape, np.float32)
        if like.dtype == np.float32
        else rng.integers(0, 1 << 32, like.shape, np.uint32)
    )
    return made


def _drawn_into(array: Any, state: Any) -> None:
    """Fill ``array`` from ``state``, and advance the state."""
    left = state["has_uint32"]
    pairs, rest = divmod(array.size - left, 2)
    now, term = state["state"]["state"], state["state"]["inc"]
    blocks = max(1, -(-(pairs + rest) // (_THREADS * _PAIRS)))
    numbers = np.int32(left), np.uint32(state["uinteger"]), *_halves(now), *_halves(term)
    _kernel(array.dtype)((blocks,), (_THREADS,), (array, np.int64(array.size), *numbers))
    if pairs + rest:
        times, plus = _jump(pairs + rest, term)
        state["state"]["state"] = now = (times * now + plus) & _ALL
        state["uinteger"] = _drawn(now) >> 32
    state["has_uint32"] = rest


@lru_cache(maxsize=1024)
def _jump(steps: int, term: int) -> tuple[int, int]:
    """Return the factor and the term that advance a state by ``steps``."""
    times, plus, factor = 1, 0, _FACTOR
    while steps:
        if steps & 1:
            times, plus = times * factor & _ALL, plus * factor + term & _ALL
        term, factor = term * (factor + 1) & _ALL, factor * factor & _ALL
        steps >>= 1
    return times, plus


def _drawn(state: int) -> int:
    """Return the 64 bits that ``state`` gives."""
    mixed, turn = (state >> 64) ^ (state & _HALF), state >> 122
    return (mixed >> turn | mixed << (64 - turn)) & _HALF


def _halves(number: int) -> tuple[Any, Any]:
    return np.uint64(number >> 64), np.uint64(number & _HALF)


@cache
def _kernel(made: np.dtype[Any]) -> Any:
    import cupy

    return cupy.RawKernel(_MADE[made] + _SOURCE, "fill", options=("--device-int128",))
