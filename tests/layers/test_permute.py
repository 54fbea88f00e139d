"""Permute."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.errors import ArgumentError, ShapeError
from singanet.layers import Permute
from singanet.testing import LayerCase


class TestPermute(LayerCase):
    in_shapes = (2, 3, 4)

    def make(self):
        return Permute("turn", (3, 1, 2))

    def expected(self, params, x):
        return np.einsum("nabc->ncab", x)


class TestTranspose(LayerCase):
    in_shapes = (2, 3)

    def make(self):
        return Permute("turn", (2, 1))

    def expected(self, params, x):
        return np.array([sample.T for sample in x])


@pytest.mark.parametrize("axes", [(0, 1), (1, 1), (1, 3), (1.0, 2), 2, None])
def test_refuses_bad_axes(axes):
    with pytest.raises(ArgumentError, match=r"'turn', argument axes: expected each"):
        Permute("turn", axes)


def test_refuses_samples_of_another_rank():
    with pytest.raises(ShapeError, match=r"layer 'turn': expected .* of 2 axes; received \(2,\)"):
        Permute("turn", (2, 1)).build((2,))
