"""Run pooling, relu, batch normalization and small products by functions compiled with LLVM.

Each array is read at most twice, and NaN propagates. There is no relu mask: the backward kernel
computes again if y is positive, from x and beta, which it gets in place of a mask.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.ops.blas import product as product_by_numpy
from singanet.ops.casts import has_compiler
from singanet.ops.compiled.sizes import BACKWARD, BLOCK, FLOAT, FORWARD, LANES, Rows, rows_of
from singanet.ops.costs import cache_size
from singanet.ops.kernel import Route
from singanet.ops.llvm.base import PlannedOps, is_dense
from singanet.ops.llvm.plans import JOINED, SHARED, CompiledPlan, Crew, PythonCrew
from singanet.ops.numpy import NumpyOps
from singanet.ops.numpy.windows import channels_first
from singanet.ops.window import Window
from singanet.ops.workers import shared
from singanet.types import Array, Shape

if TYPE_CHECKING:
    from singanet.ops.compiled.engine import CompiledFunction


POSITIONS = 256
"""Kernel positions that fit in a byte."""
_COMPILED_POOL_LEAST = 1 << 19
"""Elements from which compiling pays off within some hundred steps."""
_AXES = 3


def _max_pool(
    ops: PlannedOps, x: Array, window: Window, keep: bool
) -> tuple[Array, Array | None] | None:
    images = ops.channels_last(x)
    n, *size, c = images.shape
    y: Array = ops.xp.empty((n, *window._out_size(*size), c), np.float32)
    where: Array | None = ops.xp.empty(y.shape, np.uint8) if keep else None
    given = [images, y] if where is None else [images, y, where]
    if not y.size or not ops.runs(_max_forward, (images.shape, window, keep), *given):
        return None
    return channels_first(y), where


def _compiled_pool_fits(ops: PlannedOps, x: Array, window: Window, keep: bool) -> bool:
    # oneDNN's kernels may store bfloat16.
    return (
        x.shape[1] >= LANES
        and math.prod(window.kernel) <= POSITIONS
        and not ops.narrow
        and ops.serves(_COMPILED_POOL_LEAST, x)
        and has_compiler()
    )


max_pool = Route("compiled", _max_pool, _compiled_pool_fits)


def _max_forward(crew: Crew, images: Shape, window: Window, keep: bool) -> CompiledPlan:
    """Operands: images, maxima and, with ``keep``, positions."""
    n, *size, c = images
    outs, before = window._out_size(*size), [pad for pad, _ in window.pads]
    numbers = [c]
    for values in (size, outs, window.kernel, window.stride, before, window.dilation):
        # An image has depth 1, without padding.
        front = 0 if values is before else 1
        numbers += [*[front] * (_AXES - len(values)), *values]
    stages = shared(tuple(numbers), (n * math.prod(outs[:-1]),), crew.threads)
    function = _function(1 if c < 2 * LANES else 2, keep)
    return CompiledPlan(crew, function, stages, reads=(0,), writes=(1, 2)[: 1 + keep])


@cache
def _function(vectors: int, keep: bool) -> CompiledFunction:
    from singanet.ops.compiled import engine, pool

    return engine.known(pool.max_pool, vectors, keep)


def _relu(ops: PlannedOps, mode: str, x: Array, slope: float = 0.01) -> Array | None:
    y: Array = ops.xp.empty_like(x)
    return y if ops.runs(_relu_of, (x.size, 1), y, x) else None


def _is_relu(ops: PlannedOps, mode: str, x: Array, slope: float = 0.01) -> bool:
    return mode == "relu" and _is_served(ops, x)


def _sum(
    ops: PlannedOps, mode: str, arrays: Sequence[Array], shape: Shape, relu: bool = False
) -> Array | None:
    a, b = arrays
    y: Array = ops.xp.empty_like(a)
    return y if ops.runs(_relu_of, (a.size, 2), y, a, b) else None


def _is_sum(
    ops: PlannedOps, mode: str, arrays: Sequence[Array], shape: Shape, relu: bool = False
) -> bool:
    if mode != "add" or not relu or len(arrays) != 2:
        return False
    a, b = arrays
    return a.shape == b.shape and a.strides == b.strides and _is_served(ops, a, b)


def _is_served(ops: PlannedOps, *arrays: Array) -> bool:
    # oneDNN's kernels may store bfloat16.
    if ops.narrow or not ops.serves(_LEAST, *arrays):
        return False
    return is_dense(arrays[0]) and has_compiler()


of_one = Route("compiled", _relu, _is_relu)
of_sum = Route("compiled", _sum, _is_sum)


def _relu_of(crew: Crew, size: int, terms: int) -> CompiledPlan:
    """Operands: the result, and the terms."""
    from singanet.ops.compiled.pool import BLOCK

    stages = shared((size,), (-(-size // BLOCK),), crew.threads)
    reads = tuple(range(1, 1 + terms))
    return CompiledPlan(crew, _compiled_relu_function(terms), stages, reads, writes=(0,))


@cache
def _compiled_relu_function(terms: int) -> CompiledFunction:
    from singanet.ops.compiled import engine, pool

    return engine.known(pool.relu_of, terms)


def images_of(ops: PlannedOps, x: Array) -> Array:
    """Return ``x`` (N, C, H, W) channels-last; (N, C) as images of one pixel."""
    return ops.ordered(x)[:, None, None] if x.ndim == 2 else ops.channels_last(x)


def like(x: Array, images: Array) -> Array:
    """Return the channels-last ``images`` in the axis order of ``x``."""
    return images[:, 0, 0] if x.ndim == 2 else images.transpose(0, 3, 1, 2)


VECTOR = 16
"""oneDNN's vector size; with channels not a multiple of it, its kernels can be slow."""
_LEAST = 1 << 17
"""Elements from which compiling, a third of a second, pays off within some hundred steps."""
_LEAST_FACTOR = 4
"""The factor for the least size if oneDNN serves too, since compiling then gains less."""
_PARTS = 4
"""Parts for a thread, some 100 microseconds; starting threads for two stages takes as long."""
_RELU, _PLAIN = 0.0, float("nan")
"""The lower bound of y. Comparisons with NaN are false."""


def _train(
    ops: PlannedOps, x: Array, gamma: Array, beta: Array, epsilon: float, relu: bool = False
) -> tuple[Array, ...] | None:
    images = images_of(ops, x)
    y, mean, var, inverse = (ops.xp.empty_like(a) for a in (images, gamma, gamma, gamma))
    vectors = ops.ordered(gamma), ops.ordered(beta), mean, var, inverse
    if not ops.runs(_batch_norm_train, (*_sizes(x), epsilon, relu), y, images, *vectors):
        return None
    made = like(x, y), mean, var, inverse
    return (*made, beta) if relu else made


def _given(
    ops: PlannedOps, x: Array, gamma: Array, beta: Array, mean: Array, var: Array, epsilon: float,
    relu: bool = False,
) -> tuple[Array, ...] | None:  # fmt: skip
    images = images_of(ops, x)
    y, inverse = ops.xp.empty_like(images), ops.xp.empty_like(gamma)
    vectors = *map(ops.ordered, (gamma, beta, mean, var)), inverse
    if not ops.runs(_batch_norm, (*_sizes(x), epsilon, relu), y, images, *vectors):
        return None
    return (like(x, y), inverse, beta) if relu else (like(x, y), inverse)


def _back(
    ops: PlannedOps, dy: Array, x: Array, gamma: Array, mean: Array, inverse: Array, fixed: bool,
    beta: Array | None = None,
) -> tuple[Array, ...] | None:  # fmt: skip
    images, relu = images_of(ops, x), beta is not None
    made = [ops.xp.empty_like(array) for array in (images, gamma, gamma)]
    vectors = gamma, gamma if beta is None else beta, mean, inverse
    given = images_of(ops, dy), images, *map(ops.ordered, vectors)
    if not ops.runs(_batch_norm_backward, (*_sizes(x), fixed, relu), *made, *given):
        return None
    return like(x, made[0]), made[1], made[2]


def _fits(ops: PlannedOps, x: Array, *others: Array) -> bool:
    beside = x.shape[1] % VECTOR == 0
    # oneDNN's kernels may store bfloat16.
    if beside and ops.narrow:
        return False
    least = _LEAST * (_LEAST_FACTOR if beside else 1)
    # With fewer rows, channel vectors take as much memory as the pixels.
    return ops.serves(least, x, *others) and rows_of(*_sizes(x)).rows >= BLOCK and has_compiler()


def _sizes(x: Array) -> tuple[int, int]:
    """Return the numbers of pixels and channels."""
    return x.size // x.shape[1], x.shape[1]


def statistics_among(rest: tuple[Any, ...]) -> tuple[Array, ...]:
    """Return mean and variance, if present, among the arguments after gamma and beta."""
    return rest[:2] if len(rest) > 2 else ()


def _serves_forward(ops: PlannedOps, x: Array, gamma: Array, beta: Array, *rest: Any) -> bool:
    return x.size >= _LEAST and _fits(ops, x, gamma, beta, *statistics_among(rest))


def _serves_backward(
    ops: PlannedOps, dy: Array, x: Array, gamma: Array, mean: Array, inverse: Array, fixed: bool,
    mask: Array | None = None,
) -> bool:  # fmt: skip
    if mask is None:
        return _fits(ops, x, dy, gamma, mean, inverse)
    # The mask is beta.
    return mask.ndim == 1 and mask.dtype == np.float32


batch_norm_train = Route("compiled", _train, _serves_forward)
batch_norm = Route("compiled", _given, _serves_forward)
batch_norm_backward = Route("compiled", _back, _serves_backward)


def _batch_norm_train(
    crew: Crew, pixels: int, channels: int, epsilon: float, relu: bool
) -> CompiledPlan:
    """Operands: y, x, gamma, beta, mean, variance, inverse."""
    rows = rows_of(pixels, channels)
    counts = rows.parts, 1, 1, rows.parts
    return _forward_plan(crew, rows, epsilon, relu, counts, ((1, 2, 3), (0, 4, 5, 6)))


def _batch_norm(crew: Crew, pixels: int, channels: int, epsilon: float, relu: bool) -> CompiledPlan:
    """Operands: y, x, gamma, beta, mean, variance, inverse."""
    rows = rows_of(pixels, channels)
    counts = 0, 0, 1, rows.parts
    return _forward_plan(crew, rows, epsilon, relu, counts, ((1, 2, 3, 4, 5), (0, 6)))


def _forward_plan(
    crew: Crew,
    rows: Rows,
    epsilon: float,
    relu: bool,
    counts: tuple[int, ...],
    operands: tuple[tuple[int, ...], tuple[int, ...]],
) -> CompiledPlan:
    numbers = *rows, _bits(epsilon), _bits(_RELU if relu else _PLAIN)
    stages = shared(numbers, counts, _threads(crew, rows))
    return CompiledPlan(crew, _forward(), stages, *operands, scratch=rows.scratch(FORWARD))


def _batch_norm_backward(
    crew: Crew, pixels: int, channels: int, fixed: bool, relu: bool
) -> CompiledPlan:
    """Operands: dx, dgamma, dbeta, dy, x, gamma, beta, mean, inverse."""
    rows = rows_of(pixels, channels)
    numbers = *rows, int(fixed), _bits(_RELU if relu else _PLAIN)
    stages = shared(numbers, (1, rows.parts, 1, rows.parts), _threads(crew, rows))
    operands = (3, 4, 5, 6, 7, 8), (0, 1, 2)
    return CompiledPlan(crew, _backward(), stages, *operands, scratch=rows.scratch(BACKWARD))


def _threads(crew: Crew, rows: Rows) -> int:
    return max(1, min(crew.threads, rows.parts // _PARTS))


def _bits(value: float) -> int:
    return int(np.float32(value).view(np.int32))


@cache
def _forward() -> CompiledFunction:
    # Imported when first compiled: LLVM takes a tenth of a second.
    from singanet.ops.compiled import engine, normalise

    return engine.known(normalise.forward)


@cache
def _backward() -> CompiledFunction:
    from singanet.ops.compiled import engine, normalise

    return engine.known(normalise.backward)


_SMALL = 1 << 17
"""Multiply-adds up to which oneDNN's overhead is a good part of the time."""
_ALONE = 1 << 20
"""Largest matrix that one thread multiplies by a row: some 50 microseconds."""


_SOME_ROWS = 128
"""Rows for which oneDNN arranges both factors in each call, unless registers have 512 bits.

More are multiplied in blocks of so many, which stay in the core's cache beside a small matrix.
"""
_MOST_ROWS = 128 * _SOME_ROWS
"""Rows whose blocks take some 100 kB of calls."""


def is_small(
    ops: PlannedOps, x: Array, weight: Array, bias: Array | None, relu: bool = False
) -> bool:
    """Whether this is a float32 product that is small, or has a single row or some rows."""
    rest = [] if bias is None else [bias]
    return (
        x.ndim == 2
        and not ops.narrow
        and ops.serves(1, x, weight, *rest)
        and has_compiler()
        and len(x) * weight.size <= _most_adds(len(x), weight)
    )


def _most_adds(rows: int, weight: Array) -> float:
    from singanet.ops.compiled.engine import is_wide

    if rows == 1:
        return _ALONE
    is_near = rows <= _MOST_ROWS and FLOAT * weight.size <= cache_size()
    fits = rows <= _SOME_ROWS or is_near
    return math.inf if fits and _panel_stays(len(weight)) and not is_wide() else _SMALL


def _blocks(rows: int) -> list[tuple[int, int]]:
    """Return ranges of rows that stay in the core's cache, of whole groups but for the last."""
    return [(k, min(k + _SOME_ROWS, rows)) for k in range(0, rows, _SOME_ROWS)]


def _panel_stays(inputs: int) -> bool:
    """Whether all rows read a panel from the core's cache."""
    return 2 * FLOAT * LANES * inputs <= cache_size()


def multiply(
    ops: PlannedOps, x: Array, weight: Array, bias: Array | None, relu: bool = False
) -> Array | None:
    """Compute `Ops.affine_constant` with the matrix in panels of columns."""
    from singanet.ops.compiled.pool import width_of

    rows, (inputs, outputs) = len(x), weight.shape
    width = width_of(outputs, rows)
    packed, line = _panels(ops, weight, bias, width)
    y: Array = ops.xp.empty((rows, outputs), x.dtype)
    key = rows, inputs, outputs, width, relu
    # Other threads of Python, and those of the kernel, run beside large products.
    passes = 0
    if rows * weight.size > _ALONE or is_worth_threads(ops, rows, weight.size):
        passes = SHARED
    elif is_worth_a_job(ops, rows, weight.size):
        passes = JOINED
    return y if ops.runs(_product, key, y, ops.ordered(x), packed, line, passes=passes) else None


def _panels(ops: PlannedOps, weight: Array, bias: Array | None, width: int) -> tuple[Array, Array]:
    """Return the matrix in panels of ``width`` columns and the bias, filled up with zeros."""
    inputs, outputs = weight.shape
    panels = -(-outputs // width)
    line, whole = ops.zeros((panels * width,), weight), weight
    if bias is not None:
        line[:outputs] = bias
    if outputs % width:
        whole = ops.zeros((inputs, panels * width), weight)
        whole[:, :outputs] = weight
    return ops.xp.ascontiguousarray(whole.reshape(inputs, panels, width).swapaxes(0, 1)), line


_MANY_NUMBERS = 1 << 16
"""Numbers of a matrix from which a BLAS takes longer to arrange it than for some rows' products."""


def multiplier(ops: PlannedOps, weight: Array, rows: int) -> Callable[[Array, Array], Array]:
    """Return `Ops.multiplier` with the matrix in panels, which all products read."""
    lane = rows // ops.lane_count(rows, _ALONE)
    if not (
        _LEAST_ROWS <= lane <= _FEW_ROWS
        and weight.size >= _MANY_NUMBERS
        and not ops.narrow
        and ops.serves(1, weight)
        and has_compiler()
    ):
        return NumpyOps.multiplier(ops, weight, rows)
    packed, line = _panels(ops, weight, None, LANES)

    def multiply(a: Array, out: Array) -> Array:
        key = len(a), *weight.shape, LANES, False
        # Lanes run beside each other, without Python's lock.
        done = ops.runs(_product_of_lane, key, out, a, packed, line, passes=SHARED)
        return out if done else product_by_numpy(ops.xp, a, weight, out)

    return multiply


def _product_of_lane(crew: Crew, *key: Any) -> CompiledPlan:
    """Operands: those of `_product`."""
    return _product(PythonCrew(1, crew.brief), *key)


def _product(
    crew: Crew, rows: int, inputs: int, outputs: int, width: int, relu: bool
) -> CompiledPlan:
    """Operands: the products, the rows, the matrix in panels, the padded bias."""
    panels, threads = -(-outputs // width), crew.joined
    blocks = _blocks(rows)
    if len(blocks) == 1:
        stages = shared((inputs, outputs, 0, rows), (panels,), threads)
    else:
        calls = [(inputs, outputs, *block, 0, panels) for block in blocks]
        stages = [calls] if threads > 1 else [[call] for call in calls]
    function = _product_function(width, relu)
    return CompiledPlan(crew, function, stages, reads=(1, 2, 3), writes=(0,))


@cache
def _product_function(width: int, relu: bool) -> CompiledFunction:
    from singanet.ops.compiled import engine, pool

    return engine.known(pool.product, width, relu)


_GAIN = 4
"""Least time of a product, relative to the cost of sharing, for which threads share it.

2 would suffice if both threads were awake and both caches had all operands.
"""

_READ = 0.1
"""Nanoseconds to read a number from beyond a core's own cache."""


def is_worth_threads(ops: PlannedOps, rows: int, weight: int) -> bool:
    """Whether threads should share a product with ``weight`` constant elements.

    With few rows the time goes into reading the weight, and each core's cache has its own part.
    """
    if ops.threads == 1:
        return False
    speeds = ops.speeds()
    multiplied = speeds.narrow if ops.narrow else speeds.direct
    return weight * (rows * multiplied + _READ) >= _GAIN * speeds.shared


_JOBS = 4
"""Jobs that end in the time of a kernel that oneDNN shares, beyond half of its time on one."""


def is_worth_a_job(ops: PlannedOps, rows: int, weight: int) -> bool:
    """Whether threads should share a product of `is_worth_threads` without Python."""
    runtime = ops.runtime()
    return runtime.jobs is not None and is_worth_threads(ops, rows, _JOBS * weight)


def _is_compiled(
    ops: PlannedOps, x: Array, weight: Array, bias: Array | None, relu: bool = False
) -> bool:
    """Whether LLVM's function serves, on one thread or in a job.

    Threads' caches divide a large matrix, so oneDNN serves if there are threads but no jobs.
    """
    if not is_small(ops, x, weight, bias, relu):
        return False
    return ops.runtime().jobs is not None or not is_worth_threads(ops, len(x), weight.size)


product = Route("compiled", multiply, _is_compiled)

_LEAST_ROWS, _FEW_ROWS = 4, 64
"""Rows for which a BLAS arranges its factors for the caches, and gains little from it."""


def _are_few_rows(
    ops: PlannedOps, x: Array, weight: Array, bias: Array | None, relu: bool = False
) -> bool:
    """Whether NumPy's product, of factors that it arranges in each call, takes longer."""
    rest = [] if bias is None else [bias]
    return (
        x.ndim == 2
        and len(x) <= _FEW_ROWS
        and _panel_stays(len(weight))
        and not ops.narrow
        and ops.serves(1, x, weight, *rest)
        and has_compiler()
    )


product_of_rows = Route("compiled rows", multiply, _are_few_rows)
