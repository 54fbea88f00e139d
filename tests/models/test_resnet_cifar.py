"""Residual nets for small images."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.errors import ArgumentError
from singanet.models import build


def by_formula(depth, classes=10):
    """Weights of the 3×3 convolutions, factor and offset of each, and the dense layer."""
    n = (depth - 2) // 6
    convolutions = [(3, 16)] + 2 * n * [(16, 16)]
    convolutions += [(16, 32)] + (2 * n - 1) * [(32, 32)]
    convolutions += [(32, 64)] + (2 * n - 1) * [(64, 64)]
    assert len(convolutions) == depth - 1
    return sum(9 * a * b + 2 * b for a, b in convolutions) + 65 * classes


# He et al., 2016, table 6, in millions, with shortcuts of option A.
@pytest.mark.parametrize(
    ("depth", "published"), [(20, 0.27), (32, 0.46), (44, 0.66), (56, 0.85), (110, 1.7)]
)
def test_the_count_is_the_published_one(depth, published, count):
    trained, running = count(build(f"resnet{depth}"))
    assert trained == by_formula(depth)
    assert trained / 1e6 == pytest.approx(published, abs=0.03 if depth == 110 else 0.006)
    assert running == 2 * (trained - by_formula(depth) + 16 + (depth - 2) // 3 * (16 + 32 + 64))


def test_shortcuts_take_every_other_position_and_add_zeros():
    net = build("resnet20", (3, 8, 8), 10, seed=0)
    x = np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)
    names = ["stage1_block3_relu", "stage2_block1_shortcut_pad"]
    out = net.forward(False, x, output=names)
    before, after = (out[name] for name in names)
    np.testing.assert_array_equal(after[:, 8:24], before[:, :, ::2, ::2])
    assert not after[:, :8].any()
    assert not after[:, 24:].any()


def test_it_learns_small_images(learns):
    learns(build("resnet20", (1, 8, 8), 4, seed=0), (1, 8, 8), 4, lr=0.1, steps=25)


@pytest.mark.parametrize("depth", [2, 21, 20.0, -4])
def test_a_depth_that_is_none_is_refused(depth):
    with pytest.raises(ArgumentError, match=r"argument depth: expected 6n \+ 2.*8, 14, 20"):
        build("resnet20", depth=depth)
