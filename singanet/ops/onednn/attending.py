"""Compute attention by oneDNN.

Queries, keys, values, weights and gradients are rounded block by block, in the workspace; scores,
their softmax and all sums are float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from singanet.base.heap import steps
from singanet.ops.kernel import Route, in_order
from singanet.ops.llvm import attend_blocks, few
from singanet.ops.numpy import attending as by_numpy
from singanet.ops.numpy import attending_backward
from singanet.ops.numpy import scores as scores_by_numpy
from singanet.ops.numpy.attending import BlockProducts, attend_by
from singanet.ops.numpy.attending_backward import attend_back_by
from singanet.ops.onednn.base import OneDnnBase
from singanet.ops.onednn.binding import BF16, Algorithm, Arg, Prop
from singanet.ops.onednn.builder import Builder
from singanet.ops.window import Attended, Attention
from singanet.types import Array, Shape

_LEAST = 1 << 16
"""Scores of a head from which rounding pays."""

_FACTORS = ("q", "k", "v", "dmeans", "scores", "weights", "dscores")


class RoundedProducts(BlockProducts):
    """Products of bfloat16, on the library's threads."""

    rounds = True
    ops: Any

    @classmethod
    def sizes(cls, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the sizes, with half as much again for each factor."""
        rounded = {_rounded(name): -(-sizes[name] // 2) for name in _FACTORS if name in sizes}
        return {**sizes, **rounded}

    def factor(self, name: str, array: Array) -> Array:
        """Return the array as bfloat16, whose bits NumPy treats as integers."""
        half = self.memory.get(_rounded(name), -(-array.size // 2)).view(np.uint16)
        made = half[: array.size].reshape(array.shape)
        self.ops.runs(_round, (array.size,), array, made)
        return made

    def __call__(self, x: Array, y: Array, out: Array) -> None:
        (m, k), n = x.shape[2:], y.shape[3]
        for at in np.ndindex(x.shape[:2]):
            one, two = x[at], y[at]
            key = (m, k, n, _strides(one), _strides(two))
            self.ops.runs(_product, key, out[at], one, two, passes=self.ops.passes(k))


def _rounded(name: str) -> str:
    return f"{name} rounded"


def _strides(matrix: Array) -> Shape:
    return tuple(step // matrix.itemsize for step in steps(matrix))


def _round(build: Builder, size: int) -> None:
    plain, made = build.rows((size,)), build.rows((size,), BF16)
    source, target = build.operand(0, plain), build.operand(1, made)
    build.reorder(plain, source, made, target)


def _product(build: Builder, m: int, k: int, n: int, of_x: Shape, of_y: Shape) -> None:
    x, y = build.strided((m, k), of_x, BF16), build.strided((k, n), of_y, BF16)
    out = build.rows((m, n))
    desc = build.primitive_desc("matmul", x, y, None, out)
    build.stage(desc, build.operands((Arg.DST, Arg.SRC, Arg.WEIGHTS), [out, x, y]))


def _is_served(ops: OneDnnBase, q: Array, k: Array, *rest: Any) -> bool:
    arrays = [q, k, *(each for each in rest if not isinstance(each, Attention))]
    if not ops.narrow or q.shape[2] * k.shape[2] < _LEAST or not ops.serves(1, *arrays):
        return False
    library = ops.library()
    return library is not None and library.bfloat16


def _attend(ops: Any, q: Array, k: Array, v: Array, case: Attention) -> tuple[Array, Array]:
    return attend_by(RoundedProducts, ops, q, k, v, case)


def _attend_backward(ops: Any, *given: Any, **named: Any) -> Any:
    return attend_back_by(RoundedProducts, ops, *given, **named)


def _is_served_back(
    ops: OneDnnBase, dmeans: Array, made: Attended, case: Attention, mask_gradient: bool = False
) -> bool:
    return _is_served(ops, *made, dmeans)


attend_few = in_order(few.attend_few, last=by_numpy.attend_few)
rotate = in_order(few.rotate, last=scores_by_numpy.rotate)
softmax_log_sum = in_order(few.softmax_log_sum, last=scores_by_numpy.softmax_log_sum)
attend = in_order(Route("onednn", _attend, _is_served), attend_blocks.attend, last=by_numpy.attend)
attend_backward = in_order(
    Route("onednn", _attend_backward, _is_served_back),
    attend_blocks.attend_backward,
    last=attending_backward.attend_backward,
)


_ACCURATE = int(Algorithm.SOFTMAX_ACCURATE)


def _softmax(ops: OneDnnBase, x: Array, axis: int = -1) -> Array | None:
    rows = ops.ordered(x)
    y: Array = ops.xp.empty(rows.shape, np.float32)
    if not ops.runs(_forward, (_flat(rows),), rows, y):
        return None
    if ops.prepared is not None:
        ops.where_nan(_spread, y, y)
        return y
    # A row with NaN or infinity has zeros next to its NaN; the sum spreads NaN to the whole row.
    total = ops.xp.sum(y, axis=-1, keepdims=True)
    ops.xp.multiply(total, 0.0, out=total)
    ops.xp.add(y, total, out=y)
    return y


def in_place(ops: OneDnnBase, scores: Array) -> bool:
    """Compute the softmax of the C-ordered ``scores`` in place; NaN stays in rows that have it.

    It returns False if oneDNN cannot.
    """
    return ops.runs(_forward_in_place, (_flat(scores),), scores)


def pays(ops: OneDnnBase, size: int) -> bool:
    """Whether oneDNN is faster for ``size`` elements: benchmarks/onednn_kernels.py.

    A prepared call takes 1.3 µs for a row, NumPy five.
    """
    return size >= (1 if ops.prepared else few.SCORES)


def _spread(y: Array, seen: Array) -> None:
    """Fill rows that have NaN with NaN."""
    y[np.isnan(seen).any(axis=-1)] = np.nan


def _softmax_backward(ops: OneDnnBase, dy: Array, y: Array, axis: int = -1) -> Array | None:
    rows = ops.ordered(y)
    dx: Array = ops.xp.empty(rows.shape, np.float32)
    return dx if ops.runs(_backward, (_flat(rows),), dx, ops.ordered(dy), rows) else None


def _scores_is_served(ops: OneDnnBase, x: Array, axis: int = -1) -> bool:
    return axis in (-1, x.ndim - 1) and ops.serves(1, x) and pays(ops, x.size)


def _softmax_is_served_back(ops: OneDnnBase, dy: Array, y: Array, axis: int = -1) -> bool:
    return axis in (-1, y.ndim - 1) and ops.serves(few.SCORES, y, dy)


softmax = in_order(
    few.softmax, Route("onednn", _softmax, _scores_is_served), last=scores_by_numpy.softmax
)

softmax_backward = in_order(
    Route("onednn", _softmax_backward, _softmax_is_served_back),
    last=scores_by_numpy.softmax_backward,
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


def _weights(ops: OneDnnBase, q: Array, k: Array, case: Attention) -> Array | None:
    xp = ops.xp
    weights, hidden = scores_by_numpy.seen_scores(ops, q, k, case)
    # NaN in a row reaches all values computed from it.
    if not in_place(ops, weights):
        return None
    if case.added is not None:
        absent = case.added == -np.inf
        hidden = absent if hidden is None else xp.logical_or(hidden, absent)
    # The softmax of a fully masked row is NaN; a causal mask alone never hides the first key.
    sees_one = case.first >= 0 and case.lengths is case.seen is case.added is None
    if hidden is not None and not sees_one:
        xp.copyto(weights, 0, where=hidden.all(axis=-1, keepdims=True))
    return weights


def _attention_is_served(ops: OneDnnBase, q: Array, k: Array, case: Attention) -> bool:
    return ops.serves(1, q, k) and pays(ops, q.size // q.shape[-1] * k.shape[2])


attention_weights = in_order(
    Route("onednn", _weights, _attention_is_served), last=scores_by_numpy.attention_weights
)
