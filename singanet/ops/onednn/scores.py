"""Softmax by oneDNN, along the last axis of C-ordered memory."""

from __future__ import annotations

import numpy as np

from singanet.ops.kernel import Route, in_order
from singanet.ops.numpy import scores as by_numpy
from singanet.ops.onednn.base import OneDnnBase
from singanet.ops.onednn.binding import Algorithm, Arg, Prop
from singanet.ops.onednn.builder import Builder
from singanet.types import Array, Shape

_LEAST = 8192
"""Elements from which oneDNN is faster: benchmarks/onednn_kernels.py.

A call that is ready to run takes 1.3 µs for a row, a third of NumPy's five.
"""

_ACCURATE = int(Algorithm.SOFTMAX_ACCURATE)


def _softmax(ops: OneDnnBase, x: Array, axis: int = -1) -> Array | None:
    rows = ops.ordered(x)
    y: Array = ops.xp.empty(rows.shape, np.float32)
    if not ops.runs(_forward, (_flat(rows),), rows, y):
        return None
    if ops.prepared is not None:
        ops.where_nan(_spread, y, y)
        return y
    # A row with NaN or infinity has zeros beside its NaN, which goes to all of it by the sum.
    total = ops.xp.sum(y, axis=-1, keepdims=True)
    ops.xp.multiply(total, 0.0, out=total)
    ops.xp.add(y, total, out=y)
    return y


def in_place(ops: OneDnnBase, scores: Array) -> bool:
    """Make the C-ordered ``scores`` probabilities; a row with NaN has some, and zeros.

    False where oneDNN cannot.
    """
    return ops.runs(_forward_in_place, (_flat(scores),), scores)


def pays(ops: OneDnnBase, size: int) -> bool:
    """Whether oneDNN is faster for so many elements."""
    return size >= (1 if ops.prepared else _LEAST)


def _spread(y: Array, seen: Array) -> None:
    """NaN throughout the rows that hold one."""
    y[np.isnan(seen).any(axis=-1)] = np.nan


def _softmax_backward(ops: OneDnnBase, dy: Array, y: Array, axis: int = -1) -> Array | None:
    rows = ops.ordered(y)
    dx: Array = ops.xp.empty(rows.shape, np.float32)
    return dx if ops.runs(_backward, (_flat(rows),), dx, ops.ordered(dy), rows) else None


def _is_served(ops: OneDnnBase, x: Array, axis: int = -1) -> bool:
    return axis in (-1, x.ndim - 1) and ops.serves(1, x) and pays(ops, x.size)


def _is_served_back(ops: OneDnnBase, dy: Array, y: Array, axis: int = -1) -> bool:
    return axis in (-1, y.ndim - 1) and ops.serves(_LEAST, y, dy)


softmax = in_order(Route("onednn", _softmax, _is_served), last=by_numpy.softmax)

softmax_backward = in_order(
    Route("onednn", _softmax_backward, _is_served_back), last=by_numpy.softmax_backward
)


def _flat(rows: Array) -> Shape:
    return rows.size // rows.shape[-1], rows.shape[-1]


def _desc(build: Builder, shape: Shape) -> object:
    prop, rows = int(Prop.FORWARD_TRAINING), build.rows(shape)
    return build.primitive_desc("softmax_forward", prop, _ACCURATE, rows, rows, 1)


def _forward(build: Builder, shape: Shape) -> None:
    rows = build.rows(shape)
    build.stage(_desc(build, shape), build.operands((Arg.SRC, Arg.DST), [rows] * 2))


def _forward_in_place(build: Builder, shape: Shape) -> None:
    memory = build.operand(0, build.rows(shape))
    build.stage(_desc(build, shape), {Arg.SRC: memory, Arg.DST: memory})


def _backward(build: Builder, shape: Shape) -> None:
    hint, rows = _desc(build, shape), build.rows(shape)
    desc = build.primitive_desc("softmax_backward", _ACCURATE, rows, rows, rows, 1, hint)
    order = (Arg.DIFF_SRC, Arg.DIFF_DST, Arg.DST)
    build.stage(desc, build.operands(order, [rows] * 3))
