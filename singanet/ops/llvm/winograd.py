"""Compute 3×3 and 5×5 convolutions by Winograd's transforms in compiled functions.

Blocks of tiles stay in the cache from images to outputs, so they also pay for few channels. Sums
are split by sizes alone: results do not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache, partial
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from singanet.ops import window as wg
from singanet.ops.casts import has_compiler
from singanet.ops.compiled.calls import NativeCall, compiled_call
from singanet.ops.compiled.sizes import LANES, TILE_GROUP
from singanet.ops.costs import Case, cache_size
from singanet.ops.kernel import Route
from singanet.ops.llvm.base import PlannedOps
from singanet.ops.llvm.plans import Area, Crew, Stage, StagedPlan
from singanet.ops.window import Window
from singanet.ops.workers import cuts
from singanet.types import Array, Shape, Work

if TYPE_CHECKING:
    from singanet.ops.compiled.engine import CompiledFunction

_PART = 4
"""The divisor of a core's cache for the values of a block."""

_MOST_PARTS = 4
"""Most parts of the tiles with partial sums of a kernel's gradient."""

_ROWS = 12
"""Tiles that are multiplied together, at most."""

_EQUAL = 1.2
"""The most work of all workers with tiles of their own, relative to one worker's."""

_TRANSFORMS = 8
"""The cost of transforms, in passes over the result's images."""

_GAIN = 1.05
"""The factor by which the estimate has to be faster."""


class Geometry(NamedTuple):
    """``n`` images (h, w, c) whose windows, with ``pads`` above and left, give (oh, ow, f)."""

    taps: int
    n: int
    image: tuple[int, int, int]
    out: tuple[int, int, int]
    pads: tuple[int, int]

    @property
    def tiles(self) -> int:
        """The tiles of all images."""
        return self.n * prod(-(-size // wg.TILE) for size in self.out[:2])

    @property
    def points(self) -> int:
        """Values of a tile and a channel."""
        return wg.span(self.taps) ** 2

    @property
    def groups(self) -> int:
        """Groups of tiles that are multiplied together."""
        return -(-self.tiles // TILE_GROUP)

    @property
    def vectors(self) -> tuple[int, int]:
        """Channels of the images and of the outputs, padded to whole vectors."""
        return _filled(self.image[2], LANES), _filled(self.out[2], LANES)

    @property
    def block(self) -> int:
        """Tiles of a block, by the cache; more if the kernels, read by each block, exceed it."""
        c, f = self.vectors
        each = self.points * (c + f) * 4
        tiles = cache_size() // _PART // each
        if self.points * c * f * 4 > cache_size():
            tiles = max(tiles, c * f // (c + f))
        return min(max(tiles // TILE_GROUP, 1) * TILE_GROUP, _filled(self.tiles, TILE_GROUP))

    @property
    def parts(self) -> list[tuple[int, int]]:
        """The tile ranges with separate partial sums."""
        c, f = self.vectors
        count = self.tiles * (c + f) // (4 * c * f)
        return cuts(self.tiles, min(max(count, 1), _MOST_PARTS))

    @property
    def memory(self) -> int:
        """Bytes of the values of a block; reads go past the last value."""
        planes = (self.block * channels + LANES for channels in self.vectors)
        return 4 * (self.points * sum(planes) + TILE_GROUP)

    @property
    def entered(self) -> int:
        """Elements of the transformed kernels."""
        return self.points * self.image[2] * self.vectors[1]

    @property
    def totals(self) -> int:
        """Values of the kernels' gradient."""
        return self.points * _filled(self.out[2], TILE_GROUP) * self.vectors[0]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The integer arguments of the compiled functions."""
        return (*self.image, *self.out, *self.pads)


def forward(
    ops: PlannedOps, x: Array, weight: Array, bias: Array | None, window: Window
) -> Array | None:
    geometry = _expected(Case("forward", x.shape, weight.shape, window))
    y: Array = ops.xp.empty((geometry.n, *geometry.out), np.float32)
    rest = [] if bias is None else [ops.ordered(bias)]
    given = ops.channels_last(x), ops.ordered(weight), *rest
    key = geometry, False, bias is not None
    done = ops.runs(forward_plan, key, y, *given, passes=_passes(ops, geometry))
    return y.transpose(0, 3, 1, 2) if done else None


def data(ops: PlannedOps, dy: Array, weight: Array, x_shape: Shape, window: Window) -> Array | None:
    geometry = _expected(Case("data", x_shape, weight.shape, window))
    dx: Array = ops.xp.empty((geometry.n, *geometry.out), np.float32)
    given = ops.channels_last(dy), ops.ordered(weight)
    done = ops.runs(
        forward_plan, (geometry, True, False), dx, *given, passes=_passes(ops, geometry)
    )
    return dx.transpose(0, 3, 1, 2) if done else None


def weights(
    ops: PlannedOps, x: Array, dy: Array, weight_shape: Shape, window: Window
) -> Array | None:
    geometry = _expected(Case("weights", x.shape, weight_shape, window))
    dw: Array = ops.xp.empty(weight_shape, np.float32)
    images, slopes = ops.channels_last(x), ops.channels_last(dy)
    done = ops.runs(_weights_plan, (geometry,), slopes, images, dw, passes=_passes(ops, geometry))
    return dw if done else None


def constant(
    ops: PlannedOps,
    x: Array,
    weight: Array,
    bias: Array | None,
    window: Window,
    relu: bool = False,
    add: Array | None = None,
) -> Array | None:
    """Compute `Ops.conv2d_constant`; relu preserves NaN."""
    geometry = _expected(Case("constant", x.shape, weight.shape, window))
    y: Array = ops.xp.empty((geometry.n, *geometry.out), np.float32)
    entered: Array = ops.xp.empty((geometry.entered,), np.float32)
    rest = [] if bias is None else [ops.ordered(bias)]
    rest += [] if add is None else [ops.channels_last(add)]
    key = geometry, bias is not None, add is not None, relu
    if not ops.runs(enter_plan, (geometry,), entered, ops.ordered(weight), passes=0):
        return None
    given = ops.channels_last(x), entered, *rest
    done = ops.runs(_entered_plan, key, y, *given, passes=_passes(ops, geometry))
    return y.transpose(0, 3, 1, 2) if done else None


def _passes(ops: PlannedOps, geometry: Geometry) -> int:
    """Return the cost of transforms and products for each element of the result's images."""
    return _TRANSFORMS + ops.passes(geometry.image[2] * geometry.points // wg.TILE**2)


def _are_served(ops: PlannedOps, *operands: Array) -> bool:
    images = operands[0].ndim == 4
    return images and ops.serves(1, *operands) and ops.runtime() is not None


def forward_case(
    ops: PlannedOps,
    x: Array,
    weight: Array,
    bias: Array | None,
    window: Window,
    relu: bool = False,
    add: Array | None = None,
    kernel: str = "forward",
) -> Case | None:
    """Return the case of the operands; None if no plan serves them."""
    beside = [array for array in (bias, add) if array is not None]
    case = Case(kernel, x.shape, weight.shape, window)
    return case if _are_served(ops, x, weight, *beside) else None


constant_case = partial(forward_case, kernel="constant")


def data_case(
    ops: PlannedOps, dy: Array, weight: Array, x_shape: Shape, window: Window
) -> Case | None:
    """Return the case of the operands; None if no plan serves them."""
    case = Case("data", x_shape, weight.shape, window)
    return case if _are_served(ops, dy, weight) else None


def weights_case(
    ops: PlannedOps, x: Array, dy: Array, weight_shape: Shape, window: Window
) -> Case | None:
    """Return the case of the operands; None if no plan serves them."""
    case = Case("weights", x.shape, weight_shape, window)
    return case if _are_served(ops, x, dy) else None


def fits(ops: PlannedOps, case: Case) -> bool:
    """Whether the convolution suits tiles, and there is a compiler."""
    return geometry_of(case) is not None and has_compiler()


def _expected(case: Case) -> Geometry:
    geometry = geometry_of(case)
    assert geometry is not None
    return geometry


@lru_cache(maxsize=1024)
def geometry_of(case: Case) -> Geometry | None:
    """Return the geometry of the convolution; None if it is not a plain one of 3×3 or 5×5."""
    window, (n, c, h, w), f = case.window, case.x, case.weight[0]
    pads, taps = (*window.pads[0], *window.pads[1]), window.kernel[0]
    plain = taps in wg.POINTS and window.kernel == (taps, taps)
    if not plain or window.stride != (1, 1) or window.dilation != (1, 1) or case.window.groups > 1:
        return None
    oh, ow = window._out_size(h, w)
    if not all(0 <= pad < taps for pad in pads) or min(n, c, h, w, oh, ow, f) < 1:
        return None
    top, _, left, _ = pads
    if case.kernel == "data":
        # A convolution of the outputs' gradients with the flipped kernels.
        return Geometry(taps, n, (oh, ow, f), (h, w, c), (taps - 1 - top, taps - 1 - left))
    return Geometry(taps, n, (h, w, c), (oh, ow, f), (top, left))


def estimate(ops: PlannedOps, case: Case) -> float:
    """Return the cost from the sizes, relative to the direct route; both use threads."""
    geometry, speeds = _expected(case), ops.speeds()
    (c, f), (height, width, outputs) = geometry.vectors, geometry.out
    # Summed axes, and axes stored as lines, are not padded.
    numbers, kernels = geometry.image[2] * f, 1
    direct = speeds.direct_time(
        geometry.n, height * width, geometry.taps**2 * numbers, case.kernel == "constant"
    )
    if case.kernel == "weights":
        numbers, kernels = c * outputs, len(geometry.parts)
    elif case.kernel == "constant":
        kernels = 0
    if 4 * geometry.points * numbers > cache_size():
        # One more read, from a more distant cache.
        kernels += 1
    each = speeds.direct * numbers + speeds.tile_value * (c + f)
    taken = geometry.points * (geometry.tiles * each + kernels * speeds.tile_kernel * numbers)
    return _GAIN * taken / direct


def forward_plan(crew: Crew, geometry: Geometry, back: bool, bias: bool) -> StagedPlan:
    """Operands: outputs, images, kernels, the bias; ``back`` flips the kernels."""
    workers = _workers(crew, geometry, crew.threads)
    _prepare("enter", "convolution", taps=geometry.taps)

    def lay(areas: list[Area]) -> list[Stage]:
        y, x, weight, line, *_ = (*areas[0].addresses, 0)
        entered = areas[0].place("entered")
        enter = _entering(geometry, back, entered, weight, workers, crew.brief)
        given = y, x, entered, line if bias else 0, 0
        return [enter, *_convolving(crew, geometry, areas, given, False)]

    buffers, shared = {"values": geometry.memory}, {"entered": 4 * geometry.entered}
    return StagedPlan(crew, lay, buffers, 3 + bias, (0,), workers, shared)


def enter_plan(crew: Crew, geometry: Geometry) -> StagedPlan:
    """Operands: the transformed kernels, and the kernels."""
    _prepare("enter", taps=geometry.taps)

    def lay(areas: list[Area]) -> list[Stage]:
        entered, weight = areas[0].addresses
        return [_entering(geometry, False, entered, weight, 1, crew.brief)]

    return StagedPlan(crew, lay, {}, 2, (0,), 1)


def _entered_plan(crew: Crew, geometry: Geometry, bias: bool, add: bool, relu: bool) -> StagedPlan:
    """Operands: the outputs, the images, the transformed kernels, the bias, the addend."""
    workers = _workers(crew, geometry, crew.joined)
    _prepare("convolution", taps=geometry.taps)

    def lay(areas: list[Area]) -> list[Stage]:
        y, x, entered, *rest = areas[0].addresses
        line, other = rest.pop(0) if bias else 0, rest.pop(0) if add else 0
        given = y, x, entered, line, other
        return _convolving(crew, geometry, areas, given, relu)

    buffers = {"values": geometry.memory}
    return StagedPlan(crew, lay, buffers, 3 + bias + add, (0,), workers)


def _weights_plan(crew: Crew, geometry: Geometry) -> StagedPlan:
    """Operands: the gradients of the outputs, the images, the gradients of the kernels."""
    parts = geometry.parts
    shares = len(parts) >= crew.threads
    workers = min(crew.threads, len(parts)) if shares else crew.threads
    total, taps = 4 * geometry.totals, geometry.taps
    _prepare("weights", "leave", taps=taps)

    def lay(areas: list[Area]) -> list[Stage]:
        dy, x, dw = areas[0].addresses
        totals, run = areas[0].place("totals"), _function("weights", taps, crew.brief)
        given = [
            (totals + k * total, x, dy, areas[k % workers if shares else 0].place("values"))
            for k in range(len(parts))
        ]
        stages: list[Stage] = [[[] for _ in areas]] if shares else []
        for k, (first, last) in enumerate(parts):
            if shares:
                every = (first, last, geometry.block, first, last, 0, geometry.points, 0)
                stages[0][k % workers].append(run(*given[k], *geometry.sizes, *every))
            else:
                call = partial(run, *given[k], *geometry.sizes)
                stages += _shared_stages(call, geometry, first, last, workers)
        leave, sizes = _function("leave", taps, crew.brief), (geometry.out[2], geometry.image[2])
        left: Stage = [
            [leave(dw, totals, len(parts), *sizes, *cut)] for cut in cuts(sizes[0], workers)
        ]
        return [*stages, left]

    buffers, in_common = {"values": geometry.memory}, {"totals": total * len(parts)}
    return StagedPlan(crew, lay, buffers, 3, (2,), workers, in_common)


def _shared_stages(
    call: Callable[..., Work], geometry: Geometry, first: int, last: int, workers: int
) -> list[Stage]:
    """Return the stages of a part for all workers: they divide each block's tiles, then points."""
    stages: list[Stage] = []
    for start in range(first, last, geometry.block):
        end = min(start + geometry.block, last)
        block = start, end, geometry.block
        tiles = [(start + a, start + b) for a, b in cuts(end - start, workers)]
        points = cuts(geometry.points, workers)
        stages.append([[call(*block, *cut, 0, 0, start - first)] for cut in tiles])
        stages.append([[call(*block, 0, 0, *cut, start - first)] for cut in points])
    return stages


def _entering(
    geometry: Geometry, back: bool, entered: int, weight: int, workers: int, brief: bool
) -> Stage:
    """Return the stage that transforms kernels for the products of tiles."""
    taps, c, f = geometry.taps, geometry.image[2], geometry.out[2]
    run, each = _function("enter", taps, brief), taps * taps
    # The kernels have the order (outputs, inputs) of the forward convolution.
    apart = (f * each, each) if back else (each, c * each)
    given = (entered, weight, c, f, *apart, back)
    return [[run(*given, *cut)] for cut in cuts(c, workers)]


def _convolving(
    crew: Crew, geometry: Geometry, areas: list[Area], operands: tuple[int, ...], relu: bool
) -> list[Stage]:
    """Return the stages of a convolution; ``operands`` are y, x, kernels, bias, addend."""
    run = _function("convolution", geometry.taps, crew.brief)
    points, count = geometry.points, len(areas)
    if count > 1 and _shares_blocks(crew, geometry, count):
        given = *operands, areas[0].place("values"), *geometry.sizes, relu
        stages: list[Stage] = []
        for start in range(0, geometry.tiles, geometry.block):
            end = min(start + geometry.block, geometry.tiles)
            block = *given, start, end, geometry.block
            tiles = cuts(end - start, count)
            stages.append([[run(*block, *cut, 0, 0, 0, 0)] for cut in tiles])
            stages.append([[run(*block, 0, 0, *cut, 0, 0)] for cut in cuts(points, count)])
            stages.append([[run(*block, 0, 0, 0, 0, *cut)] for cut in tiles])
        return stages
    stage: Stage = []
    for area, cut in zip(areas, cuts(geometry.tiles, count), strict=True):
        given = *operands, area.place("values"), *geometry.sizes, relu
        every = (0, geometry.block, 0, points, 0, geometry.block)
        stage.append([run(*given, *cut, geometry.block, *every)])
    return [stage]


def _shares_blocks(crew: Crew, geometry: Geometry, threads: int) -> bool:
    """Whether the workers divide each block's tiles, points and tiles again.

    Tiles are multiplied some rows at a time, so that few tiles would take as long as more.
    """
    each = _filled(-(-geometry.tiles // threads), _ROWS) * threads
    return crew.jobs is not None and each > _EQUAL * _filled(geometry.tiles, _ROWS)


def _workers(crew: Crew, geometry: Geometry, threads: int) -> int:
    return min(threads, geometry.tiles if crew.jobs is not None else geometry.groups)


def _filled(count: int, size: int) -> int:
    return -(-count // size) * size


def _prepare(*kinds: str, taps: int) -> None:
    """Compile the functions when a plan is made, whose memory they use."""
    for kind in kinds:
        _function(kind, taps)


@cache
def _compiled(kind: str, taps: int) -> CompiledFunction:
    from singanet.ops.compiled import engine, tiles

    if kind == "leave":
        return engine.known(tiles.leave, taps)
    write = {"convolution": tiles.convolution, "weights": tiles.weights, "enter": tiles.enter}[kind]
    return engine.known(write, taps, tiles.WIDE if engine.is_wide() else tiles.NARROW)


def _function(kind: str, taps: int, brief: bool = False) -> Callable[..., NativeCall]:
    """Return a function that makes the call of a compiled function with its arguments."""
    function = _compiled(kind, taps)
    return lambda *given: compiled_call(function, given, brief)


def _where_it_pays(run: Callable[..., Array | None], case: Callable[..., Case | None]) -> Route:
    """Return the route next to NumPy's kernels, which are not faster than the direct route."""

    def pays(ops: PlannedOps, *operands: Any, **options: Any) -> bool:
        this = case(ops, *operands, **options)
        return this is not None and fits(ops, this) and estimate(ops, this) < 1

    return Route("compiled", run, pays)


conv2d = _where_it_pays(forward, forward_case)
conv2d_backward_data = _where_it_pays(data, data_case)
conv2d_backward_weights = _where_it_pays(weights, weights_case)
conv2d_constant = _where_it_pays(constant, constant_case)
