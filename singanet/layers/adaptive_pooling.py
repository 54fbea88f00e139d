"""Pooling to so many positions, whatever the size."""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from math import prod
from typing import Any, ClassVar

import numpy as np

from singanet.base.arguments import is_int
from singanet.errors import ArgumentError
from singanet.layers.context import Context
from singanet.layers.geometry import expect_image
from singanet.layers.layer import Layer
from singanet.ops import Ops
from singanet.ops.kernel import in_float32
from singanet.types import Array, GivenShape, Shape, Shapes


@lru_cache(maxsize=16)
def _pooled(sizes: Shape, out: Shape) -> tuple[Array, Array]:
    """See `AdaptivePooling.found`."""
    cells = [
        [range(i * n // o, -(-(i + 1) * n // o)) for i in range(o)]
        for o, n in zip(out, sizes, strict=True)
    ]
    places = np.arange(prod(sizes)).reshape(sizes)
    found = [places[np.ix_(*each)].reshape(-1) for each in product(*cells)]
    longest = max(map(len, found))
    # The last fills up where they are fewer, and has no share there.
    filled = [np.pad(a, (0, longest - len(a)), mode="edge") for a in found]
    shares = [[(k < len(a)) / len(a) for k in range(longest)] for a in found]
    return np.stack(filled), np.array(shares)


class AdaptivePooling(Layer):
    """(C, sizes...) → (C, output_size...): position i of o is of those from ⌊i n/o⌋ to ⌈(i+1) n/o⌉.

    An int stands for all axes; None keeps the size along an axis. He et al., 2014.
    """

    axes: ClassVar[int] = 2

    def __init__(
        self, name: str, output_size: Any, input_sample_shape: GivenShape | None = None
    ) -> None:
        super().__init__(name, input_sample_shape)
        several = isinstance(output_size, (tuple, list))
        sizes = tuple(output_size) if several else (output_size,) * self.axes
        if len(sizes) != self.axes or not all(size is None or is_int(size) for size in sizes):
            raise ArgumentError(
                f"layer {name!r}, argument output_size",
                expected=f"a positive int, or {self.axes} of them or Nones, behind the channels",
                received=repr(output_size),
                advice="None keeps the size along its axis",
            )
        self.output_size = sizes

    def setup(self, in_shapes: Any) -> Shapes:
        """Sample shape (C, ...) → (C, *output_size)."""
        shape = expect_image(self, in_shapes, self.axes)
        wanted = zip(self.output_size, shape[1:], strict=True)
        return (shape[0], *(n if size is None else int(size) for size, n in wanted))

    def found(self) -> tuple[Array, Array]:
        """Of every position of the output those it is of, and the share of each in their mean.

        Made when there is an image, not in `setup`: a file may promise output without end.
        """
        shapes: Any = (self.in_shapes, self.out_shapes)
        return _pooled(*(shape[1:] for shape in shapes))

    def _windows(self, ctx: Context, x: Array) -> Array:
        """(N, C, sizes...) as (N, C, positions of the output, positions of each)."""
        ctx.save(x_shape=x.shape)
        flat = x.reshape(*x.shape[:2], prod(x.shape[2:]))
        return flat.take(ctx.ops.xp.asarray(self.found()[0]), axis=2)

    @in_float32
    def _spread_back(self, ops: Ops, parts: Array, x_shape: Shape) -> Array:
        """The gradients of the windows added up where they came from."""
        n, c, *sizes = x_shape
        dx = ops.zeros((n, c, prod(sizes)), parts)
        places = ops.xp.asarray(self.found()[0])
        ops.xp.add.at(dx, (slice(None), slice(None), places), parts)
        return dx.reshape(x_shape)


class AdaptiveAvgPooling(AdaptivePooling):
    """The mean of the positions."""

    def forward(self, ctx: Context, x: Array) -> Array:
        """(N, C, ...) → (N, C, *output_size); keeps no array."""
        shares = ctx.ops.xp.asarray(self.found()[1], x.dtype)
        y = _sum_of_shares(ctx.ops, self._windows(ctx, x), shares)
        out: Any = self.out_shapes
        return y.reshape(len(x), *out)

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """Each gradient is shared equally by its positions."""
        shares = ctx.ops.xp.asarray(self.found()[1], dy.dtype)
        flat = dy.reshape(*dy.shape[:2], len(shares), 1)
        return self._spread_back(ctx.ops, ctx.ops.multiply(flat, shares), ctx.saved["x_shape"]), {}


@in_float32
def _sum_of_shares(ops: Ops, windows: Array, shares: Array) -> Array:
    return ops.sum(ops.multiply(windows, shares), axis=3)


class AdaptiveMaxPooling(AdaptivePooling):
    """The largest of the positions; of equal values the first counts."""

    def forward(self, ctx: Context, x: Array) -> Array:
        """(N, C, ...) → (N, C, *output_size); keeps one integer an output."""
        windows = self._windows(ctx, x)
        ctx.save(where=windows.argmax(axis=3))
        out: Any = self.out_shapes
        return windows.max(axis=3).reshape(len(x), *out)

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """Each gradient goes to the position of its maximum."""
        xp = ctx.ops.xp
        places, _ = self.found()
        first = ctx.saved["where"][..., None] == xp.arange(places.shape[1])
        flat = dy.reshape(*dy.shape[:2], len(places), 1)
        return self._spread_back(ctx.ops, ctx.ops.where(first, flat, 0.0), ctx.saved["x_shape"]), {}


class AdaptiveAvgPooling1D(AdaptiveAvgPooling):
    """The mean of the positions of sequences: (C, L) → (C, output_size)."""

    axes = 1


class AdaptiveAvgPooling2D(AdaptiveAvgPooling):
    """The mean of the positions of images: (C, H, W) → (C, *output_size)."""


class AdaptiveAvgPooling3D(AdaptiveAvgPooling):
    """The mean of the positions of volumes: (C, D, H, W) → (C, *output_size)."""

    axes = 3


class AdaptiveMaxPooling1D(AdaptiveMaxPooling):
    """The largest of the positions of sequences: (C, L) → (C, output_size)."""

    axes = 1


class AdaptiveMaxPooling2D(AdaptiveMaxPooling):
    """The largest of the positions of images: (C, H, W) → (C, *output_size)."""


class AdaptiveMaxPooling3D(AdaptiveMaxPooling):
    """The largest of the positions of volumes: (C, D, H, W) → (C, *output_size)."""

    axes = 3
