"""Nets with served embeddings, and tables to serve them, for the tests."""

import numpy as np

import singanet
from singanet.initializer import Gaussian
from singanet.layers import Dense, Embedding, Flatten
from singanet.loss import SoftmaxCrossEntropy
from singanet.params.param import Param, ParamSpec


def param(rows=30, width=3):
    return Param(ParamSpec("table"), (rows, width), Gaussian(0.0, 1.0))


def words_net(cache=None, seed=3):
    return singanet.FeedForwardNet(
        [
            Embedding("emb", 50, 4, input_sample_shape=(6,), cache=cache),
            Flatten("flat"),
            Dense("fc", 3),
        ],
        loss=SoftmaxCrossEntropy(),
        seed=seed,
    )


def batches(count=12, samples=8, seed=0, low=0, high=50):
    rng = np.random.default_rng(seed)
    return [
        (rng.integers(low, high, (samples, 6)), rng.integers(0, 3, samples)) for _ in range(count)
    ]
