"""Residual nets."""

from __future__ import annotations

from collections.abc import Sequence

from singanet.base.arguments import checked_count
from singanet.layers import Add, Dropout, Input, MaxPooling2D
from singanet.layers.symbol import Symbol
from singanet.models.blocks import (
    batch_norm,
    conv,
    conv_bn,
    expect_depth,
    is_small,
    last_conv_bn,
    padded_shortcut,
    pooled_classifier,
    relu,
)
from singanet.net import FeedForwardNet
from singanet.types import Shape


def resnet(
    input_shape: Shape,
    num_classes: int,
    seed: int | None = None,
    stages: Sequence[int] = (2, 2, 2, 2),
    bottleneck: bool = False,
) -> FeedForwardNet:
    """Build a ResNet: stages of 64, 128, 256 and 512 channels with ``stages`` blocks each.

    A ``bottleneck`` block is a 1×1, a 3×3 and a 1×1 convolution, the last with four times the
    channels. The stride of a stage is in the first 3×3 convolution, as in torchvision. Shortcuts
    that change the shape are 1×1 convolutions (option B). Images below 64 pixels start with a 3×3
    convolution instead of the 7×7 one and pooling.
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


def resnet_cifar(
    input_shape: Shape, num_classes: int, seed: int | None = None, depth: int = 20
) -> FeedForwardNet:
    """Build three stages of 16, 32 and 64 channels, each of n blocks of two convolutions.

    ``depth`` is 6n + 2. Shortcuts have no parameters (option A): at the start of a stage they take
    every second position and pad the channels with zeros.
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


def preactivation_net(
    input_shape: Shape,
    num_classes: int,
    seed: int | None,
    blocks: int,
    widen: int = 1,
    projection: bool = False,
    dropout: float = 0.0,
) -> FeedForwardNet:
    """Build three stages of 16, 32 and 64 times ``widen`` channels, each of ``blocks`` blocks.

    A shortcut that changes the shape is a 1×1 convolution with ``projection``, and otherwise option
    A.
    """
    image = Input("image", input_shape)
    x = conv(image, "conv", 16)
    for stage, channels in enumerate((16, 32, 64), start=1):
        for block in range(1, blocks + 1):
            stride = 2 if stage > 1 and block == 1 else 1
            name = f"stage{stage}_block{block}"
            x = _preactivated_block(x, name, channels * widen, stride, projection, dropout)
    x = relu(batch_norm(x, "last_bn"), "last_relu")
    return pooled_classifier(image, x, num_classes, seed)


def _preactivated_block(
    x: Symbol, name: str, channels: int, stride: int, projection: bool, dropout: float
) -> Symbol:
    ready = relu(batch_norm(x, f"{name}_bn1"), f"{name}_relu1")
    y = conv(ready, f"{name}_conv1", channels, stride=stride)
    y = relu(batch_norm(y, f"{name}_bn2"), f"{name}_relu2")
    if dropout:
        y = Dropout(f"{name}_drop", dropout)(y)
    y = conv(y, f"{name}_conv2", channels)
    if not projection:
        x = padded_shortcut(x, f"{name}_shortcut", channels, stride)
    elif y.shape != x.shape:
        x = conv(ready, f"{name}_shortcut", channels, kernel=1, stride=stride)
    total: Symbol = Add(f"{name}_add")(y, x)
    return total


def preresnet(
    input_shape: Shape, num_classes: int, seed: int | None = None, depth: int = 20
) -> FeedForwardNet:
    """Build `resnet_cifar` with normalisation and relu before each convolution.

    ``depth`` is 6n + 2.
    """
    blocks = expect_depth("preresnet", depth, 6, 2)
    return preactivation_net(input_shape, num_classes, seed, blocks)


def wide_resnet(
    input_shape: Shape,
    num_classes: int,
    seed: int | None = None,
    depth: int = 16,
    widen: int = 4,
    dropout: float = 0.0,
) -> FeedForwardNet:
    """Build pre-activation blocks with ``widen`` times the channels; ``depth`` is 6n + 4.

    Shortcuts that change the shape are 1×1 convolutions. ``dropout`` is applied between the two
    convolutions of a block.
    """
    blocks = expect_depth("wide resnet", depth, 6, 4)
    widen = checked_count("wide resnet", "argument widen", widen, 1)
    return preactivation_net(input_shape, num_classes, seed, blocks, widen, True, dropout)
