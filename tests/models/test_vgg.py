"""VGG with batch normalisation."""

from __future__ import annotations

import pytest

from singanet.errors import ArgumentError
from singanet.models import build

# Of torchvision's vgg*_bn without its dense layers; it has biases, and all the rest as here.
FEATURES = {11: 9_225_984, 13: 9_410_880, 16: 14_723_136, 19: 20_035_392}
CHANNELS = {
    11: (64, 128, 256, 256, 512, 512, 512, 512),
    13: (64, 64, 128, 128, 256, 256, 512, 512, 512, 512),
    16: (64, 64, 128, 128, 256, 256, 256, *[512] * 6),
    19: (64, 64, 128, 128, *[256] * 4, *[512] * 8),
}


@pytest.mark.parametrize("depth", FEATURES)
def test_the_count_is_torchvisions_without_biases_and_singas_head(depth, count):
    channels = CHANNELS[depth]
    # Depth counts the convolutions and the three dense layers of the original head.
    assert len(channels) == depth - 3
    into = (3, *channels[:-1])
    convolutions = sum(9 * a * b for a, b in zip(into, channels, strict=True))
    assert convolutions + 3 * sum(channels) == FEATURES[depth]
    head = 512 * 512 + 2 * 512 + 513 * 10
    trained = FEATURES[depth] - sum(channels) + head
    assert count(build(f"vgg{depth}")) == (trained, 2 * sum(channels) + 2 * 512)


# torchvision's vgg11 to vgg19, which have no normalisation.
PUBLISHED = {11: 132_863_336, 13: 133_047_848, 16: 138_357_544, 19: 143_667_240}


@pytest.mark.parametrize("depth", PUBLISHED)
def test_of_large_images_weights_and_biases_are_the_published_ones(depth, count):
    net = build(f"vgg{depth}", (3, 224, 224), 1000)
    normalisation = 2 * sum(CHANNELS[depth])
    assert count(net) == (PUBLISHED[depth] + normalisation, normalisation)
    assert net["flat"].in_shapes == (512, 7, 7)


@pytest.mark.slow
def test_it_learns_small_images(learns):
    learns(build("vgg11", (1, 8, 8), 4, seed=0), (1, 8, 8), 4, steps=20)


def test_a_depth_that_is_none_is_refused():
    with pytest.raises(ArgumentError, match="vgg, argument depth: expected '11'"):
        build("vgg16", depth=12)
