"""AlexNet in its form for CIFAR-10."""

from __future__ import annotations

from singanet.models import build


def test_the_count_is_that_of_caffes_cifar10_full(count):
    by_layer = [32 * (3 * 25 + 1), 32 * (32 * 25 + 1), 64 * (32 * 25 + 1), 10 * (64 * 16 + 1)]
    assert sum(by_layer) == 89_578
    assert count(build("alexnet")) == (89_578, 0)


def test_it_learns_small_images(learns):
    learns(build("alexnet", (1, 8, 8), 4, seed=0), (1, 8, 8), 4, lr=0.02, steps=25)
