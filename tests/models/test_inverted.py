"""Nets of inverted residuals: MobileNet 2 and 3, EfficientNet."""

from __future__ import annotations

import pytest

from singanet.commands.runs.run import run
from singanet.commands.runs.run_options import RunOptions
from singanet.models import build
from singanet.models.mobile import rounded

# torchvision's documentation of the weights of each (num_params); as there, running statistics
# are not counted. Keras' tables round them.
PUBLISHED = {
    "mobilenet_v2": 3_504_872,
    "mobilenet_v3_small": 2_542_856,
    "mobilenet_v3_large": 5_483_032,
    "efficientnet_b0": 5_288_548,
}
# Means and variances: keras.applications' totals less what is trained there, its Normalization's
# seven numbers of EfficientNet apart.
STATISTICS = {
    "mobilenet_v2": 3_538_984 - 3_504_872,
    "mobilenet_v3_small": 2_554_968 - 2_542_856,
    "mobilenet_v3_large": 5_507_432 - 5_483_032,
    "efficientnet_b0": 5_330_571 - 7 - 5_288_548,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_counts_are_the_published_ones(name, count):
    assert count(build(name)) == (PUBLISHED[name], STATISTICS[name])


# torchvision's last feature maps of 224×224 pixels.
@pytest.mark.parametrize(
    ("name", "channels"),
    [("mobilenet_v2", 1280), ("mobilenet_v3_small", 576), ("mobilenet_v3_large", 960)],
)
def test_photographs_shrink_to_7_by_7(name, channels):
    assert build(name)["pool"].in_shapes == (channels, 7, 7)


@pytest.mark.parametrize(("size", "left"), [(63, 8), (28, 7), (8, 4), (3, 3), (1, 1)])
def test_small_images_keep_their_size_at_first(size, left):
    net = build("mobilenet_v3_small", (3, size, size), 10)
    assert net["pool"].in_shapes[1:] == (left, left)


@pytest.mark.parametrize("name", PUBLISHED)
def test_32_pixels_become_four(name):
    assert build(name, (3, 32, 32), 10)["pool"].in_shapes[1:] == (4, 4)


def test_shortcuts_lie_where_the_shape_stays():
    net = build("mobilenet_v2")
    found = [node.name for node in net._graph.nodes.values() if node.name.endswith("_add")]
    # Of n blocks of a stage n - 1: stages of 1, 2, 3, 4, 3, 3 and 1 blocks.
    assert len(found) == 1 + 2 + 3 + 2 + 2


def test_widths_are_rounded_to_eights_and_never_by_more_than_a_tenth_down():
    # The cases of the TensorFlow authors' make_divisible.
    assert [rounded(c) for c in (1, 16, 18, 20, 22, 24, 30, 67.2)] == [
        8,
        16,
        24,
        24,
        24,
        24,
        32,
        64,
    ]
    assert all(rounded(c) % 8 == 0 and rounded(c) >= 0.9 * c for c in range(1, 2000))


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_each_learns_small_images(name, learns):
    learns(build(name, (1, 16, 16), 4, seed=0, dropout=0.0), (1, 16, 16), 4, lr=0.02, steps=30)


@pytest.mark.slow
def test_mobilenet_v2_learns_the_digits_in_five_epochs():
    figures = run(RunOptions("mobilenet_v2", epochs=5, quiet=True)).figures
    assert figures["test_accuracy"] >= 0.97
