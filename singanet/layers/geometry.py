"""Kernel, stride and padding of convolutions and pooling, by the number of axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeAlias, TypeVar

from singanet.base.arguments import is_int
from singanet.base.kinds import snake_case
from singanet.base.tracebacks import entry_point
from singanet.errors import ArgumentError, brief, one_of
from singanet.layers.layer import Layer, LayerType, expect_int, expect_one_of
from singanet.ops.window import Pads, Sizes, Window
from singanet.types import Array, GivenShape, Shape

__all__ = [
    "MEANINGS",
    "Border",
    "Extents",
    "Padding",
    "Spatial",
    "Windowed",
    "expect_groups",
    "expect_image",
    "expect_pads",
    "sizes",
]

Extents: TypeAlias = "int | Sequence[int]"
"""A number for all axes, or one for each.

If the name is omitted, positional arguments move one place to the left, so a parameter also has
the type of the next one.
"""

Border: TypeAlias = "int | Sequence[int | Sequence[int]]"
"""A number for both sides of all axes, or for each axis a number or (before, after)."""

Padding: TypeAlias = "str | Border"
"""A word such as "same", or numbers."""

MEANINGS = {
    1: "(channels, length)",
    2: "(channels, height, width)",
    3: "(channels, depth, height, width)",
}
"""The names of the axes of samples, by the number of axes behind the channels."""


def sizes(layer: str, what: str, value: Any, axes: int = 2, least: int = 1) -> Sizes:
    """Return ``value`` with an entry for each axis; an int is for all."""
    parts = (value,) * axes if is_int(value, least) else value
    good = (
        isinstance(parts, (tuple, list))
        and len(parts) == axes
        and all(is_int(part, least) for part in parts)
    )
    if not good:
        several = {1: "of", 2: "or a pair of ints,"}.get(axes, f"or {axes} of ints,")
        one = max(least, 1)
        example = "" if axes == 1 else f" or {what}={(one, *range(2, axes + 1))}"
        raise ArgumentError(
            f"layer {layer!r}, argument {what}",
            expected=f"an int {several} at least {least}",
            received=brief(value),
            advice=f"pass for example {what}={one}{example}",
        )
    return tuple(int(part) for part in parts)


def expect_pads(layer: str, what: str, pad: Any, axes: int = 0) -> Pads:
    """Return the argument ``what``, ``pad``, as (before, after) for each axis.

    An int is for both sides, and for all ``axes``; 0 axes means one for each entry. Along one axis
    ``pad`` may be (before, after) itself.
    """
    several = isinstance(pad, (tuple, list)) and not (axes == 1 and len(pad) == 2)
    entries = list(pad) if several else [pad] * max(axes, 1)
    ends = [each if isinstance(each, (tuple, list)) else (each, each) for each in entries]
    good = ends and all(len(two) == 2 and all(is_int(n, 0) for n in two) for two in ends)
    if not good or (axes and len(ends) != axes):
        along_one = "an int of at least 0, or two: before and after"
        along_each = "an int, or ints or pairs of ints of at least 0, one for each axis"
        example = "(0, 1)" if axes == 1 else "((0, 1), (0, 1)) for height and width"
        raise ArgumentError(
            f"layer {layer!r}, argument {what}",
            expected=along_one if axes == 1 else along_each,
            received=brief(pad),
            advice=f"pass for example {what}=1, or {what}={example}",
        )
    return tuple((int(before), int(after)) for before, after in ends)


def expect_image(layer: Layer, in_shape: Any, axes: int) -> Shape:
    """Return ``in_shape`` if it is (C, ...) with ``axes`` axes of at least one position.

    The length of a sequence may be -1, any. Errors: `ShapeError` for other shapes.
    """
    meaning = MEANINGS[axes]
    shape = layer.expect_rank(in_shape, axes + 1, meaning, _image_advice(in_shape, axes))
    if min(shape) < 1 and (axes > 1 or shape[0] < 1 or shape[1] != -1):
        raise layer.shape_error(
            f"one input of sample shape {meaning}, each at least 1",
            str(shape),
            "check the layers before this one",
        )
    return shape


def _image_advice(in_shape: Any, axes: int) -> str:
    """Return how samples become (C, ...), if they are one channel or a row of pixels."""
    shape = in_shape if isinstance(in_shape, tuple) else ()
    if len(shape) == axes:
        return f"put Reshape({(1, *shape)}) before it"
    for channels in (1, 3):
        pixels = shape[0] if len(shape) == 1 and axes == 2 else 0
        side = math.isqrt(max(pixels, 0) // channels)
        if side > 1 and channels * side * side == pixels:
            return f"put Reshape({(channels, side, side)}) before it"
    return f"put Reshape({MEANINGS[axes]}) before it"


def expect_groups(layer: Layer, channels: int, filters: int, groups: int) -> None:
    """Errors: `ShapeError` if channels or filters do not form ``groups`` equal groups."""
    if channels % groups or filters % groups:
        raise layer.shape_error(
            f"channels and filters divisible by groups={groups}",
            f"{channels} channels and filters={filters}",
            "choose groups that divide both",
        )


_L = TypeVar("_L")
_PREFERENCES = ("fastest", "autotune", "limited_workspace", "no_workspace")


class WindowType(LayerType):
    """The type of layers that accept SINGA's arguments without effect here.

    SINGA also has two arguments for the padding: ``pad`` overrides ``border_mode``.
    """

    @entry_point
    def __call__(cls: type[_L], *args: Any, **kwargs: Any) -> _L:  # noqa: N805 - of a metaclass
        """Return a new layer without these arguments. Errors: values that SINGA refuses, too."""
        named = args[:1] if args and isinstance(args[0], str) else (kwargs.get("name"),)
        name = named[0] or snake_case(cls.__name__)
        if "pad" in kwargs and (kwargs["pad"] is None or "border_mode" in kwargs):
            del kwargs["pad" if kwargs["pad"] is None else "border_mode"]
        preferred = kwargs.pop("cudnn_prefer", _PREFERENCES[0])
        expect_one_of(name, "cudnn_prefer", preferred, _PREFERENCES)
        expect_int(name, "workspace_byte_limit", kwargs.pop("workspace_byte_limit", 1024))
        made: _L = super().__call__(*args, **kwargs)  # type: ignore[misc]
        return made


_FORMATS = (None, "channels_first", "NCHW")


class Spatial(Layer):
    """A layer over the positions of (C, ...) samples, along ``_axes`` axes.

    Along one axis samples are (L, C) with ``data_format`` "channels_last". By default they are (C,
    L), but behind a layer whose outputs are (steps, features) the argument is required.
    """

    _axes: ClassVar[int] = 2
    _units_axis = 1
    # The value for descriptions written before the argument existed.
    data_format: str | None = "channels_first"
    _always_written = ("data_format",)

    def _lay_out(self, data_format: str | None, axes: int) -> None:
        """Set the order of axes. Errors: `ArgumentError` for an unknown ``data_format``."""
        one = axes == 1
        if data_format not in _FORMATS and not (one and data_format == "channels_last"):
            known = "'channels_first' or 'channels_last'" if one else "'channels_first' or 'NCHW'"
            raise ArgumentError(
                f"layer {self.name!r}, argument data_format",
                expected=known,
                received=brief(data_format),
                advice="pass the layout of samples: (channels, steps), or (steps, channels)"
                if one
                else "transpose the images: x.transpose(0, 3, 1, 2)",
            )
        self.data_format = data_format
        if self._is_last:
            self.traits, self._units_axis = replace(self.traits, gives_steps=True), -1

    def _asks_axes(self, in_shape: Any) -> bool:
        """Whether samples of that shape behind (steps, features) need a ``data_format``."""
        return self.data_format is None and self._axes == 1 and len(in_shape) == 2

    @property
    def _is_last(self) -> bool:
        return self.data_format == "channels_last"

    def _swapped(self, shape: Any) -> Any:
        """Convert a sample shape between the order of samples and channels first."""
        return shape[::-1] if self._is_last and not isinstance(shape, list) else shape

    def _first(self, x: Array) -> Array:
        """Convert ``x`` between the order of samples and channels first."""
        return x.transpose(0, 2, 1) if self._is_last else x


class Windowed(Spatial, metaclass=WindowType):
    """A window that slides over the positions of (C, ...) samples, along ``_axes`` axes.

    Kernels only read images and volumes: sequences (C, L), or (L,) of one channel, become images
    (C, 1, L) of one row.
    """

    _modes: ClassVar[tuple[str, ...]] = ("same", "valid")
    """The strings for ``padding``; along one axis also "causal"."""
    _size_word: ClassVar[str] = "kernel_size"

    def __init__(
        self,
        name: str,
        size: Extents,
        strides: Extents | str,
        padding: Padding,
        dilation_rate: Extents,
        input_shape: GivenShape | None,
        ceil: bool = False,
        data_format: str | None = None,
    ) -> None:
        """Set the window; ``padding`` is a number, numbers, pairs or a string.

        'same' pads by extent - 1 in all, with the extent of the dilated kernel, so that stride 1
        preserves the size; the larger half of an odd total is after (even kernels). 'valid' pads
        nothing; 'causal', for sequences, pads as 'same', but only before.
        """
        super().__init__(name, input_shape)
        self._lay_out(data_format, self._axes)
        size = sizes(name, self._size_word, size, self._axes)
        step = sizes(name, "strides", strides, self._axes)
        spread = sizes(name, "dilation_rate", dilation_rate, self._axes)
        totals = [d * (k - 1) for k, d in zip(size, spread, strict=True)]
        if not isinstance(padding, str):
            pads = expect_pads(name, "padding", padding, self._axes)
        elif padding == "same":
            pads = tuple((total // 2, total - total // 2) for total in totals)
        elif padding == "causal" and self._axes == 1:
            pads = ((totals[0], 0),)
        elif padding in self._modes:
            pads = ((0, 0),) * self._axes
        else:
            modes = (*self._modes, "causal") if self._axes == 1 else self._modes
            raise ArgumentError(
                f"layer {name!r}, argument padding",
                expected=f"{one_of(modes)}, or numbers",
                received=brief(padding),
                advice="pass for example padding=1, or padding=((1, 2), (0, 1)) for height and"
                " width",
            )
        self._slide(Window(size, step, pads, spread, bool(ceil)))

    def _slide(self, window: Window) -> None:
        """Set ``window``."""
        self._window = window
        self._inner = window if self._axes > 1 else _of_a_row(window)

    @property
    def window(self) -> Window:
        """Kernel, stride, padding and dilation, axis by axis."""
        return self._window

    def _channels_first(self, in_shapes: Any) -> Shape:
        """Return ``in_shapes`` with channels first, if it is one shape; (L,) has one channel."""
        in_shapes = self._swapped(in_shapes)
        flat = self._axes == 1 and not isinstance(in_shapes, list) and len(in_shapes) == 1
        return expect_image(self, (1, *in_shapes) if flat else in_shapes, self._axes)

    def _out_size(self, shape: Shape) -> Sizes:
        """Return the number of windows along each axis of (C, ...); -1 for -1, any.

        Errors: `ShapeError` if no window fits.
        """
        # The shape for sequences of any length does not depend on their length.
        given = [e if n == -1 else n for n, e in zip(shape[1:], self.window.extent, strict=True)]
        out = self.window._out_size(*given)
        if min(out) < 1:
            window = [_plain(part) for part in (self.window.kernel, self.window.dilation)]
            what = "sequences at least as long" if self._axes == 1 else "images at least as large"
            raise self.shape_error(
                f"{what} as the kernel {window[0]}"
                f" with dilation {window[1]} and padding {_plain(self.window.pads)}",
                f"sample shape {shape}",
                "use a smaller kernel, padding='same', or larger samples",
            )
        return tuple(-1 if n == -1 else count for n, count in zip(shape[1:], out, strict=True))

    def _as_image(self, x: Array) -> Array:
        """Return (N, C, L), (N, L, C) or (N, L) as (N, C, 1, L), and other ``x`` unchanged."""
        if self._axes > 1:
            return x
        return x[:, None, None] if x.ndim == 2 else self._first(x)[:, :, None]

    def _first_image(self, x: Array) -> Array:
        """Return `_as_image` of the input. Errors: `ShapeError` for too few steps of any length."""
        if self._swapped(self.in_shapes)[-1] == -1:
            self._out_size(self._channels_first(x.shape[1:]))
        return self._as_image(x)

    def _as_sample(self, image: Array, sample_shape: Any) -> Array:
        """Undo `_as_image`, for a sample shape of two axes or (L,)."""
        if self._axes > 1:
            return image
        return image[:, 0, 0] if len(sample_shape) == 1 else self._first(image[:, :, 0])


def _of_a_row(window: Window) -> Window:
    kernel, stride, dilation = (
        (1, *part) for part in (window.kernel, window.stride, window.dilation)
    )
    pads = ((0, 0), *window.pads)
    return Window(kernel, stride, pads, dilation, window.ceil, window.groups)


def _plain(values: tuple[Any, ...]) -> Any:
    return values if len(values) > 1 else values[0]
