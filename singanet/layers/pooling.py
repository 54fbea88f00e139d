"""Pooling and upsampling."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any

import numpy as np

from singanet.base.arguments import checked_number, is_int, is_number
from singanet.base.words import REQUIRED
from singanet.errors import ArgumentError, brief
from singanet.layers.context import Context
from singanet.layers.geometry import (
    MEANINGS,
    Extents,
    Padding,
    Spatial,
    Windowed,
    expect_image,
    sizes,
)
from singanet.layers.layer import Layer, Name, expect_one_input, expect_one_of
from singanet.ops import Ops
from singanet.ops.kernel import in_float32
from singanet.types import Array, GivenShape, Shape, Shapes


class Pooling(Windowed):
    """Windows over each channel of (C, ...) samples."""

    _size_word = "pool_size"

    def __init__(
        self,
        name: Name = None,
        pool_size: Extents = 3,
        strides: Extents | str | None = None,
        padding: Padding = "same",
        *,
        ceil_mode: bool = False,
        dilation_rate: Extents = 1,
        data_format: str | None = None,
        input_shape: GivenShape | None = None,
    ) -> None:
        window = pool_size, pool_size if strides is None else strides, padding, dilation_rate
        super().__init__(name, *window, input_shape, ceil_mode, data_format)

    def setup(self, in_shapes: Any) -> Shapes:
        """(C, ...) → (C, ...), (L,) → (L',)."""
        shape, window = self._channels_first(in_shapes), self.window
        out = self._out_size(shape)
        if any(max(ends) >= k for ends, k in zip(window.pads, window.extent, strict=True)):
            raise self.shape_error(
                f"padding smaller than the kernel {window.kernel}",
                f"padding {window.pads}",
                "a window must overlap the sample",
            )
        return out if len(in_shapes) == self._axes else self._swapped((shape[0], *out))


class MaxPooling(Pooling):
    """`MaxPooling2D` along ``_axes`` axes."""

    def forward(self, ctx: Context, x: Array) -> Array:
        """(N, C, ...) → (N, C, ...); saves one small integer for each output."""
        x = self._as_image(x)
        y, where = ctx.ops.max_pool(x, self._inner, ctx.keep)
        ctx.save(where=where, x_shape=x.shape)
        return self._as_sample(y, self.out_shapes)

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """Add each gradient to the position of its maximum."""
        saved = self._as_image(dy), ctx.saved["where"], ctx.saved["x_shape"]
        dx = ctx.ops.max_pool_backward(*saved, self._inner)
        return self._as_sample(dx, self.in_shapes), {}


class AvgPooling(Pooling):
    """`AvgPooling2D` along ``_axes`` axes."""

    def __init__(
        self,
        name: Name = None,
        pool_size: Extents = 3,
        strides: Extents | str | None = None,
        padding: Padding = "same",
        *,
        ceil_mode: bool = False,
        count_include_pad: bool = False,
        data_format: str | None = None,
        input_shape: GivenShape | None = None,
    ) -> None:
        window = name, pool_size, strides, padding
        given: dict[str, Any] = {"data_format": data_format, "input_shape": input_shape}
        super().__init__(*window, ceil_mode=ceil_mode, **given)
        self.count_include_pad = bool(count_include_pad)

    def forward(self, ctx: Context, x: Array) -> Array:
        """(N, C, ...) → (N, C, ...); saves no array."""
        x = self._as_image(x)
        ctx.save(x_shape=x.shape)
        y = ctx.ops.avg_pool(x, self._inner, self.count_include_pad)
        return self._as_sample(y, self.out_shapes)

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """Divide each gradient equally among the positions of its window."""
        given = ctx.saved["x_shape"], self._inner, self.count_include_pad
        dx = ctx.ops.avg_pool_backward(self._as_image(dy), *given)
        return self._as_sample(dx, self.in_shapes), {}


class MaxPooling1D(MaxPooling):
    """`MaxPooling2D` of sequences: sample shapes (C, L) → (C, L') and (L,) → (L',).

    Args:
        name: Name of the layer, a string.
        pool_size: Positive int, the steps in a window; 3 by default (Keras: 2).
        strides: Positive int, the steps from one window to the next; None for ``pool_size``.
        padding: "same" by default (Keras: "valid"), "valid", "causal", an int or (before, after).
        ceil_mode: Whether to round sizes up: the last window may then extend beyond the border.
        dilation_rate: Positive int, the distance of the steps within a window.
        data_format: "channels_last" for samples (L, C), "channels_first" for (C, L). One of them is
            needed behind layers whose outputs are (steps, features).
        input_shape: Sample shape, to set the layer up at once.

    Examples:
        >>> x = singanet.Input("x", (8, 10))
        >>> singanet.layers.MaxPooling1D(pool_size=2, padding="valid")(x).shape
        (8, 5)
    """

    _axes = 1


class MaxPooling2D(MaxPooling):
    """A layer that returns the largest value of each window of (C, H, W) images.

    Padding never wins, and of equal values the first wins.

    Args:
        name: Name of the layer, a string.
        pool_size: An int or (height, width), 3 by default (Keras: 2).
        strides: An int or (height, width); None for ``pool_size``.
        padding: "same" by default (Keras: "valid"), "valid", an int for all sides, or for each of
            (height, width) an int or (before, after).
        ceil_mode: Whether to round sizes up: the last window may then extend beyond the border.
        dilation_rate: An int or (height, width), the distance of the positions in a window.
        data_format: None, "channels_first" or "NCHW", which are the same.
        input_shape: Sample shape, to set the layer up at once.

    Examples:
        >>> x = singanet.Input("x", (8, 10, 10))
        >>> singanet.layers.MaxPooling2D(pool_size=2, padding="valid")(x).shape
        (8, 5, 5)
    """


class MaxPooling3D(MaxPooling):
    """`MaxPooling2D` of volumes: (C, D, H, W) → (C, D', H', W').

    Args:
        name: Name of the layer, a string.
        pool_size: An int or (depth, height, width), 3 by default (Keras: 2).
        strides: An int or (depth, height, width); None for ``pool_size``.
        padding: "same" by default (Keras: "valid"), "valid", an int for all sides, or for each of
            (depth, height, width) an int or (before, after).
        ceil_mode: Whether to round sizes up: the last window may then extend beyond the border.
        dilation_rate: An int or (depth, height, width), the distance of the positions in a window.
        data_format: None, "channels_first" or "NCHW", which are the same.
        input_shape: Sample shape, to set the layer up at once.

    Examples:
        >>> x = singanet.Input("x", (8, 4, 10, 10))
        >>> singanet.layers.MaxPooling3D(pool_size=2, padding="valid")(x).shape
        (8, 2, 5, 5)
    """

    _axes = 3


class AvgPooling1D(AvgPooling):
    """`AvgPooling2D` of sequences: sample shapes (C, L) → (C, L') and (L,) → (L',).

    Args:
        name: Name of the layer, a string.
        pool_size: Positive int, the steps in a window; 3 by default (Keras: 2).
        strides: Positive int, the steps from one window to the next; None for ``pool_size``.
        padding: "same" by default (Keras: "valid"), "valid", "causal", an int or (before, after).
        ceil_mode: Whether to round sizes up: the last window may then extend beyond the border.
        count_include_pad: Whether padding counts, as zeros, as by default in PyTorch. By default
            the mean is over the positions on the sample.
        data_format: "channels_last" for samples (L, C), "channels_first" for (C, L). One of them is
            needed behind layers whose outputs are (steps, features).
        input_shape: Sample shape, to set the layer up at once.

    Examples:
        >>> x = singanet.Input("x", (8, 10))
        >>> singanet.layers.AvgPooling1D(pool_size=2, padding="valid")(x).shape
        (8, 5)
    """

    _axes = 1


class AvgPooling2D(AvgPooling):
    """A layer that returns the mean of each window of (C, H, W) images.

    Args:
        name: Name of the layer, a string.
        pool_size: An int or (height, width), 3 by default (Keras: 2).
        strides: An int or (height, width); None for ``pool_size``.
        padding: "same" by default (Keras: "valid"), "valid", an int for all sides, or for each of
            (height, width) an int or (before, after).
        ceil_mode: Whether to round sizes up: the last window may then extend beyond the border.
        count_include_pad: Whether padding counts, as zeros, as by default in PyTorch. By default
            the mean is over the positions on the sample.
        data_format: None, "channels_first" or "NCHW", which are the same.
        input_shape: Sample shape, to set the layer up at once.

    Examples:
        >>> x = singanet.Input("x", (8, 10, 10))
        >>> singanet.layers.AvgPooling2D(pool_size=2, padding="valid")(x).shape
        (8, 5, 5)
    """


class AvgPooling3D(AvgPooling):
    """`AvgPooling2D` of volumes: (C, D, H, W) → (C, D', H', W').

    Args:
        name: Name of the layer, a string.
        pool_size: An int or (depth, height, width), 3 by default (Keras: 2).
        strides: An int or (depth, height, width); None for ``pool_size``.
        padding: "same" by default (Keras: "valid"), "valid", an int for all sides, or for each of
            (depth, height, width) an int or (before, after).
        ceil_mode: Whether to round sizes up: the last window may then extend beyond the border.
        count_include_pad: Whether padding counts, as zeros, as by default in PyTorch. By default
            the mean is over the positions on the sample.
        data_format: None, "channels_first" or "NCHW", which are the same.
        input_shape: Sample shape, to set the layer up at once.

    Examples:
        >>> x = singanet.Input("x", (8, 4, 10, 10))
        >>> singanet.layers.AvgPooling3D(pool_size=2, padding="valid")(x).shape
        (8, 2, 5, 5)
    """

    _axes = 3


@lru_cache(maxsize=16)
def _pooled(sizes: Shape, out: Shape) -> tuple[Array, Array]:
    cells = [
        [range(i * n // o, -(-(i + 1) * n // o)) for i in range(o)]
        for o, n in zip(out, sizes, strict=True)
    ]
    places = np.arange(prod(sizes)).reshape(sizes)
    found = [places[np.ix_(*each)].reshape(-1) for each in product(*cells)]
    longest = max(map(len, found))
    # Shorter windows repeat their last position, with a share of 0.
    filled = [np.pad(a, (0, longest - len(a)), mode="edge") for a in found]
    shares = [[(k < len(a)) / len(a) for k in range(longest)] for a in found]
    return np.stack(filled), np.array(shares)


class AdaptivePooling(Spatial):
    """(C, sizes...) → (C, output_size...): output i pools positions ⌊i n/o⌋ to ⌈(i+1) n/o⌉ - 1.

    n and o are the sizes of an axis of the input and of the output. He et al., 2014.
    """

    def __init__(
        self,
        name: Name = None,
        output_size: Any = REQUIRED,
        *,
        data_format: str | None = None,
        input_shape: GivenShape | None = None,
    ) -> None:
        super().__init__(name, input_shape)
        self._lay_out(data_format, self._axes)
        several = isinstance(output_size, (tuple, list))
        sizes = tuple(output_size) if several else (output_size,) * self._axes
        if len(sizes) != self._axes or not all(size is None or is_int(size) for size in sizes):
            raise ArgumentError(
                f"layer {name!r}, argument output_size",
                expected=f"a positive int, or {self._axes} positive ints or Nones for the axes"
                " after the channels",
                received=brief(output_size),
                advice="None keeps the size along its axis",
            )
        self.output_size = sizes

    def setup(self, in_shapes: Any) -> Shapes:
        """Sample shape (C, ...) → (C, *output_size)."""
        shape = expect_image(self, self._swapped(in_shapes), self._axes)
        wanted = zip(self.output_size, shape[1:], strict=True)
        return self._swapped((shape[0], *(n if size is None else int(size) for size, n in wanted)))

    def found(self) -> tuple[Array, Array]:
        """Return the input positions of every output, and the share of each in their mean.

        They are computed for the first image, not in `setup`: a file may declare any output size.
        """
        shapes = map(self._swapped, (self.in_shapes, self.out_shapes))
        return _pooled(*(shape[1:] for shape in shapes))

    def _windows(self, ctx: Context, x: Array) -> Array:
        """Return (N, C, sizes...) as (N, C, outputs, positions of each output)."""
        x = self._first(x)
        ctx.save(x_shape=x.shape)
        flat = x.reshape(*x.shape[:2], prod(x.shape[2:]))
        return flat.take(ctx.ops.xp.asarray(self.found()[0]), axis=2)

    @in_float32
    def _spread_back(self, ops: Ops, parts: Array, x_shape: Shape) -> Array:
        """Add the gradients of the windows at their input positions."""
        n, c, *sizes = x_shape
        dx = ops.zeros((n, c, prod(sizes)), parts)
        places = ops.xp.asarray(self.found()[0])
        ops.xp.add.at(dx, (slice(None), slice(None), places), parts)
        return self._first(dx.reshape(x_shape))


class AdaptiveAvgPooling(AdaptivePooling):
    """A layer that returns the mean of the positions of each output."""

    def forward(self, ctx: Context, x: Array) -> Array:
        """(N, C, ...) → (N, C, *output_size); saves no array."""
        shares = ctx.ops.xp.asarray(self.found()[1], x.dtype)
        y = _sum_of_shares(ctx.ops, self._windows(ctx, x), shares)
        return self._first(y.reshape(len(x), *self._swapped(self.out_shapes)))

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """Divide each gradient equally among its positions."""
        shares = ctx.ops.xp.asarray(self.found()[1], dy.dtype)
        dy = self._first(dy)
        flat = dy.reshape(*dy.shape[:2], len(shares), 1)
        return self._spread_back(ctx.ops, ctx.ops.multiply(flat, shares), ctx.saved["x_shape"]), {}


@in_float32
def _sum_of_shares(ops: Ops, windows: Array, shares: Array) -> Array:
    return ops.sum(ops.multiply(windows, shares), axis=3)


class AdaptiveMaxPooling(AdaptivePooling):
    """A layer that returns the largest of the positions of each output, the first of equal ones."""

    def forward(self, ctx: Context, x: Array) -> Array:
        """(N, C, ...) → (N, C, *output_size); saves one integer for each output."""
        windows = self._windows(ctx, x)
        ctx.save(where=windows.argmax(axis=3))
        out = self._swapped(self.out_shapes)
        return self._first(windows.max(axis=3).reshape(len(x), *out))

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """Add each gradient to the position of its maximum."""
        xp = ctx.ops.xp
        places, _ = self.found()
        first = ctx.saved["where"][..., None] == xp.arange(places.shape[1])
        dy = self._first(dy)
        flat = dy.reshape(*dy.shape[:2], len(places), 1)
        return self._spread_back(ctx.ops, ctx.ops.where(first, flat, 0.0), ctx.saved["x_shape"]), {}


class AdaptiveAvgPooling1D(AdaptiveAvgPooling):
    """`AdaptiveAvgPooling2D` of sequences: (C, L) → (C, output_size).

    Args:
        name: Name of the layer, a string.
        output_size: Positive int, the steps of the output; None preserves their number.
        data_format: "channels_last" for samples (L, C), "channels_first" for (C, L). One of them is
            needed behind layers whose outputs are (steps, features).
        input_shape: Sample shape, to set the layer up at once.

    Examples:
        >>> x = singanet.Input("x", (8, 10))
        >>> singanet.layers.AdaptiveAvgPooling1D(output_size=2)(x).shape
        (8, 2)
    """

    _axes = 1


class AdaptiveAvgPooling2D(AdaptiveAvgPooling):
    """A layer that returns the mean of each cell of a grid: (C, H, W) → (C, *output_size).

    Along an axis of n positions, cell i of o has positions ⌊i n/o⌋ to ⌈(i+1) n/o⌉ - 1.

    Args:
        name: Name of the layer, a string.
        output_size: An int, or (height, width); None preserves the size of an axis.
        data_format: None, "channels_first" or "NCHW", which are the same.
        input_shape: Sample shape, to set the layer up at once.

    Examples:
        >>> x = singanet.Input("x", (8, 10, 10))
        >>> singanet.layers.AdaptiveAvgPooling2D(output_size=2)(x).shape
        (8, 2, 2)
    """


class AdaptiveAvgPooling3D(AdaptiveAvgPooling):
    """`AdaptiveAvgPooling2D` of volumes: (C, D, H, W) → (C, *output_size).

    Args:
        name: Name of the layer, a string.
        output_size: An int, or (depth, height, width); None preserves the size of an axis.
        data_format: None, "channels_first" or "NCHW", which are the same.
        input_shape: Sample shape, to set the layer up at once.

    Examples:
        >>> x = singanet.Input("x", (8, 4, 10, 10))
        >>> singanet.layers.AdaptiveAvgPooling3D(output_size=2)(x).shape
        (8, 2, 2, 2)
    """

    _axes = 3


class AdaptiveMaxPooling1D(AdaptiveMaxPooling):
    """`AdaptiveMaxPooling2D` of sequences: (C, L) → (C, output_size).

    Args:
        name: Name of the layer, a string.
        output_size: Positive int, the steps of the output; None preserves their number.
        data_format: "channels_last" for samples (L, C), "channels_first" for (C, L). One of them is
            needed behind layers whose outputs are (steps, features).
        input_shape: Sample shape, to set the layer up at once.

    Examples:
        >>> x = singanet.Input("x", (8, 10))
        >>> singanet.layers.AdaptiveMaxPooling1D(output_size=2)(x).shape
        (8, 2)
    """

    _axes = 1


class AdaptiveMaxPooling2D(AdaptiveMaxPooling):
    """A layer that returns the largest value of each cell of a grid: (C, H, W) → (C, *output_size).

    Along an axis of n positions, cell i of o has positions ⌊i n/o⌋ to ⌈(i+1) n/o⌉ - 1.

    Args:
        name: Name of the layer, a string.
        output_size: An int, or (height, width); None preserves the size of an axis.
        data_format: None, "channels_first" or "NCHW", which are the same.
        input_shape: Sample shape, to set the layer up at once.

    Examples:
        >>> x = singanet.Input("x", (8, 10, 10))
        >>> singanet.layers.AdaptiveMaxPooling2D(output_size=2)(x).shape
        (8, 2, 2)
    """


class AdaptiveMaxPooling3D(AdaptiveMaxPooling):
    """`AdaptiveMaxPooling2D` of volumes: (C, D, H, W) → (C, *output_size).

    Args:
        name: Name of the layer, a string.
        output_size: An int, or (depth, height, width); None preserves the size of an axis.
        data_format: None, "channels_first" or "NCHW", which are the same.
        input_shape: Sample shape, to set the layer up at once.

    Examples:
        >>> x = singanet.Input("x", (8, 4, 10, 10))
        >>> singanet.layers.AdaptiveMaxPooling3D(output_size=2)(x).shape
        (8, 2, 2, 2)
    """

    _axes = 3


class GlobalPooling(Spatial):
    """(C, positions...) → (C,); subclasses set the number of axes of positions."""

    def __init__(
        self,
        name: Name = None,
        *,
        keepdims: bool = False,
        data_format: str | None = None,
        input_shape: GivenShape | None = None,
    ) -> None:
        super().__init__(name, input_shape)
        self._lay_out(data_format, self._axes)
        self.keepdims = bool(keepdims)

    def setup(self, in_shapes: Any) -> Shapes:
        """Sample shape (C, ...) → (C,)."""
        meaning = MEANINGS[self._axes]
        given = self._swapped(in_shapes)
        shape = self.expect_rank(given, self._axes + 1, meaning, "put it before Flatten")
        if 0 in shape:
            raise self.shape_error(
                "at least one position to pool over", f"{shape}", "check the layers before it"
            )
        return self._swapped((shape[0], *(1,) * self._axes)) if self.keepdims else shape[:1]

    def _out(self, y: Array) -> Array:
        if not self.keepdims:
            return y
        return self._first(y.reshape(*y.shape, *(1,) * self._axes))

    def _rows(self, dy: Array) -> Array:
        dy = self._first(dy) if self.keepdims else dy
        return dy.reshape(dy.shape[:2])


class GlobalAvgPooling(GlobalPooling):
    """A layer that returns the mean of each channel."""

    def forward(self, ctx: Context, x: Array) -> Array:
        """(N, C, ...) → (N, C); saves no array."""
        x = self._first(x)
        ctx.save(x_shape=x.shape)
        return self._out(ctx.ops.global_avg_pool(x))

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """Divide each gradient equally among the positions."""
        dx = ctx.ops.global_avg_pool_backward(self._rows(dy), ctx.saved["x_shape"])
        return self._first(dx), {}


class GlobalMaxPooling(GlobalPooling):
    """A layer that returns the largest value of each channel; of equal values the first wins."""

    def forward(self, ctx: Context, x: Array) -> Array:
        """(N, C, ...) → (N, C); saves one integer for each output."""
        x = self._first(x)
        y, where = ctx.ops.global_max_pool(x, ctx.keep)
        ctx.save(where=where, x_shape=x.shape)
        return self._out(y)

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """Add each gradient to the position of its maximum."""
        given = (self._rows(dy), ctx.saved["where"], ctx.saved["x_shape"])
        return self._first(ctx.ops.global_max_pool_backward(*given)), {}


class GlobalAvgPooling1D(GlobalAvgPooling):
    """A layer that returns the mean of each channel over all positions: (C, L) → (C,).

    Args:
        name: Name of the layer, a string.
        keepdims: Whether the axes of positions stay, with size 1.
        data_format: "channels_last" for samples (L, C), "channels_first" for (C, L). One of them is
            needed behind layers whose outputs are (steps, features).
        input_shape: Sample shape, to set the layer up at once.

    Examples:
        >>> x = singanet.Input("x", (8, 10))
        >>> singanet.layers.GlobalAvgPooling1D()(x).shape
        (8,)
    """

    _axes = 1


class GlobalAvgPooling2D(GlobalAvgPooling):
    """A layer that returns the mean of each channel over all positions: (C, H, W) → (C,).

    Args:
        name: Name of the layer, a string.
        keepdims: Whether the axes of positions stay, with size 1.
        data_format: None, "channels_first" or "NCHW", which are the same.
        input_shape: Sample shape, to set the layer up at once.

    Examples:
        >>> x = singanet.Input("x", (8, 10, 10))
        >>> singanet.layers.GlobalAvgPooling2D()(x).shape
        (8,)
    """


class GlobalMaxPooling1D(GlobalMaxPooling):
    """A layer that returns the largest value of each channel over all positions: (C, L) → (C,).

    Args:
        name: Name of the layer, a string.
        keepdims: Whether the axes of positions stay, with size 1.
        data_format: "channels_last" for samples (L, C), "channels_first" for (C, L). One of them is
            needed behind layers whose outputs are (steps, features).
        input_shape: Sample shape, to set the layer up at once.

    Examples:
        >>> x = singanet.Input("x", (8, 10))
        >>> singanet.layers.GlobalMaxPooling1D()(x).shape
        (8,)
    """

    _axes = 1


class GlobalMaxPooling2D(GlobalMaxPooling):
    """A layer that returns the largest value of each channel over all positions: (C, H, W) → (C,).

    Args:
        name: Name of the layer, a string.
        keepdims: Whether the axes of positions stay, with size 1.
        data_format: None, "channels_first" or "NCHW", which are the same.
        input_shape: Sample shape, to set the layer up at once.

    Examples:
        >>> x = singanet.Input("x", (8, 10, 10))
        >>> singanet.layers.GlobalMaxPooling2D()(x).shape
        (8,)
    """


class GlobalAvgPooling3D(GlobalAvgPooling):
    """A layer that returns the mean of each channel over all positions: (C, D, H, W) → (C,).

    Args:
        name: Name of the layer, a string.
        keepdims: Whether the axes of positions stay, with size 1.
        data_format: None, "channels_first" or "NCHW", which are the same.
        input_shape: Sample shape, to set the layer up at once.

    Examples:
        >>> x = singanet.Input("x", (8, 4, 10, 10))
        >>> singanet.layers.GlobalAvgPooling3D()(x).shape
        (8,)
    """

    _axes = 3


class GlobalMaxPooling3D(GlobalMaxPooling):
    """A layer that returns the largest value of each channel: (C, D, H, W) → (C,).

    Args:
        name: Name of the layer, a string.
        keepdims: Whether the axes of positions stay, with size 1.
        data_format: None, "channels_first" or "NCHW", which are the same.
        input_shape: Sample shape, to set the layer up at once.

    Examples:
        >>> x = singanet.Input("x", (8, 4, 10, 10))
        >>> singanet.layers.GlobalMaxPooling3D()(x).shape
        (8,)
    """

    _axes = 3


_WAYS = ("nearest", "bilinear")


class Upsampling2D(Layer):
    """A layer that enlarges (C, H, W) images by the factor ``size``.

    Args:
        name: Name of the layer, a string.
        size: The factor, an int or (height, width).
        interpolation: 'nearest' repeats pixels; 'bilinear' interpolates between pixel centres
            (corners not aligned, as in Keras and by default in PyTorch).
        input_shape: Sample shape, to set the layer up at once.

    Examples:
        >>> x = singanet.Input("x", (3, 32, 32))
        >>> singanet.layers.Upsampling2D(size=2)(x).shape
        (3, 64, 64)
    """

    def __init__(
        self,
        name: Name = None,
        size: Extents = 2,
        *,
        interpolation: str = "nearest",
        input_shape: GivenShape | None = None,
    ) -> None:
        super().__init__(name, input_shape)
        height, width = sizes(name, "size", size)
        self.size = height, width
        self.interpolation = expect_one_of(name, "interpolation", interpolation, _WAYS)

    def setup(self, in_shapes: Any) -> Shapes:
        """(C, H, W) → (C, H·size, W·size)."""
        channels, height, width = expect_image(self, in_shapes, 2)
        return (channels, height * self.size[0], width * self.size[1])

    def forward(self, ctx: Context, x: Array) -> Array:
        """Return the larger images; no array is saved."""
        if self.interpolation == "nearest":
            return ctx.ops.upsample_nearest(x, self.size)
        return ctx.ops.upsample_bilinear(x, self.size)

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """Add each gradient to its source pixels."""
        if self.interpolation == "nearest":
            return ctx.ops.upsample_nearest_backward(dy, self.size), {}
        return ctx.ops.upsample_bilinear_backward(dy, self.size), {}


_KERNELS = ("nearest", "linear", "cubic")
_COORDINATES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"
)  # fmt: skip
_ROUNDINGS: Mapping[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


class Resize(Layer):
    """A layer that interpolates the last axes of each sample to the extents ``size``.

    Position i of m reads position x of n, with the scale s of the axis: (i + ½) / s - ½ for
    "half_pixel", i (n - 1) / (s n - 1) for "align_corners", i / s for "asymmetric". Positions
    outside repeat the border. These are the modes of ONNX' Resize.

    Args:
        name: Name of the layer, a string.
        size: An extent for each of the last axes; None preserves one.
        interpolation: "nearest", "linear" or "cubic".
        coordinates: "half_pixel", "half_pixel_symmetric" (the same with whole scales),
            "pytorch_half_pixel" (the same but 0 for one position), "align_corners" or "asymmetric".
        rounding: For "nearest" "round_prefer_floor", "round_prefer_ceil", "floor" or "ceil".
        scales: Number for each axis, the scale if it is not the ratio of the extents.
        cubic: The coefficient of Keys' cubic kernel; -0.75 in PyTorch, -0.5 in TensorFlow.
        antialias: Whether kernels are as wide as the positions of the output are far apart.
        exclude_outside: Whether positions outside have no weight.
        input_shape: Sample shape, to set the layer up at once.

    Examples:
        >>> x = singanet.Input("x", (3, 32, 32))
        >>> singanet.layers.Resize(size=(24, 40))(x).shape
        (3, 24, 40)
    """

    def __init__(
        self,
        name: Name = None,
        size: Any = REQUIRED,
        *,
        interpolation: str = "linear",
        coordinates: str = "half_pixel",
        rounding: str = "round_prefer_floor",
        scales: Any = None,
        cubic: float = -0.75,
        antialias: bool = False,
        exclude_outside: bool = False,
        input_shape: GivenShape | None = None,
    ) -> None:
        super().__init__(name, input_shape)
        extents: Any = [size] if is_int(size) else size
        several = isinstance(extents, (tuple, list)) and len(extents) > 0
        if not several or not all(extent is None or is_int(extent) for extent in extents):
            raise ArgumentError(
                f"layer {name!r}, argument size",
                expected="a positive int or None for each of the last axes",
                received=brief(size),
                advice="pass size=(height, width) for images",
            )
        given = [None] * len(extents) if scales is None else scales
        listed = isinstance(given, (tuple, list)) and len(given) == len(extents)
        if not listed or not all(s is None or (is_number(s) and s > 0) for s in given):
            raise ArgumentError(
                f"layer {name!r}, argument scales",
                expected="a positive number or None for each extent of size",
                received=brief(scales),
                advice="omit it, for the ratios of the extents",
            )
        self.size = tuple(extents)
        self.scales = None if scales is None else tuple(given)
        self.interpolation = expect_one_of(name, "interpolation", interpolation, _KERNELS)
        self.coordinates = expect_one_of(name, "coordinates", coordinates, _COORDINATES)
        self.rounding = expect_one_of(name, "rounding", rounding, tuple(_ROUNDINGS))
        self.cubic = checked_number(
            f"layer {name!r}, argument cubic", cubic, "a number", lambda a: True,
            "-0.75 is PyTorch's, -0.5 TensorFlow's",
        )  # fmt: skip
        self.antialias, self.exclude_outside = bool(antialias), bool(exclude_outside)

    def setup(self, in_shapes: Any) -> Shapes:
        """A sample shape of at least as many axes → the same with the extents ``size`` last."""
        shape = expect_one_input(self, in_shapes)
        first = len(shape) - len(self.size)
        if first < 0 or min(shape, default=0) < 1:
            raise self.shape_error(
                f"samples of at least {len(self.size)} axes of known extents",
                f"sample shape {shape}",
                "put Reshape before it",
            )
        wanted = zip(self.size, shape[first:], strict=True)
        return (*shape[:first], *(n if size is None else int(size) for size, n in wanted))

    def found(self) -> list[tuple[int, Array]]:
        """Return each resized axis, batch included, with the matrix (m, n) of its weights.

        They are computed for the first sample, not in `setup`: a file may declare any extent.
        """
        ins: Any = self.in_shapes
        outs: Any = self.out_shapes
        first = len(ins) - len(self.size)
        found = []
        for k, n in enumerate(ins[first:]):
            m, scale = outs[first + k], None if self.scales is None else self.scales[k]
            if self.size[k] is not None and (m != n or scale not in (None, 1)):
                found.append((first + k + 1, self._matrix(n, m, scale or m / n)))
        return found

    def _matrix(self, n: int, m: int, scale: float) -> Array:
        x = _source(n, m, scale, self.coordinates)
        if self.interpolation == "nearest":
            near = np.clip(_ROUNDINGS[self.rounding](x), 0, n - 1).astype(int)
            return np.asarray(near[:, None] == np.arange(n), np.float64)
        reach = 1 if self.interpolation == "linear" else 2
        narrow = min(scale, 1.0) if self.antialias else 1.0
        steps = np.arange(int(np.floor(-reach / narrow)) + 1, int(np.ceil(reach / narrow)) + 1)
        first = np.floor(x).astype(int)
        places = first[:, None] + steps
        t = np.abs((steps - (x - first)[:, None]) * narrow)
        weights = np.maximum(1.0 - t, 0.0) if reach == 1 else _keys(t, self.cubic)
        if self.exclude_outside:
            weights = np.where((places >= 0) & (places < n), weights, 0.0)
        if self.antialias or self.exclude_outside:
            weights = weights / weights.sum(axis=1, keepdims=True)
        matrix = np.zeros((m, n))
        np.add.at(matrix, (np.arange(m)[:, None], np.clip(places, 0, n - 1)), weights)
        return matrix

    def forward(self, ctx: Context, x: Array) -> Array:
        """Return the interpolated samples; no array is saved."""
        for axis, matrix in self.found():
            if self.interpolation == "nearest":
                x = x.take(ctx.ops.xp.asarray(matrix.argmax(axis=1)), axis=axis)
            else:
                x = _along(ctx.ops, x, ctx.ops.xp.asarray(matrix, x.dtype), axis)
        return x

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """Add each gradient to the positions that it was interpolated from, by their weights."""
        for axis, matrix in self.found():
            dy = _along(ctx.ops, dy, ctx.ops.xp.asarray(matrix.T, dy.dtype), axis)
        return dy, {}


def _source(n: int, m: int, scale: float, coordinates: str) -> Array:
    """Return the position in the input, a float, of each of ``m`` positions."""
    at = np.arange(m, dtype=np.float64)
    whole = scale * n
    if coordinates == "asymmetric":
        return at / scale
    if coordinates == "align_corners":
        return at * (n - 1) / (whole - 1) if whole != 1 else 0.0 * at
    if coordinates == "pytorch_half_pixel" and whole == 1:
        return 0.0 * at
    offset = n / 2 * (1 - m / whole) if coordinates == "half_pixel_symmetric" else 0.0
    return offset + (at + 0.5) / scale - 0.5


def _keys(t: Array, a: float) -> Array:
    """Return Keys' cubic kernel at the distances ``t``."""
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
    return np.where(t <= 1, near, np.where(t < 2, far, 0.0))


@in_float32
def _along(ops: Ops, x: Array, matrix: Array, axis: int) -> Array:
    """Return the product of ``matrix`` with the vectors of ``x`` along ``axis``."""
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    rows, extent = prod(before), x.shape[axis]
    if not after:
        y = ops.matmul(x.reshape(rows, extent), matrix.T)
    else:
        y = ops.matmul(matrix, x.reshape(rows, extent, prod(after)))
    return y.reshape(*before, len(matrix), *after)
