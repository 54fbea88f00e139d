"""Scores of attention that depend on a query, or a key, and the distance between both."""

from __future__ import annotations

from functools import lru_cache
from math import log
from typing import Any

import numpy as np

from singanet.base.heap import steps
from singanet.base.words import REQUIRED
from singanet.layers.context import Context
from singanet.layers.layer import Layer, Name, expect_int
from singanet.ops.kernel import in_float32
from singanet.types import Array, GivenShape, Shapes, Traits


class ByDistance(Layer):
    """A layer that picks scores by distance: y[h, i, j] = x[h, i, b(i - j)].

    Samples (heads, T, 2 ``buckets``) have a score of each step with each bucket of distances, the
    products of queries with embeddings of positions (He et al. 2021, DeBERTa). b counts distances
    below half of ``buckets`` one by one, and larger ones by their logarithm up to
    ``max_distance``; negative ones have buckets of their own.

    Args:
        name: Name of the layer, a string.
        buckets: Positive int, the buckets of one direction.
        max_distance: Int, the distance at which the last bucket starts.
        of_keys: Whether the scores are of keys: y[h, i, j] = x[h, j, b(i - j)].
        input_shape: Sample shape (heads, T, 2 ``buckets``), to set the layer up at once.

    Examples:
        >>> x = singanet.Input("x", (4, 10, 16))
        >>> singanet.layers.ByDistance(buckets=8, max_distance=32)(x).shape
        (4, 10, 10)
    """

    traits = Traits(any_extent=True)

    def __init__(
        self,
        name: Name = None,
        buckets: int = REQUIRED,
        max_distance: int = REQUIRED,
        of_keys: bool = False,
        *,
        input_shape: GivenShape | None = None,
    ) -> None:
        super().__init__(name, input_shape)
        self.buckets = expect_int(name, "buckets", buckets, least=2)
        self.max_distance = expect_int(name, "max_distance", max_distance, least=self.buckets // 2)
        self.of_keys = bool(of_keys)

    def setup(self, in_shapes: Any) -> Shapes:
        """(heads, T, 2 buckets) → (heads, T, T)."""
        axes = "(heads, time, 2 buckets)"
        heads, length, count = self.expect_rank(in_shapes, 3, axes, "split the heads before it")
        if count != 2 * self.buckets:
            raise self.shape_error(
                f"{2 * self.buckets} scores of each step",
                f"{count}",
                "multiply by an embedding of each bucket of both directions",
            )
        return (heads, length, length)

    def _picked(self, ctx: Context, wide: Array) -> Array:
        """Return the view (N, h, T, T) of scores by distance ``wide`` (N, h, T, 2 T - 1)."""
        n, heads, length, _ = wide.shape
        by_sample, by_head, by_row, by_column = steps(wide)
        strides = (by_sample, by_head, by_row - by_column, by_column)
        view: Array = ctx.ops.xp.lib.stride_tricks.as_strided(
            wide[..., length - 1 :], (n, heads, length, length), strides
        )
        return view.swapaxes(2, 3) if self.of_keys else view

    def _rows(self, length: int) -> Array:
        return _rows(length, self.buckets, self.max_distance, self.of_keys)

    def _of(self, distance: Array) -> Array:
        """Return the bucket of each ``distance``, query position minus key position."""
        return _bucket_of(distance, self.buckets, self.max_distance)

    def forward(self, ctx: Context, x: Array) -> Array:
        """Return the scores (N, h, T, T); no array is saved."""
        wide = x.take(ctx.ops.xp.asarray(self._rows(x.shape[2])), axis=3)
        y = ctx.ops.empty((*x.shape[:3], x.shape[2]), x)
        ctx.ops.copyto(y, self._picked(ctx, wide))
        return y

    @in_float32
    def _summed(self, ops: Any, dwide: Array) -> Array:
        length = dwide.shape[2]
        here = _one_hot(length, self.buckets, self.max_distance, self.of_keys, dwide.dtype)
        return ops.matmul(dwide, ops.xp.asarray(here))

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """Return the sums of ``dy`` over the distances of each bucket."""
        wide = ctx.ops.zeros((*dy.shape[:3], 2 * dy.shape[2] - 1), dy)
        ctx.ops.copyto(self._picked(ctx, wide), dy)
        return self._summed(ctx.ops, wide), {}


@lru_cache(maxsize=8)
def _rows(length: int, buckets: int, longest: int, of_keys: bool) -> Array:
    """Return the bucket of each distance, from the last query to the first key."""
    distance = np.arange(length - 1, -length, -1) * (-1 if of_keys else 1)
    return _bucket_of(distance, buckets, longest)


def _bucket_of(distance: Array, buckets: int, longest: int) -> Array:
    half = buckets // 2
    far = np.abs(distance)
    growth = np.log(np.maximum(far, half) / half) / log((longest - 1) / half)
    grown = np.sign(distance) * (np.ceil(growth * (half - 1)) + half)
    bucket = np.where(far <= half, distance, grown).astype(np.int64)
    return np.asarray(np.clip(bucket + buckets, 0, 2 * buckets - 1))


@lru_cache(maxsize=8)
def _one_hot(length: int, buckets: int, longest: int, of_keys: bool, dtype: np.dtype[Any]) -> Array:
    """Return (distances, 2 buckets), 1 if the distance has the bucket."""
    rows = _rows(length, buckets, longest, of_keys)
    return (rows[:, None] == np.arange(2 * buckets)).astype(dtype)
