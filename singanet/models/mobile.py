"""Nets of depthwise convolutions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from singanet.errors import ArgumentError, brief
from singanet.layers import (
    Activation,
    Add,
    Dense,
    Dropout,
    GlobalAvgPooling2D,
    Input,
    Multiply,
    Reshape,
)
from singanet.layers.symbol import Symbol
from singanet.models.blocks import (
    batch_norm,
    classifier,
    conv,
    conv_bn,
    depthwise_bn,
    is_small,
    pooled_classifier,
)
from singanet.net import FeedForwardNet
from singanet.types import Shape

# Channels and stride of each block.
_BLOCKS = (
    *((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)),
    *(((512, 1),) * 5),
    *((1024, 2), (1024, 1)),
)


def mobilenet(
    input_shape: Shape, num_classes: int, seed: int | None = None, width: float = 1.0
) -> FeedForwardNet:
    """Build thirteen pairs of a depthwise 3×3 and a 1×1 convolution.

    ``width`` multiplies the channels. Images below 64 pixels skip the stride of the first
    convolution.
    """
    if not 0.0 < width <= 8.0:
        raise ArgumentError(
            "mobilenet, argument width",
            expected="a number above 0, at most 8",
            received=brief(width),
            advice="0.25, 0.5, 0.75 and 1.0 are the paper's",
        )
    image = Input("image", input_shape)
    x = conv_bn(image, "conv", _scaled(32, width), stride=1 if is_small(image) else 2)
    for k, (channels, stride) in enumerate(_BLOCKS, start=1):
        x = depthwise_bn(x, f"block{k}_depthwise", stride=stride)
        x = conv_bn(x, f"block{k}_pointwise", _scaled(channels, width), kernel=1)
    return pooled_classifier(image, x, num_classes, seed)


def _scaled(channels: int, width: float) -> int:
    return max(1, int(channels * width))


LEAST = 4
"""The minimum size in pixels of the last feature map of small images."""


class Gate(NamedTuple):
    """A squeeze and excitation gate: hidden channels, hidden activation and gate activation."""

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
    """Add an inverted residual block (Sandler et al., 2018).

    A 1×1 convolution expands to ``expanded`` channels, a depthwise convolution follows, and a 1×1
    convolution without activation projects to ``channels``. The expansion is omitted if it would
    not change the channels. A shortcut is added if the shape is unchanged. ``gate`` adds squeeze
    and excitation before the projection.
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
    """Scale each channel by a gate computed from the means of all channels (Hu et al., 2018)."""
    y = Dense(f"{name}_squeeze", gate.channels)(GlobalAvgPooling2D(f"{name}_pool")(x))
    y = Dense(f"{name}_excite", x.shape[0])(Activation(f"{name}_{gate.mode}", gate.mode)(y))
    y = Activation(f"{name}_{gate.gate}", gate.gate)(y)
    scaled: Symbol = Multiply(name)(x, Reshape(f"{name}_shape", (x.shape[0], 1, 1))(y))
    return scaled


def five_strides(image: Symbol) -> Iterator[int]:
    """Return the five strides of the net: 2 each, for images below 64 pixels the first are 1.

    Small images keep the most strides of 2 that leave at least four pixels.
    """
    halvings = 5
    if is_small(image):
        halvings = max(0, (min(image.shape[1:]) // LEAST).bit_length() - 1)
    return iter([1] * (5 - halvings) + [2] * halvings)


def rounded(channels: float, divisor: int = 8) -> int:
    """Round ``channels`` to a multiple of ``divisor``, by at most a tenth down."""
    near = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return near + divisor if near < 0.9 * channels else near


# Expansion factor, channels, blocks, stride of the first block.
_V2_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def mobilenet_v2(
    input_shape: Shape, num_classes: int, seed: int | None = None, dropout: float = 0.2
) -> FeedForwardNet:
    """Build seventeen inverted residuals with relu6.

    Images below 64 pixels skip the first strides.
    """
    image = Input("image", input_shape)
    strides = five_strides(image)
    x = conv_bn(image, "conv", 32, stride=next(strides), mode="relu6")
    for stage, (factor, channels, blocks, stride) in enumerate(_V2_STAGES, start=1):
        for k in range(1, blocks + 1):
            name = f"stage{stage}_block{k}"
            step = next(strides) if k == 1 and stride == 2 else 1
            x = inverted_residual(x, name, factor * x.shape[0], channels, 3, step, "relu6")
    x = GlobalAvgPooling2D("pool")(conv_bn(x, "last", 1280, 1, mode="relu6"))
    return classifier(image, Dense("fc", num_classes)(Dropout("drop", dropout)(x)), seed)


# Kernel, expanded channels, channels, gate, activation, stride; tables 1 and 2 of the paper.
_R, _H = "relu", "hard_swish"
_LARGE = (
    (3, 16, 16, False, _R, 1),
    (3, 64, 24, False, _R, 2),
    (3, 72, 24, False, _R, 1),
    (5, 72, 40, True, _R, 2),
    (5, 120, 40, True, _R, 1),
    (5, 120, 40, True, _R, 1),
    (3, 240, 80, False, _H, 2),
    (3, 200, 80, False, _H, 1),
    (3, 184, 80, False, _H, 1),
    (3, 184, 80, False, _H, 1),
    (3, 480, 112, True, _H, 1),
    (3, 672, 112, True, _H, 1),
    (5, 672, 160, True, _H, 2),
    (5, 960, 160, True, _H, 1),
    (5, 960, 160, True, _H, 1),
)
_SMALL = (
    (3, 16, 16, True, _R, 2),
    (3, 72, 24, False, _R, 2),
    (3, 88, 24, False, _R, 1),
    (5, 96, 40, True, _H, 2),
    (5, 240, 40, True, _H, 1),
    (5, 240, 40, True, _H, 1),
    (5, 120, 48, True, _H, 1),
    (5, 144, 48, True, _H, 1),
    (5, 288, 96, True, _H, 2),
    (5, 576, 96, True, _H, 1),
    (5, 576, 96, True, _H, 1),
)


def mobilenet_v3(
    input_shape: Shape,
    num_classes: int,
    seed: int | None = None,
    large: bool = True,
    dropout: float = 0.2,
) -> FeedForwardNet:
    """Build inverted residuals, some gated, and a dense layer of 1280 or 1024 units.

    Images below 64 pixels skip the first strides.
    """
    image = Input("image", input_shape)
    strides = five_strides(image)
    x = conv_bn(image, "conv", 16, stride=next(strides), mode=_H)
    for k, (kernel, expanded, channels, gated, mode, stride) in enumerate(
        _LARGE if large else _SMALL, start=1
    ):
        gate = Gate(rounded(expanded / 4), _R, "hard_sigmoid") if gated else None
        step = next(strides) if stride == 2 else 1
        x = inverted_residual(x, f"block{k}", expanded, channels, kernel, step, mode, gate)
    x = conv_bn(x, "last", 6 * x.shape[0], 1, mode=_H)
    x = Dense("fc1", 1280 if large else 1024)(GlobalAvgPooling2D("pool")(x))
    x = Dropout("drop", dropout)(Activation("fc1_hard_swish", _H)(x))
    return classifier(image, Dense("fc2", num_classes)(x), seed)


# Expansion factor, kernel, channels, blocks, stride of the first block.
_EFFICIENT_STAGES = (
    (1, 3, 16, 1, 1),
    (6, 3, 24, 2, 2),
    (6, 5, 40, 2, 2),
    (6, 3, 80, 3, 2),
    (6, 5, 112, 3, 1),
    (6, 5, 192, 4, 2),
    (6, 3, 320, 1, 1),
)


def efficientnet(
    input_shape: Shape, num_classes: int, seed: int | None = None, dropout: float = 0.2
) -> FeedForwardNet:
    """Build sixteen gated inverted residuals with silu.

    A gate has a quarter of the channels that enter its block. Images below 64 pixels skip the first
    strides.
    """
    image = Input("image", input_shape)
    strides = five_strides(image)
    x = conv_bn(image, "conv", 32, stride=next(strides), mode="silu")
    for stage, (factor, kernel, channels, blocks, stride) in enumerate(_EFFICIENT_STAGES, start=1):
        for k in range(1, blocks + 1):
            name, entering = f"stage{stage}_block{k}", x.shape[0]
            step = next(strides) if k == 1 and stride == 2 else 1
            gate = Gate(entering // 4, "silu", "sigmoid")
            x = inverted_residual(x, name, factor * entering, channels, kernel, step, "silu", gate)
    x = GlobalAvgPooling2D("pool")(conv_bn(x, "last", 1280, 1, mode="silu"))
    return classifier(image, Dense("fc", num_classes)(Dropout("drop", dropout)(x)), seed)
