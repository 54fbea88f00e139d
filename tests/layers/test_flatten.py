"""Flatten."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.errors import ArgumentError, ShapeError
from singanet.layers import Flatten
from singanet.testing import LayerCase


class TestSamples(LayerCase):
    in_shapes = (2, 3, 4)

    def make(self):
        return Flatten("flat")

    def expected(self, params, x):
        return np.array([list(sample.flat) for sample in x])


class TestFlatAlready(LayerCase):
    in_shapes = (4,)

    def make(self):
        return Flatten("flat")

    def expected(self, params, x):
        return x.copy()


class TestScalarSamples(LayerCase):
    """A sample without axes is one number: a row of one."""

    in_shapes = ()

    def make(self):
        return Flatten("flat")

    def expected(self, params, x):
        return np.array([[value] for value in x])


class TestAxisTwoFoldsIntoTheBatch(LayerCase):
    in_shapes = (2, 3, 4)

    def make(self):
        return Flatten("flat", axis=2)

    def expected(self, params, x):
        return np.array([list(part.flat) for sample in x for part in sample])


@pytest.mark.parametrize(("axis", "out"), [(1, (768,)), (2, (12,)), (3, (12,))])
def test_output_shapes_of_singa(axis, out):
    layer = Flatten("flat", axis=axis, input_sample_shape=(64, 1, 12))
    assert layer.get_output_sample_shape() == out


@pytest.mark.parametrize("axis", [0, -1, 1.0, "1", None, True])
def test_refuses_a_bad_axis(axis):
    with pytest.raises(ArgumentError, match="layer 'flat', argument axis: expected"):
        Flatten("flat", axis=axis)


@pytest.mark.parametrize("shape", [(3,), [(3, 4), (3, 4)]])
def test_refuses_samples_without_that_axis(shape):
    with pytest.raises(ShapeError, match="layer 'flat': expected one input with at least 2"):
        Flatten("flat", axis=2).build(shape)
