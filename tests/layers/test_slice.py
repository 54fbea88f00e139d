"""Slice."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.errors import ArgumentError, ShapeError
from singanet.layers import Context, Slice
from singanet.ops import numpy_ops
from singanet.testing import LayerCase


class TestChannels(LayerCase):
    in_shapes = (5, 3, 2)

    def make(self):
        return Slice("cut", axis=1, slice_point=[1, 3])

    def expected(self, params, x):
        return [x.take([0], 1), x.take([1, 2], 1), x.take([3, 4], 1)]


class TestLastAxis(LayerCase):
    in_shapes = (2, 4)

    def make(self):
        return Slice("cut", axis=2, slice_point=[3])

    def expected(self, params, x):
        return [x.take([0, 1, 2], 2), x.take([3], 2)]


class TestOnePointAsAnInt(LayerCase):
    in_shapes = (4,)

    def make(self):
        return Slice("cut", axis=1, slice_point=1)

    def expected(self, params, x):
        return [x.take([0], 1), x.take([1, 2, 3], 1)]


def test_the_reference_values_of_singa():
    layer = Slice("cut", axis=1, slice_point=[2])
    assert layer.build((3,)) == [(2,), (1,)]
    ctx = Context(numpy_ops, np.random.default_rng(0), {}, True)
    first, second = layer.forward(ctx, np.tile(np.array([2, 2, 1], np.float32), (3, 1)))
    assert first.mean() == 2.0
    assert second.mean() == 1.0
    dx, _ = layer.backward(ctx, [np.ones((3, 2), np.float32), np.full((3, 1), 2, np.float32)])
    assert dx.sum() == 12.0
    np.testing.assert_array_equal(dx[0], [1, 1, 2])


def test_the_given_list_is_neither_changed_nor_followed():
    points = [1, 2]
    layer = Slice("cut", 1, points)
    layer.build((4,))
    assert points == [1, 2]
    points.append(3)
    assert len(layer.forward(Context(numpy_ops, np.random.default_rng(0), {}, True),
                             np.ones((1, 4)))) == 3  # fmt: skip


@pytest.mark.parametrize(
    ("axis", "points"),
    [(0, [1]), (-1, [1]), (1.0, [1]), (None, [1]), (1, []), (1, [0]), (1, [2, 2]), (1, [3, 1]),
     (1, [-1]), (1, [1.5]), (1, "2"), (1, None), (1, ["1"])],
)  # fmt: skip
def test_refuses_bad_arguments(axis, points):
    with pytest.raises(
        ArgumentError, match="layer 'cut': expected an axis of at least 1 and rising"
    ):
        Slice("cut", axis, points)


@pytest.mark.parametrize("shape", [(3, 3), (3, 2), (5,), [(3, 4)], ()])
def test_refuses_points_outside_the_sample(shape):
    layer = Slice("cut", axis=2, slice_point=[1, 3])
    with pytest.raises(
        ShapeError, match="layer 'cut': expected one input longer than 3 along axis 2"
    ):
        layer.build(shape)
    assert layer.out_shapes is None
