"""EfficientNet-B0: Tan and Le, 2019, without stochastic depth."""

from __future__ import annotations

from singanet.layers import Dense, Dropout, GlobalAvgPooling2D, Input
from singanet.models.blocks import classifier, conv_bn
from singanet.models.inverted import Gate, five_strides, inverted_residual
from singanet.net import FeedForwardNet
from singanet.types import Shape

# Factor of expansion, kernel, channels, blocks, and stride of the first of them.
_STAGES = (
    (1, 3, 16, 1, 1),
    (6, 3, 24, 2, 2),
    (6, 5, 40, 2, 2),
    (6, 3, 80, 3, 2),
    (6, 5, 112, 3, 1),
    (6, 5, 192, 4, 2),
    (6, 3, 320, 1, 1),
)


def build(
    input_shape: Shape, num_classes: int, seed: int | None = None, dropout: float = 0.2
) -> FeedForwardNet:
    """Sixteen gated inverted residuals with silu; a gate has a quarter of the block's channels.

    Images below 64 pixels skip the first strides.
    """
    image = Input("image", input_shape)
    strides = five_strides(image)
    x = conv_bn(image, "conv", 32, stride=next(strides), mode="silu")
    for stage, (factor, kernel, channels, blocks, stride) in enumerate(_STAGES, start=1):
        for k in range(1, blocks + 1):
            name, entering = f"stage{stage}_block{k}", x.shape[0]
            step = next(strides) if k == 1 and stride == 2 else 1
            gate = Gate(entering // 4, "silu", "sigmoid")
            x = inverted_residual(x, name, factor * entering, channels, kernel, step, "silu", gate)
    x = GlobalAvgPooling2D("pool")(conv_bn(x, "last", 1280, 1, mode="silu"))
    return classifier(image, Dense("fc", num_classes)(Dropout("drop", dropout)(x)), seed)
