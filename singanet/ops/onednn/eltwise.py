"""Compute elementwise kernels by oneDNN.

Contiguous memory is processed from end to end, in any order of its axes.

Each step of arithmetic is rounded like NumPy's, with equal bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from singanet.ops.kernel import Route, in_order
from singanet.ops.llvm import few, kernels
from singanet.ops.llvm.base import in_memory_order, is_dense
from singanet.ops.llvm.plans import SHARED, Runnable
from singanet.ops.numpy import pointwise as by_numpy
from singanet.ops.numpy import windows
from singanet.ops.numpy.pointwise import add_all as add_all_by_numpy
from singanet.ops.onednn.base import OneDnnBase
from singanet.ops.onednn.binding import Algorithm as Alg
from singanet.ops.onednn.binding import Arg, Prop
from singanet.ops.onednn.builder import Builder, NotOfferedError
from singanet.types import Array, Shape

_CHEAP, _LONG, _LONGEST = 1 << 17, 1 << 14, 1 << 11
"""Elements from which oneDNN is faster, by the number of passes of NumPy's formula."""

_BY_NUMPY = ("elu", "softplus")
"""oneDNN's forward has exp(x) - 1 and log(1 + exp(x)), which lose small values."""

_SATURATED = {"gelu": 50.0, "silu": 150.0}
"""Arguments from which derivatives are 0 and 1 to the last bit; oneDNN's may be NaN beyond."""

_LEAST_FORWARD = {"relu": _CHEAP, "tanh": _CHEAP, "leaky_relu": _CHEAP, "gelu": _LONGEST}
_LEAST_BACKWARD = {**_LEAST_FORWARD, "sigmoid": _CHEAP}

_ALGORITHMS = {
    "relu": (Alg.RELU, Alg.RELU_BY_DST),
    "sigmoid": (Alg.LOGISTIC, Alg.LOGISTIC_BY_DST),
    "tanh": (Alg.TANH, Alg.TANH_BY_DST),
    "leaky_relu": (Alg.RELU, Alg.RELU),
    "elu": (Alg.ELU, Alg.ELU),
    "gelu": (Alg.GELU_ERF, Alg.GELU_ERF),
    "silu": (Alg.SWISH, Alg.SWISH),
    "softplus": (Alg.SOFT_RELU, Alg.SOFT_RELU),
}
"""Forward, and backward from the argument in `ACTIVATIONS`; NumPy has the other functions."""

_ALPHAS = {"relu": 0.0, "silu": 1.0, "softplus": 1.0}
"""Parameters of the formulas that are not the caller's slope."""

_LEAST_SUM = 1 << 16
"""Elements from which oneDNN's sum is faster: benchmarks/onednn_kernels.py."""


def _activation(ops: OneDnnBase, mode: str, x: Array, slope: float = 0.01) -> Array | None:
    y: Array = ops.xp.empty_like(x)
    key = (x.size, int(_ALGORITHMS[mode][0]), _ALPHAS.get(mode, slope))
    if not ops.runs(_forward, key, x, y):
        return None
    if mode == "relu":
        # oneDNN's relu turns NaN into zero, which would hide that a net has diverged.
        ops.show_nan(in_memory_order(y), in_memory_order(x))
    if mode in _SATURATED:
        # Both are at most relu, which handles infinity and NaN.
        ops.xp.fmin(y, ops.xp.maximum(x, 0), out=y)
    return y


def _activation_backward(
    ops: OneDnnBase, mode: str, dy: Array, kept: Array, slope: float = 0.01
) -> Array | None:
    slopes = dy if dy.strides == kept.strides else _like(ops, dy, kept)
    dx: Array = ops.xp.empty_like(kept)
    if mode in _SATURATED:
        kept = ops.xp.clip(kept, -_SATURATED[mode], _SATURATED[mode])
    forward, backward = (int(algorithm) for algorithm in _ALGORITHMS[mode])
    key = (dy.size, forward, backward, _ALPHAS.get(mode, slope))
    return dx if ops.runs(_backward, key, dx, slopes, kept) else None


def _combine(
    ops: OneDnnBase, mode: str, arrays: Sequence[Array], shape: Shape, relu: bool = False
) -> Array | None:
    a, b = arrays
    b = b if b.strides == a.strides else _like(ops, b, a)
    y: Array = ops.xp.empty_like(a)
    if not ops.runs(_sum, (a.size, relu), y, a, b):
        return None
    for given in (a, b) if relu else ():
        ops.show_nan(in_memory_order(y), in_memory_order(given))
    return y


def _add_all(ops: OneDnnBase, arrays: Sequence[Array]) -> Array | None:
    total: Array | None = arrays[0]
    for other in arrays[1:]:
        total = None if total is None else _combine(ops, "add", (total, other), total.shape)
    return total


def _are_sums(ops: OneDnnBase, arrays: Sequence[Array]) -> bool:
    first = arrays[0]
    return all(_is_sum(ops, "add", (first, other), first.shape) for other in arrays[1:])


def _is_sum(
    ops: OneDnnBase, mode: str, arrays: Sequence[Array], shape: Shape, relu: bool = False
) -> bool:
    if mode != "add" or len(arrays) != 2 or not ops.serves(_LEAST_SUM, *arrays):
        return False
    return arrays[0].shape == arrays[1].shape and is_dense(arrays[0])


def _like(ops: OneDnnBase, array: Array, like: Array) -> Array:
    """Return a copy of ``array`` in the memory order of ``like``."""
    copy: Array = ops.xp.empty_like(like)
    ops.xp.copyto(copy, array)
    return copy


def _is_served(ops: OneDnnBase, mode: str, x: Array, slope: float = 0.01) -> bool:
    if mode in _BY_NUMPY or mode not in _ALGORITHMS:
        return False
    return ops.serves(_LEAST_FORWARD.get(mode, _LONG), x) and is_dense(x)


def _is_served_back(
    ops: OneDnnBase, mode: str, dy: Array, kept: Array, slope: float = 0.01
) -> bool:
    if mode not in _ALGORITHMS:
        return False
    return ops.serves(_LEAST_BACKWARD.get(mode, _LONG), dy, kept) and is_dense(kept)


activation = in_order(
    few.silu, kernels.of_one, Route("onednn", _activation, _is_served), last=by_numpy.activation
)

activation_backward = in_order(
    few.silu_backward,
    Route("onednn", _activation_backward, _is_served_back),
    last=by_numpy.activation_backward,
)

sigmoid = in_order(
    Route(
        "onednn",
        lambda ops, x: _activation(ops, "sigmoid", x),
        lambda ops, x: _is_served(ops, "sigmoid", x),
    ),
    last=by_numpy.sigmoid,
)

add_all = in_order(Route("onednn", _add_all, _are_sums), last=add_all_by_numpy)

combine = in_order(
    kernels.of_sum,
    Route("onednn", _combine, _is_sum),
    last=by_numpy.combine,
)


def _forward(build: Builder, size: int, algorithm: int, alpha: float) -> None:
    plain, line = build.alike(partial(build.rows, (size,)), 0, 1)
    prop = int(Prop.FORWARD_TRAINING)
    desc = build.primitive_desc("eltwise_forward", prop, algorithm, line, line, alpha, 0.0)
    build.stage_on(desc, (Arg.SRC, Arg.DST), plain, [line] * 2)


def _backward(build: Builder, size: int, forward: int, backward: int, alpha: float) -> None:
    plain, line = build.alike(partial(build.rows, (size,)), 0, 1, 2)
    prop = int(Prop.FORWARD_TRAINING)
    hint = build.primitive_desc("eltwise_forward", prop, backward, line, line, alpha, 0.0)
    desc = build.primitive_desc("eltwise_backward", backward, line, line, line, alpha, 0.0, hint)
    kept = Arg.SRC if forward == backward else Arg.DST
    build.stage_on(desc, (Arg.DIFF_SRC, Arg.DIFF_DST, kept), plain, [line] * 3)


def _sum(build: Builder, size: int, relu: bool) -> None:
    plain, line = build.alike(partial(build.rows, (size,)), 0, 1, 2)
    attributes, algorithm = build.post_ops(relu=relu), int(Alg.BINARY_ADD)
    desc = build.primitive_desc("binary", algorithm, line, line, line, attributes=attributes)
    build.stage_on(desc, (Arg.DST, Arg.SRC, Arg.SRC_1), plain, [line] * 3)


_BINARY = {
    np.add: Alg.BINARY_ADD,
    np.subtract: Alg.BINARY_SUBTRACT,
    np.multiply: Alg.BINARY_MULTIPLY,
    np.divide: Alg.BINARY_DIVIDE,
}

_LEAST = 1 << 14
"""Elements from which oneDNN is faster, also on one thread."""

_OPERANDS = ((Arg.SRC, Arg.SCALE_OF_SRC), (Arg.SRC_1, Arg.SCALE_OF_SRC_1))


def has_sweep(ops: OneDnnBase, function: Any, size: int) -> bool:
    offered = size >= _LEAST and (function in _BINARY or function is np.sqrt)
    return offered and ops.runtime() is not None


def sweep(
    ops: OneDnnBase, function: Any, size: int, number: bool, scaled: tuple[bool, ...], work: int
) -> Runnable | None:
    runtime = ops.runtime() if has_sweep(ops, function, size) else None
    if runtime is None:
        return None
    # Parts of a larger work have the thread count of the whole.
    passes = SHARED if work >= SHARED else 0
    if function is np.sqrt:
        return runtime.plan(_root, (size, passes), passes)
    return runtime.plan(_binary, (size, int(_BINARY[function]), number, scaled, passes), passes)


def _binary(
    build: Builder, size: int, algorithm: int, number: bool, scaled: tuple[bool, ...], _: int
) -> None:
    """Operands: the result, both arrays, and a factor for each scaled one."""
    line, one = build.rows((size,)), build.rows((1,))
    factors = [pair for pair, is_it in zip(_OPERANDS, scaled, strict=True) if is_it]
    attributes = build.scaled([arg for arg, _ in factors]) if factors else None
    given = [line, one if number else line]
    desc = build.primitive_desc("binary", algorithm, *given, line, attributes=attributes)
    _expect_in_place(build, desc)
    order = [Arg.DST, Arg.SRC, Arg.SRC_1, *(scale for _, scale in factors)]
    build.stage(desc, build.operands(order, [line, *given, *[one] * len(factors)]))


def _root(build: Builder, size: int, _: int) -> None:
    line, prop = build.rows((size,)), int(Prop.FORWARD_INFERENCE)
    desc = build.primitive_desc("eltwise_forward", prop, int(Alg.SQUARE_ROOT), line, line, 0.0, 0.0)
    _expect_in_place(build, desc)
    build.stage(desc, build.operands((Arg.DST, Arg.SRC), [line, line]))


def _expect_in_place(build: Builder, desc: Any) -> None:
    """Require generated code, which reads both operands before the result may overwrite one."""
    if not build.implementation(desc).startswith("jit"):
        raise NotOfferedError("arithmetic")


_IMAGES_LEAST = 1 << 13


def _is_worth_moving(ops: OneDnnBase, x: Array) -> bool:
    # With one channel, or one pixel, both orders are the same memory.
    large = (
        x.size >= _IMAGES_LEAST and x.flags.c_contiguous and x.ndim == 4 and 1 < x.shape[1] < x.size
    )
    return large and ops.serves(_IMAGES_LEAST, x)


def _channels_last(ops: OneDnnBase, x: Array) -> Array | None:
    n, c, h, w = x.shape
    y: Array = ops.xp.empty((n, h, w, c), np.float32)
    return y if ops.runs(_reorder, (n, c, h, w), x, y) else None


channels_last = in_order(
    Route("onednn", _channels_last, _is_worth_moving), last=windows.channels_last
)


def _reorder(build: Builder, n: int, c: int, h: int, w: int) -> None:
    shape: Shape = (n, h, w, c)
    source = build.rows((n, c, h, w), build.kind(0))
    target = build.images(shape, build.kind(1))
    build.reorder(source, build.operand(0, source), target, build.operand(1, target))
