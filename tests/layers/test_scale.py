"""Scale."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.errors import ArgumentError, ShapeError
from singanet.layers import Scale
from singanet.testing import LayerCase


class TestScale(LayerCase):
    in_shapes = (3, 2, 4)

    def make(self):
        return Scale("scale")

    def expected(self, params, x):
        return np.einsum("nchw,c->nchw", x, params["gamma"]) + params["beta"][:, None, None]


class TestScaleWithoutBias(LayerCase):
    in_shapes = (5,)

    def make(self):
        return Scale("scale", use_bias=False)

    def expected(self, params, x):
        assert list(params) == ["gamma"]
        return x @ np.diag(params["gamma"])


class TestScaleByAFactor(LayerCase):
    in_shapes = ()

    def make(self):
        return Scale("scale", factor=-2.5)

    def expected(self, params, x):
        assert params == {}
        return np.array([-2.5 * value for value in x])


def test_starts_as_the_identity():
    layer = Scale("scale", input_sample_shape=(2, 3))
    layer.get_output_sample_shape()
    assert [value.tolist() for value in layer.param_values()] == [[1, 1], [0, 0]]


@pytest.mark.parametrize("factor", ["2", float("nan"), [1.0], True])
def test_refuses_a_bad_factor(factor):
    with pytest.raises(ArgumentError, match=r"'scale', argument factor: expected a number"):
        Scale("scale", factor)


def test_refuses_samples_without_channels():
    with pytest.raises(ShapeError, match=r"layer 'scale': expected samples of shape \(channels"):
        Scale("scale").build(())
