"""Winograd convolution by NumPy's transforms around oneDNN's products, where LLVM is missing."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np

from singanet.ops import window as wg
from singanet.ops.casts import has_compiler
from singanet.ops.costs import Case
from singanet.ops.llvm.plans import Area, Stage, StagedPlan
from singanet.ops.onednn.base import OneDnnBase
from singanet.ops.onednn.binding import Arg
from singanet.ops.onednn.builder import Builder, KernelPlan
from singanet.ops.window import Window
from singanet.types import Array, Shape, Work

POINTS = wg.SPAN * wg.SPAN


def in_steps(steps: Sequence[wg.Step]) -> Work:
    """The steps as one piece of work."""

    def run() -> None:
        for function, a, b, out in steps:
            function(a, b, out)

    return run


def filled(target: Array, source: Array, top: int, left: int) -> list[Work]:
    """Copy images into larger ones from (top, left) on, with zeros around them."""
    h, w = source.shape[1:3]
    inside = target[:, top : top + h]
    borders = [target[:, :top], target[:, top + h :], inside[:, :, :left], inside[:, :, left + w :]]
    work = [_copy(border, np.float32(0)) for border in borders if border.size]
    return [*work, _copy(inside[:, :, left : left + w], source)]


def _copy(target: Array, source: Any) -> Work:
    return lambda: np.copyto(target, source)


_TAPS = 9


def products(
    build: Builder, rows: int, inner: int, cols: int, turned: tuple[bool, bool], adds: bool
) -> None:
    """36 products at once; ``turned`` tells which operands lie turned in memory."""
    sizes = (POINTS, rows, inner), (POINTS, inner, cols)
    memory = []
    for (g, m, k), swap in zip(sizes, turned, strict=True):
        memory.append(build.strided((g, m, k), (m * k, 1, m) if swap else (m * k, k, 1)))
    y = build.rows((POINTS, rows, cols))
    attributes = build.post_ops(add=adds)
    desc = build.primitive_desc("matmul", *memory, None, y, attributes=attributes)
    memories = build.operands((Arg.DST, Arg.SRC, Arg.WEIGHTS), [y, *memory])
    build.stage(desc, memories, adds_to=(Arg.DST,) if adds else ())


def enter_kernels(build: Builder, count: int, every: int) -> None:
    """(36, 9) times (9, count) of kernels (count, 9), into a band of (36, every)."""
    y, a = build.strided((POINTS, count), (every, 1)), build.rows((POINTS, _TAPS))
    _product(build, y, a, build.strided((_TAPS, count), (1, _TAPS)))


def leave_kernels(build: Builder, count: int, every: int) -> None:
    """(count, 36) of a band of (36, every) times (36, 9), into kernels (count, 9)."""
    y, a = build.rows((count, _TAPS)), build.strided((count, POINTS), (1, every))
    _product(build, y, a, build.rows((POINTS, _TAPS)))


def _product(build: Builder, y: object, a: object, b: object) -> None:
    desc = build.primitive_desc("matmul", a, b, None, y, slow=True)
    build.stage(desc, build.operands((Arg.DST, Arg.SRC, Arg.WEIGHTS), [y, a, b]))


def most_scratch(plans: Iterable[KernelPlan]) -> int:
    """The working memory of the hungriest."""
    return max(plan.scratch for plan in plans)


_BLOCK_BYTES = 1 << 21
"""Of the 36 values of a block of samples; what is made of them is read while it is cached."""

_KERNELS_TO_BLOCK = 4
"""A block has at least this part of what the kernels' values have, which each block reads anew."""

T, S = wg.TILE, wg.SPAN


class Tiles(NamedTuple):
    """``n`` images (h, w, c) whose 3×3 windows, after ``pads`` above and left, give (oh, ow, f).

    Blocks of samples are shared among ``workers``, of which each gets one at least.
    """

    n: int
    image: tuple[int, int, int]
    out: tuple[int, int, int]
    pads: tuple[int, int]
    workers: int

    @property
    def grid(self) -> tuple[int, int]:
        """Tiles along both axes."""
        return -(-self.out[0] // T), -(-self.out[1] // T)

    @property
    def step(self) -> int:
        """Samples in a block, the same in all of a worker's but for the last."""
        return -(-self._share // self.blocks_each)

    @property
    def blocks_each(self) -> int:
        """Blocks of a worker."""
        c, f = self.image[2], self.out[2]
        values = POINTS * prod(self.grid) * max(c, f) * 4
        most = max(_BLOCK_BYTES, POINTS * c * f * 4 // _KERNELS_TO_BLOCK)
        return -(-self._share // max(1, most // values))

    @property
    def _share(self) -> int:
        """Samples of a worker."""
        return -(-self.n // self.workers)

    @property
    def whole(self) -> bool:
        """Whether tiles cover the outputs and nothing more."""
        return self.out[0] % T == 0 == self.out[1] % T

    def blocks(self) -> list[list[tuple[int, int]]]:
        """For each worker the first sample and the number of samples of each of its blocks."""
        step = self.step
        every = [(first, min(step, self.n - first)) for first in range(0, self.n, step)]
        return [every[k :: self.workers] for k in range(self.workers)]

    def bands(self) -> list[tuple[int, int]]:
        """For each worker its part of the kernels, from the first on to before the last."""
        every, k = self.image[2] * self.out[2], self.workers
        edges = [every * part // k for part in range(k + 1)]
        return list(pairwise(edges))

    def buffers(self) -> dict[str, int]:
        """Bytes of working memory for a block, by name."""
        (th, tw), k, c, f = self.grid, self.step * 4, self.image[2], self.out[2]
        height, width = T * th + 2, T * tw + 2
        return {
            "padded": k * height * width * c,
            "rows": S * k * th * width * c,
            "values": POINTS * k * th * tw * c,
            "slopes": POINTS * k * th * tw * f,
            "outs": S * T * k * th * tw * f,
            "full": 0 if self.whole else k * th * tw * T * T * f,
            "first": k * max(S * th * tw * max(c, f), th * width * c),
            "second": k * max(S * th * tw * max(c, f), th * width * c),
            "kernels": POINTS * 4 * c * f,
        }

    def values(self, area: Area, x: Array) -> tuple[Array, list[Work]]:
        """(36, tiles, c) of the images ``x``, and what fills it."""
        count, (th, tw), c = len(x), self.grid, self.image[2]
        height, width = T * th + 2, T * tw + 2
        padded = area.buffer("padded", count, height, width, c)
        rows = area.buffer("rows", S, count, th, width, c)
        values = area.buffer("values", S, S, count, th, tw, c)
        down = [padded[:, i : i + T * th - 3 : T] for i in range(S)]
        work = filled(padded, x, *self.pads)
        spare = [area.buffer(name, count, th, width, c) for name in ("first", "second")]
        work.append(in_steps(wg.of_inputs(down, list(rows), spare)))
        across = [rows[:, :, :, j : j + T * tw - 3 : T] for j in range(S)]
        spare = [area.buffer(name, S, count, th, tw, c) for name in ("first", "second")]
        work.append(in_steps(wg.of_inputs(across, [values[:, j] for j in range(S)], spare)))
        return values.reshape(POINTS, -1, c), work

    def outputs(self, area: Area, y: Array) -> tuple[Array, list[Work]]:
        """(36, tiles, f), and what makes the outputs ``y`` of it."""
        (count, oh, ow, f), (th, tw) = y.shape, self.grid
        sums = area.buffer("slopes", S, S, count, th, tw, f)
        outs = area.buffer("outs", T, S, count, th, tw, f)
        spare = [area.buffer(name, S, count, th, tw, f) for name in ("first", "second")]
        work = [in_steps(wg.to_outputs(list(sums), list(outs), spare))]
        full = y if self.whole else area.buffer("full", count, T * th, T * tw, f)
        tiled = full.reshape(count, th, T, tw, T, f).transpose(4, 2, 0, 1, 3, 5)
        spare = [part[:T] for part in spare]
        across = [outs[:, j] for j in range(S)]
        work.append(in_steps(wg.to_outputs(across, list(tiled), spare)))
        if not self.whole:
            work += filled(y, full[:, :oh, :ow], 0, 0)
        return sums.reshape(POINTS, -1, f), work

    def slopes(self, area: Area, dy: Array) -> tuple[Array, list[Work]]:
        """(36, tiles, f) of the gradients ``dy`` of outputs, and what fills it."""
        count, (th, tw), f = len(dy), self.grid, self.out[2]
        work: list[Work] = []
        full = dy
        if not self.whole:
            full = area.buffer("full", count, T * th, T * tw, f)
            work += filled(full, dy, 0, 0)
        tiled = full.reshape(count, th, T, tw, T, f).transpose(2, 4, 0, 1, 3, 5)
        rows = area.buffer("outs", S, T, count, th, tw, f)
        spare = [area.buffer(name, T, count, th, tw, f) for name in ("first", "second")]
        work.append(in_steps(wg.of_slopes(list(tiled), list(rows), spare)))
        values = area.buffer("slopes", S, S, count, th, tw, f)
        spare = [area.buffer(name, S, count, th, tw, f) for name in ("first", "second")]
        down = [rows[:, j] for j in range(T)]
        work.append(in_steps(wg.of_slopes(down, [values[:, j] for j in range(S)], spare)))
        return values.reshape(POINTS, -1, f), work


_MANY = 1 << 17
"""Kernels whose values, 19 MB, are too many for what cores share: reading them counts twice.

Gradients of kernels do not read them. Where cores share more the estimate is too high by a part
that decides nothing: such weights go by blocks of channels, which are as fast.
"""

READ = 0.5
"""The part of a kernel's time that it takes to read it, once for each block of samples."""

_HANDOVER = 200_000
"""Nanoseconds to hand work to another thread and to wait for it, both stages together.

It is the system's to wake a thread; processors differ little in it.
"""

_GAIN = 1.02
"""How much faster the estimate has to be."""


def forward(
    ops: OneDnnBase, x: Array, weight: Array, bias: Array | None, window: Window
) -> Array | None:
    tiles = expect_tiles(ops, Case("forward", x.shape, weight.shape, window))
    y: Array = ops.xp.empty((tiles.n, *tiles.out), np.float32)
    given = ops.channels_last(x), ops.ordered(weight)
    if not ops.runs(forward_plan, (tiles, False), y, *given, passes=POINTS):
        return None
    if bias is not None:
        ops.xp.add(y, bias, out=y)
    return y.transpose(0, 3, 1, 2)


def data(ops: OneDnnBase, dy: Array, weight: Array, x_shape: Shape, window: Window) -> Array | None:
    tiles = expect_tiles(ops, Case("data", x_shape, weight.shape, window))
    dx: Array = ops.xp.empty((tiles.n, *tiles.out), np.float32)
    given = ops.channels_last(dy), ops.ordered(weight)
    done = ops.runs(forward_plan, (tiles, True), dx, *given, passes=POINTS)
    return dx.transpose(0, 3, 1, 2) if done else None


def weights(
    ops: OneDnnBase, x: Array, dy: Array, weight_shape: Shape, window: Window
) -> Array | None:
    tiles = expect_tiles(ops, Case("weights", x.shape, weight_shape, window))
    dw: Array = ops.xp.empty(weight_shape, np.float32)
    images, slopes = ops.channels_last(x), ops.channels_last(dy)
    done = ops.runs(_backward_weights, (tiles,), slopes, images, dw, passes=POINTS)
    return dw if done else None


def fits(ops: OneDnnBase, case: Case) -> bool:
    """Whether the convolution is one for tiles, and there is no compiler, whose are faster.

    benchmarks/route_left_out.py.
    """
    return not has_compiler() and tiles_of(case, ops.threads) is not None


def expect_tiles(ops: OneDnnBase, case: Case) -> Tiles:
    """The tiles of a convolution that `fits`."""
    tiles = tiles_of(case, ops.threads)
    assert tiles is not None
    return tiles


@lru_cache(maxsize=1024)
def tiles_of(case: Case, threads: int) -> Tiles | None:
    """The tiles of the convolution; None if it is not a plain 3×3 one."""
    window, (n, c, h, w), f = case.window, case.x, case.weight[0]
    pads = (*window.pads[0], *window.pads[1])
    plain = window.kernel == (3, 3) and window.stride == (1, 1) == window.dilation
    if not plain or case.window.groups > 1 or not all(0 <= pad <= 2 for pad in pads):
        return None
    oh, ow = window._out_size(h, w)
    if min(n, c, h, w, oh, ow, f) < 1:
        return None
    # As many as have samples, where each but the last has the same number.
    share, (top, _, left, _) = -(-n // min(threads, n)), pads
    workers = -(-n // share)
    if case.kernel == "data":
        # A convolution of the outputs' gradients with the kernels turned around.
        return Tiles(n, (oh, ow, f), (h, w, c), (2 - top, 2 - left), workers)
    return Tiles(n, (h, w, c), (oh, ow, f), (top, left), workers)


def estimate(ops: OneDnnBase, case: Case) -> float:
    """From the sizes, as a multiple of what the direct route takes."""
    tiles, threads = expect_tiles(ops, case), ops.threads
    c, f = tiles.image[2], tiles.out[2]
    count = tiles.n * prod(tiles.grid)
    speeds = ops.speeds()
    height, width, _ = tiles.out
    direct = speeds.direct_time(tiles.n, height * width, 9 * c * f) / threads
    multiplied = speeds.products * POINTS * count * c * f
    transforms = POINTS * speeds.value * count * (c + f) / 2
    often = 2.0 if c * f >= _MANY and case.kernel != "weights" else 1.0
    reads = often + READ * (tiles.blocks_each - 1)
    kernels = POINTS * reads * speeds.kernel * c * f
    handed = _HANDOVER * (tiles.workers - 1)
    taken = (multiplied + transforms + kernels) / tiles.workers + handed
    return _GAIN * taken / direct


def forward_plan(build: Builder, tiles: Tiles, back: bool) -> StagedPlan:
    """Operands: the outputs, the images, the kernels; ``back`` turns the kernels around."""
    c, f = tiles.image[2], tiles.out[2]
    matrix, grid = wg.of_kernels(back), prod(tiles.grid)
    # The values of the kernels lie as (outputs, inputs) of the forward convolution.
    shares, bands = tiles.blocks(), tiles.bands()
    sizes = {count for share in shares for _, count in share}
    plans = {k: build.apart(products, k * grid, c, f, (False, not back), False) for k in sizes}
    enter = {k: build.apart(enter_kernels, k, c * f) for k in {b - a for a, b in bands}}

    def lay(areas: list[Area]) -> list[Stage]:
        y, x = areas[0].operand(0, tiles.n, *tiles.out), areas[0].operand(1, tiles.n, *tiles.image)
        taps = areas[0].operand(2, c * f, 9)
        kernels = areas[0].buffer("kernels", POINTS, c * f)
        first_stage: Stage = [
            [area.product(enter[b - a], kernels[:, a:b], matrix, taps[a:b])]
            for area, (a, b) in zip(areas, bands, strict=True)
        ]
        parts: Stage = [[] for _ in shares]
        for area, share, work in zip(areas, shares, parts, strict=True):
            for first, count in share:
                values, fill = tiles.values(area, x[first : first + count])
                sums, drain = tiles.outputs(area, y[first : first + count])
                work += [*fill, area.product(plans[count], sums, values, kernels), *drain]
        return [first_stage, parts]

    scratch = most_scratch([*plans.values(), *enter.values()])
    return StagedPlan(
        build.side_by_side, lay, {**tiles.buffers(), "product": scratch}, 3, 0, tiles.workers
    )


def _backward_weights(build: Builder, tiles: Tiles) -> StagedPlan:
    """Operands: the gradients of the outputs, the images, the gradients of the kernels."""
    c, f = tiles.image[2], tiles.out[2]
    matrix, grid = wg.to_kernels(), prod(tiles.grid)
    shares, bands = tiles.blocks(), tiles.bands()
    keys = {(count, k > 0) for share in shares for k, (_, count) in enumerate(share)}
    plans = {k: build.apart(products, f, k[0] * grid, c, (True, False), k[1]) for k in keys}
    leave = {k: build.apart(leave_kernels, k, c * f) for k in {b - a for a, b in bands}}

    def lay(areas: list[Area]) -> list[Stage]:
        dy, x = areas[0].operand(0, tiles.n, *tiles.out), areas[0].operand(1, tiles.n, *tiles.image)
        taps = areas[0].operand(2, c * f, 9)
        sums = [area.buffer("kernels", POINTS, c * f) for area in areas]
        parts: Stage = [[] for _ in shares]
        for area, share, total, work in zip(areas, shares, sums, parts, strict=True):
            for k, (first, count) in enumerate(share):
                values, fill = tiles.values(area, x[first : first + count])
                slopes, fill_too = tiles.slopes(area, dy[first : first + count])
                plan = plans[count, k > 0]
                work += [*fill, *fill_too, area.product(plan, total, slopes, values)]
        end: Stage = []
        for area, (a, b) in zip(areas, bands, strict=True):
            total = sums[0][:, a:b]
            added = [(np.add, total, part[:, a:b], total) for part in sums[1:]]
            leaves = area.product(leave[b - a], taps[a:b], total, matrix)
            end.append([in_steps(added), leaves])
        return [parts, end]

    scratch = most_scratch([*plans.values(), *leave.values()])
    return StagedPlan(
        build.side_by_side, lay, {**tiles.buffers(), "product": scratch}, 3, 2, tiles.workers
    )


_ZERO = np.float32(0)

_CONSTANT_HANDOVER = 100_000
"""Nanoseconds to hand work to another thread and to wait for it."""

_CONSTANT_GAIN = 1.13
"""How much faster the estimate has to be."""


def constant(
    ops: OneDnnBase,
    x: Array,
    weight: Array,
    bias: Array | None,
    window: Window,
    relu: bool = False,
    add: Array | None = None,
) -> Array | None:
    tiles = expect_tiles(ops, Case("constant", x.shape, weight.shape, window))
    y: Array = ops.xp.empty((tiles.n, *tiles.out), np.float32)
    kernels: Array = ops.xp.empty((POINTS, tiles.image[2] * tiles.out[2]), np.float32)
    rest = [] if bias is None else [ops.ordered(bias)]
    rest += [] if add is None else [ops.channels_last(add)]
    given = ops.channels_last(x), kernels
    key = (tiles, bias is not None, relu, add is not None)
    entered = ops.runs(enter, (kernels.shape[1],), kernels, ops.ordered(weight), passes=0)
    if not entered or not ops.runs(forward_entered, key, y, *given, *rest, passes=POINTS):
        return None
    return y.transpose(0, 3, 1, 2)


def constant_estimate(ops: OneDnnBase, case: Case) -> float:
    """As a multiple of the direct route; kernels, read four times as large, count too."""
    tiles = expect_tiles(ops, case)
    c, f = tiles.image[2], tiles.out[2]
    count = tiles.n * prod(tiles.grid)
    speeds, (height, width, _) = ops.speeds(), tiles.out
    # oneDNN shares out single images too.
    direct = speeds.direct_time(tiles.n, height * width, 9 * c * f, arranged=True) / ops.threads
    multiplied = speeds.products * POINTS * count * c * f
    transforms = POINTS * speeds.value * count * (c + f) / 2
    handed = _CONSTANT_HANDOVER * (tiles.workers - 1)
    read = POINTS * READ * speeds.kernel * c * f * tiles.blocks_each
    taken = (multiplied + transforms) / tiles.workers + read + handed
    return _CONSTANT_GAIN * taken / direct


def enter(build: Builder, kernels: int) -> StagedPlan:
    """Operands: the 36 values of each of the ``kernels``, and the kernels."""
    matrix, plan = wg.of_kernels(False), build.apart(enter_kernels, kernels, kernels)

    def lay(areas: list[Area]) -> list[Stage]:
        values, taps = areas[0].operand(0, POINTS, kernels), areas[0].operand(1, kernels, 9)
        return [[[areas[0].product(plan, values, matrix, taps)]]]

    return StagedPlan(build.side_by_side, lay, {"product": plan.scratch}, 2, 0, 1)


def forward_entered(build: Builder, tiles: Tiles, bias: bool, relu: bool, add: bool) -> StagedPlan:
    """Operands: the outputs, the images, the entered kernels, the bias, what is added."""
    c, f = tiles.image[2], tiles.out[2]
    grid, shares = prod(tiles.grid), tiles.blocks()
    sizes = {number for share in shares for _, number in share}
    plans = {k: build.apart(products, k * grid, c, f, (False, True), False) for k in sizes}

    def lay(areas: list[Area]) -> list[Stage]:
        out = (tiles.n, *tiles.out)
        y, x = areas[0].operand(0, *out), areas[0].operand(1, tiles.n, *tiles.image)
        kernels, number = areas[0].operand(2, POINTS, c * f), itertools.count(3)
        line = areas[0].operand(next(number), f) if bias else None
        other = areas[0].operand(next(number), *out) if add else None
        parts: Stage = [[] for _ in shares]
        for area, share, work in zip(areas, shares, parts, strict=True):
            for first, size in share:
                block = slice(first, first + size)
                values, fill = tiles.values(area, x[block])
                sums, drain = tiles.outputs(area, y[block])
                work += [*fill, area.product(plans[size], sums, values, kernels), *drain]
                beside = None if other is None else other[block]
                work += _after(y[block], line, beside, relu)
        return [parts]

    buffers = {name: size for name, size in tiles.buffers().items() if name != "kernels"}
    scratch = most_scratch(plans.values())
    operands = 3 + bias + add
    return StagedPlan(
        build.side_by_side, lay, {**buffers, "product": scratch}, operands, 0, tiles.workers
    )


def _after(y: Array, bias: Array | None, other: Array | None, relu: bool) -> list[Work]:
    """The sums and the relu, while the outputs ``y`` of a block are in the cache."""
    work: list[Work] = [
        partial(np.add, y, given, out=y) for given in (bias, other) if given is not None
    ]
    return [*work, partial(np.maximum, y, _ZERO, out=y)] if relu else work
