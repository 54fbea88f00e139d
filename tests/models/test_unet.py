"""U-Net."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.models import build
from singanet.optimizer import Adam


# torch.hub: milesial/Pytorch-UNet for two classes, and for one; mateuszbuda's
# brain-segmentation-pytorch with half of the channels.
@pytest.mark.parametrize(
    ("published", "classes", "width"),
    [(31_037_698, 2, 64), (31_037_633, 1, 64), (7_763_041, 1, 32)],
)
def test_the_counts_are_the_published_ones(published, classes, width, count):
    assert count(build("unet", (3, 256, 256), classes, width=width))[0] == published


def test_channels_and_sizes_are_those_of_the_papers_figure():
    # Of 512×512 pixels, since padding keeps the size that the paper's convolutions cut.
    net = build("unet", (1, 512, 512), 2)
    expected = {
        "down0_conv2_relu": (64, 512, 512),
        "down4_conv2_relu": (1024, 32, 32),
        "up4_double": (512, 64, 64),
        "up4_join": (1024, 64, 64),
        "up1_conv2_relu": (64, 512, 512),
        "last_axis": (512, 512, 2),
    }
    assert {name: net[name].out_shapes for name in expected} == expected


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 7, 5), (3, 16, 9)])
def test_any_size_comes_back(shape):
    net = build("unet", shape, 4, seed=0, width=2)
    x = np.zeros((2, *shape), np.float32)
    assert net.forward(False, x).shape == (2, *shape[1:], 4)


def test_it_learns_which_pixels_are_bright(rng):
    net = build("unet", (1, 8, 8), 2, seed=0, width=4)
    x = rng.standard_normal((4, 1, 8, 8)).astype(np.float32)
    y = (x[:, 0] > 0).astype(int)
    optimizer = Adam(lr=0.02)
    losses = [net.step(x, y, optimizer)[0] for _ in range(25)]
    assert losses[-1] < 0.3 * losses[0]
