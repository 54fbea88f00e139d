"""Kernels for float16: float32 inside, float16 outside."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import singanet
from singanet import layers as of
from singanet import models
from singanet.device import cpu
from singanet.layers.context import Context
from singanet.loss import SquaredError
from singanet.ops import numpy_ops
from singanet.optimizer import SGD, MaxNorm, global_norm


def half(array):
    return array.astype(np.float16)


def test_products_are_rounded_once(rng):
    """Sums of 4096 products: float16 along the way would be wrong in its second digit."""
    ops = cpu().ops
    a, b = half(rng.random((3, 4096))), half(rng.random((4096, 5)))
    exact = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float16)
    np.testing.assert_array_equal(ops.matmul(a, b), exact)
    assert ops.matmul(a, b).dtype == np.float16
    out = np.empty((3, 5), np.float16)
    assert ops.matmul(a, b, out=out) is out
    np.testing.assert_array_equal(out, exact)
    np.testing.assert_array_equal(ops.affine(a, b, exact[0] * 0), exact)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_copies_of_a_net_go_on_with_the_same_kernels(copied, rng):
    x, y = rng.standard_normal((32, 8)).astype(np.float32), rng.integers(0, 4, 32)
    net = models.build("mlp", (8,), 4, seed=0)
    net.compile(SGD(lr=0.1), mixed_precision="float16")
    net.fit(x, y, batch_size=8, verbose=False)
    made = copied(net)
    assert type(made.device.ops) is type(net.device.ops)
    losses = [each.fit(x, y, batch_size=8, epochs=2, verbose=False)["loss"] for each in (net, made)]
    assert losses[0] == losses[1]
    for own, other in zip(net.params(), made.params(), strict=True):
        np.testing.assert_array_equal(own.value, other.value, strict=True)
    predictor = made.predictor()
    np.testing.assert_allclose(predictor(x), net.predict(x), rtol=0.02, atol=0.02)
    with predictor.constants() as constant:
        assert {param.value.dtype.name for param in constant.params()} == {"float16"}


@pytest.mark.parametrize("model", ["lenet", "resnet20", "char_rnn", "transformer_lm"])
def test_gradients_are_those_of_float32(model, rng):
    """Through convolutions, pooling, normalisation, recurrence and attention."""
    shape, classes = ((1, 8, 8), 7) if "net" in model else ((8,), 7)
    nets = [models.build(model, shape, classes, seed=0) for _ in range(2)]
    if len(shape) == 1:
        x, y = rng.integers(0, classes, (4, *shape)), rng.integers(0, classes, (4, *shape))
    else:
        x, y = rng.standard_normal((4, *shape)).astype(np.float32), rng.integers(0, classes, 4)
    nets[1].compile(SGD(lr=0.1), mixed_precision="float16")
    # float16 weights in both, so that only the arithmetic differs.
    for a, b in zip(nets[0].params(), nets[1].params(), strict=True):
        a.value[...] = b.value
    grads = []
    for net in nets:
        found = dict(zip(net.param_names(), net.train(x, y)[0], strict=True))
        found = {k: g for k, g in found.items() if g is not None}
        grads.append({k: g[1] if isinstance(g, tuple) else g for k, g in found.items()})
    assert {g.dtype.name for g in grads[1].values()} == {"float16"}
    for name, exact in grads[0].items():
        close = grads[1][name].astype(np.float32)
        # Activations are rounded to 11 bits between the layers, twenty and more of them.
        assert np.linalg.norm(close - exact) <= 0.05 * np.linalg.norm(exact) + 1e-3, name


def test_replayed_evaluations_are_those_by_the_layers(rng):
    net = models.build("lenet", (1, 8, 8), 10, seed=0)
    net.compile(SGD(lr=0.1), mixed_precision="float16")
    x = rng.standard_normal((6, 1, 8, 8)).astype(np.float32)
    found = [net.predict(x) for _ in range(4)]
    net.programs.enabled = False
    for out in found:
        np.testing.assert_array_equal(out, net.predict(x))


@pytest.mark.parametrize("kind", [of.LSTM, of.GRU, of.RNN])
@pytest.mark.parametrize("mode", ["linear", "skip"])
def test_no_product_of_a_recurrent_layer_is_one_of_float16(kind, mode, rng, monkeypatch):
    """NumPy's own loops multiply float16, 150 times as long as BLAS takes for float32."""
    seen, matmul = set(), np.matmul

    def watched(a, b, **options):
        seen.update({a.dtype.name, b.dtype.name})
        return matmul(a, b, **options)

    layer = kind("r", 6, input_mode=mode, input_sample_shape=(5, 6))
    net = singanet.FeedForwardNet([layer], loss=SquaredError(), seed=0)
    net.compile(SGD(lr=0.1), mixed_precision="float16")
    net.programs.enabled = False
    x, y = rng.standard_normal((2, 3, 5, 6)).astype(np.float32)
    monkeypatch.setattr(np, "matmul", watched)
    net.device.ops.xp.matmul(np.ones((1, 1)), np.ones((1, 1)))
    assert seen == {"float64"}
    net.train_on_batch(x, y)
    assert "float16" not in seen


NORMS = {
    "LayerNorm": (lambda: of.LayerNorm("it"), (6, 8)),
    "RMSNorm": (lambda: of.RMSNorm("it"), (6, 8)),
    "GroupNorm": (lambda: of.GroupNorm("it", 2), (4, 5, 5)),
    "InstanceNorm": (lambda: of.InstanceNorm("it"), (4, 5, 5)),
    "L2Norm": (lambda: of.L2Norm("it"), (6, 8)),
    "BatchNormalization": (lambda: of.BatchNormalization("it"), (4, 5, 5)),
    "BatchNormalization of 16": (lambda: of.BatchNormalization("it"), (16, 5, 5)),
    "LRN": (lambda: of.LRN("it", 3, 1.0), (4, 5, 5)),
}


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("largest", [600.0, 60000.0])
@pytest.mark.parametrize("way", ["recorded", "layers"])
def test_rows_above_256_are_normalised(name, largest, way, rng):
    make, shape = NORMS[name]
    x, dy = (rng.standard_normal((2, 5, *shape)) / 3).clip(-1, 1).astype(np.float16)
    x *= np.float16(largest)
    found = []
    for kind in ("float32", "float16"):
        net = singanet.FeedForwardNet(loss=SquaredError(), seed=0)
        layer = make()
        layer.input_sample_shape = shape
        net.add(layer)
        net.as_type(kind)
        net.programs.enabled = way == "recorded"
        for _ in range(3):
            y = net.forward(True, x.astype(kind))
            grads = [grad for item in net.backward(dy.astype(kind)) for grad in item.grads]
        outputs = [y, *grads]
        outputs += [net.predict(x.astype(kind)) for _ in range(3)]
        outputs += [net.predictor()(x.astype(kind))]
        outputs += [param.value for param in net.params() if param.is_state]
        found.append(outputs)
    for exact, close in zip(*found, strict=True):
        assert np.abs(exact).max() > (1e-9 if name == "LRN" else 1e-2)
        room = 4e-3 * np.abs(exact).max()
        np.testing.assert_allclose(close.astype(np.float32), exact, rtol=4e-3, atol=room)


def test_running_statistics_are_kept_in_float32(rng, tmp_path):
    """float16 cannot store a variance above 65504; changes of type and files keep it."""
    net = singanet.FeedForwardNet(loss=SquaredError(), seed=0)
    net.add(of.BatchNormalization("norm", momentum=0.01, input_sample_shape=(3,)))
    net.as_type("float16")
    x = (rng.standard_normal((50, 3)) * 3000).astype(np.float16)
    for _ in range(600):
        net.forward(True, x)
    exact = x.astype(np.float64).var(axis=0, ddof=1)
    var = net["norm"].params["var"]
    assert (var.value.dtype, var.array_type) == (np.float32, np.float32)
    np.testing.assert_allclose(var.value, exact, rtol=5e-3)
    np.testing.assert_allclose(net.predict(x).std(axis=0), 1, rtol=0.02)
    net.save_model(tmp_path / "it.singanet")
    loaded = singanet.load_model(tmp_path / "it.singanet")
    np.testing.assert_array_equal(loaded["norm"].params["var"].value, var.value)
    np.testing.assert_array_equal(loaded.predict(x), net.predict(x))
    net.as_type("float64")
    assert var.value.dtype == np.float64
    net.as_type("float16")
    np.testing.assert_allclose(var.value, exact, rtol=5e-3)


def test_norms_and_bounds_of_float16_are_those_of_float32():
    grad = np.full((3, 40), 60000, np.float16)
    assert global_norm([(["g"], [grad], [grad])]) == pytest.approx(60000 * 120**0.5)
    MaxNorm(30000.0).project(grad)
    np.testing.assert_allclose(np.linalg.norm(grad.astype(np.float64)), 30000, rtol=1e-3)


MEANS = {
    "Average": (lambda: of.Average("it"), [(3, 4)] * 3),
    "AvgPooling2D": (lambda: of.AvgPooling2D("it", 2), (2, 4, 4)),
    "AdaptiveAvgPooling2D": (lambda: of.AdaptiveAvgPooling2D("it", 2), (2, 5, 5)),
    "GlobalAvgPooling2D": (lambda: of.GlobalAvgPooling2D("it"), (2, 40, 40)),
    "Reduce": (lambda: of.Reduce("it", "mean", 1), (300, 2)),
    "Resize": (lambda: of.Resize("it", (3, 6), coordinates="align_corners"), (2, 4, 4)),
    "Upsampling2D": (lambda: of.Upsampling2D("it", 2, interpolation="bilinear"), (2, 4, 4)),
}


@pytest.mark.parametrize("name", MEANS)
def test_means_of_the_largest_numbers_are_these(name):
    make, shapes = MEANS[name]
    layer = make()
    layer.build(shapes)
    several = isinstance(shapes, list)
    parts = [np.full((2, *s), 60000, np.float16) for s in (shapes if several else [shapes])]
    for ops in (cpu().ops, numpy_ops):
        ctx = Context(ops, np.random.default_rng(0), {}, True)
        y = layer.forward(ctx, parts if several else parts[0])
        assert y.dtype == np.float16
        assert (y == np.float16(60000)).all()
