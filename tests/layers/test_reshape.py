"""Reshape."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.errors import ArgumentError, ShapeError
from singanet.layers import Reshape
from singanet.testing import LayerCase


class TestReshape(LayerCase):
    in_shapes = (2, 6)

    def make(self):
        return Reshape("fold", (3, -1))

    def expected(self, params, x):
        return np.array([[row[k : k + 4] for k in (0, 4, 8)] for row in x.reshape(len(x), 12)])


class TestReshapeToOneNumber(LayerCase):
    in_shapes = (1, 1)

    def make(self):
        return Reshape("fold", ())

    def expected(self, params, x):
        return x[:, 0, 0]


@pytest.mark.parametrize("shape", [(5, 2), (5, -1), (11,), ()])
def test_refuses_samples_that_do_not_fill_the_shape(shape):
    with pytest.raises(ShapeError, match=r"layer 'fold': expected .* 12 elements"):
        Reshape("fold", shape).build((2, 6))


@pytest.mark.parametrize("shape", [(-1, -1), (0, 3), (-2,), (2.0,), "ab", None])
def test_refuses_a_bad_shape(shape):
    with pytest.raises(ArgumentError, match=r"'fold', argument shape: expected positive ints"):
        Reshape("fold", shape)
