"""What convolutions and pooling share: kernel, stride and padding; a sequence as an image."""

from __future__ import annotations

from typing import Any

from singanet.base.arguments import is_int
from singanet.errors import ArgumentError
from singanet.layers.context import Context
from singanet.layers.layer import Layer
from singanet.ops.window import Pads, Pair, Sizes, Window
from singanet.types import Array, Shape, Shapes

__all__ = [
    "OneAxis",
    "expect_image",
    "expect_nchw",
    "expect_pads",
    "image_size",
    "make_window",
    "one_row",
    "pair",
    "sizes",
]

_AXES = {
    1: "(channels, length)",
    2: "(channels, height, width)",
    3: "(channels, depth, height, width)",
}


def sizes(layer: str, what: str, value: Any, axes: int = 2, least: int = 1) -> Sizes:
    """``value`` with an entry for each axis; an int stands for all."""
    parts = (value,) * axes if is_int(value, least) else value
    good = (
        isinstance(parts, (tuple, list))
        and len(parts) == axes
        and all(is_int(part, least) for part in parts)
    )
    if not good:
        example = (max(least, 1), *range(2, axes + 1))
        raise ArgumentError(
            f"layer {layer!r}, argument {what}",
            expected=f"an int or {'a pair' if axes == 2 else axes} of ints, at least {least}",
            received=repr(value),
            advice=f"pass for example {what}={max(least, 1)} or {what}={example}",
        )
    return tuple(int(part) for part in parts)


def pair(layer: str, what: str, value: Any, least: int = 1) -> Pair:
    """``value`` as (height, width); an int stands for both."""
    height, width = sizes(layer, what, value, 2, least)
    return height, width


def expect_pads(layer: str, pad: Any, axes: int = 0) -> Pads:
    """``pad`` as (before, after) for each axis; an int there is for both.

    An int for all is for each of ``axes``; 0 of them are as many as there are entries.
    """
    entries = list(pad) if isinstance(pad, (tuple, list)) else [pad] * max(axes, 1)
    ends = [each if isinstance(each, (tuple, list)) else (each, each) for each in entries]
    good = ends and all(len(two) == 2 and all(is_int(n, 0) for n in two) for two in ends)
    if not good or (axes and len(ends) != axes):
        raise ArgumentError(
            f"layer {layer!r}, argument pad",
            expected="an int, or ints or pairs of ints of at least 0, one for each axis",
            received=repr(pad),
            advice="pass for example pad=1, or pad=((0, 1), (0, 1)) for height and width",
        )
    return tuple((int(before), int(after)) for before, after in ends)


def expect_nchw(layer: str, data_format: str) -> None:
    """Refuse every layout but NCHW, the one at the interface."""
    if data_format != "NCHW":
        raise ArgumentError(
            f"layer {layer!r}, argument data_format",
            expected="'NCHW'",
            received=repr(data_format),
            advice="transpose the images: x.transpose(0, 3, 1, 2)",
        )


def make_window(
    layer: str,
    kernel: Any,
    stride: Any,
    border_mode: str,
    pad: Any,
    dilation: Any = 1,
    axes: int = 2,
    ceil: bool = False,
) -> Window:
    """The window that the arguments describe; ``pad`` overrides ``border_mode``.

    'same' pads by extent - 1 in all, where extent is the dilated kernel, so that stride 1 keeps
    the size; of an odd total the larger half comes after (even kernels). 'valid' pads nothing.
    """
    size = sizes(layer, "kernel", kernel, axes)
    step = sizes(layer, "stride", stride, axes)
    spread = sizes(layer, "dilation", dilation, axes)
    if pad is not None:
        pads = expect_pads(layer, pad, axes)
    elif border_mode == "same":
        totals = [d * (k - 1) for k, d in zip(size, spread, strict=True)]
        pads = tuple((total // 2, total - total // 2) for total in totals)
    elif border_mode == "valid":
        pads = ((0, 0),) * axes
    else:
        raise ArgumentError(
            f"layer {layer!r}, argument border_mode",
            expected="'same' or 'valid'",
            received=repr(border_mode),
            advice="or give pad=1, or pad=((1, 2), (0, 1)) for height and width",
        )
    return Window(size, step, pads, spread, bool(ceil))


def expect_image(layer: Layer, in_shapes: Any, axes: int = 2) -> Shape:
    """``in_shapes`` itself when it is the (C, H, W) of one input with at least one pixel.

    Of three ``axes`` it is (C, D, H, W).
    """
    meaning = _AXES[axes]
    shape = layer.expect_rank(in_shapes, axes + 1, meaning, "reshape the samples to images")
    if min(shape) < 1:
        raise layer.shape_error(
            f"one input of sample shape {meaning}, each at least 1",
            str(shape),
            "check the layers before this one",
        )
    return shape


def expect_groups(layer: Layer, channels: int, nb_kernels: int, groups: int) -> None:
    """Refuse channels or kernels that do not form ``groups`` equal groups."""
    if channels % groups or nb_kernels % groups:
        raise layer.shape_error(
            f"channels and nb_kernels divisible by groups={groups}",
            f"{channels} channels and nb_kernels={nb_kernels}",
            "choose groups that divide both",
        )


def image_size(layer: Layer, in_shape: Shape, window: Window) -> Sizes:
    """The output size of ``window`` on a (C, ...) sample; an error where it does not fit."""
    out = window.out_size(*in_shape[1:])
    if min(out) < 1:
        raise layer.shape_error(
            f"images at least as large as the kernel {window.kernel}"
            f" with dilation {window.dilation} and padding {window.pads}",
            f"sample shape {in_shape}",
            "use a smaller kernel, border_mode='same', or larger images",
        )
    return out


def one_row(
    layer: str,
    kernel: Any,
    stride: Any,
    border_mode: str,
    pad: Any,
    dilation: Any = 1,
) -> dict[str, Any]:
    """The arguments of a layer over sequences as those of a layer over images of one row.

    ``pad`` may be (before, after); the ``border_mode`` 'causal' is all of the padding before.
    """
    width = {"kernel": kernel, "stride": stride, "dilation": dilation}
    row: dict[str, Any] = {what: (1, _one(layer, what, value)) for what, value in width.items()}
    if pad is None and border_mode == "causal":
        pad, border_mode = (row["dilation"][1] * (row["kernel"][1] - 1), 0), "valid"
    if pad is not None:
        two = isinstance(pad, (tuple, list)) and len(pad) == 2 and all(is_int(n, 0) for n in pad)
        row["pad"] = (0, tuple(pad) if two else _one(layer, "pad", pad, least=0))
    return {**row, "border_mode": border_mode}


def _one(layer: str, what: str, value: Any, least: int = 1) -> int:
    given = value[0] if isinstance(value, (tuple, list)) and len(value) == 1 else value
    if not is_int(given, least):
        raise ArgumentError(
            f"layer {layer!r}, argument {what}",
            expected=f"an int of at least {least}",
            received=repr(value),
            advice=f"a sequence has one axis: pass for example {what}={max(least, 1)}",
        )
    return int(given)


class OneAxis(Layer):
    """Put before an image layer among the bases: samples (C, L) or (L,) pass as (C, 1, L).

    A sample (L,) is one channel; it comes out as (L',) where the layer keeps channels. A length may
    be -1, any, where the layer takes that.
    """

    window: Window

    def setup(self, in_shapes: Any) -> Shapes:
        """Sample shape (C, L) → (C', L'), (L,) → (L',) or, of a convolution, (F, L')."""
        good = not isinstance(in_shapes, list) and len(in_shapes) in (1, 2)
        channels, length = (1, *in_shapes)[-2:] if good else (0, 0)
        any_length = length == -1 and getattr(self, "padding_mode", "zeros") == "zeros"
        if channels < 1 or (length < 1 and not any_length):
            raise self.shape_error(
                "one input of sample shape (channels, length) or (length,), each at least 1",
                str(in_shapes),
                "reshape the samples to sequences",
            )
        # What is made for sequences of any length does not depend on it.
        length = self.window.extent[1] if any_length else length
        self._expect_length(length, in_shapes)
        out: Any = super().setup((channels, 1, length))
        out = (*out[:2], -1) if any_length else out
        return (out[2],) if len(in_shapes) == 1 and self.keeps_channels else (out[0], out[2])

    def _expect_length(self, length: int, shape: Shape) -> None:
        if not self.grows and self.window.out_size(1, length)[1] < 1:
            raise self.shape_error(
                f"sequences at least as long as the kernel {self.window.kernel[1]}"
                f" with dilation {self.window.dilation[1]} and padding {self.window.pads[1]}",
                f"sample shape {shape}",
                "use a smaller kernel, border_mode='same', or longer sequences",
            )

    grows = False
    """Whether outputs are as a rule longer than inputs, none of which is too short then."""

    keeps_channels = True
    """Whether a sample without a channel axis comes out without one."""

    def forward(self, ctx: Context, x: Array) -> Array:
        """(N, C, L) or (N, L) through the image layer."""
        self._expect_length(x.shape[-1], x.shape[1:])
        y: Any = super().forward(ctx, _as_image(x))
        return _as_sequence(y, self.out_shapes)

    def backward(self, ctx: Context, dy: Array) -> tuple[Any, Any]:
        """Gradients through the image layer."""
        dx, grads = super().backward(ctx, _as_image(dy))
        return None if dx is None else _as_sequence(dx, self.in_shapes), grads


def _as_image(x: Array) -> Array:
    return x[:, None, None] if x.ndim == 2 else x[:, :, None]


def _as_sequence(image: Array, sample_shape: Shape | Any) -> Array:
    return image[:, 0, 0] if len(sample_shape) == 1 else image[:, :, 0]
