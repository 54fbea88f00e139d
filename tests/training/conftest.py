"""A small net with a layer that draws and one that keeps state, and data it can learn."""

import numpy as np
import pytest

import singanet
from singanet.layers import Activation, BatchNormalization, Dense, Dropout
from singanet.loss import SoftmaxCrossEntropy
from singanet.metric import Accuracy
from singanet.optimizer import SGD


@pytest.fixture
def build():
    """Makes the net, compiled; equal seeds make equal nets."""

    def make(seed=0, optimizer=None, metrics=None):
        net = singanet.FeedForwardNet(SoftmaxCrossEntropy(), Accuracy(), seed=seed)
        net.add(Dense("fc1", 8, input_sample_shape=(5,)))
        net.add(BatchNormalization("bn"))
        net.add(Activation("relu"))
        net.add(Dropout("drop", 0.3))
        net.add(Dense("fc2", 3))
        net.compile(optimizer or SGD(lr=0.1, momentum=0.9), metrics=metrics)
        return net

    return make


@pytest.fixture
def data(rng):
    """50 samples of 5 numbers, and their classes, which a linear map decides."""
    x = rng.standard_normal((50, 5)).astype(np.float32)
    return x, (x @ rng.standard_normal((5, 3))).argmax(1)


@pytest.fixture
def same():
    """Asserts that two nets are equal to the bit, generator included."""

    def check(a, b):
        assert a.param_names() == b.param_names()
        for name, left, right in zip(
            a.param_names(), a.param_values(), b.param_values(), strict=True
        ):
            assert np.array_equal(left, right), name
        assert a.rng.bit_generator.state == b.rng.bit_generator.state

    return check
