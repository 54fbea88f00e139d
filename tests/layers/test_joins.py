"""Add, Average, Maximum, Multiply and Merge."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.errors import ShapeError
from singanet.layers import (
    Activation,
    Add,
    Average,
    Context,
    Dense,
    Divide,
    Dot,
    GlobalAvgPooling2D,
    Input,
    Maximum,
    Merge,
    Minimum,
    Multiply,
    Reshape,
    Subtract,
)
from singanet.net import FeedForwardNet
from singanet.ops import numpy_ops
from singanet.testing import LayerCase, check_net_gradients


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
def test_add_refuses_inputs_that_do_not_fit(shapes):
    with pytest.raises(ShapeError, match=r"layer 'sum': expected at least two inputs"):
        Add("sum").build(shapes)


class TestAverage(LayerCase):
    in_shapes = [(2, 3), (2, 3), (2, 3)]

    def make(self):
        return Average("mean")

    def expected(self, params, x):
        return np.mean(x, axis=0)


class TestAverageSpread(LayerCase):
    in_shapes = [(2, 3), (1, 3)]

    def make(self):
        return Average("mean")

    def expected(self, params, x):
        return (x[0] + x[1]) / 2


class TestMaximum(LayerCase):
    in_shapes = [(2, 3), (2, 3), (2, 3)]

    def make(self):
        return Maximum("max")

    def expected(self, params, x):
        return np.max(x, axis=0)


class TestMaximumSpread(LayerCase):
    in_shapes = [(2, 3), (2, 1)]

    def make(self):
        return Maximum("max")

    def expected(self, params, x):
        return np.where(x[0] > x[1], x[0], x[1])


def test_of_equal_inputs_the_first_maximum_gets_the_gradient():
    layer = Maximum("max")
    layer.build([(2,), (2,), (2,)])
    x = [np.array([[1.0, 4.0]]), np.array([[2.0, 4.0]]), np.array([[2.0, 3.0]])]
    ctx, y = LayerCase().run(layer, x, train=True)
    assert y.tolist() == [[2, 4]]
    dx, _ = layer.backward(ctx, np.array([[5.0, 6.0]]))
    assert [part.tolist() for part in dx] == [[[0, 6]], [[5, 0]], [[0, 0]]]


class TestMultiply(LayerCase):
    in_shapes = [(2, 3), (2, 3), (2, 3)]

    def make(self):
        return Multiply("product")

    def expected(self, params, x):
        return np.prod(x, axis=0)


class TestMultiplySpread(LayerCase):
    in_shapes = [(4, 3, 2), (4, 1, 1)]

    def make(self):
        return Multiply("gate")

    def expected(self, params, x):
        return np.einsum("nchw,nc->nchw", x[0], x[1][:, :, 0, 0])


def test_a_zero_factor_is_no_special_case():
    layer = Multiply("product")
    layer.build([(2,), (2,)])
    x = [np.array([[0.0, 3.0]]), np.array([[5.0, 0.0]])]
    ctx, _ = LayerCase().run(layer, x, train=True)
    (da, db), _ = layer.backward(ctx, np.ones((1, 2)))
    assert da.tolist() == [[5, 0]]
    assert db.tolist() == [[0, 3]]


def test_a_squeeze_and_excitation_block_has_the_right_gradients(rng):
    image = Input("image", (3, 4, 4))
    squeezed = GlobalAvgPooling2D("squeeze")(image)
    gate = Activation("sigmoid", "sigmoid")(Dense("excite", 3)(squeezed))
    scaled = Multiply("gate")(image, Reshape("spread", (3, 1, 1))(gate))
    net = FeedForwardNet(inputs=image, outputs=scaled, seed=0)
    check_net_gradients(net, rng.standard_normal((2, 3, 4, 4)))


class TestMergeOfTwo(LayerCase):
    in_shapes = [(3, 4), (3, 4)]

    def make(self):
        return Merge("sum")

    def expected(self, params, x):
        return x[0] + x[1]


class TestMergeOfThree(LayerCase):
    in_shapes = [(5,), (5,), (5,)]

    def make(self):
        return Merge("sum")

    def expected(self, params, x):
        return np.sum(x, axis=0)


def test_merge_has_the_reference_values_of_singa():
    layer = Merge("sum")
    assert layer.build([(2,), (2,)]) == (2,)
    x = [np.full((3, 2), 1.1), np.full((3, 2), 0.9)]
    y = layer.forward(Context(numpy_ops, np.random.default_rng(0), {}, True), x)
    assert y.mean() == pytest.approx(2.0)


def test_merge_heeds_input_sample_shape():
    layer = Merge("sum", input_sample_shape=[(3,), (3,)])
    assert layer.get_output_sample_shape() == (3,)


@pytest.mark.parametrize(
    "shapes", [(3,), [(3,)], [], [(3,), (4,)], [(3,), (3, 1)], [(2,), (2,), (3,)]]
)
def test_merge_refuses_other_than_several_equal_shapes(shapes):
    layer = Merge("sum")
    with pytest.raises(ShapeError, match="layer 'sum': expected at least two inputs of one sample"):
        layer.build(shapes)
    assert layer.out_shapes is None


class TestMinimum(LayerCase):
    in_shapes = [(2, 3), (2, 3), (2, 1)]

    def make(self):
        return Minimum("least")

    def expected(self, params, x):
        return np.minimum(np.minimum(x[0], x[1]), x[2])


class TestSubtract(LayerCase):
    in_shapes = [(2, 1), (2, 3)]

    def make(self):
        return Subtract("difference")

    def expected(self, params, x):
        return x[0] + -1.0 * x[1]


class TestDivide(LayerCase):
    in_shapes = [(2, 3), (2, 1)]

    def make(self):
        return Divide("quotient")

    def draw(self, rng, batch):
        return [rng.standard_normal((batch, 2, 3)), rng.uniform(0.5, 2, (batch, 2, 1))]

    def expected(self, params, x):
        return x[0] * x[1] ** -1.0


class TestDot(LayerCase):
    in_shapes = [(2, 3), (2, 3)]

    def make(self):
        return Dot("dot")

    def expected(self, params, x):
        return np.einsum("nij,nij->ni", *x)[..., None]


@pytest.mark.parametrize("kind", [Subtract, Divide])
@pytest.mark.parametrize("shapes", [(3,), [(3,)] * 3, [(3,), (4,)]])
def test_joins_of_two_refuse_others(kind, shapes):
    with pytest.raises(ShapeError, match="layer 'it': expected .*two inputs"):
        kind("it").build(shapes)


@pytest.mark.parametrize("shapes", [(3,), [(3,)] * 3, [(3,), (1,)], [(), ()]])
def test_dot_refuses_unequal_inputs(shapes):
    with pytest.raises(ShapeError, match="layer 'it': expected two inputs of one sample shape"):
        Dot("it").build(shapes)
