"""The causal transformer."""

from __future__ import annotations

import numpy as np

from singanet.models import build
from singanet.optimizer import Adam


def test_the_count_is_that_of_its_matrices(count):
    net = build("transformer", (20,), 50, width=16, depth=3, heads=2)
    block = 4 * (16 * 16 + 16) + 2 * 2 * 16 + 16 * 64 + 64 + 64 * 16 + 16
    assert count(net) == (50 * 16 + 20 * 16 + 3 * block + 2 * 16 + 17 * 50, 0)


def test_a_character_depends_on_those_before_it_alone(rng):
    net = build("transformer", (6,), 5, seed=0, width=8, heads=2)
    ids = rng.integers(0, 5, (2, 6))
    changed = ids.copy()
    changed[:, 4] = (changed[:, 4] + 1) % 5
    a, b = net.forward(False, ids), net.forward(False, changed)
    assert a.shape == (2, 6, 5)
    np.testing.assert_allclose(a[:, :4], b[:, :4], rtol=0, atol=1e-6)
    assert (abs(a[:, 4:] - b[:, 4:]).max(axis=2) > 1e-3).all()


def test_it_learns_a_text_that_repeats():
    net = build("transformer", (8,), 3, seed=0, width=16, depth=1, dropout=0.0)
    text = np.tile([0, 1, 2, 1], 9)
    x, y = text[:32].reshape(4, 8), text[1:33].reshape(4, 8)
    optimizer = Adam(lr=0.01)
    for _ in range(80):
        loss, accuracy = net.step(x, y, optimizer)
    assert loss < 0.2
    assert accuracy > 0.9
