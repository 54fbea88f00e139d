"""DenseNet-121: Huang et al., 2017."""

from __future__ import annotations

from collections.abc import Sequence

from singanet.layers import AvgPooling2D, Concat, Input, MaxPooling2D
from singanet.layers.symbol import Symbol
from singanet.models.blocks import batch_norm, conv, conv_bn, is_small, pooled_classifier, relu
from singanet.net import FeedForwardNet
from singanet.types import Shape


def build(
    input_shape: Shape,
    num_classes: int,
    seed: int | None = None,
    blocks: Sequence[int] = (6, 12, 24, 16),
    growth: int = 32,
) -> FeedForwardNet:
    """Blocks whose layers each add ``growth`` channels to all that came before them in the block.

    Between blocks a 1×1 convolution halves the channels, and pooling the size. Images below 64
    pixels start with a 3×3 convolution in place of the 7×7 one and the pooling.
    """
    image = Input("image", input_shape)
    if is_small(image):
        x = conv_bn(image, "conv", 2 * growth)
    else:
        x = conv_bn(image, "conv", 2 * growth, kernel=7, stride=2)
        x = MaxPooling2D("conv_pool", 3, 2)(x)
    for block, layers in enumerate(blocks, start=1):
        if block > 1:
            x = _ready_conv(x, f"transition{block - 1}", x.shape[0] // 2, 1)
            x = AvgPooling2D(f"transition{block - 1}_pool", 2, 2)(x)
        for k in range(1, layers + 1):
            name = f"block{block}_layer{k}"
            y = _ready_conv(x, f"{name}_reduce", 4 * growth, 1)
            y = _ready_conv(y, name, growth, 3)
            x = Concat(f"{name}_join", 1)(x, y)
    return pooled_classifier(image, relu(batch_norm(x, "last_bn"), "last_relu"), num_classes, seed)


def _ready_conv(x: Symbol, name: str, channels: int, kernel: int) -> Symbol:
    """Normalisation and relu, then the convolution."""
    return conv(relu(batch_norm(x, f"{name}_bn"), f"{name}_relu"), name, channels, kernel)
