"""Nets that several ranks train in the tests, and whether they have become one."""

import numpy as np

import singanet
from singanet.layers import Activation, Dense, Embedding, Flatten
from singanet.loss import SoftmaxCrossEntropy
from singanet.testing import communicators


def dense_net(seed=1, wide=500, third=None, more=()):
    """Small parameters and a large one; ``third``: W_specs of layer c, ``more``: layers after."""
    return singanet.FeedForwardNet(
        [
            Dense("a", 40, input_sample_shape=(6,)),
            Activation("tanh", mode="tanh"),
            Dense("b", wide),
            Activation("relu"),
            Dense("c", 40, W_specs=third),
            *more,
            Dense("d", 4),
        ],
        loss=SoftmaxCrossEntropy(),
        seed=seed,
    )


def uneven_net(seed=1, more=()):
    """`dense_net` with a parameter that is trained at half of the rate."""
    return dense_net(seed, third={"lr_mult": 0.5}, more=more)


def words_net():
    """An embedding, whose gradients are rows."""
    return singanet.FeedForwardNet(
        [Embedding("e", 50, 5, input_sample_shape=(3,)), Flatten("f"), Dense("d", 4)],
        loss=SoftmaxCrossEntropy(),
        seed=1,
    )


def values_of(net):
    """Copies of the parameters by name, wherever they are."""
    return {param.name: param.peek().copy() for param in net.params()}


def expect_same_bits(nets):
    """Every parameter is the same in all of them."""
    expect_same_values([values_of(net) for net in nets])


def expect_same_values(every):
    """Every array is the same in all of them, by name."""
    for values in every[1:]:
        for name, value in values.items():
            np.testing.assert_array_equal(value, every[0][name], err_msg=name)


def together(work, size=2):
    """What ``work`` gives on each of ``size`` ranks."""
    with communicators(size) as comms:
        return comms.run(work)
