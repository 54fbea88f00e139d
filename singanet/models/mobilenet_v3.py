"""MobileNet, version 3, large and small: Howard et al., 2019."""

from __future__ import annotations

from singanet.layers import Activation, Dense, Dropout, GlobalAvgPooling2D, Input
from singanet.models.blocks import classifier, conv_bn
from singanet.models.inverted import Gate, five_strides, inverted_residual, rounded
from singanet.net import FeedForwardNet
from singanet.types import Shape

# Kernel, expanded channels, channels, gated or not, relu or hard swish, stride; tables 1 and 2.
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


def build(
    input_shape: Shape,
    num_classes: int,
    seed: int | None = None,
    large: bool = True,
    dropout: float = 0.2,
) -> FeedForwardNet:
    """Inverted residuals, some gated, a dense layer of 1280 or 1024 units before the scores.

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
