"""The LSTM that names a class."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.errors import ShapeError
from singanet.models import build


@pytest.mark.parametrize(
    ("shape", "features"), [((7, 5), 5), ((3, 7, 4), 12), ((6,), 1), ((1, 1), 1)]
)
def test_samples_are_read_step_by_step(shape, features, count):
    net = build("lstm", shape, 3, hidden=8, bidirectional=True)
    assert count(net) == (2 * 4 * 8 * (features + 8 + 2) + 17 * 3, 0)
    assert net.forward(False, np.zeros((2, *shape), np.float32)).shape == (2, 3)


def test_an_image_is_read_row_by_row(rng):
    net = build("lstm", (3, 7, 4), 2, seed=0)
    x = rng.standard_normal((2, 3, 7, 4)).astype(np.float32)
    rows = net.forward(False, x, output=["sequence"])["sequence"]
    for row in range(7):
        np.testing.assert_array_equal(rows[:, row], x[:, :, row].reshape(2, -1))


def test_it_learns_small_images(learns):
    learns(build("lstm", (1, 8, 8), 4, seed=0, dropout=0.0), (1, 8, 8), 4, lr=0.2, steps=40)


def test_samples_of_another_rank_are_refused():
    with pytest.raises(ShapeError, match=r"model lstm: expected samples of shape \(T, F\)"):
        build("lstm", (2, 3, 4, 5), 3)
