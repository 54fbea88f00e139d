"""A multi-layer perceptron."""

from __future__ import annotations

from collections.abc import Sequence

from singanet.layers import Activation, Dense, Flatten
from singanet.loss import SoftmaxCrossEntropy
from singanet.metric import Accuracy
from singanet.net import FeedForwardNet
from singanet.types import Shape


def build(
    input_shape: Shape,
    num_classes: int,
    seed: int | None = None,
    hidden: Sequence[int] = (256, 128),
) -> FeedForwardNet:
    """Dense layers with ReLU between them, on samples of any shape."""
    net = FeedForwardNet(SoftmaxCrossEntropy(), Accuracy(), seed=seed)
    net.add(Flatten("flat", input_sample_shape=input_shape))
    for k, size in enumerate(hidden, start=1):
        net.add(Dense(f"fc{k}", size, W_specs={"init": "msra"}))
        net.add(Activation(f"relu{k}"))
    net.add(Dense(f"fc{len(hidden) + 1}", num_classes))
    return net
