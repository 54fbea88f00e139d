"""Copies between host and device, and draws on a device.

Each thread begins some steps on (O'Neill 2014, after Brown 1994), and goes on in strides.
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
    """Copies to and from arrays of ``xp`` by pinned host memory, on a stream of their own.

    A copy begins when the computations that were started before, in the stream that is current
    now, are done with what it touches, and is done when it returns. ``scope()`` is where arrays
    of the device are made. One thread uses it at a time.
    """

    def __init__(self, xp: Any, scope: Callable[[], AbstractContextManager[Any]]) -> None:
        self._xp, self._scope = xp, scope
        self._staging: Array = np.empty(0, np.uint8)
        with scope():
            self._stream = xp.cuda.Stream(non_blocking=True)
            self._computing = xp.cuda.get_current_stream()

    def new(self, shape: Shape, dtype: np.dtype[Any]) -> Array:
        """An array of the device, not filled."""
        with self._copying():
            made: Array = self._xp.empty(shape, dtype)
        return made

    def staged(self, array: Array) -> Array:
        """Host memory of the form of ``array``; it is the same for all."""
        if self._staging.nbytes < array.nbytes:
            pinned = self._xp.cuda.alloc_pinned_memory(array.nbytes)
            self._staging = np.frombuffer(pinned, np.uint8)
        return self._staging[: array.nbytes].view(array.dtype).reshape(array.shape)

    def send(self, array: Array) -> None:
        """Fill ``array`` with what is `staged` for it."""
        with self._copying():
            array.set(self.staged(array))  # type: ignore[attr-defined]

    def fetch(self, array: Array) -> Array:
        """What is in ``array``, `staged`."""
        found = self.staged(array)
        with self._copying():
            array.get(out=found)  # type: ignore[attr-defined]
        return found

    @contextmanager
    def _copying(self) -> Iterator[None]:
        with self._scope():
            # Who computes has let go of an array before it is read into or freed, not before the
            # kernels that it started are done with it.
            self._stream.wait_event(self._computing.record())
            with self._stream:
                yield
            self._stream.synchronize()


def compiles_for_cuda(xp: Any) -> bool:
    """Whether ``xp`` compiles kernels for CUDA, whose libraries take the addresses of its arrays.

    CuPy does.
    """
    return hasattr(xp, "RawKernel")


_THREADS = 256
_PAIRS = 8
"""Pairs of numbers that a thread draws, which finds its first one by some thirty products."""

_HALF, _ALL = (1 << 64) - 1, (1 << 128) - 1
_FACTOR = 2549297995355413924 << 64 | 4865540595714422341

_MADE = {
    np.dtype(np.float32): "#define MADE(drawn) (((drawn) >> 8) * (1.0f / 16777216.0f))\n"
    "typedef float made;\n",
    np.dtype(np.uint32): "#define MADE(drawn) (drawn)\ntypedef unsigned made;\n",
}
"""What is made of 32 bits that are drawn, by its type."""

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

    Those of float32 are filled as ``rng.random`` would, those of uint32 as ``rng.integers`` with
    numbers of all 32 bits; ``rng`` is left where these would leave it. One that is not of `PCG64`
    draws on the host, and so does any where CUDA compiles no kernels.
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
    """What ``rng.integers(0, 1 << 16, shape, np.uint16)`` draws, as an array of ``xp``."""
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
    """Fill ``array`` from ``state``, which moves on."""
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
    """What so many ``steps`` multiply a state by, and add to it."""
    times, plus, factor = 1, 0, _FACTOR
    while steps:
        if steps & 1:
            times, plus = times * factor & _ALL, plus * factor + term & _ALL
        term, factor = term * (factor + 1) & _ALL, factor * factor & _ALL
        steps >>= 1
    return times, plus


def _drawn(state: int) -> int:
    """The 64 bits that are drawn in ``state``."""
    mixed, turn = (state >> 64) ^ (state & _HALF), state >> 122
    return (mixed >> turn | mixed << (64 - turn)) & _HALF


def _halves(number: int) -> tuple[Any, Any]:
    return np.uint64(number >> 64), np.uint64(number & _HALF)


@cache
def _kernel(made: np.dtype[Any]) -> Any:
    import cupy

    return cupy.RawKernel(_MADE[made] + _SOURCE, "fill", options=("--device-int128",))
