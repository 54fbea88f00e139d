"""Residual nets with blocks that begin with normalisation and relu."""

from __future__ import annotations

from singanet.layers import Add, Dropout, Input
from singanet.layers.symbol import Symbol
from singanet.models.blocks import (
    batch_norm,
    conv,
    padded_shortcut,
    pooled_classifier,
    relu,
)
from singanet.net import FeedForwardNet
from singanet.types import Shape

__all__ = ["preactivation_net"]


def preactivation_net(
    input_shape: Shape,
    num_classes: int,
    seed: int | None,
    blocks: int,
    widen: int = 1,
    projection: bool = False,
    dropout: float = 0.0,
) -> FeedForwardNet:
    """Three stages of 16, 32 and 64 times ``widen`` channels, each of ``blocks`` blocks.

    With ``projection`` a shortcut that changes the shape is a 1×1 convolution, else option A.
    """
    image = Input("image", input_shape)
    x = conv(image, "conv", 16)
    for stage, channels in enumerate((16, 32, 64), start=1):
        for block in range(1, blocks + 1):
            stride = 2 if stage > 1 and block == 1 else 1
            name = f"stage{stage}_block{block}"
            x = _block(x, name, channels * widen, stride, projection, dropout)
    x = relu(batch_norm(x, "last_bn"), "last_relu")
    return pooled_classifier(image, x, num_classes, seed)


def _block(
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
