"""AlexNet in its form for CIFAR-10: cuda-convnet's 18 % net, as in SINGA's example."""

from __future__ import annotations

from singanet.layers import LRN, Activation, AvgPooling2D, Conv2D, Dense, Flatten, MaxPooling2D
from singanet.loss import SoftmaxCrossEntropy
from singanet.metric import Accuracy
from singanet.models.blocks import HE
from singanet.net import FeedForwardNet
from singanet.types import Shape


def build(input_shape: Shape, num_classes: int, seed: int | None = None) -> FeedForwardNet:
    """Three 5×5 convolutions with pooling, two of them with response normalisation.

    Weights start as He et al. say, not with SINGA's small deviations, which need many epochs
    before they move.
    """
    net = FeedForwardNet(SoftmaxCrossEntropy(), Accuracy(), seed=seed)
    net.add(Conv2D("conv1", 32, 5, W_specs=HE, input_sample_shape=input_shape))
    net.add(MaxPooling2D("pool1", 3, 2))
    net.add(Activation("relu1"))
    net.add(LRN("norm1", size=3, alpha=5e-5, beta=0.75))
    net.add(Conv2D("conv2", 32, 5, W_specs=HE))
    net.add(Activation("relu2"))
    net.add(AvgPooling2D("pool2", 3, 2))
    net.add(LRN("norm2", size=3, alpha=5e-5, beta=0.75))
    net.add(Conv2D("conv3", 64, 5, W_specs=HE))
    net.add(Activation("relu3"))
    net.add(AvgPooling2D("pool3", 3, 2))
    net.add(Flatten("flat"))
    net.add(Dense("fc", num_classes))
    return net
