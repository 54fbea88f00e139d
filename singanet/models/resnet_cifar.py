"""Residual nets for small images: He et al., 2016, section 4.2."""

from __future__ import annotations

from singanet.layers import Add, Input
from singanet.layers.symbol import Symbol
from singanet.models.blocks import (
    conv_bn,
    expect_depth,
    last_conv_bn,
    padded_shortcut,
    pooled_classifier,
    relu,
)
from singanet.net import FeedForwardNet
from singanet.types import Shape


def build(
    input_shape: Shape, num_classes: int, seed: int | None = None, depth: int = 20
) -> FeedForwardNet:
    """Three stages of 16, 32 and 64 channels, each of n blocks of two convolutions.

    ``depth`` is 6n + 2. Shortcuts have no parameters (option A): where a stage begins they take
    every other position and add channels of zeros.
    """
    blocks = expect_depth("resnet", depth, 6, 2)
    image = Input("image", input_shape)
    x = conv_bn(image, "conv", 16)
    for stage, channels in enumerate((16, 32, 64), start=1):
        for block in range(1, blocks + 1):
            stride = 2 if stage > 1 and block == 1 else 1
            x = _block(x, f"stage{stage}_block{block}", channels, stride)
    return pooled_classifier(image, x, num_classes, seed)


def _block(x: Symbol, name: str, channels: int, stride: int) -> Symbol:
    y = conv_bn(x, f"{name}_conv1", channels, stride=stride)
    y = last_conv_bn(y, f"{name}_conv2", channels)
    y = Add(f"{name}_add")(y, padded_shortcut(x, f"{name}_shortcut", channels, stride))
    return relu(y, f"{name}_relu")
