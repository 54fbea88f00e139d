"""Convolutions of volumes (N, C, D, H, W): those of their slices, a plane of the kernel at a time.

A plane meets every so-many-th slice; what it makes of them is one convolution of images.
"""

from __future__ import annotations

from collections.abc import Iterator

from singanet.ops.interface import Ops
from singanet.ops.numpy.windows import along, channels_first
from singanet.ops.window import Window
from singanet.types import Array, Shape


def conv(
    ops: Ops, x: Array, weight: Array, bias: Array | None, window: Window, groups: int = 1
) -> Array:
    """See `Ops.conv2d`."""
    out = window.out_size(*x.shape[2:])
    y: Array = ops.xp.zeros((len(x), *out, len(weight)), x.dtype)
    for plane, met, outputs in _planes(window, x.shape[2], out[0]):
        part = ops.conv2d(_images(x[:, :, met]), weight[:, :, plane], None, _flat(window), groups)
        _add(ops, y[:, outputs], part)
    if bias is not None:
        ops.xp.add(y, bias, out=y)
    return channels_first(y)


def data(
    ops: Ops, dy: Array, weight: Array, x_shape: Shape, window: Window, groups: int = 1
) -> Array:
    """See `Ops.conv2d_backward_data`."""
    n, c, depth, *size = x_shape
    dx: Array = ops.xp.zeros((n, depth, *size, c), dy.dtype)
    for plane, met, outputs in _planes(window, depth, dy.shape[2]):
        slopes = _images(dy[:, :, outputs])
        shape = (len(slopes), c, *size)
        part = ops.conv2d_backward_data(slopes, weight[:, :, plane], shape, _flat(window), groups)
        _add(ops, dx[:, met], part)
    return channels_first(dx)


def weights(
    ops: Ops, x: Array, dy: Array, weight_shape: Shape, window: Window, groups: int = 1
) -> Array:
    """See `Ops.conv2d_backward_weights`."""
    dw: Array = ops.xp.zeros(weight_shape, dy.dtype)
    shape = (*weight_shape[:2], *weight_shape[3:])
    for plane, met, outputs in _planes(window, x.shape[2], dy.shape[2]):
        images, slopes = _images(x[:, :, met]), _images(dy[:, :, outputs])
        dw[:, :, plane] = ops.conv2d_backward_weights(images, slopes, shape, _flat(window), groups)
    return dw


def _planes(window: Window, depth: int, out: int) -> Iterator[tuple[int, slice, slice]]:
    """Of each plane of the kernel its number, the slices that it meets, and of which outputs."""
    return along(window, 0, depth, slice(0, out))


def _flat(window: Window) -> Window:
    """The window without its depth."""
    return Window(window.kernel[1:], window.stride[1:], window.pads[1:], window.dilation[1:])


def _images(x: Array) -> Array:
    """(N, C, D, H, W) as (N·D, C, H, W)."""
    n, c, depth, height, width = x.shape
    return x.transpose(0, 2, 1, 3, 4).reshape(n * depth, c, height, width)


def _add(ops: Ops, volumes: Array, images: Array) -> None:
    """Add ``images`` (N·D, C, H, W) to ``volumes`` (N, D, H, W, C)."""
    terms = images.transpose(0, 2, 3, 1).reshape(volumes.shape)
    ops.xp.add(volumes, terms, out=volumes)
