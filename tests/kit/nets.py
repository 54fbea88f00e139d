"""Small nets that many tests train, and their values."""

import singanet
from singanet.layers import Activation, Dense, Embedding, Flatten
from singanet.loss import SoftmaxCrossEntropy


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


def words_net(words=50, wide=5, length=3, classes=4, seed=1, **embedding):
    """An embedding, whose gradients are rows; ``embedding`` are more arguments of it."""
    return singanet.FeedForwardNet(
        [
            Embedding("e", words, wide, input_sample_shape=(length,), **embedding),
            Flatten("f"),
            Dense("d", classes),
        ],
        loss=SoftmaxCrossEntropy(),
        seed=seed,
    )


def values_of(net):
    """Copies of the parameters by name, wherever they are."""
    return {param.name: param.peek().copy() for param in net.params()}


def two_heads():
    """A trunk that two outputs read, of which a loop of one's own may reach one alone."""
    net = singanet.FeedForwardNet(seed=2)
    trunk = net.add(Dense("trunk", 5, input_sample_shape=(6,)))
    net.add(Dense("left", 3), trunk)
    net.add(Dense("right", 2), trunk)
    return net
