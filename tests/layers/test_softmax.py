"""Softmax."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.errors import ArgumentError, ShapeError
from singanet.layers import Context, LogSoftmax, Softmax
from singanet.ops import numpy_ops
from singanet.testing import LayerCase


class TestRows(LayerCase):
    in_shapes = (5,)

    def make(self):
        return Softmax("p")

    def expected(self, params, x):
        return np.array([[np.exp(v) / sum(np.exp(row)) for v in row] for row in x])


class TestChannels(LayerCase):
    in_shapes = (3, 2, 4)

    def make(self):
        return Softmax("p", axis=1)

    def expected(self, params, x):
        e = np.exp(x)
        return e / np.einsum("nchw->nhw", e)[:, None]


class TestLastAxis(LayerCase):
    in_shapes = (3, 4)

    def make(self):
        return Softmax("p", axis=-1)

    def expected(self, params, x):
        e = np.exp(x)
        return e / np.einsum("nij->ni", e)[:, :, None]


class TestAxisCountsTheBatch(LayerCase):
    in_shapes = (3, 4)

    def make(self):
        return Softmax("p", axis=2)

    def expected(self, params, x):
        e = np.exp(x)
        return e / np.einsum("nij->ni", e)[:, :, None]


class TestLogarithms(LayerCase):
    in_shapes = (3, 4)

    def make(self):
        return LogSoftmax("p", axis=1)

    def expected(self, params, x):
        e = np.exp(x)
        return np.log(e / np.einsum("nij->nj", e)[:, None])


def test_logarithms_of_what_is_zero_and_their_gradient_agree_with_pytorch():
    torch = pytest.importorskip("torch")
    x = np.array([[0, -1000, 3, 1e30], [1, 2, -2000, 4]], np.float32)
    dy = np.random.default_rng(2).standard_normal(x.shape).astype(np.float32)
    leaf = torch.tensor(x, requires_grad=True)
    theirs = torch.log_softmax(leaf, 1)
    theirs.backward(torch.tensor(dy))
    y = numpy_ops.log_softmax(x)
    np.testing.assert_allclose(y, theirs.detach().numpy(), rtol=1e-6)
    dx = numpy_ops.log_softmax_backward(dy, y)
    np.testing.assert_allclose(dx, leaf.grad.numpy(), rtol=1e-5, atol=1e-6)


def forward(x):
    layer = Softmax("p")
    layer.build(x.shape[1:])
    return layer.forward(Context(numpy_ops, np.random.default_rng(0), {}, False), x)


def test_scores_of_any_size_do_not_overflow():
    y = forward(np.array([[1e30, 1e30, -1e30], [-1e38, -1e38, -1e38]], np.float32))
    np.testing.assert_allclose(y, [[0.5, 0.5, 0], [1 / 3] * 3], rtol=1e-6)


def test_a_shift_of_all_scores_changes_nothing(rng):
    x = rng.standard_normal((4, 6))
    np.testing.assert_allclose(forward(x + 100.0), forward(x), rtol=1e-10)


def test_output_shape_of_singa():
    assert Softmax("p", input_sample_shape=(12,)).get_output_sample_shape() == (12,)


@pytest.mark.parametrize("axis", [0, 3, 5, -3, -4])
def test_refuses_an_axis_that_the_sample_lacks(axis):
    layer = Softmax("p", axis=axis)
    with pytest.raises(ShapeError, match=f"layer 'p'.*axis {axis}, counted with the batch axis"):
        layer.build((3, 4))


@pytest.mark.parametrize("axis", [1.0, "1", None, (1,)])
def test_refuses_an_axis_that_is_no_int(axis):
    with pytest.raises(ArgumentError, match="layer 'p', argument axis: expected an int"):
        Softmax("p", axis=axis)


def test_refuses_several_inputs():
    with pytest.raises(ShapeError, match="layer 'p': expected one input"):
        Softmax("p").build([(3,), (3,)])
