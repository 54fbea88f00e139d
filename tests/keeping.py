"""Layers that keep their parameter from forward to backward, in every way an array can be kept."""

import numpy as np
from numpy.lib.stride_tricks import as_strided

import singanet
from singanet.layers import Layer
from singanet.loss import SquaredError

WAYS = {
    "itself": (lambda w: w, lambda kept: kept),
    "turned": (lambda w: w.T, lambda kept: kept.T),
    "in parts": (lambda w: [w[:50], w[50:]], np.concatenate),
    "by strides": (lambda w: as_strided(w, w.shape, w.strides), lambda kept: kept),
    "in a function": (lambda w: lambda: w, lambda kept: kept()),
}
"""How an array is kept, and what it is taken from again."""


class Keeps(Layer):
    """A product whose backward goes by what its forward kept; ``spoils``: it writes on that."""

    def __init__(self, name, width, way="itself", spoils=False):
        super().__init__(name)
        self.width, self.way, self.spoils = width, way, spoils

    def setup(self, in_shape):
        self.add_param("table", (self.width, self.width), fans=(self.width, self.width))
        return in_shape

    def forward(self, ctx, x):
        w = ctx.params["table"]
        ctx.save(x=x, kept=WAYS[self.way][0](w))
        if self.spoils:
            w[0] = 0
        return x @ w

    def backward(self, ctx, dy):
        w = WAYS[self.way][1](ctx.saved["kept"])
        return dy @ w.T, {"table": ctx.saved["x"].T @ dy}


def keeping_net(width, way="itself", depth=6):
    """Layers of one size, so that each fits where another one was."""
    layers = [Keeps(f"k{k}", width, way) for k in range(depth)]
    layers[0].input_sample_shape = (width,)
    return singanet.FeedForwardNet(layers, loss=SquaredError(), seed=1)
