"""MobileNet, version 1: Howard et al., 2017."""

from __future__ import annotations

from singanet.errors import ArgumentError
from singanet.layers import Input
from singanet.models.blocks import conv_bn, depthwise_bn, is_small, pooled_classifier
from singanet.net import FeedForwardNet
from singanet.types import Shape

# Channels and stride of each block.
_BLOCKS = (
    *((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)),
    *(((512, 1),) * 5),
    *((1024, 2), (1024, 1)),
)


def build(
    input_shape: Shape, num_classes: int, seed: int | None = None, width: float = 1.0
) -> FeedForwardNet:
    """Thirteen pairs of a depthwise 3×3 and a 1×1 convolution, ``width`` times the channels.

    Images below 64 pixels skip the stride of the first convolution.
    """
    if not 0.0 < width <= 8.0:
        raise ArgumentError(
            "mobilenet, argument width",
            expected="a number above 0, at most 8",
            received=repr(width),
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
