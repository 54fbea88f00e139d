"""Batch normalisation by functions that LLVM compiles, for any number of channels.

Each array is read twice at most, and a NaN shows where it comes from. There is no mask: the
backward kernel computes again where y is above zero, from x and the beta that it is given for one.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from singanet.ops.compiled.rows import BACKWARD, BLOCK, FORWARD, Rows, rows_of
from singanet.ops.compiler import has_compiler
from singanet.ops.kernel import Route
from singanet.ops.onednn.base import OneDnnBase
from singanet.ops.onednn.builder import Builder
from singanet.ops.onednn.compiled_plan import CompiledPlan, shared
from singanet.ops.onednn.images import images_of, like
from singanet.types import Array

if TYPE_CHECKING:
    from singanet.ops.compiled.engine import CompiledFunction

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
