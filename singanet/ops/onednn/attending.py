"""Streamed attention that multiplies bfloat16.

Queries, keys, values, weights and gradients are rounded block by block, in working memory; scores,
their softmax and all sums are float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from singanet.base.addresses import steps
from singanet.ops.attention import Attention
from singanet.ops.kernel import Route, in_order
from singanet.ops.numpy import attending as by_numpy
from singanet.ops.numpy.attending.backward import attend_back_by
from singanet.ops.numpy.attending.forward import attend_by
from singanet.ops.numpy.attending.products import BlockProducts
from singanet.ops.onednn.base import OneDnnBase
from singanet.ops.onednn.binding import BF16, Arg
from singanet.ops.onednn.builder import Builder
from singanet.types import Array, Shape

_LEAST = 1 << 16
"""Scores of a head from which rounding pays."""

_FACTORS = ("q", "k", "v", "dmeans", "scores", "weights", "dscores")


class RoundedProducts(BlockProducts):
    """Products of bfloat16, by the library's threads."""

    rounds = True
    ops: Any

    @classmethod
    def sizes(cls, sizes: Mapping[str, int]) -> dict[str, int]:
        """Half as much again for each factor."""
        rounded = {_rounded(name): -(-sizes[name] // 2) for name in _FACTORS if name in sizes}
        return {**sizes, **rounded}

    def factor(self, name: str, array: Array) -> Array:
        """Its numbers as bfloat16, whose bits NumPy takes for integers."""
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


def _is_served(ops: OneDnnBase, *given: Any, **named: Any) -> bool:
    arrays = [each for each in given if not isinstance(each, (Attention, bool))]
    # Backward is given the gradient of the means first.
    q, k = arrays[:2] if len(arrays) == 3 else arrays[1:3]
    if not ops.narrow or q.shape[2] * k.shape[2] < _LEAST or not ops.serves(1, *arrays):
        return False
    library = ops.library()
    return library is not None and library.bfloat16


def _attend(ops: Any, q: Array, k: Array, v: Array, case: Attention) -> tuple[Array, Array]:
    return attend_by(RoundedProducts, ops, q, k, v, case)


def _attend_backward(ops: Any, *given: Any, **named: Any) -> Any:
    return attend_back_by(RoundedProducts, ops, *given, **named)


attend = in_order(Route("onednn", _attend, _is_served), last=by_numpy.attend)
attend_backward = in_order(
    Route("onednn", _attend_backward, _is_served), last=by_numpy.attend_backward
)
