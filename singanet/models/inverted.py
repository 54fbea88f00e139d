"""The block of MobileNet's later versions and of EfficientNet, and what such nets share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from singanet.layers import Activation, Add, Dense, GlobalAvgPooling2D, Multiply, Reshape
from singanet.layers.symbol import Symbol
from singanet.models.blocks import batch_norm, conv, conv_bn, depthwise_bn, is_small

__all__ = ["Gate", "five_strides", "inverted_residual", "rounded", "squeeze_excite"]

LEAST = 4
"""Pixels that small images have at the end."""


class Gate(NamedTuple):
    """Squeeze and excitation: how many channels between, the activation there, and the gate's."""

    channels: int
    mode: str
    gate: str


def inverted_residual(
    x: Symbol,
    name: str,
    expanded: int,
    channels: int,
    kernel: int,
    stride: int,
    mode: str,
    gate: Gate | None = None,
) -> Symbol:
    """1×1 to ``expanded`` channels, a depthwise convolution, 1×1 to ``channels``: Sandler, 2018.

    The first is left out where it would expand nothing. There is no activation at the end, and a
    shortcut where the shape stays. With ``gate`` channels are weighed before the last convolution.
    """
    y = x
    if expanded != x.shape[0]:
        y = conv_bn(y, f"{name}_expand", expanded, 1, mode=mode)
    y = depthwise_bn(y, f"{name}_depthwise", kernel, stride, mode)
    if gate is not None:
        y = squeeze_excite(y, f"{name}_gate", gate)
    shortcut = (channels, *y.shape[1:]) == x.shape
    y = conv(y, f"{name}_project", channels, 1)
    y = batch_norm(y, f"{name}_project_bn", gamma=0.0 if shortcut else 1.0)
    return Add(f"{name}_add")(x, y) if shortcut else y


def squeeze_excite(x: Symbol, name: str, gate: Gate) -> Symbol:
    """Each channel times a number from the means of all channels: Hu et al., 2018."""
    y = Dense(f"{name}_squeeze", gate.channels)(GlobalAvgPooling2D(f"{name}_pool")(x))
    y = Dense(f"{name}_excite", x.shape[0])(Activation(f"{name}_{gate.mode}", gate.mode)(y))
    y = Activation(f"{name}_{gate.gate}", gate.gate)(y)
    scaled: Symbol = Multiply(name)(x, Reshape(f"{name}_shape", (x.shape[0], 1, 1))(y))
    return scaled


def five_strides(image: Symbol) -> Iterator[int]:
    """The strides of such a net, 2 each; of images below 64 pixels the first are 1.

    There are as few of these as leave four pixels at the end, or all.
    """
    halvings = 5
    if is_small(image):
        halvings = max(0, (min(image.shape[1:]) // LEAST).bit_length() - 1)
    return iter([1] * (5 - halvings) + [2] * halvings)


def rounded(channels: float, divisor: int = 8) -> int:
    """``channels`` as the nearest multiple of ``divisor`` that is no more than a tenth less."""
    near = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return near + divisor if near < 0.9 * channels else near
