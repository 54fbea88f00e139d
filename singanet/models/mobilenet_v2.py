"""MobileNet, version 2: Sandler et al., 2018."""

from __future__ import annotations

from singanet.layers import Dense, Dropout, GlobalAvgPooling2D, Input
from singanet.models.blocks import classifier, conv_bn
from singanet.models.inverted import five_strides, inverted_residual
from singanet.net import FeedForwardNet
from singanet.types import Shape

# Factor of expansion, channels, blocks, and stride of the first of them.
_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def build(
    input_shape: Shape, num_classes: int, seed: int | None = None, dropout: float = 0.2
) -> FeedForwardNet:
    """Seventeen inverted residuals with relu6; images below 64 pixels skip the first strides."""
    image = Input("image", input_shape)
    strides = five_strides(image)
    x = conv_bn(image, "conv", 32, stride=next(strides), mode="relu6")
    for stage, (factor, channels, blocks, stride) in enumerate(_STAGES, start=1):
        for k in range(1, blocks + 1):
            name = f"stage{stage}_block{k}"
            step = next(strides) if k == 1 and stride == 2 else 1
            x = inverted_residual(x, name, factor * x.shape[0], channels, 3, step, "relu6")
    x = GlobalAvgPooling2D("pool")(conv_bn(x, "last", 1280, 1, mode="relu6"))
    return classifier(image, Dense("fc", num_classes)(Dropout("drop", dropout)(x)), seed)
