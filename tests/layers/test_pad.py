"""Pad."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.errors import ArgumentError, ShapeError
from singanet.layers import Pad
from singanet.testing import LayerCase


class TestPadImage(LayerCase):
    in_shapes = (2, 3, 4)

    def make(self):
        return Pad("border", 2)

    def expected(self, params, x):
        return np.pad(x, ((0, 0), (0, 0), (2, 2), (2, 2)))


class TestPadSidesOfAValue(LayerCase):
    in_shapes = (2, 3, 4)

    def make(self):
        return Pad("border", (1, (0, 3)), value=-1.5)

    def expected(self, params, x):
        return np.pad(x, ((0, 0), (0, 0), (1, 1), (0, 3)), constant_values=-1.5)


class TestPadOneAxis(LayerCase):
    in_shapes = (4,)

    def make(self):
        return Pad("border", 1)

    def expected(self, params, x):
        return np.pad(x, ((0, 0), (1, 1)))


class TestPadChannelsToo(LayerCase):
    in_shapes = (2, 3)

    def make(self):
        return Pad("border", ((0, 1), 1))

    def expected(self, params, x):
        return np.pad(x, ((0, 0), (0, 1), (1, 1)))


@pytest.mark.parametrize("pad", [-1, 1.5, "1", None, (), ((1, 2, 3),), ((1, -1),), (1, None)])
def test_refuses_a_bad_pad(pad):
    with pytest.raises(ArgumentError, match=r"'border', argument pad: expected"):
        Pad("border", pad)


@pytest.mark.parametrize("shape", [(), (3,)])
def test_refuses_samples_of_too_few_axes(shape):
    with pytest.raises(ShapeError, match=r"layer 'border': expected samples of at least 2 axes"):
        Pad("border", (1, 1)).build(shape)
