"""Kernel, stride and padding arguments of convolution and pooling layers."""

from __future__ import annotations

from typing import Any

from singanet.base.counts import is_int
from singanet.errors import ArgumentError
from singanet.layers.layer import Layer
from singanet.ops.numpy.windows import Pads, Pair, Window
from singanet.types import Shape

__all__ = ["expect_image", "expect_nchw", "image_size", "make_window", "pair"]


def pair(layer: str, what: str, value: Any, least: int = 1) -> Pair:
    """``value`` as (height, width); an int stands for both."""
    parts = (value, value) if is_int(value, least) else value
    good = (
        isinstance(parts, (tuple, list))
        and len(parts) == 2
        and all(is_int(part, least) for part in parts)
    )
    if not good:
        raise ArgumentError(
            f"layer {layer!r}, argument {what}",
            expected=f"an int or a pair of ints, at least {least}",
            received=repr(value),
            advice=f"pass for example {what}={max(least, 1)} or {what}=({max(least, 1)}, 2)",
        )
    return int(parts[0]), int(parts[1])


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
) -> Window:
    """The window that the arguments describe; ``pad`` overrides ``border_mode``.

    'same' pads by extent - 1 in all, where extent is the dilated kernel, so that stride 1 keeps
    the size; of an odd total the larger half comes after (even kernels). 'valid' pads nothing.
    """
    size = pair(layer, "kernel", kernel)
    step = pair(layer, "stride", stride)
    spread = pair(layer, "dilation", dilation)
    if pad is not None:
        ph, pw = pair(layer, "pad", pad, least=0)
        pads: Pads = ((ph, ph), (pw, pw))
    elif border_mode == "same":
        totals = [spread[k] * (size[k] - 1) for k in (0, 1)]
        pads = (
            (totals[0] // 2, totals[0] - totals[0] // 2),
            (totals[1] // 2, totals[1] - totals[1] // 2),
        )
    elif border_mode == "valid":
        pads = ((0, 0), (0, 0))
    else:
        raise ArgumentError(
            f"layer {layer!r}, argument border_mode",
            expected="'same' or 'valid'",
            received=repr(border_mode),
            advice="or give pad=(height, width)",
        )
    return Window(size, step, pads, spread)


def expect_image(layer: Layer, in_shapes: Any) -> Shape:
    """``in_shapes`` itself when it is the (C, H, W) of one input with at least one pixel."""
    meaning = "(channels, height, width)"
    shape = layer.expect_rank(in_shapes, 3, meaning, "reshape the samples to images")
    if min(shape) < 1:
        raise layer.shape_error(
            f"one input of sample shape {meaning}, each at least 1",
            str(shape),
            "check the layers before this one",
        )
    return shape


def image_size(layer: Layer, in_shape: Shape, window: Window) -> Pair:
    """The output size of ``window`` on a (C, H, W) sample; an error where it does not fit."""
    out = window.out_size(in_shape[1], in_shape[2])
    if min(out) < 1:
        raise layer.shape_error(
            f"images at least as large as the kernel {window.kernel}"
            f" with dilation {window.dilation} and padding {window.pads}",
            f"sample shape {in_shape}",
            "use a smaller kernel, border_mode='same', or larger images",
        )
    return out
