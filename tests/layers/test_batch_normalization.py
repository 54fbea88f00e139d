"""BatchNormalization."""

from __future__ import annotations

import numpy as np
import pytest

import singanet
from singanet.errors import ArgumentError, DataError, ShapeError
from singanet.layers import BatchNormalization, Context
from singanet.ops import numpy_ops
from singanet.testing import LayerCase


class BatchNormCase(LayerCase):
    def make(self):
        return BatchNormalization("bn")

    def expected(self, params, x):
        gamma, beta, mean, var = (
            p.reshape(-1, *[1] * (x.ndim - 2))
            for p in (params["gamma"], params["beta"], params["mean"], params["var"])
        )
        return gamma * (x - mean) / (var + 1e-5) ** 0.5 + beta


class TestFeatures(BatchNormCase):
    in_shapes = (5,)


class TestImages(BatchNormCase):
    in_shapes = (3, 4, 5)


class TestSignals(BatchNormCase):
    in_shapes = (3, 4)


class TestVolumes(BatchNormCase):
    in_shapes = (2, 3, 2, 4)


class TestLastAxis(LayerCase):
    in_shapes = (4, 3)

    def make(self):
        return BatchNormalization("bn", axis=-1)

    def expected(self, params, x):
        centred = (x - params["mean"]) / np.sqrt(params["var"] + 1e-5)
        return params["gamma"] * centred + params["beta"]


class TestWithoutScale(LayerCase):
    in_shapes = (3, 2, 2)

    def make(self):
        return BatchNormalization("bn", scale=False)

    def expected(self, params, x):
        assert list(params) == ["beta", "mean", "var"]
        mean, var, beta = (params[k][:, None, None] for k in ("mean", "var", "beta"))
        return (x - mean) / np.sqrt(var + 1e-5) + beta


class TestWithoutBoth(LayerCase):
    in_shapes = (3,)

    def make(self):
        return BatchNormalization("bn", scale=False, center=False)

    def expected(self, params, x):
        return (x - params["mean"]) / np.sqrt(params["var"] + 1e-5)


class TestOneChannelOfOnePixel(BatchNormCase):
    in_shapes = (1, 1, 1)
    batch = 4


class TestEpsilon(LayerCase):
    in_shapes = (2, 3, 3)

    def make(self):
        return BatchNormalization("bn", epsilon=0.5)

    def expected(self, params, x):
        centred = x - params["mean"][:, None, None]
        scale = params["gamma"] / np.sqrt(params["var"] + 0.5)
        return centred * scale[:, None, None] + params["beta"][:, None, None]


def prepared(shape, dtype=np.float64, **options):
    layer = BatchNormalization("bn", **options)
    layer.build(shape)
    for param in layer.params.values():
        param.retype(param.value.astype(dtype))
    return layer


def run(layer, x, train, dy=None):
    params = {suffix: param.value for suffix, param in layer.params.items()}
    ctx = Context(numpy_ops, np.random.default_rng(0), params, train, keep=True)
    y = layer.forward(ctx, x)
    return y if dy is None else (y, *layer.backward(ctx, dy))


def values(layer, *suffixes):
    return [layer.params[suffix].value for suffix in suffixes]


def test_parameters_have_names_shapes_and_order():
    layer = BatchNormalization("bn", input_sample_shape=(3, 224, 224))
    assert layer.get_output_sample_shape() == (3, 224, 224)
    assert layer.param_names() == ["bn/gamma", "bn/beta", "bn/mean", "bn/var"]
    assert [value.tolist() for value in layer.param_values()] == [[1.0] * 3, [0.0] * 3] * 1 + [
        [0.0] * 3, [1.0] * 3]  # fmt: skip
    assert [p.trainable for p in layer.params.values()] == [True, True, False, False]


def test_the_reference_values_of_singa():
    layer = prepared((2,))
    layer.params["beta"].value[:] = 2.0
    x = np.array([[1.0, 2.0], [3.0, 4.0]])
    # Its CPU kernels divided by sqrt(var) + 1e-6, so the last digits differ.
    np.testing.assert_allclose(run(layer, x, True), [[1, 1], [3, 3]], atol=1e-5)
    layer = prepared((2,))
    _, dx, grads = run(layer, x, True, np.array([[4.0, 3.0], [2.0, 1.0]]))
    np.testing.assert_allclose(dx, np.zeros((2, 2)), atol=2e-5)
    np.testing.assert_allclose(grads["gamma"], [-2, -2], rtol=1e-5)
    np.testing.assert_allclose(grads["beta"], [6, 4], rtol=1e-12)


@pytest.mark.parametrize("shape", [(6, 3), (4, 3, 5, 2)])
def test_training_normalises_by_the_batch_and_moves_the_running_values(rng, shape):
    layer = prepared(shape[1:], momentum=0.25)
    for param in layer.params.values():
        param.value = rng.uniform(0.5, 2.0, param.shape)
    gamma, beta, mean, var = (v.copy() for v in layer.param_values())
    x = 3.0 + 2.0 * rng.standard_normal(shape)
    y = run(layer, x, True)
    for c in range(3):
        channel = x[:, c].ravel()
        normalised = (channel - channel.mean()) / np.sqrt(channel.var() + 1e-5)
        np.testing.assert_allclose(y[:, c].ravel(), gamma[c] * normalised + beta[c], rtol=1e-10)
        # 0.25 weights the new value; the running variance is the unbiased one.
        assert layer.params["mean"].value[c] == pytest.approx(
            0.75 * mean[c] + 0.25 * channel.mean()
        )
        assert layer.params["var"].value[c] == pytest.approx(
            0.75 * var[c] + 0.25 * channel.var(ddof=1)
        )


def test_evaluation_leaves_the_running_values_alone(rng):
    layer = prepared((3,))
    before = [value.copy() for value in layer.param_values()]
    run(layer, rng.standard_normal((4, 3)), False)
    for value, old in zip(layer.param_values(), before, strict=True):
        np.testing.assert_array_equal(value, old)


def test_the_running_values_are_updated_in_place(rng):
    layer = prepared((3,))
    mean, var = values(layer, "mean", "var")
    run(layer, rng.standard_normal((4, 3)), True)
    assert layer.params["mean"].value is mean
    assert layer.params["var"].value is var
    assert mean.any()


@pytest.mark.parametrize(("momentum", "weight"), [(0.0, 0.0), (1.0, 1.0)])
def test_momentum_is_the_weight_of_the_new_value(rng, momentum, weight):
    layer = prepared((2,), momentum=momentum)
    x = rng.standard_normal((5, 2))
    run(layer, x, True)
    mean, var = values(layer, "mean", "var")
    np.testing.assert_allclose(mean, weight * x.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(var, (1 - weight) + weight * x.var(axis=0, ddof=1), rtol=1e-12)


@pytest.mark.parametrize("shape", [(1, 3), (1, 3, 1), (1, 3, 1, 1)])
def test_one_value_a_channel_is_refused_in_training_as_by_pytorch(shape):
    x = np.ones(shape, np.float32)
    net = singanet.FeedForwardNet([BatchNormalization("bn", input_sample_shape=shape[1:])])
    before = [value.copy() for value in net.param_values()]
    with pytest.raises(DataError, match="layer 'bn': expected more than one value per channel"):
        net.forward(True, x)
    assert all(map(np.array_equal, before, net.param_values()))
    assert net.forward(False, x).shape == shape
    torch = pytest.importorskip("torch")
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        torch.nn.functional.batch_norm(torch.tensor(x), None, None, training=True)


def test_a_backward_of_evaluation_treats_the_statistics_as_constants(rng):
    layer = prepared((2,))
    layer.params["var"].value[:] = [4.0, 9.0]
    layer.params["gamma"].value[:] = [2.0, 6.0]
    dy = rng.standard_normal((3, 2))
    _, dx, _ = run(layer, rng.standard_normal((3, 2)), False, dy)
    np.testing.assert_allclose(dx, dy * [1.0, 2.0], rtol=1e-5)


def test_a_later_forward_does_not_disturb_an_earlier_evaluation_backward(rng):
    layer = prepared((2,))
    x, dy = rng.standard_normal((2, 4, 2))
    params = {suffix: param.value for suffix, param in layer.params.items()}
    ctx = Context(numpy_ops, np.random.default_rng(0), params, False, keep=True)
    layer.forward(ctx, x)
    want = run(prepared((2,)), x, False, dy)[1:]
    run(layer, 10 + x, True)
    got = layer.backward(ctx, dy)
    np.testing.assert_array_equal(got[0], want[0])
    for suffix in ("gamma", "beta"):
        np.testing.assert_array_equal(got[1][suffix], want[1][suffix])


def test_float32_statistics_survive_a_large_mean():
    """E(x²) − E(x)² would lose every digit here."""
    rng = np.random.default_rng(0)
    x = (1000.0 + rng.standard_normal((64, 2, 16, 16))).astype(np.float32)
    layer = prepared((2, 16, 16), np.float32, momentum=1.0)
    y = run(layer, x, True)
    exact = x.astype(np.float64)
    mean, var = values(layer, "mean", "var")
    np.testing.assert_allclose(mean, exact.mean(axis=(0, 2, 3)), rtol=1e-6)
    np.testing.assert_allclose(var, exact.var(axis=(0, 2, 3), ddof=1), rtol=1e-4)
    assert y.dtype == mean.dtype == np.float32
    want = (exact - exact.mean(axis=(0, 2, 3), keepdims=True)) / np.sqrt(
        exact.var(axis=(0, 2, 3), keepdims=True) + 1e-5
    )
    # The spacing of float32 numbers near 1000 is 6e-5.
    np.testing.assert_allclose(y, want, atol=2e-4)


@pytest.mark.parametrize("shape", [(16, 5), (8, 5, 9), (8, 5, 6, 7), (4, 5, 3, 6, 2)])
def test_agrees_with_pytorch(shape):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(7)
    peer = getattr(torch.nn, f"BatchNorm{max(len(shape) - 2, 1)}d")(5, momentum=0.3)
    layer = BatchNormalization("bn", momentum=0.3)
    layer.build(shape[1:])
    start = rng.uniform(0.5, 1.5, (4, 5)).astype(np.float32)
    theirs = [peer.weight, peer.bias, peer.running_mean, peer.running_var]
    for value, param, tensor in zip(start, layer.params.values(), theirs, strict=True):
        param.value = value.copy()
        tensor.data[:] = torch.tensor(value)
    for train in (True, True, False):
        peer.train(train)
        peer.zero_grad()
        x = rng.standard_normal(shape).astype(np.float32)
        dy = (rng.standard_normal(shape) / np.sqrt(x.size / 5)).astype(np.float32)
        leaf = torch.tensor(x, requires_grad=True)
        want = peer(leaf)
        want.backward(torch.tensor(dy))
        y, dx, grads = run(layer, x, train, dy)
        pairs = [(y, want.detach()), (dx, leaf.grad), (grads["gamma"], peer.weight.grad),
                 (grads["beta"], peer.bias.grad), (layer.params["mean"].value, peer.running_mean),
                 (layer.params["var"].value, peer.running_var)]  # fmt: skip
        for ours, other in pairs:
            assert ours.dtype == np.float32
            np.testing.assert_allclose(ours, other.numpy(), rtol=1e-5, atol=1e-5)


def test_specs_are_applied_and_left_alone():
    specs = {"init": "constant", "value": 3.0, "lr_mult": 2.0, "decay_mult": 0.0}
    before = dict(specs)
    layer = BatchNormalization("bn", gamma_specs=specs, beta_specs={"name": "shared/shift"})
    layer.build((2,))
    assert layer.params["gamma"].value.tolist() == [3.0, 3.0]
    assert layer.param_specs[0].lr_mult == 2.0
    assert layer.param_names() == ["bn/gamma", "shared/shift", "bn/mean", "bn/var"]
    assert specs == before


@pytest.mark.parametrize(
    "options",
    [{"momentum": -0.1}, {"momentum": 1.1}, {"momentum": float("nan")}, {"momentum": "0.9"},
     {"epsilon": 0.0}, {"epsilon": -1e-5}, {"epsilon": float("nan")}, {"epsilon": None}],
)  # fmt: skip
def test_refuses_bad_arguments(options):
    with pytest.raises(ArgumentError, match=r"layer 'bn'.*momentum from 0 to 1 and a positive eps"):
        BatchNormalization("bn", **options)


def test_refuses_an_axis_in_the_middle():
    with pytest.raises(ArgumentError, match=r"layer 'bn', argument axis: expected 1 for the chan"):
        BatchNormalization("bn", axis=2)


@pytest.mark.parametrize("shape", [(), [(3,), (3,)]])
def test_refuses_what_has_no_channels(shape):
    layer = BatchNormalization("bn")
    with pytest.raises(
        ShapeError, match=r"layer 'bn'.*\(features,\) or \(channels, positions\.\.\.\)"
    ):
        layer.build(shape)
    assert layer.params == {}
