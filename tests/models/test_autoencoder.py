"""The autoencoder."""

from __future__ import annotations

import itertools

import numpy as np

from singanet.models import build
from singanet.optimizer import Adam


def test_the_count_is_that_of_its_matrices(count):
    net = build("autoencoder", (2, 5), hidden=(8, 6), code=3)
    sizes = (10, 8, 6, 3, 6, 8, 10)
    assert count(net) == (sum((a + 1) * b for a, b in itertools.pairwise(sizes)), 0)
    assert net["code"].out_shapes == (3,)


def test_it_learns_samples_that_are_made_of_a_few_numbers(rng):
    basis = rng.standard_normal((2, 12))
    x = (rng.standard_normal((200, 2)) @ basis).reshape(200, 3, 4).astype(np.float32)
    net = build("autoencoder", (3, 4), seed=0, hidden=(32,), code=2)
    optimizer = Adam(lr=0.01)
    start = net.evaluate(x, x)[0]
    for _ in range(200):
        net.step(x, x, optimizer)
    assert net.evaluate(x, x)[0] < 0.05 * start
    assert net.predict(x).shape == x.shape
