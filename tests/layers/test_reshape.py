"""Reshape, Flatten and Permute."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.errors import ArgumentError, ShapeError
from singanet.layers import Flatten, Permute, Reshape
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


class TestFlatten(LayerCase):
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
def test_flatten_has_the_output_shapes_of_singa(axis, out):
    layer = Flatten("flat", axis=axis, input_sample_shape=(64, 1, 12))
    assert layer.get_output_sample_shape() == out


@pytest.mark.parametrize("axis", [0, -1, 1.0, "1", None, True])
def test_flatten_refuses_a_bad_axis(axis):
    with pytest.raises(ArgumentError, match="layer 'flat', argument axis: expected"):
        Flatten("flat", axis=axis)


@pytest.mark.parametrize("shape", [(3,), [(3, 4), (3, 4)]])
def test_flatten_refuses_samples_without_that_axis(shape):
    with pytest.raises(ShapeError, match="layer 'flat': expected one input with at least 2"):
        Flatten("flat", axis=2).build(shape)


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
def test_permute_refuses_bad_axes(axes):
    with pytest.raises(ArgumentError, match=r"'turn', argument dims: expected each"):
        Permute("turn", axes)


def test_permute_refuses_samples_of_another_rank():
    with pytest.raises(ShapeError, match=r"layer 'turn': expected .* of 2 axes; received \(2,\)"):
        Permute("turn", (2, 1)).build((2,))
