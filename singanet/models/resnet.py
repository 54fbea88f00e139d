"""Residual nets for photographs: He et al., 2016, section 4.1."""

from __future__ import annotations

from collections.abc import Sequence

from singanet.layers import Add, Input, MaxPooling2D
from singanet.layers.symbol import Symbol
from singanet.models.blocks import (
    batch_norm,
    conv,
    conv_bn,
    is_small,
    last_conv_bn,
    pooled_classifier,
    relu,
)
from singanet.net import FeedForwardNet
from singanet.types import Shape


def build(
    input_shape: Shape,
    num_classes: int,
    seed: int | None = None,
    stages: Sequence[int] = (2, 2, 2, 2),
    bottleneck: bool = False,
) -> FeedForwardNet:
    """Stages of 64, 128, 256 and 512 channels, of as many blocks as ``stages`` says.

    A ``bottleneck`` block is a 1×1, a 3×3 and a 1×1 convolution, the last with four times the
    channels; where a stage begins its stride lies in the 3×3 one, as in PyTorch's nets.
    Shortcuts that change the shape are 1×1 convolutions (option B). Images below 64 pixels start
    with a 3×3 convolution in place of the 7×7 one and the pooling, which would leave too little.
    """
    image = Input("image", input_shape)
    if is_small(image):
        x = conv_bn(image, "conv", 64)
    else:
        x = conv_bn(image, "conv", 64, kernel=7, stride=2)
        x = MaxPooling2D("conv_pool", 3, 2)(x)
    block_of = _bottleneck if bottleneck else _basic
    for stage, blocks in enumerate(stages, start=1):
        channels = 32 * 2**stage
        for block in range(1, blocks + 1):
            name = f"stage{stage}_block{block}"
            stride = 2 if stage > 1 and block == 1 else 1
            y = block_of(x, name, channels, stride)
            if y.shape != x.shape:
                x = _projection(x, f"{name}_shortcut", y.shape[0], stride)
            x = relu(Add(f"{name}_add")(y, x), f"{name}_relu")
    return pooled_classifier(image, x, num_classes, seed)


def _projection(x: Symbol, name: str, channels: int, stride: int) -> Symbol:
    return batch_norm(conv(x, name, channels, 1, stride), f"{name}_bn")


def _basic(x: Symbol, name: str, channels: int, stride: int) -> Symbol:
    y = conv_bn(x, f"{name}_conv1", channels, stride=stride)
    return last_conv_bn(y, f"{name}_conv2", channels)


def _bottleneck(x: Symbol, name: str, channels: int, stride: int) -> Symbol:
    y = conv_bn(x, f"{name}_conv1", channels, kernel=1)
    y = conv_bn(y, f"{name}_conv2", channels, stride=stride)
    return last_conv_bn(y, f"{name}_conv3", 4 * channels, kernel=1)
