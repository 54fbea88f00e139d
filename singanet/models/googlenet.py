"""GoogLeNet: Szegedy et al., 2015, without the classifiers on the way."""

from __future__ import annotations

from singanet.layers import (
    LRN,
    Concat,
    Conv2D,
    Dense,
    Dropout,
    EndPadding,
    GlobalAvgPooling2D,
    Input,
    MaxPooling2D,
)
from singanet.layers.symbol import Symbol
from singanet.models.blocks import HE, classifier, is_small, relu
from singanet.net import FeedForwardNet
from singanet.types import Shape

# Channels: 1×1; before and at 3×3; before and at 5×5; behind the pooling.
_INCEPTIONS = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}


def build(input_shape: Shape, num_classes: int, seed: int | None = None) -> FeedForwardNet:
    """Nine inception modules, with names, response normalisation and pooling as Caffe's.

    Images below 64 pixels start with 3×3 convolutions without the strides and pooling.
    """
    image = Input("image", input_shape)
    if is_small(image):
        x = _conv(image, "conv1", 64, 3)
        x = _conv(_conv(x, "conv2_reduce", 64, 1), "conv2", 192, 3)
    else:
        x = _pool(_conv(image, "conv1", 64, 7, stride=2), "pool1")
        x = LRN("norm1", 5, alpha=1e-4 / 5)(x)
        x = _conv(_conv(x, "conv2_reduce", 64, 1), "conv2", 192, 3)
        x = _pool(LRN("norm2", 5, alpha=1e-4 / 5)(x), "pool2")
    for name, channels in _INCEPTIONS.items():
        if name in ("4a", "5a"):
            x = _pool(x, f"pool{int(name[0]) - 1}")
        x = _inception(x, f"inception_{name}", *channels)
    x = Dropout("drop", 0.4)(GlobalAvgPooling2D("pool5")(x))
    return classifier(image, Dense("fc", num_classes)(x), seed)


def _conv(x: Symbol, name: str, channels: int, kernel: int, stride: int = 1) -> Symbol:
    return relu(Conv2D(name, channels, kernel, stride, W_specs=HE)(x), f"{name}_relu")


def _pool(x: Symbol, name: str) -> Symbol:
    """3×3 pooling with stride 2 whose output size rounds up; one pixel is left as it is."""
    if min(x.shape[1:]) < 2:
        return x
    y: Symbol = MaxPooling2D(name, 3, 2, "valid")(EndPadding(f"{name}_pad")(x))
    return y


def _inception(
    x: Symbol, name: str, one: int, before3: int, three: int, before5: int, five: int, pool: int
) -> Symbol:
    pooled = MaxPooling2D(f"{name}_pool", 3, 1)(x)
    parts = [
        _conv(x, f"{name}_1x1", one, 1),
        _conv(_conv(x, f"{name}_3x3_reduce", before3, 1), f"{name}_3x3", three, 3),
        _conv(_conv(x, f"{name}_5x5_reduce", before5, 1), f"{name}_5x5", five, 5),
        _conv(pooled, f"{name}_pool_proj", pool, 1),
    ]
    y: Symbol = Concat(f"{name}_output", 1)(*parts)
    return y
