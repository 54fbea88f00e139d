"""LeNet, after LeCun et al., 1998, with ReLU, max pooling and dropout."""

from __future__ import annotations

from singanet.layers import Activation, Conv2D, Dense, Dropout, Flatten, MaxPooling2D
from singanet.loss import SoftmaxCrossEntropy
from singanet.metric import Accuracy
from singanet.net import FeedForwardNet
from singanet.types import Shape


def build(input_shape: Shape, num_classes: int, seed: int | None = None) -> FeedForwardNet:
    """Two 5×5 convolutions, each with 2×2 pooling, and two dense layers.

    Convolutions keep the size of the image, so that any size will do.
    """
    net = FeedForwardNet(SoftmaxCrossEntropy(), Accuracy(), seed=seed)
    he = {"init": "msra"}
    net.add(Conv2D("conv1", 32, 5, W_specs=he, input_sample_shape=input_shape))
    net.add(Activation("relu1"))
    net.add(MaxPooling2D("pool1", 2, 2))
    net.add(Conv2D("conv2", 64, 5, W_specs=he))
    net.add(Activation("relu2"))
    net.add(MaxPooling2D("pool2", 2, 2))
    net.add(Flatten("flat"))
    net.add(Dropout("drop1", 0.25))
    net.add(Dense("fc1", 256, W_specs=he))
    net.add(Activation("relu3"))
    net.add(Dropout("drop2", 0.5))
    net.add(Dense("fc2", num_classes))
    return net
