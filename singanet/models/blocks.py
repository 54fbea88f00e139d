"""Building blocks that the image nets share."""

from __future__ import annotations

from typing import Any

from singanet.base.arguments import is_int
from singanet.errors import ArgumentError, brief
from singanet.layers import (
    Activation,
    AvgPooling2D,
    BatchNormalization,
    Conv2D,
    Dense,
    DepthwiseConv2D,
    GlobalAvgPooling2D,
    Pad,
)
from singanet.layers.symbol import Symbol
from singanet.loss import SoftmaxCrossEntropy
from singanet.metric import Accuracy
from singanet.net import FeedForwardNet

__all__ = [
    "HE",
    "batch_norm",
    "classifier",
    "conv",
    "conv_bn",
    "depthwise_bn",
    "expect_depth",
    "is_small",
    "last_conv_bn",
    "padded_shortcut",
    "pooled_classifier",
    "relu",
]

HE = {"init": "msra"}
SMALL_IMAGE = 64


def is_small(image: Symbol) -> bool:
    """Return whether ``image`` is too small for the strides of nets made for 224×224 pixels."""
    return min(image.shape[1:]) < SMALL_IMAGE


def conv(
    x: Symbol, name: str, channels: int, kernel: int = 3, stride: int = 1, bias: bool = False
) -> Symbol:
    """Add a convolution, without bias if batch normalisation follows."""
    y: Symbol = Conv2D(name, channels, kernel, stride, use_bias=bias, W_specs=HE)(x)
    return y


def batch_norm(x: Symbol, name: str, gamma: float = 1.0) -> Symbol:
    """Add batch normalisation whose scale starts at ``gamma``."""
    specs = {"init": "constant", "value": gamma}
    y: Symbol = BatchNormalization(name, momentum=0.1, gamma_specs=specs)(x)
    return y


def relu(x: Symbol, name: str) -> Symbol:
    """Add max(x, 0)."""
    y: Symbol = Activation(name, "relu")(x)
    return y


def conv_bn(
    x: Symbol,
    name: str,
    channels: int,
    kernel: int = 3,
    stride: int = 1,
    mode: str = "relu",
    bias: bool = False,
) -> Symbol:
    """Add a convolution, batch normalisation and the activation ``mode``."""
    x = batch_norm(conv(x, name, channels, kernel, stride, bias), f"{name}_bn")
    y: Symbol = Activation(f"{name}_{mode}", mode)(x)
    return y


def depthwise_bn(
    x: Symbol, name: str, kernel: int = 3, stride: int = 1, mode: str = "relu"
) -> Symbol:
    """Add a depthwise convolution, batch normalisation and the activation ``mode``."""
    y = DepthwiseConv2D(name, kernel, stride, use_bias=False, W_specs=HE)(x)
    z: Symbol = Activation(f"{name}_{mode}", mode)(batch_norm(y, f"{name}_bn"))
    return z


def last_conv_bn(x: Symbol, name: str, channels: int, kernel: int = 3) -> Symbol:
    """Add the end of a residual branch: its scale starts at 0, and it has no relu.

    The block thus starts as the identity, which makes deep nets stable (Goyal et al., 2017).
    """
    return batch_norm(conv(x, name, channels, kernel), f"{name}_bn", gamma=0.0)


def padded_shortcut(x: Symbol, name: str, channels: int, stride: int) -> Symbol:
    """Subsample ``x`` by ``stride`` and pad its channels with zeros: option A of He et al."""
    if stride > 1:
        # A mean over windows of one position picks that position.
        x = AvgPooling2D(f"{name}_pick", 1, stride, "valid")(x)
    more = channels - x.shape[0]
    if more:
        x = Pad(f"{name}_pad", ((more // 2, more - more // 2), (0, 0), (0, 0)))(x)
    return x


def classifier(image: Symbol, scores: Any, seed: int | None) -> FeedForwardNet:
    """Return the net from ``image`` to ``scores``, with softmax cross-entropy and accuracy."""
    return FeedForwardNet(
        SoftmaxCrossEntropy(), Accuracy(), inputs=image, outputs=scores, seed=seed
    )


def pooled_classifier(
    image: Symbol, x: Symbol, num_classes: int, seed: int | None
) -> FeedForwardNet:
    """Return a `classifier` with global average pooling and a dense layer after ``x``."""
    return classifier(image, Dense("fc", num_classes)(GlobalAvgPooling2D("pool")(x)), seed)


def expect_depth(family: str, depth: Any, step: int, rest: int) -> int:
    """Return n if ``depth`` is ``step``·n + ``rest`` for a positive n. Errors: `ArgumentError`."""
    if not is_int(depth, rest + 1) or (depth - rest) % step:
        examples = [step * n + rest for n in (1, 2, 3)]
        raise ArgumentError(
            f"{family}, argument depth",
            expected=f"{step}n + {rest} for a positive n",
            received=brief(depth),
            advice=f"use for example {', '.join(map(str, examples))}",
        )
    return (depth - rest) // step
