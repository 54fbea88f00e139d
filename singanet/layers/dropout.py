"""Dropout and masks of sequences."""

from __future__ import annotations

from typing import Any

from singanet.base.arguments import is_number
from singanet.errors import ArgumentError, brief
from singanet.layers.context import Context
from singanet.layers.layer import Layer, Name, expect_int, expect_one_input, expect_positive
from singanet.types import Array, GivenShape, Shape, Shapes, Traits

_SATURATED = -1.7580993408473766
"""The limit of the activation selu for large negative x."""


class Dropout(Layer):
    """A layer that sets elements to zero with probability ``rate`` in training.

    It multiplies the rest by 1 / (1 - rate). In evaluation the output is the input. Srivastava et
    al., 2014, in the inverted form.

    Args:
        name: Name of the layer, a string.
        rate: The probability of dropping, from 0 to below 1; 0.5 by default.
        input_shape: Sample shape, to set the layer up at once.

    Examples:
        >>> layer = singanet.layers.Dropout(rate=0.5, input_shape=(2,))
        >>> singanet.FeedForwardNet([layer]).predict(np.array([[1.0, 2.0]]))
        array([[1., 2.]], dtype=float32)
    """

    traits = Traits(any_extent=True, masks="keeps")

    def __init__(
        self, name: Name = None, rate: float = 0.5, *, input_shape: GivenShape | None = None
    ) -> None:
        super().__init__(name, input_shape)
        if not is_number(rate) or not 0.0 <= rate < 1.0:
            raise ArgumentError(
                f"layer {name!r}, argument rate",
                expected="the probability of dropping, from 0 to below 1",
                received=brief(rate),
                advice="use rate=0.5 to drop half",
            )
        self.rate = float(rate)

    def setup(self, in_shapes: Any) -> Shapes:
        """Any sample shape, unchanged."""
        return expect_one_input(self, in_shapes)

    def forward(self, ctx: Context, x: Array) -> Array:
        """Multiply ``x`` by a new mask in training; the mask, one byte an element, is saved."""
        if not ctx.train or self.rate == 0.0:
            return x
        mask = ctx.ops.keep_mask(ctx.rng, self._mask_shape(x), 1.0 - self.rate)
        ctx.save(mask=mask)
        return self._scaled(ctx, x, mask)

    def _mask_shape(self, x: Array) -> Shape:
        return x.shape

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """Multiply ``dy`` by the same mask."""
        mask = ctx.saved.get("mask")
        return (dy if mask is None else self._scaled(ctx, dy, mask)), {}

    def _scaled(self, ctx: Context, x: Array, mask: Array) -> Array:
        y: Array = ctx.ops.multiply(x, mask)
        ctx.ops.multiply(y, 1.0 / (1.0 - self.rate), out=y)
        return y


class SpatialDropout(Dropout):
    """`Dropout` of whole channels: all elements at one index of ``axis`` are dropped together.

    Tompson et al., 2015.

    Args:
        name: Name of the layer, a string.
        rate: The probability of dropping, from 0 to below 1; 0.5 by default.
        axis: Int that counts the batch axis: 1 for the channels of images and of (C, L), -1 for the
            features of sequences (T, F). 0 drops whole samples, as for a branch of a residual net
            in stochastic depth (Huang et al., 2016).
        input_shape: Sample shape, to set the layer up at once.

    Examples:
        >>> x = singanet.Input("x", (8, 10, 10))
        >>> singanet.layers.SpatialDropout(rate=0.2)(x).shape
        (8, 10, 10)
    """

    def __init__(
        self,
        name: Name = None,
        rate: float = 0.5,
        *,
        axis: int = 1,
        input_shape: GivenShape | None = None,
    ) -> None:
        super().__init__(name, rate, input_shape=input_shape)
        self.axis = expect_int(name, "axis", axis, least=-99, advice="use axis=1 for channels")

    def setup(self, in_shapes: Any) -> Shapes:
        """Any sample shape that has the axis, unchanged."""
        shape = expect_one_input(self, in_shapes)
        if not -len(shape) <= self.axis <= len(shape):
            raise self.shape_error(
                f"samples with the axis {self.axis}, counted with the batch axis",
                f"sample shape {shape}",
                "use axis=1 for the channels of images, or -1 for the features of sequences",
            )
        return shape

    def _mask_shape(self, x: Array) -> Shape:
        axis = self.axis % x.ndim
        return tuple(size if k in (0, axis) else 1 for k, size in enumerate(x.shape))


class AlphaDropout(Dropout):
    """A layer that sets elements to −1.758 with probability ``rate`` in training.

    It then scales and shifts all elements, so that mean 0 and variance 1 stay the same, as behind
    the activation selu. Klambauer et al., 2017.

    Args:
        name: Name of the layer, a string.
        rate: The probability of dropping, from 0 to below 1; 0.5 by default.
        input_shape: Sample shape, to set the layer up at once.

    Examples:
        >>> layer = singanet.layers.AlphaDropout(rate=0.1, input_shape=(2,))
        >>> singanet.FeedForwardNet([layer]).predict(np.array([[1.0, 2.0]]))
        array([[1., 2.]], dtype=float32)
    """

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """Multiply ``dy`` by the same mask and the scale."""
        mask = ctx.saved.get("mask")
        if mask is None:
            return dy, {}
        dx: Array = ctx.ops.multiply(dy, mask)
        return ctx.ops.multiply(dx, self._scale, out=dx), {}

    @property
    def _scale(self) -> float:
        keep = 1.0 - self.rate
        return float((keep + _SATURATED**2 * keep * self.rate) ** -0.5)

    def _scaled(self, ctx: Context, x: Array, mask: Array) -> Array:
        y: Array = ctx.ops.subtract(x, _SATURATED)
        ctx.ops.multiply(y, mask, out=y)
        ctx.ops.multiply(y, self._scale, out=y)
        # a (x m + α (1 − m)) + b = a (x − α) m + a α + b, and b = −a α p.
        return ctx.ops.add(y, self._scale * _SATURATED * (1.0 - self.rate), out=y)


class GaussianNoise(Layer):
    """A layer that adds noise of mean 0 and standard deviation ``stddev`` in training only.

    Args:
        name: Name of the layer, a string.
        stddev: Positive number, 0.1 by default.
        input_shape: Sample shape, to set the layer up at once.

    Examples:
        >>> layer = singanet.layers.GaussianNoise(stddev=0.1, input_shape=(2,))
        >>> singanet.FeedForwardNet([layer]).predict(np.array([[1.0, 2.0]]))
        array([[1., 2.]], dtype=float32)
    """

    traits = Traits(any_extent=True, masks="keeps")

    def __init__(
        self, name: Name = None, stddev: float = 0.1, *, input_shape: GivenShape | None = None
    ) -> None:
        super().__init__(name, input_shape)
        self.stddev = expect_positive(name, "stddev", stddev)

    def setup(self, in_shapes: Any) -> Shapes:
        """Any sample shape, unchanged."""
        return expect_one_input(self, in_shapes)

    def forward(self, ctx: Context, x: Array) -> Array:
        """Add new noise to ``x`` in training; no array is saved."""
        if not ctx.train:
            return x
        noise = ctx.ops.normal(ctx.rng, x.shape)
        ctx.ops.multiply(noise, self.stddev, out=noise)
        return ctx.ops.add(x, noise, dtype=x.dtype)

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """Return ``dy`` itself."""
        return dy, {}


class Masking(Layer):
    """A layer that returns the mask of sequences: False for steps that are all ``mask_value``.

    Sequences are (N, T, ...), the mask is (N, T). On symbols and in lists the output is the
    sequence, and later layers that read a mask get this one; it is the symbol's ``mask``. For
    indices use ``mask_index`` of `Embedding`.

    Args:
        name: Name of the layer, a string.
        mask_value: The number that fills masked steps, 0.0 by default.
        input_shape: Sample shape, to set the layer up at once.

    Examples:
        >>> x = singanet.Input("x", (10, 8))
        >>> singanet.layers.Masking()(x).mask.shape
        (10,)
    """

    traits = Traits(gives_integers=True, any_extent=True, begins_mask=True, stops_gradient=True)

    def __init__(
        self, name: Name = None, mask_value: float = 0.0, *, input_shape: GivenShape | None = None
    ) -> None:
        super().__init__(name, input_shape)
        if not is_number(mask_value):
            raise ArgumentError(
                f"layer {name!r}, argument mask_value",
                expected="the number that fills padded steps",
                received=brief(mask_value),
                advice="pad with 0",
            )
        self.mask_value = float(mask_value)

    def setup(self, in_shapes: Any) -> Shapes:
        """Sample shape (T, ...) → (T,)."""
        if isinstance(in_shapes, list) or not in_shapes:
            raise self.shape_error(
                "one input of sample shape (time, ...)", str(in_shapes), "mask each by itself"
            )
        return in_shapes[:1]

    def forward(self, ctx: Context, x: Array) -> Array:
        """Return booleans; no array is saved."""
        there = x != self.mask_value
        return there.any(axis=tuple(range(2, x.ndim))) if x.ndim > 2 else there

    def backward(self, ctx: Context, dy: Array) -> tuple[None, dict[str, Array]]:
        """Return None: there is no gradient."""
        return None, {}
