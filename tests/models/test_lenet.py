"""LeNet."""

from __future__ import annotations

import math

import numpy as np
import pytest

from singanet.models import build


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 7, 10), (2, 1, 1)])
def test_any_image_will_do(shape):
    net = build("lenet", shape, 6)
    height, width = (math.ceil(math.ceil(axis / 2) / 2) for axis in shape[1:])
    sizes = [32 * (25 * shape[0] + 1), 64 * (25 * 32 + 1)]
    sizes += [(64 * height * width + 1) * 256, 257 * 6]
    assert sum(v.size for v in net.param_values()) == sum(sizes)
    assert net.forward(False, np.zeros((2, *shape), np.float32)).shape == (2, 6)
