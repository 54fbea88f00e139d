"""Pre-activation residual nets for small images: He et al., 2016, *Identity mappings*."""

from __future__ import annotations

from singanet.models.blocks import expect_depth
from singanet.models.preactivation import preactivation_net
from singanet.net import FeedForwardNet
from singanet.types import Shape


def build(
    input_shape: Shape, num_classes: int, seed: int | None = None, depth: int = 20
) -> FeedForwardNet:
    """As `resnet_cifar`, with normalisation and relu before each convolution; depth 6n + 2."""
    blocks = expect_depth("preresnet", depth, 6, 2)
    return preactivation_net(input_shape, num_classes, seed, blocks)
