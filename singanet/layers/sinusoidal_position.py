"""Fixed positions."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from singanet.layers.context import Context
from singanet.layers.layer import Layer
from singanet.types import Array, Shapes


class SinusoidalPosition(Layer):
    """y_t = x_t + p_t for sequences (N, T, E) of any length, without parameters.

    p_t,2i = sin(t / 10000^(2i/E)) and p_t,2i+1 the cosine of the same (Vaswani et al. 2017).
    """

    any_extent = True

    def setup(self, in_shapes: Any) -> Shapes:
        """(T, E), unchanged."""
        return self.expect_rank(in_shapes, 2, "(time, features)", "put an embedding before it")

    def forward(self, ctx: Context, x: Array) -> Array:
        """The sequences with their positions added."""
        table = ctx.ops.xp.asarray(_waves(*x.shape[1:]), x.dtype)
        return ctx.ops.add(x, table)

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """The gradient itself."""
        return dy, {}


@lru_cache(maxsize=8)
def _waves(steps: int, size: int) -> Array:
    """The positions (T, E) in float64."""
    pair = np.arange(size) // 2
    angle = np.arange(steps)[:, None] / 10000.0 ** (2.0 * pair / size)
    table: Array = np.where(np.arange(size) % 2, np.cos(angle), np.sin(angle))
    table.setflags(write=False)
    return table
