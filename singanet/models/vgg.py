"""VGG with batch normalisation: Simonyan and Zisserman, 2015."""

from __future__ import annotations

from singanet.errors import ArgumentError, one_of
from singanet.layers import Dense, Dropout, Flatten, Input, MaxPooling2D
from singanet.layers.symbol import Symbol
from singanet.models.blocks import HE, batch_norm, classifier, conv_bn, is_small, relu
from singanet.net import FeedForwardNet
from singanet.types import Shape

_CONVOLUTIONS = {
    11: (1, 1, 2, 2, 2),
    13: (2, 2, 2, 2, 2),
    16: (2, 2, 3, 3, 3),
    19: (2, 2, 4, 4, 4),
}
_CHANNELS = (64, 128, 256, 512, 512)


def build(
    input_shape: Shape, num_classes: int, seed: int | None = None, depth: int = 16
) -> FeedForwardNet:
    """Five stages of 3×3 convolutions, each ended by 2×2 pooling, and dense layers.

    Three of these, of 4096 units but for the last, as published; images below 64 pixels have the
    head of SINGA's CIFAR-10 example, 512 units, normalised, between two dropouts, and no biases
    where normalisation makes them idle. Pooling leaves what is one pixel wide.
    """
    if depth not in _CONVOLUTIONS:
        raise ArgumentError(
            "vgg, argument depth",
            expected=f"one of {one_of(map(str, _CONVOLUTIONS))}",
            received=repr(depth),
            advice="choose one of these",
        )
    image = Input("image", input_shape)
    small = is_small(image)
    x = image
    for stage, (channels, count) in enumerate(
        zip(_CHANNELS, _CONVOLUTIONS[depth], strict=True), start=1
    ):
        for k in range(1, count + 1):
            x = conv_bn(x, f"conv{stage}_{k}", channels, bias=not small)
        x = MaxPooling2D(f"pool{stage}", 2, 2)(x)
    x = Flatten("flat")(x)
    x = _small_head(x) if small else _published_head(x)
    return classifier(image, Dense("fc2" if small else "fc3", num_classes)(x), seed)


def _small_head(x: Symbol) -> Symbol:
    x = Dense("fc1", 512, use_bias=False, W_specs=HE)(Dropout("drop1", 0.5)(x))
    y: Symbol = Dropout("drop2", 0.5)(relu(batch_norm(x, "fc1_bn"), "fc1_relu"))
    return y


def _published_head(x: Symbol) -> Symbol:
    for k in (1, 2):
        x = relu(Dense(f"fc{k}", 4096, W_specs=HE)(x), f"fc{k}_relu")
        x = Dropout(f"drop{k}", 0.5)(x)
    return x
