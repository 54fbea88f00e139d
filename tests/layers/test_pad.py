"""Pad and EndPadding."""

from __future__ import annotations

import math

import numpy as np
import pytest

from singanet.errors import ArgumentError, ShapeError, UnknownNameError
from singanet.layers import Cropping, EndPadding, MaxPooling2D, Pad
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


class RepeatedCase(LayerCase):
    in_shapes = (2, 3, 4)
    mode, numpys = "reflect", "reflect"

    def make(self):
        return Pad("border", ((2, 0), (1, 3)), mode=self.mode)

    def expected(self, params, x):
        return np.pad(x, ((0, 0), (0, 0), (2, 0), (1, 3)), mode=self.numpys)


class TestPadReflect(RepeatedCase):
    pass


class TestPadReplicate(RepeatedCase):
    mode, numpys = "replicate", "edge"


class TestPadCircular(RepeatedCase):
    mode, numpys = "circular", "wrap"


def test_what_is_repeated_has_to_be_there():
    for mode, most in (("reflect", 3), ("circular", 4)):
        Pad("border", most, mode=mode).build((4,))
        with pytest.raises(ShapeError, match=f"'border': .*size of the border .* by '{mode}'"):
            Pad("border", most + 1, mode=mode).build((4,))
    with pytest.raises(UnknownNameError, match="layer 'border', argument mode: expected '"):
        Pad("border", 1, mode="edge")


@pytest.mark.parametrize("pad", [-1, 1.5, "1", None, (), ((1, 2, 3),), ((1, -1),), (1, None)])
def test_refuses_a_bad_pad(pad):
    with pytest.raises(ArgumentError, match=r"'border', argument padding: expected"):
        Pad("border", pad)


@pytest.mark.parametrize("shape", [(), (3,)])
def test_refuses_samples_of_too_few_axes(shape):
    with pytest.raises(ShapeError, match=r"layer 'border': expected samples of at least 2 axes"):
        Pad("border", (1, 1)).build(shape)


class TestEndPadding(LayerCase):
    in_shapes = (2, 3, 4)

    def make(self):
        return EndPadding("end")

    def expected(self, params, x):
        y = np.zeros((len(x), 2, 4, 5))
        y[:, :, :3, :4] = x
        return y


@pytest.mark.parametrize("size", [3, 4, 7, 8, 14, 28, 56, 112])
def test_pooling_behind_it_rounds_its_size_up_as_caffe(size, rng):
    end = EndPadding("end", value=-math.inf)
    pool = MaxPooling2D("pool", 3, 2, pad=0)
    pool.build(end.build((1, size, size)))
    x = rng.standard_normal((1, 1, size, size))
    y = x
    for layer in (end, pool):
        _, y = LayerCase().run(layer, y, train=False)
    out = math.ceil((size - 3) / 2) + 1
    expected = [[x[0, 0, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3].max() for j in range(out)]
                for i in range(out)]  # fmt: skip
    np.testing.assert_array_equal(y[0, 0], expected)


@pytest.mark.parametrize("pad", [-1, 1.5, (1, 1)])
def test_end_padding_refuses_a_bad_pad(pad):
    with pytest.raises(ArgumentError, match=r"'end', argument padding: expected an int"):
        EndPadding("end", pad)


class TestCropping(LayerCase):
    in_shapes = (2, 4, 5)

    def make(self):
        return Cropping("inside", (1, (0, 2)))

    def expected(self, params, x):
        return x[:, :, 1:3, :3]


@pytest.mark.parametrize(("crop", "shape"), [(1, (2, 2, 5)), ((1, 1, 1), (4, 4)), (2, (4,))])
def test_cropping_refuses_small_samples(crop, shape):
    with pytest.raises(ShapeError, match="layer 'inside': expected samples"):
        Cropping("inside", crop).build(shape)


def test_cropping_refuses_other_arguments():
    with pytest.raises(ArgumentError, match="layer 'inside', argument cropping: expected an int"):
        Cropping("inside", -1)
