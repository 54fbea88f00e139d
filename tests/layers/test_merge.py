"""Merge."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.errors import ShapeError
from singanet.layers import Merge
from singanet.layers.context import Context
from singanet.ops import numpy_ops
from singanet.testing import LayerCase


class TestTwo(LayerCase):
    in_shapes = [(3, 4), (3, 4)]

    def make(self):
        return Merge("sum")

    def expected(self, params, x):
        return x[0] + x[1]


class TestThree(LayerCase):
    in_shapes = [(5,), (5,), (5,)]

    def make(self):
        return Merge("sum")

    def expected(self, params, x):
        return np.sum(x, axis=0)


def test_the_reference_values_of_singa():
    layer = Merge("sum")
    assert layer.build([(2,), (2,)]) == (2,)
    x = [np.full((3, 2), 1.1), np.full((3, 2), 0.9)]
    y = layer.forward(Context(numpy_ops, np.random.default_rng(0), {}, True), x)
    assert y.mean() == pytest.approx(2.0)


def test_input_sample_shape_is_heeded():
    layer = Merge("sum", input_sample_shape=[(3,), (3,)])
    assert layer.get_output_sample_shape() == (3,)


@pytest.mark.parametrize(
    "shapes", [(3,), [(3,)], [], [(3,), (4,)], [(3,), (3, 1)], [(2,), (2,), (3,)]]
)
def test_refuses_other_than_several_equal_shapes(shapes):
    layer = Merge("sum")
    with pytest.raises(ShapeError, match="layer 'sum': expected at least two inputs of one sample"):
        layer.build(shapes)
    assert layer.out_shapes is None
