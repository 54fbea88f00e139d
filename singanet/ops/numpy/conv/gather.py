"""The gradient of a convolution's input by convolving the outputs' gradients."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

from singanet.ops.interface import Ops
from singanet.ops.numpy.windows import blocks, scratch_bytes
from singanet.ops.window import Window
from singanet.types import Array, Shape


def can_gather(window: Window) -> bool:
    """Whether each pixel meets its taps at even distances."""
    axes = zip(window.kernel, window.stride, window.dilation, strict=True)
    return all(1 in axis for axis in axes)


def moves_less(dy: Array, x_shape: Shape, window: Window) -> bool:
    """Whether gathering does, which copies where scattering adds."""
    (_, c, h, w), (_, f, oh, ow), (sh, sw) = x_shape, dy.shape, window.stride
    # An addition moves about three times what a copy does: benchmarks/conv_kernels.py.
    return f * h * w <= 3 * c * oh * ow * sh * sw or window.kernel == (1, 1)


def gather(
    ops: Ops, dy: Array, weight: Array, x_shape: Shape, window: Window, groups: int = 1
) -> Array:
    """See `Ops.conv2d_backward_data`: a convolution for each remainder of a pixel by the stride."""
    n, c, h, w = x_shape
    f, cg, kh, kw = weight.shape
    swapped = weight.reshape(groups, f // groups, cg, kh, kw).transpose(0, 2, 1, 3, 4)
    swapped = swapped.reshape(c, f // groups, kh, kw)
    phases = [_phases(window, k, x_shape[2 + k], dy.shape[2 + k]) for k in (0, 1)]
    if window.stride == (1, 1):
        return ops.conv2d(*_phase_of(dy, swapped, phases[0][0], phases[1][0], groups))
    every = window.kernel[0] >= window.stride[0] and window.kernel[1] >= window.stride[1]
    dx: Array = (ops.xp.empty if every else ops.xp.zeros)((n, h, w, c), dy.dtype)
    for samples, _ in blocks(n, 1, h * w * c * dy.itemsize, scratch_bytes(ops)):
        for rows, cols in product(*phases):
            part = ops.conv2d(*_phase_of(dy[samples], swapped, rows, cols, groups))
            dx[samples, rows.targets, cols.targets] = part.transpose(0, 2, 3, 1)
    return dx.transpose(0, 3, 1, 2)


def gather_depthwise(ops: Ops, dy: Array, weight: Array, x_shape: Shape, window: Window) -> Array:
    """See `Ops.depthwise_conv2d_backward_data`: by each of a channel's kernels in turn."""
    (c, m, _, _), (n, _, h, w) = weight.shape, x_shape
    if m == 1:
        return gather(ops, dy, weight, x_shape, window, c)
    dx: Array = ops.xp.empty((n, h, w, c), dy.dtype)
    for samples, _ in blocks(n, 1, h * w * c * dy.itemsize, scratch_bytes(ops)):
        target = dx[samples].transpose(0, 3, 1, 2)
        for k in range(m):
            given, kernels = dy[samples, k::m], weight[:, k : k + 1]
            part = gather(ops, given, kernels, target.shape, window, c)
            if k:
                ops.xp.add(target, part, out=target)
            else:
                ops.xp.copyto(target, part)
    return dx.transpose(0, 3, 1, 2)


class _Phase(NamedTuple):
    """Pixels along one axis with one remainder of their position, and the gradients for them."""

    taps: slice
    """The kernel positions that meet these pixels."""
    targets: slice
    """The pixels."""
    source: slice
    """The part of dy that reaches them."""
    pads: tuple[int, int]
    """Zeros before and after that part."""
    dilation: int


def _phase_of(
    dy: Array, swapped: Array, rows: _Phase, cols: _Phase, groups: int
) -> tuple[Array, Array, None, Window, int]:
    """The arguments of the convolution that gives the pixels of two phases."""
    kernels = swapped[:, :, rows.taps, cols.taps][:, :, ::-1, ::-1]
    kernel = (kernels.shape[2], kernels.shape[3])
    window = Window(kernel, (1, 1), (rows.pads, cols.pads), (rows.dilation, cols.dilation))
    return dy[:, :, rows.source, cols.source], kernels, None, window, groups


def _phases(window: Window, axis: int, size: int, out: int) -> list[_Phase]:
    kernel, stride = window.kernel[axis], window.stride[axis]
    dilation = window.dilation[axis] if stride == 1 else 1
    pad = window.pads[axis][0]
    found = []
    for remainder in range(min(stride, kernel)):
        span = (len(range(remainder, kernel, stride)) - 1) * dilation
        first = -((remainder - pad) // stride)
        start = first * stride + remainder - pad
        count = -((start - size) // stride)
        if count < 1:
            continue
        before, after = span - first, first + count - out
        found.append(
            _Phase(
                slice(remainder, None, stride),
                slice(start, None, stride),
                slice(max(-before, 0), out - max(-after, 0)),
                (max(before, 0), max(after, 0)),
                dilation,
            )
        )
    return found
