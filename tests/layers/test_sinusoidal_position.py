"""SinusoidalPosition."""

from __future__ import annotations

import math

import pytest

from singanet.errors import ShapeError
from singanet.layers import SinusoidalPosition
from singanet.testing import LayerCase


class TestSinusoidalPosition(LayerCase):
    in_shapes = (6, 5)

    def make(self):
        return SinusoidalPosition("where")

    def expected(self, params, x):
        y = x.copy()
        for t in range(x.shape[1]):
            for i in range(x.shape[2]):
                angle = t / 10000 ** ((i - i % 2) / x.shape[2])
                y[:, t, i] += math.cos(angle) if i % 2 else math.sin(angle)
        return y


def test_refuses_other_samples():
    with pytest.raises(ShapeError, match=r"layer 'where': .*\(time, features\)"):
        SinusoidalPosition("where").build((5,))
