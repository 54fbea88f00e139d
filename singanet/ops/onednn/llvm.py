"""Compiled kernels beside oneDNN's.

Every image kernel takes its images through this, NumPy's too.

Each array is read twice at most, and a NaN shows where it comes from. There is no mask: the
backward kernel computes again where y is above zero, from x and the beta that it is given for one.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from singanet.ops.casts import has_compiler
from singanet.ops.compiled.sizes import BACKWARD, BLOCK, FORWARD, LANES, Rows, rows_of
from singanet.ops.kernel import Route, in_order
from singanet.ops.numpy import windows as by_numpy
from singanet.ops.numpy.windows import channels_first
from singanet.ops.onednn.base import OneDnnBase, is_dense
from singanet.ops.onednn.builder import Builder
from singanet.ops.window import Window
from singanet.ops.workers import cuts
from singanet.types import Array, Parts, Shape, Work

if TYPE_CHECKING:
    from singanet.ops.compiled.engine import CompiledFunction


Stages = Sequence[Sequence[tuple[int, ...]]]
"""The numbers of calls: those of a stage are made side by side, one stage after the other."""


def shared(numbers: tuple[int, ...], counts: Sequence[int], threads: int) -> Stages:
    """Calls with ``numbers`` and after them a range for each stage, of so many parts.

    One call is of all stages; of several threads each has the parts of one.
    """
    if threads == 1:
        return [[(*numbers, *chain.from_iterable((0, count) for count in counts))]]
    stages = []
    for stage, count in enumerate(counts):
        before, after = (0, 0) * stage, (0, 0) * (len(counts) - stage - 1)
        calls = [(*numbers, *before, *cut, *after) for cut in cuts(count, threads)]
        stages += [calls] * bool(calls)
    return stages


class CompiledPlan:
    """A plan like `KernelPlan`: calls of a function of operands, of scratch if any, and numbers."""

    open, rounded = frozenset[int](), frozenset[int]()

    def __init__(
        self,
        build: Builder,
        function: CompiledFunction,
        stages: Stages,
        reads: tuple[int, ...],
        writes: tuple[int, ...],
        scratch: int = 0,
    ) -> None:
        self._call = function.briefly if build.brief else function.at_length
        self._stages, self._side_by_side = stages, build.side_by_side
        self.threads = max(map(len, stages))
        self.reads, self.writes, self.scratch = reads, writes, scratch
        self.sizes = (0,) * len({*reads, *writes})

    def run(self, addresses: Sequence[int], scratch: int) -> None:
        """See `KernelPlan`."""
        self.bound(addresses, scratch)()

    def bound(self, addresses: Sequence[int], scratch: int) -> CompiledCalls:
        """See `KernelPlan`."""
        given = (*addresses, scratch) if self.scratch else tuple(addresses)
        stages = [
            [CompiledCall(self._call, (*given, *numbers)) for numbers in stage]
            for stage in self._stages
        ]
        return CompiledCalls(stages, self._side_by_side)


class CompiledCall:
    """A call with arguments that stay."""

    def __init__(self, function: Callable[[object], None], given: tuple[int, ...]) -> None:
        self.given = (ctypes.c_int64 * len(given))(*given)
        self.call = partial(function, ctypes.c_void_p(ctypes.addressof(self.given)))


class CompiledCalls:
    """The calls of stages; they leave OpenMP's threads as they are."""

    threads = 0

    def __init__(
        self, stages: list[list[CompiledCall]], side_by_side: Callable[[Parts], None]
    ) -> None:
        self.stages = stages
        self._parts: list[Work] = []
        for stage in stages:
            parts = [[each.call] for each in stage]
            self._parts.append(parts[0][0] if len(parts) == 1 else partial(side_by_side, parts))

    def __call__(self) -> None:
        """Make them."""
        for part in self._parts:
            part()

    def after(self, threads: int) -> list[Work]:
        """See `Calls`."""
        return self._parts


POSITIONS = 256
"""Kernel positions that can be told in a byte."""
_COMPILED_POOL_LEAST = 1 << 19
"""Elements from which compiling is won back in some hundred steps."""
_AXES = 3


def _max_pool(
    ops: OneDnnBase, x: Array, window: Window, keep: bool
) -> tuple[Array, Array | None] | None:
    images = ops.channels_last(x)
    n, *size, c = images.shape
    y: Array = ops.xp.empty((n, *window.out_size(*size), c), np.float32)
    where: Array | None = ops.xp.empty(y.shape, np.uint8) if keep else None
    given = [images, y] if where is None else [images, y, where]
    if not y.size or not ops.runs(_max_forward, (images.shape, window, keep), *given):
        return None
    return channels_first(y), where


def _compiled_pool_fits(ops: OneDnnBase, x: Array, window: Window, keep: bool) -> bool:
    # oneDNN's may store bfloat16.
    return (
        x.shape[1] >= LANES
        and math.prod(window.kernel) <= POSITIONS
        and not ops.narrow
        and ops.serves(_COMPILED_POOL_LEAST, x)
        and has_compiler()
    )


max_pool = Route("compiled", _max_pool, _compiled_pool_fits)


def _max_forward(build: Builder, images: Shape, window: Window, keep: bool) -> CompiledPlan:
    """Operands: images, maxima and, if they are kept, positions."""
    n, *size, c = images
    outs, before = window.out_size(*size), [pad for pad, _ in window.pads]
    numbers = [c]
    for values in (size, outs, window.kernel, window.stride, before, window.dilation):
        # Of an image the depth is 1, and has no padding.
        front = 0 if values is before else 1
        numbers += [*[front] * (_AXES - len(values)), *values]
    stages = shared(tuple(numbers), (n * math.prod(outs[:-1]),), build.threads)
    function = _function(1 if c < 2 * LANES else 2, keep)
    return CompiledPlan(build, function, stages, reads=(0,), writes=(1, 2)[: 1 + keep])


@cache
def _function(vectors: int, keep: bool) -> CompiledFunction:
    from singanet.ops.compiled import engine, pool

    return engine.known(pool.max_pool, vectors, keep)


"""Elements from which the look for NaN that oneDNN's kernels need takes longer than a call."""


def _relu(ops: OneDnnBase, mode: str, x: Array, slope: float = 0.01) -> Array | None:
    y: Array = ops.xp.empty_like(x)
    return y if ops.runs(_relu_of, (x.size, 1), y, x) else None


def _is_relu(ops: OneDnnBase, mode: str, x: Array, slope: float = 0.01) -> bool:
    return mode == "relu" and _is_served(ops, x)


def _sum(
    ops: OneDnnBase, mode: str, arrays: Sequence[Array], shape: Shape, relu: bool = False
) -> Array | None:
    a, b = arrays
    y: Array = ops.xp.empty_like(a)
    return y if ops.runs(_relu_of, (a.size, 2), y, a, b) else None


def _is_sum(
    ops: OneDnnBase, mode: str, arrays: Sequence[Array], shape: Shape, relu: bool = False
) -> bool:
    if mode != "add" or not relu or len(arrays) != 2:
        return False
    a, b = arrays
    return a.shape == b.shape and a.strides == b.strides and _is_served(ops, a, b)


def _is_served(ops: OneDnnBase, *arrays: Array) -> bool:
    # oneDNN's may store bfloat16.
    if ops.narrow or not ops.serves(_LEAST, *arrays):
        return False
    return is_dense(arrays[0]) and has_compiler()


of_one = Route("compiled", _relu, _is_relu)
of_sum = Route("compiled", _sum, _is_sum)


def _relu_of(build: Builder, size: int, terms: int) -> CompiledPlan:
    """Operands: what is made, and the terms."""
    from singanet.ops.compiled.pool import BLOCK

    stages = shared((size,), (-(-size // BLOCK),), build.threads)
    reads = tuple(range(1, 1 + terms))
    return CompiledPlan(build, _compiled_relu_function(terms), stages, reads, writes=(0,))


@cache
def _compiled_relu_function(terms: int) -> CompiledFunction:
    from singanet.ops.compiled import engine, pool

    return engine.known(pool.relu_of, terms)


_IMAGES_LEAST = 1 << 13


def _is_worth_it(ops: OneDnnBase, x: Array) -> bool:
    # With one channel, or one pixel, both orders are the same memory.
    large = (
        x.size >= _IMAGES_LEAST and x.flags.c_contiguous and x.ndim == 4 and 1 < x.shape[1] < x.size
    )
    return large and ops.serves(_IMAGES_LEAST, x)


def _channels_last(ops: OneDnnBase, x: Array) -> Array | None:
    n, c, h, w = x.shape
    y: Array = ops.xp.empty((n, h, w, c), np.float32)
    return y if ops.runs(_reorder, (n, c, h, w), x, y) else None


channels_last = in_order(Route("onednn", _channels_last, _is_worth_it), last=by_numpy.channels_last)


def images_of(ops: OneDnnBase, x: Array) -> Array:
    """``x`` (N, C, H, W) channels-last; (N, C) as images of one pixel."""
    return ops.ordered(x)[:, None, None] if x.ndim == 2 else ops.channels_last(x)


def like(x: Array, images: Array) -> Array:
    """The channels-last ``images`` in the form of ``x``."""
    return images[:, 0, 0] if x.ndim == 2 else images.transpose(0, 3, 1, 2)


def _reorder(build: Builder, n: int, c: int, h: int, w: int) -> None:
    shape: Shape = (n, h, w, c)
    source = build.rows((n, c, h, w), build.kind(0))
    target = build.images(shape, build.kind(1))
    build.reorder(source, build.operand(0, source), target, build.operand(1, target))


VECTOR = 16
"""Channels have to fill whole vectors of oneDNN's: else its kernels can be slower than NumPy's."""
_LEAST = 1 << 17
"""Elements from which compiling, a third of a second, is won back in some hundred steps."""
_BESIDE = 4
"""Times as many are needed where oneDNN's kernels serve, which leave less to win."""
_PARTS = 4
"""Parts of a thread, some 100 microseconds: to call them together for two stages takes as much."""
_RELU, _PLAIN = 0.0, float("nan")
"""What y has to be above. Nothing is above, or below, what is no number."""


def _train(
    ops: OneDnnBase, x: Array, gamma: Array, beta: Array, epsilon: float
) -> tuple[Array, ...] | None:
    return _trained(ops, x, gamma, beta, epsilon, False)


def _train_relu(
    ops: OneDnnBase, x: Array, gamma: Array, beta: Array, epsilon: float
) -> tuple[Array, ...] | None:
    made = _trained(ops, x, gamma, beta, epsilon, True)
    return None if made is None else (*made, beta)


def _trained(
    ops: OneDnnBase, x: Array, gamma: Array, beta: Array, epsilon: float, relu: bool
) -> tuple[Array, ...] | None:
    images = images_of(ops, x)
    y, mean, var, inverse = (ops.xp.empty_like(a) for a in (images, gamma, gamma, gamma))
    vectors = ops.ordered(gamma), ops.ordered(beta), mean, var, inverse
    key = *_sizes(x), epsilon, relu
    if not ops.runs(_batch_norm_train, key, y, images, *vectors):
        return None
    return like(x, y), mean, var, inverse


def _given(
    ops: OneDnnBase, x: Array, gamma: Array, beta: Array, mean: Array, var: Array, epsilon: float
) -> tuple[Array, ...] | None:
    return _by_given(ops, x, (gamma, beta, mean, var), epsilon, False)


def _given_relu(
    ops: OneDnnBase, x: Array, gamma: Array, beta: Array, mean: Array, var: Array, epsilon: float
) -> tuple[Array, ...] | None:
    made = _by_given(ops, x, (gamma, beta, mean, var), epsilon, True)
    return None if made is None else (*made, beta)


def _by_given(
    ops: OneDnnBase, x: Array, given: tuple[Array, ...], epsilon: float, relu: bool
) -> tuple[Array, ...] | None:
    images = images_of(ops, x)
    y, inverse = ops.xp.empty_like(images), ops.xp.empty_like(given[0])
    vectors = *map(ops.ordered, given), inverse
    if not ops.runs(_batch_norm, (*_sizes(x), epsilon, relu), y, images, *vectors):
        return None
    return like(x, y), inverse


def _back(
    ops: OneDnnBase, dy: Array, x: Array, gamma: Array, mean: Array, inverse: Array, fixed: bool
) -> tuple[Array, ...] | None:
    return _slopes(ops, dy, x, (gamma, gamma, mean, inverse), fixed, False)


def _back_relu(
    ops: OneDnnBase,
    dy: Array,
    x: Array,
    gamma: Array,
    mean: Array,
    inverse: Array,
    fixed: bool,
    beta: Array,
) -> tuple[Array, ...] | None:
    return _slopes(ops, dy, x, (gamma, beta, mean, inverse), fixed, True)


def _slopes(
    ops: OneDnnBase, dy: Array, x: Array, vectors: tuple[Array, ...], fixed: bool, relu: bool
) -> tuple[Array, ...] | None:
    images, gamma = images_of(ops, x), vectors[0]
    made = [ops.xp.empty_like(array) for array in (images, gamma, gamma)]
    given = images_of(ops, dy), images, *map(ops.ordered, vectors)
    if not ops.runs(_batch_norm_backward, (*_sizes(x), fixed, relu), *made, *given):
        return None
    return like(x, made[0]), made[1], made[2]


def _fits(ops: OneDnnBase, x: Array, *others: Array) -> bool:
    beside = x.shape[1] % VECTOR == 0
    # oneDNN's may store bfloat16.
    if beside and ops.narrow:
        return False
    least = _LEAST * (_BESIDE if beside else 1)
    # Of fewer rows what is known of places takes as much as the pixels.
    return ops.serves(least, x, *others) and rows_of(*_sizes(x)).rows >= BLOCK and has_compiler()


def _sizes(x: Array) -> tuple[int, int]:
    """Pixels and channels."""
    return x.size // x.shape[1], x.shape[1]


def _trains(ops: OneDnnBase, x: Array, gamma: Array, beta: Array, epsilon: float) -> bool:
    return _fits(ops, x, gamma, beta)


def _is_given(
    ops: OneDnnBase, x: Array, gamma: Array, beta: Array, mean: Array, var: Array, epsilon: float
) -> bool:
    return _fits(ops, x, gamma, beta, mean, var)


def _goes_back(
    ops: OneDnnBase, dy: Array, x: Array, gamma: Array, mean: Array, inverse: Array, fixed: bool
) -> bool:
    return _fits(ops, x, dy, gamma, mean, inverse)


def _is_beta(
    ops: OneDnnBase,
    dy: Array,
    x: Array,
    gamma: Array,
    mean: Array,
    inverse: Array,
    fixed: bool,
    mask: Array,
) -> bool:
    return mask.ndim == 1 and mask.dtype == np.float32


batch_norm_train = Route("compiled", _train, _trains)
batch_norm_relu_train = Route("compiled", _train_relu, _trains)
batch_norm = Route("compiled", _given, _is_given)
batch_norm_relu = Route("compiled", _given_relu, _is_given)
batch_norm_backward = Route("compiled", _back, _goes_back)
batch_norm_relu_backward = Route("compiled", _back_relu, _is_beta)


def _batch_norm_train(
    build: Builder, pixels: int, channels: int, epsilon: float, relu: bool
) -> CompiledPlan:
    """Operands: y, x, gamma, beta, mean, variance, inverse."""
    rows = rows_of(pixels, channels)
    counts = rows.parts, 1, 1, rows.parts
    return _forward_plan(build, rows, epsilon, relu, counts, ((1, 2, 3), (0, 4, 5, 6)))


def _batch_norm(
    build: Builder, pixels: int, channels: int, epsilon: float, relu: bool
) -> CompiledPlan:
    """Operands: y, x, gamma, beta, mean, variance, inverse."""
    rows = rows_of(pixels, channels)
    counts = 0, 0, 1, rows.parts
    return _forward_plan(build, rows, epsilon, relu, counts, ((1, 2, 3, 4, 5), (0, 6)))


def _forward_plan(
    build: Builder,
    rows: Rows,
    epsilon: float,
    relu: bool,
    counts: tuple[int, ...],
    operands: tuple[tuple[int, ...], tuple[int, ...]],
) -> CompiledPlan:
    numbers = *rows, _bits(epsilon), _bits(_RELU if relu else _PLAIN)
    stages = shared(numbers, counts, _threads(build, rows))
    return CompiledPlan(build, _forward(), stages, *operands, scratch=rows.scratch(FORWARD))


def _batch_norm_backward(
    build: Builder, pixels: int, channels: int, fixed: bool, relu: bool
) -> CompiledPlan:
    """Operands: dx, dgamma, dbeta, dy, x, gamma, beta, mean, inverse."""
    rows = rows_of(pixels, channels)
    numbers = *rows, int(fixed), _bits(_RELU if relu else _PLAIN)
    stages = shared(numbers, (1, rows.parts, 1, rows.parts), _threads(build, rows))
    operands = (3, 4, 5, 6, 7, 8), (0, 1, 2)
    return CompiledPlan(build, _backward(), stages, *operands, scratch=rows.scratch(BACKWARD))


def _threads(build: Builder, rows: Rows) -> int:
    return max(1, min(build.threads, rows.parts // _PARTS))


def _bits(value: float) -> int:
    return int(np.float32(value).view(np.int32))


@cache
def _forward() -> CompiledFunction:
    # Imported when it is first compiled: LLVM takes a tenth of a second.
    from singanet.ops.compiled import engine, normalise

    return engine.known(normalise.forward)


@cache
def _backward() -> CompiledFunction:
    from singanet.ops.compiled import engine, normalise

    return engine.known(normalise.backward)
