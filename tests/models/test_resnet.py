"""Residual nets for photographs."""

from __future__ import annotations

import pytest

from singanet.models import build

# Of torchvision's nets, which count as here: weights, factors, offsets and the dense layer.
PUBLISHED = {18: 11_689_512, 34: 21_797_672, 50: 25_557_032, 101: 44_549_160, 152: 60_192_808}


@pytest.mark.parametrize("depth", PUBLISHED)
def test_the_count_is_the_published_one(depth, count):
    assert count(build(f"resnet{depth}"))[0] == PUBLISHED[depth]


def test_photographs_shrink_to_7_by_7():
    net = build("resnet50")
    assert net["pool"].in_shapes == (2048, 7, 7)


def test_small_images_keep_their_size_at_first():
    net = build("resnet18", (3, 32, 32), 10)
    assert net["conv_relu"].out_shapes == (64, 32, 32)
    assert net["pool"].in_shapes == (512, 4, 4)
    assert "conv_pool" not in net


@pytest.mark.parametrize("name", ["resnet18", pytest.param("resnet50", marks=pytest.mark.slow)])
def test_it_learns_small_images(name, learns):
    learns(build(name, (1, 8, 8), 4, seed=0), (1, 8, 8), 4, lr=0.02)


def test_it_runs_forward_on_photographs_of_uneven_sides(rng):
    x = rng.standard_normal((1, 3, 75, 66)).astype("float32")
    assert build("resnet18", (3, 75, 66), 5, seed=0).forward(False, x).shape == (1, 5)
