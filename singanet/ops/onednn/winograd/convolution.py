"""3×3 convolutions with many channels by Winograd's transforms."""

from __future__ import annotations

from functools import lru_cache
from math import prod

import numpy as np

from singanet.ops import winograd as wg
from singanet.ops.onednn.base import OneDnnBase
from singanet.ops.onednn.builder import Builder
from singanet.ops.onednn.cases import Case
from singanet.ops.onednn.winograd.plan import POINTS, Area, Stage, WinogradPlan, in_steps
from singanet.ops.onednn.winograd.products import (
    enter_kernels,
    leave_kernels,
    most_scratch,
    products,
)
from singanet.ops.onednn.winograd.tiles import Tiles
from singanet.ops.window import Window
from singanet.types import Array, Shape

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
    ops: OneDnnBase, x: Array, weight: Array, bias: Array | None, window: Window, groups: int = 1
) -> Array | None:
    """See `Ops.conv2d`."""
    tiles = expect_tiles(ops, Case("forward", x.shape, weight.shape, window, groups))
    y: Array = ops.xp.empty((tiles.n, *tiles.out), np.float32)
    given = ops.channels_last(x), ops.ordered(weight)
    if not ops.runs(forward_plan, (tiles, False), y, *given, passes=POINTS):
        return None
    if bias is not None:
        ops.xp.add(y, bias, out=y)
    return y.transpose(0, 3, 1, 2)


def data(
    ops: OneDnnBase, dy: Array, weight: Array, x_shape: Shape, window: Window, groups: int = 1
) -> Array | None:
    """See `Ops.conv2d_backward_data`."""
    tiles = expect_tiles(ops, Case("data", x_shape, weight.shape, window, groups))
    dx: Array = ops.xp.empty((tiles.n, *tiles.out), np.float32)
    given = ops.channels_last(dy), ops.ordered(weight)
    done = ops.runs(forward_plan, (tiles, True), dx, *given, passes=POINTS)
    return dx.transpose(0, 3, 1, 2) if done else None


def weights(
    ops: OneDnnBase, x: Array, dy: Array, weight_shape: Shape, window: Window, groups: int = 1
) -> Array | None:
    """See `Ops.conv2d_backward_weights`."""
    tiles = expect_tiles(ops, Case("weights", x.shape, weight_shape, window, groups))
    dw: Array = ops.xp.empty(weight_shape, np.float32)
    images, slopes = ops.channels_last(x), ops.channels_last(dy)
    done = ops.runs(_backward_weights, (tiles,), slopes, images, dw, passes=POINTS)
    return dw if done else None


def fits(ops: OneDnnBase, case: Case) -> bool:
    """Whether the convolution is one for tiles."""
    return tiles_of(case, ops.threads) is not None


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
    if not plain or case.groups > 1 or not all(0 <= pad <= 2 for pad in pads):
        return None
    oh, ow = window.out_size(h, w)
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


def forward_plan(build: Builder, tiles: Tiles, back: bool) -> WinogradPlan:
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
    return WinogradPlan(
        build.side_by_side, lay, {**tiles.buffers(), "product": scratch}, 3, 0, tiles.workers
    )


def _backward_weights(build: Builder, tiles: Tiles) -> WinogradPlan:
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
    return WinogradPlan(
        build.side_by_side, lay, {**tiles.buffers(), "product": scratch}, 3, 2, tiles.workers
    )
