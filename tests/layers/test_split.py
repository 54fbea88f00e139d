"""Split."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.errors import ArgumentError, ShapeError
from singanet.layers import Context, Split
from singanet.ops import numpy_ops
from singanet.testing import LayerCase


class SplitCase(LayerCase):
    in_shapes = (3, 4)
    count = 2

    def make(self):
        return Split("split", self.count)

    def expected(self, params, x):
        return [x.copy() for _ in range(self.count)]


class TestTwo(SplitCase):
    pass


class TestThree(SplitCase):
    count = 3


class TestOne(SplitCase):
    """One output is still handed over as a list of one."""

    count = 1


def test_gradients_are_added():
    layer = Split("split", 3)
    layer.build((2,))
    ctx = Context(numpy_ops, np.random.default_rng(0), {}, True)
    x = np.array([[1.0, 2.0]])
    assert all(y is x for y in layer.forward(ctx, x))
    dx, grads = layer.backward(ctx, [np.array([[1.0, 10.0]]) * k for k in (1, 2, 4)])
    np.testing.assert_array_equal(dx, [[7, 70]])
    assert grads == {}


def test_output_shapes():
    layer = Split("split", 2, input_sample_shape=(3, 4))
    assert layer.get_output_sample_shape() == [(3, 4), (3, 4)]


@pytest.mark.parametrize("count", [0, -1, 1.5, "2", None, True, 10_001])
def test_refuses_a_bad_count(count):
    with pytest.raises(ArgumentError, match="layer 'split', argument num_outputs: expected"):
        Split("split", count)


def test_refuses_several_inputs():
    with pytest.raises(ShapeError, match="layer 'split': expected one input; received 2 inputs"):
        Split("split", 2).build([(3,), (3,)])
