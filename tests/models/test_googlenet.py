"""GoogLeNet."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.models import build


def test_the_count_is_that_of_caffes_net(count):
    # 6,998,552 is what Caffe's bvlc_googlenet has without the classifiers on the way.
    assert count(build("googlenet")) == (6_998_552, 0)


def test_channels_and_sizes_are_those_of_the_papers_table():
    net = build("googlenet")
    expected = {
        "pool1": (64, 56, 56),
        "conv2": (192, 56, 56),
        "pool2": (192, 28, 28),
        "inception_3a_output": (256, 28, 28),
        "inception_3b_output": (480, 28, 28),
        "inception_4a_output": (512, 14, 14),
        "inception_4d_output": (528, 14, 14),
        "inception_4e_output": (832, 14, 14),
        "inception_5b_output": (1024, 7, 7),
    }
    assert {name: net[name].out_shapes for name in expected} == expected


def test_one_pixel_is_left_as_it_is():
    net = build("googlenet", (1, 1, 5), 3, seed=0)
    assert net.forward(False, np.zeros((2, 1, 1, 5), np.float32)).shape == (2, 3)


@pytest.mark.slow
def test_it_learns_small_images(learns):
    learns(build("googlenet", (1, 8, 8), 4, seed=0), (1, 8, 8), 4, lr=0.01, steps=16)
