"""LayerNorm."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.errors import ArgumentError, ShapeError
from singanet.layers import LayerNorm, RMSNorm
from singanet.testing import LayerCase


class TestLayerNorm(LayerCase):
    in_shapes = (4, 5)

    def make(self):
        return LayerNorm("norm")

    def expected(self, params, x):
        y = np.empty_like(x)
        for where in np.ndindex(x.shape[:2]):
            row = x[where]
            centred = row - sum(row) / 5
            y[where] = centred / (sum(centred**2) / 5 + 1e-5) ** 0.5
        return params["gamma"] * y + params["beta"]


class TestLayerNormOfFeatures(LayerCase):
    in_shapes = (6,)

    def make(self):
        return LayerNorm("norm", epsilon=0.1)

    def expected(self, params, x):
        y = np.stack([(row - np.mean(row)) / np.sqrt(np.var(row) + 0.1) for row in x])
        return params["gamma"] * y + params["beta"]


class TestLayerNormWithoutCentre(LayerCase):
    in_shapes = (6,)

    def make(self):
        return LayerNorm("norm", center=False)

    def expected(self, params, x):
        assert list(params) == ["gamma"]
        return params["gamma"] * np.stack(
            [(row - np.mean(row)) / np.sqrt(np.var(row) + 1e-5) for row in x]
        )


class TestLayerNormOfWholeImagesWithoutParameters(LayerCase):
    in_shapes = (2, 3, 4)

    def make(self):
        return LayerNorm("norm", axis=1, affine=False)

    def expected(self, params, x):
        assert params == {}
        return np.stack([(row - np.mean(row)) / np.sqrt(np.var(row) + 1e-5) for row in x])


class TestLayerNormOfTwoAxes(LayerCase):
    in_shapes = (2, 3, 4)

    def make(self):
        return LayerNorm("norm", axis=-2)

    def expected(self, params, x):
        assert params["gamma"].shape == (3, 4)
        rows = x.reshape(-1, 12)
        y = np.stack([(row - np.mean(row)) / np.sqrt(np.var(row) + 1e-5) for row in rows])
        return params["gamma"] * y.reshape(x.shape) + params["beta"]


def test_starts_as_plain_normalisation():
    layer = LayerNorm("norm", input_sample_shape=(3, 4))
    layer.get_output_sample_shape()
    assert layer.param_names() == ["norm/gamma", "norm/beta"]
    gamma, beta = layer.param_values()
    assert gamma.tolist() == [1] * 4
    assert beta.tolist() == [0] * 4


def test_a_large_mean_does_not_spoil_float32(rng):
    layer = LayerNorm("norm", affine=False, input_sample_shape=(64,))
    x = rng.standard_normal((4, 64)) + 1000
    _, y = LayerCase().run(layer, x.astype(np.float32), train=False)
    exact = (x - x.mean(axis=1, keepdims=True)) / x.std(axis=1, keepdims=True)
    # Rounding x to float32 alone moves it by up to 6e-5.
    np.testing.assert_allclose(y, exact, atol=2e-4)


@pytest.mark.parametrize("axis", [0, 1.0, "1", None, True])
def test_refuses_a_bad_axis(axis):
    with pytest.raises(ArgumentError, match=r"'norm', argument axis: expected"):
        LayerNorm("norm", axis=axis)


@pytest.mark.parametrize("epsilon", [0, -1e-5, "1", float("nan")])
def test_refuses_a_bad_epsilon(epsilon):
    with pytest.raises(ArgumentError, match=r"'norm', argument epsilon: expected a positive"):
        LayerNorm("norm", epsilon=epsilon)


@pytest.mark.parametrize(
    ("axis", "shape"), [(2, (3,)), (-2, (3,)), (-1, ()), (1, (0,)), (-1, [(3,), (3,)])]
)
def test_refuses_samples_without_the_axis(axis, shape):
    with pytest.raises(ShapeError, match=r"layer 'norm': expected"):
        LayerNorm("norm", axis=axis).build(shape)


@pytest.mark.parametrize(("axis", "shape"), [(-1, (7, 33)), (2, (3, 8, 5))])
def test_equals_pytorch(axis, shape, rng):
    torch = pytest.importorskip("torch")
    case = LayerCase()
    case.make = lambda: LayerNorm("norm", axis=axis)
    case.in_shapes = shape
    layer = case.built()
    x = (3 * rng.standard_normal((16, *shape)) + 1).astype(np.float32)
    dy = rng.standard_normal(x.shape).astype(np.float32)
    ctx, y = case.run(layer, x, train=True)
    dx, grads = layer.backward(ctx, dy)
    xt, gamma, beta = (torch.from_numpy(a).requires_grad_() for a in (x, *layer.param_values()))
    yt = torch.nn.functional.layer_norm(xt, gamma.shape, gamma, beta)
    yt.backward(torch.from_numpy(dy))
    peers = [yt.detach(), xt.grad, gamma.grad, beta.grad]
    for got, want in zip([y, dx, grads["gamma"], grads["beta"]], peers, strict=True):
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=1e-5)


class TestRMSNorm(LayerCase):
    in_shapes = (4, 5)

    def make(self):
        return RMSNorm("norm")

    def expected(self, params, x):
        mean = np.stack([sum(row**2) / 5 for row in x.reshape(-1, 5)])
        return params["gamma"] * x / np.sqrt(mean + 1e-6).reshape(*x.shape[:2], 1)


class TestRMSNormWithAnOffset(TestRMSNorm):
    def make(self):
        return RMSNorm("norm", offset=1.0)

    def expected(self, params, x):
        return super().expected({"gamma": 1 + params["gamma"]}, x)


def test_an_offset_is_part_of_the_factor_from_the_start():
    layer = RMSNorm("norm", offset=1.0, input_sample_shape=(3,))
    layer.get_output_sample_shape()
    assert layer.param_values()[0].tolist() == [0, 0, 0]
    for given in ({"offset": "one"}, {"offset": 1.0, "affine": False}):
        with pytest.raises(ArgumentError, match="'norm', argument offset: expected a number"):
            RMSNorm("norm", **given)


class TestRMSNormOfImagesWithoutParameters(LayerCase):
    in_shapes = (2, 3, 4)

    def make(self):
        return RMSNorm("norm", axis=1, epsilon=0.1, affine=False)

    def expected(self, params, x):
        assert params == {}
        return np.stack([sample / np.sqrt(np.mean(sample**2) + 0.1) for sample in x])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rms_norm_agrees_with_pytorch(dtype):
    torch = pytest.importorskip("torch")
    case = TestRMSNorm()
    layer, x = case.built(np, dtype), case.inputs(np, dtype)
    ctx, y = case.run(layer, x, train=True)
    dy = case.gradient_like(y)
    dx, grads = case.run_backward(layer, ctx, dy)
    leaf = torch.tensor(x, requires_grad=True)
    gamma = torch.tensor(layer.params["gamma"].value, requires_grad=True)
    theirs = torch.nn.functional.rms_norm(leaf, (5,), gamma, 1e-6)
    theirs.backward(torch.tensor(dy))
    for ours, other in ((y, theirs.detach()), (dx, leaf.grad), (grads["gamma"], gamma.grad)):
        np.testing.assert_allclose(ours, other.numpy(), rtol=1e-4, atol=1e-6)


def test_rms_norm_with_an_offset_equals_gemmas(rng):
    torch = pytest.importorskip("torch")
    m = pytest.importorskip("transformers.models.gemma.modeling_gemma")
    theirs = m.GemmaRMSNorm(6, eps=1e-6)
    layer = RMSNorm("norm", offset=1.0)
    layer.build((6,))
    gamma, x, dy = (rng.standard_normal(s).astype(np.float32) for s in ((6,), (9, 6), (9, 6)))
    layer.params["gamma"].value[...] = gamma
    theirs.weight.data = torch.tensor(gamma)
    tx = torch.tensor(x, requires_grad=True)
    ty = theirs(tx)
    ty.backward(torch.tensor(dy))
    ctx, y = LayerCase().run(layer, x, train=True)
    dx, grads = layer.backward(ctx, dy)
    for got, want in ((y, ty.detach()), (dx, tx.grad), (grads["gamma"], theirs.weight.grad)):
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=1e-5)
