"""Add."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.errors import ShapeError
from singanet.layers import Add
from singanet.testing import LayerCase


class TestAdd(LayerCase):
    in_shapes = [(2, 3), (2, 3), (2, 3)]

    def make(self):
        return Add("sum")

    def expected(self, params, x):
        return np.sum(x, axis=0)


class TestAddSpread(LayerCase):
    """The first two together have the shape of neither, nor has any input that of the output."""

    in_shapes = [(2, 1, 1), (1, 1, 4), (1, 3, 1)]

    def make(self):
        return Add("sum")

    def expected(self, params, x):
        a, b, c = x
        return np.einsum("nchw->nchw", a + b + c)


@pytest.mark.parametrize(
    "shapes", [(3,), [(3,)], [(3,), (4,)], [(2, 3), (3,)], [(2, 1), (3, 1), (1, 1)]]
)
def test_refuses_inputs_that_do_not_fit(shapes):
    with pytest.raises(ShapeError, match=r"layer 'sum': expected at least two inputs"):
        Add("sum").build(shapes)


def test_refuses_unequal_batches():
    layer = Add("sum")
    layer.build([(2,), (2,)])
    with pytest.raises(ShapeError, match=r"'sum': expected inputs of one batch size.*\[3, 1\]"):
        LayerCase().run(layer, [np.ones((3, 2)), np.ones((1, 2))], train=False)
