"""Concat."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.errors import ArgumentError, ShapeError
from singanet.layers import Concat, Context
from singanet.ops import numpy_ops
from singanet.testing import LayerCase


class TestChannels(LayerCase):
    in_shapes = [(2, 3, 4), (1, 3, 4), (3, 3, 4)]

    def make(self):
        return Concat("cat", axis=1)

    def expected(self, params, x):
        return np.array([[channel for part in x for channel in part[n]] for n in range(len(x[0]))])


class TestLastAxis(LayerCase):
    in_shapes = [(2, 3), (2, 1)]

    def make(self):
        return Concat("cat", axis=2)

    def expected(self, params, x):
        y = np.empty((len(x[0]), 2, 4))
        y[:, :, :3], y[:, :, 3:] = x
        return y


class TestCountedFromTheLast(TestLastAxis):
    def make(self):
        return Concat("cat", axis=-1)


class TestFeatures(LayerCase):
    in_shapes = [(2,), (3,)]

    def make(self):
        return Concat("cat", axis=1)

    def expected(self, params, x):
        return np.array([[*a, *b] for a, b in zip(*x, strict=True)])


class TestBatches(LayerCase):
    in_shapes = [(3,), (3,)]

    def make(self):
        return Concat("cat", axis=0)

    def expected(self, params, x):
        return np.array([*x[0], *x[1]])

    def check_a_sample_alone_equals_itself_in_a_batch(self, xp):
        # The samples of each input stand together, so the shared check does not apply.
        layer = self.built(xp, np.float64)
        x = self.inputs(xp, np.float64, batch=4)
        _, whole = self.run(layer, x, train=False)
        _, alone = self.run(layer, [part[:1] for part in x], train=False)
        assert (alone == whole[::4]).all()


class TestOneInput(LayerCase):
    in_shapes = (3, 2)

    def make(self):
        return Concat("cat", axis=1)

    def expected(self, params, x):
        return x.copy()


def test_the_reference_values_of_singa():
    layer = Concat("cat", axis=0)
    layer.build([(3,), (3,)])
    ctx = Context(numpy_ops, np.random.default_rng(0), {}, True)
    y = layer.forward(ctx, [np.ones((2, 3), np.float32), np.full((1, 3), 2.0, np.float32)])
    assert y.sum() == 12.0
    (first, second), _ = layer.backward(ctx, np.full((3, 3), 1.5, np.float32))
    assert first.sum() == 9.0
    assert second.shape == (1, 3)


@pytest.mark.parametrize(
    ("axis", "shapes", "out"),
    [(1, [(2, 5), (3, 5)], (5, 5)), (2, [(2, 5), (2, 1)], (2, 6)), (0, [(2, 5), (2, 5)], (2, 5)),
     (3, [(1, 2, 3), (1, 2, 3), (1, 2, 4)], (1, 2, 10)), (-2, [(2, 5), (3, 5)], (5, 5))],
)  # fmt: skip
def test_output_shapes(axis, shapes, out):
    assert Concat("cat", axis, input_sample_shapes=shapes).get_output_sample_shape() == out


@pytest.mark.parametrize(
    ("axis", "shapes"),
    [(1, [(2, 5), (3, 4)]), (2, [(2, 5), (3, 5)]), (3, [(2, 5), (2, 5)]), (0, [(2, 5), (2, 4)]),
     (1, [(2, 5), (2,)]), (2, [(2, 5), (2,)]), (1, []), (1, ()), (-3, [(2, 5)]), (-1, [()])],
)  # fmt: skip
def test_refuses_shapes_that_do_not_join(axis, shapes):
    layer = Concat("cat", axis)
    with pytest.raises(ShapeError, match=f"layer 'cat': expected inputs that have the axis {axis}"):
        layer.build(shapes)
    assert layer.out_shapes is None


@pytest.mark.parametrize("axis", [-100, 1.0, "1", None])
def test_refuses_a_bad_axis(axis):
    with pytest.raises(ArgumentError, match="layer 'cat', argument axis: expected"):
        Concat("cat", axis)
