"""Winograd's convolution with kernels that were transformed beforehand, and what follows it."""

from __future__ import annotations

import itertools
from functools import partial
from math import prod

import numpy as np

from singanet.ops import winograd as wg
from singanet.ops.onednn.base import OneDnnBase
from singanet.ops.onednn.builder import Builder
from singanet.ops.onednn.cases import Case
from singanet.ops.onednn.winograd.convolution import READ, expect_tiles
from singanet.ops.onednn.winograd.plan import POINTS, Area, Stage, WinogradPlan
from singanet.ops.onednn.winograd.products import enter_kernels, most_scratch, products
from singanet.ops.onednn.winograd.tiles import Tiles
from singanet.ops.window import Window
from singanet.types import Array, Work

_ZERO = np.float32(0)

_HANDOVER = 100_000
"""Nanoseconds to hand work to another thread and to wait for it."""

_GAIN = 1.13
"""How much faster the estimate has to be."""


def constant(
    ops: OneDnnBase,
    x: Array,
    weight: Array,
    bias: Array | None,
    window: Window,
    groups: int = 1,
    relu: bool = False,
    add: Array | None = None,
) -> Array | None:
    """See `Ops.conv2d_constant`."""
    tiles = expect_tiles(ops, Case("constant", x.shape, weight.shape, window, groups))
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


def estimate(ops: OneDnnBase, case: Case) -> float:
    """As a multiple of the direct route; kernels, read four times as large, count too."""
    tiles = expect_tiles(ops, case)
    c, f = tiles.image[2], tiles.out[2]
    count = tiles.n * prod(tiles.grid)
    speeds, (height, width, _) = ops.speeds(), tiles.out
    # oneDNN shares out single images too.
    direct = speeds.direct_time(tiles.n, height * width, 9 * c * f, arranged=True) / ops.threads
    multiplied = speeds.products * POINTS * count * c * f
    transforms = POINTS * speeds.value * count * (c + f) / 2
    handed = _HANDOVER * (tiles.workers - 1)
    read = POINTS * READ * speeds.kernel * c * f * tiles.blocks_each
    taken = (multiplied + transforms) / tiles.workers + read + handed
    return _GAIN * taken / direct


def enter(build: Builder, kernels: int) -> WinogradPlan:
    """Operands: the 36 values of each of the ``kernels``, and the kernels."""
    matrix, plan = wg.of_kernels(False), build.apart(enter_kernels, kernels, kernels)

    def lay(areas: list[Area]) -> list[Stage]:
        values, taps = areas[0].operand(0, POINTS, kernels), areas[0].operand(1, kernels, 9)
        return [[[areas[0].product(plan, values, matrix, taps)]]]

    return WinogradPlan(build.side_by_side, lay, {"product": plan.scratch}, 2, 0, 1)


def forward_entered(
    build: Builder, tiles: Tiles, bias: bool, relu: bool, add: bool
) -> WinogradPlan:
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
    return WinogradPlan(
        build.side_by_side, lay, {**buffers, "product": scratch}, operands, 0, tiles.workers
    )


def _after(y: Array, bias: Array | None, other: Array | None, relu: bool) -> list[Work]:
    """The sums and the relu, while the outputs ``y`` of a block are in the cache."""
    work: list[Work] = [
        partial(np.add, y, given, out=y) for given in (bias, other) if given is not None
    ]
    return [*work, partial(np.maximum, y, _ZERO, out=y)] if relu else work
