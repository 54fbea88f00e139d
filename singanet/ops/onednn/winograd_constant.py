"""Winograd's convolution with kernels that were transformed beforehand, and what follows it."""

from __future__ import annotations

from functools import partial
from itertools import count
from math import prod

import numpy as np

from singanet.ops.onednn import winograd as wg
from singanet.ops.onednn.builder import Builder
from singanet.ops.onednn.winograd_plan import POINTS, Area, Stage, WinogradPlan
from singanet.ops.onednn.winograd_products import enter_kernels, most_scratch, products
from singanet.ops.onednn.winograd_tiles import Tiles
from singanet.ops.workers import Work
from singanet.types import Array

_ZERO = np.float32(0)


def enter(build: Builder, kernels: int) -> WinogradPlan:
    """Operands: the 36 values of each of the ``kernels``, and the kernels."""
    matrix, plan = wg.of_kernels(False), build.apart(enter_kernels, kernels, kernels)

    def lay(areas: list[Area]) -> list[Stage]:
        values, taps = areas[0].operand(0, POINTS, kernels), areas[0].operand(1, kernels, 9)
        return [[[areas[0].product(plan, values, matrix, taps)]]]

    return WinogradPlan(lay, {"product": plan.scratch}, 2, 0, 1)


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
        kernels, number = areas[0].operand(2, POINTS, c * f), count(3)
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
    return WinogradPlan(lay, {**buffers, "product": scratch}, operands, 0, tiles.workers)


def _after(y: Array, bias: Array | None, other: Array | None, relu: bool) -> list[Work]:
    """The sums and the relu, while the outputs ``y`` of a block are in the cache."""
    work: list[Work] = [
        partial(np.add, y, given, out=y) for given in (bias, other) if given is not None
    ]
    return [*work, partial(np.maximum, y, _ZERO, out=y)] if relu else work
