"""Measure the speeds of this processor, by a few kernels of some milliseconds each.

One thread's processor time is measured, so other processes count little. Each speed is a kernel's
time minus the time that the speeds before it explain.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from math import prod

import numpy as np

from singanet.base.heap import large_arrays_apart, once_in_a_process, trim
from singanet.ops.casts import has_compiler
from singanet.ops.costs import BUILT_IN, Case, Speeds
from singanet.ops.llvm import winograd as llvm_tiles
from singanet.ops.llvm.plans import SHARED, Build
from singanet.ops.onednn.conv.direct import Shapes, forward_plan
from singanet.ops.onednn.library import Library
from singanet.ops.onednn.products import product
from singanet.ops.onednn.runtime import Runtime
from singanet.ops.threads import cores
from singanet.ops.window import Window
from singanet.types import Array

Run = Callable[[], object]

_ROUNDS = 12
_WINDOW = Window((3, 3), (1, 1), ((1, 1), (1, 1)))
_TAPS = 9

_IMAGES, _SIZE, _CHANNELS, _LARGE = 4, 28, 64, 384
"""Images, their sides and channels in the usual kernel; channels of a large weight.

That weight takes 5 MB, more than a core's own cache, and no more: a small memory budget allows it.
"""

_ROWS, _FEW, _WIDTH, _PAIRS = 256, 64, 128, 100
"""Rows of a large and of a small product, the small one's width, and its repetitions."""

_FURTHEST = 16.0
"""The largest ratio between measured and built-in speeds; beyond it the clock is unreliable."""


def measured(library: Library) -> Speeds:
    """Return the measured speeds, in half a second or so; the built-in ones if implausible."""
    from concurrent.futures import ThreadPoolExecutor

    # A thread of its own, since OpenMP has a thread count for each.
    with once_in_a_process():
        with large_arrays_apart(), ThreadPoolExecutor(1) as executor:
            found = executor.submit(_measured, library).result()
        trim()
    return found


def _measured(library: Library) -> Speeds:
    runtime, narrowed = Runtime(library, 1), Runtime(library, 1, library.bfloat16)
    memory = _KernelMemory()
    compiles = has_compiler()
    taken = _least(
        {
            "direct": _direct(runtime, memory, _IMAGES, _SIZE, _CHANNELS),
            # One image, and five, with a weight larger than a core's cache.
            "one": _direct(runtime, memory, 1, 2, _LARGE),
            "five": _direct(runtime, memory, 5, 2, _LARGE),
            "narrow": _product(narrowed, memory, _ROWS, _LARGE),
            "narrow direct": _direct(narrowed, memory, _IMAGES, _SIZE, _CHANNELS),
            **(_compiled(runtime, memory) if compiles else {}),
        }
    )
    one, five = (taken[name] / (_TAPS * _LARGE**2) for name in ("one", "five"))
    usual_products = _TAPS * _IMAGES * _SIZE**2 * _CHANNELS**2
    direct, narrow_direct = (taken[name] / usual_products for name in ("direct", "narrow direct"))
    distant = (five - one) / 4
    tile_value, tile_kernel = BUILT_IN.tile_value, BUILT_IN.tile_kernel
    if compiles:
        tiles = _usual_tiles()
        tile_kernel = taken["entered"] / (tiles.points * _CHANNELS**2)
        values = tiles.points * tiles.tiles * _CHANNELS
        explained = values * direct * _CHANNELS + taken["entered"]
        tile_value = (taken["compiled"] - explained) / (2 * values)
    narrow = taken["narrow"] / (_ROWS * _LARGE**2)
    shared = _sharing(library, memory) if cores() > 1 else BUILT_IN.shared
    beyond, tile = max(distant - 4 * direct, 0.0), (tile_value, tile_kernel)
    found = Speeds(direct, one - distant, beyond, narrow, narrow_direct, *tile, shared)
    pairs = zip(found, BUILT_IN, strict=True)
    sound = all(known / _FURTHEST < mine < known * _FURTHEST for mine, known in pairs if known)
    return found if sound else BUILT_IN


def _least(runs: Mapping[str, Run]) -> dict[str, float]:
    """Return the least nanoseconds of each; rounds interleave them, to share slow moments."""
    taken = {name: float("inf") for name in runs}
    for first in (True, *[False] * _ROUNDS):
        for name, run in runs.items():
            start = time.thread_time_ns()
            run()
            if not first:
                taken[name] = min(taken[name], time.thread_time_ns() - start)
    return taken


def _sharing(library: Library, memory: _KernelMemory) -> float:
    """Measure `Speeds.shared` with a small product on one and on two threads."""
    one, two = (_product(Runtime(library, threads), memory, _FEW, _WIDTH) for threads in (1, 2))
    taken = [float("inf")] * 2
    for _ in range(_PAIRS):
        for k, run in enumerate((one, two)):
            start = time.perf_counter_ns()
            run()
            taken[k] = min(taken[k], time.perf_counter_ns() - start)
    least, most = BUILT_IN.shared / _FURTHEST, BUILT_IN.shared * _FURTHEST
    # On a busy machine a quiet moment is hard to find.
    return min(max(taken[1] - taken[0] / 2, 1.01 * least), 0.99 * most)


class _KernelMemory:
    """Shared operands of all kernels: each array starts at the same address."""

    def __init__(self) -> None:
        # Not zeros, which some processors multiply faster.
        self._read = np.full(_TAPS * _LARGE**2, 0.001, np.float32)
        self._written = np.empty(_TAPS * _IMAGES * _SIZE**2 * _CHANNELS, np.float32)

    def read(self, *shape: int) -> Array:
        return self._read[: prod(shape)].reshape(shape)

    def written(self, *shape: int) -> Array:
        return self._written[: prod(shape)].reshape(shape)


def _product(runtime: Runtime, memory: _KernelMemory, rows: int, width: int) -> Run:
    x, weight, y = memory.read(rows, width), memory.read(width, width), memory.written(rows, width)
    key = (rows, width, width, False, False, False)
    return _run(runtime, product, key, y, x, weight, work=SHARED)


def _direct(runtime: Runtime, memory: _KernelMemory, n: int, size: int, channels: int) -> Run:
    x, y, weight = _operands(memory, n, size, channels)
    key = (Shapes(x.shape, x.shape, _WINDOW),)
    return _run(runtime, forward_plan, key, x, y, weight)


def _compiled(runtime: Runtime, memory: _KernelMemory) -> dict[str, Run]:
    """Return the runs of the usual kernel in compiled tiles, and of its weight's transform."""
    x, y, weight = _operands(memory, _IMAGES, _SIZE, _CHANNELS)
    tiles = _usual_tiles()
    entered = memory.written(tiles.entered)
    return {
        "compiled": _run(runtime, llvm_tiles.forward_plan, (tiles, False, False), y, x, weight),
        "entered": _run(runtime, llvm_tiles.enter_plan, (tiles,), entered, weight),
    }


def _usual_tiles() -> llvm_tiles.Geometry:
    shapes = (_IMAGES, _CHANNELS, _SIZE, _SIZE), (_CHANNELS, _CHANNELS, 3, 3)
    tiles = llvm_tiles.geometry_of(Case("forward", *shapes, _WINDOW))
    assert tiles is not None
    return tiles


def _operands(
    memory: _KernelMemory, n: int, size: int, channels: int
) -> tuple[Array, Array, Array]:
    shape = (n, size, size, channels)
    return memory.read(*shape), memory.written(*shape), memory.read(channels, channels, 3, 3)


def _run(
    runtime: Runtime, build: Build, key: tuple[object, ...], *arrays: Array, work: int = 0
) -> Run:
    plan = runtime.built(build, key, work)
    assert plan is not None
    return partial(runtime.run, plan, arrays)
