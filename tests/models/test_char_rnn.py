"""The LSTM language model."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.models import build
from singanet.optimizer import Adam


@pytest.mark.parametrize("stacks", [1, 2])
def test_the_count_is_that_of_its_matrices(stacks, count):
    net = build("char_rnn", (20,), 50, hidden=32, stacks=stacks, embedding=8)
    lstm = sum(4 * 32 * (into + 32 + 2) for into in (8, 32)[:stacks])
    assert count(net) == (50 * 8 + lstm + 33 * 50, 0)


def test_a_character_depends_on_those_before_it_alone(rng):
    net = build("char_rnn", (6,), 5, seed=0, hidden=8)
    ids = rng.integers(0, 5, (2, 6))
    changed = ids.copy()
    changed[:, 4] = (changed[:, 4] + 1) % 5
    a, b = net.forward(False, ids), net.forward(False, changed)
    assert a.shape == (2, 6, 5)
    np.testing.assert_array_equal(a[:, :4], b[:, :4])
    assert (a[:, 4:] != b[:, 4:]).any(axis=2).all()


def test_it_learns_a_text_that_repeats():
    net = build("char_rnn", (8,), 3, seed=0, hidden=16, dropout=0.0)
    text = np.tile([0, 1, 2, 1], 9)
    x, y = text[:32].reshape(4, 8), text[1:33].reshape(4, 8)
    optimizer = Adam(lr=0.02)
    for _ in range(60):
        loss, accuracy = net.step(x, y, optimizer)
    # What follows a 1 at the very start of a stretch cannot be known.
    assert loss < 0.2
    assert accuracy > 0.9
