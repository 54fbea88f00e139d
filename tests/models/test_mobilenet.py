"""MobileNet."""

from __future__ import annotations

import itertools

import pytest

from singanet.errors import ArgumentError
from singanet.models import build

CHANNELS = (32, 64, 128, 128, 256, 256, *[512] * 6, 1024, 1024)


def test_the_count_is_that_of_keras(count):
    # keras.applications.MobileNet(): 4,253,864 parameters, of which 21,888 are running state.
    assert count(build("mobilenet")) == (4_231_976, 21_888)


@pytest.mark.parametrize("width", [0.25, 0.5])
def test_the_count_scales_with_the_width(width, count):
    channels = [int(c * width) for c in CHANNELS]
    total = 27 * channels[0] + 2 * channels[0]
    for a, b in itertools.pairwise(channels):
        total += 9 * a + 2 * a + a * b + 2 * b
    total += (channels[-1] + 1) * 1000
    assert count(build("mobilenet", width=width))[0] == total


def test_it_learns_small_images(learns):
    # Of 8×8 pixels one is left, and statistics of eight values make the losses chaotic.
    net = build("mobilenet", (1, 16, 16), 4, seed=0, width=0.25)
    learns(net, (1, 16, 16), 4, lr=0.02, steps=20)


@pytest.mark.parametrize("width", [0, -1.0, float("nan"), 9.0])
def test_a_width_that_makes_no_net_is_refused(width):
    with pytest.raises(ArgumentError, match="mobilenet, argument width"):
        build("mobilenet", width=width)
