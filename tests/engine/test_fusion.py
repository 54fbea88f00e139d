"""Steps that one kernel does as one: same results, each by itself where somebody looks."""

import functools

import numpy as np
import pytest

from singanet import FeedForwardNet
from singanet import layers as nn
from singanet.device import Device
from singanet.engine.fusion import fused
from singanet.layers import Activation, Add, BatchNormalization, Conv2D, Dense, Dropout, Input
from singanet.loss import SoftmaxCrossEntropy
from singanet.ops import NumpyOps
from singanet.optimizer import SGD


class Counting(NumpyOps):
    """NumPy's kernels; counts the passes that do nothing but a relu."""

    def __init__(self):
        super().__init__(np)
        self.relus = 0

    def activation(self, mode, x, slope=0.01):
        self.relus += 1
        return super().activation(mode, x, slope)


class Doubled(BatchNormalization):
    """A user's layer that knows nothing of the relu after it."""

    def forward(self, ctx, x):
        return 2 * super().forward(ctx, x)

    def backward(self, ctx, dy):
        return super().backward(ctx, 2 * dy)


class Separate(Activation):
    """A relu that the layer before it leaves alone."""


def residual(relu, norm=BatchNormalization):
    x = Input("image", (4, 6, 6))
    y = relu("relu1")(norm("norm1")(Conv2D("conv1", 16)(x)))
    z = norm("norm2")(Conv2D("conv2", 16)(y))
    y = relu("relu2")(Add("add")(z, y))
    return FeedForwardNet(
        SoftmaxCrossEntropy(), inputs=x, outputs=Dense("fc", 3)(nn.Flatten("f")(y))
    )


def built(relu=Activation, norm=BatchNormalization):
    net = residual(relu, norm)
    for param in net.params():
        rng = np.random.default_rng(len(param.name))
        param.value[...] = rng.uniform(0.2, 1, param.value.shape)
        param.value -= 0.5 * ("weight" in param.name)
    net.to_device(Device("cpu", Counting()))
    return net


def both(**more):
    """The net whose relus are fused, and the one whose are not."""
    return [built(relu, **more) for relu in (Activation, Separate)]


def layer_of(net, name):
    return next(layer for layer in net.layers if layer.name == name)


RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((5, 4, 6, 6)).astype(np.float32), np.array([0, 2, 1, 1, 0])


@pytest.mark.parametrize("frozen", [False, True])
def test_training_is_the_same(frozen):
    results = []
    for net in both():
        for name in ("conv1", "norm1") if frozen else ():
            net.freeze(name)
        sgd = SGD(lr=0.1, momentum=0.9)
        losses = [net.step(X, Y, sgd)[0] for _ in range(3)]
        assert losses[0] != losses[-1]
        told = {"loss": losses, "score": net.evaluate(X, Y)[0], "outputs": net.predict(X)}
        results.append({param.name: param.value for param in net.params()} | told)
        assert (net.device.ops.relus == 0) is (len(results) == 1)
    for name, value in results[0].items():
        np.testing.assert_allclose(value, results[1][name], rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("name", ["norm1", "add", "norm2", "relu2", "conv1"])
def test_outputs_and_gradients_between_are_right(name):
    outputs, grads = [], []
    for net in both():
        outputs.append(net.forward(True, X, output=[name])[name])
        y = net.forward(True, X)
        dy = np.linspace(-1, 1, y.size, dtype=np.float32).reshape(y.shape)
        items = list(net.backward(dy, output=[name]))
        params = {n: g for item in items for n, g in zip(item.names, item.grads, strict=True)}
        grads.append(params | {"": items[-1].output_grads[name]})
    np.testing.assert_allclose(*outputs, rtol=1e-6)
    assert outputs[0].min() < 0 or name == "relu2"
    assert (grads[1][""] == 0).any() or name in ("conv1", "norm2", "relu2")
    for key, value in grads[0].items():
        np.testing.assert_allclose(value, grads[1][key], rtol=1e-5, atol=1e-5, err_msg=key)


def test_users_layers_are_left_alone():
    net, plain = both(norm=Doubled)
    np.testing.assert_allclose(net.forward(True, X), plain.forward(True, X), rtol=1e-5)
    assert net.device.ops.relus == 1  # Add still does the one after it


def test_an_output_with_two_readers_is_left_alone():
    x = Input("image", (4, 6, 6))
    normal = BatchNormalization("norm")(x)
    net = FeedForwardNet(inputs=x, outputs=Add("sum")(Activation("relu", "relu")(normal), normal))
    net.to_device(Device("cpu", Counting()))
    z = (X - X.mean((0, 2, 3), keepdims=True)) / X.std((0, 2, 3), keepdims=True)
    np.testing.assert_allclose(net.forward(True, X), z + np.maximum(z, 0), rtol=1e-3, atol=1e-4)
    assert net.device.ops.relus == 1


class Shifted(nn.Layer):
    """A user's layer that does the relu after it: y = max(x + shift, 0), in a pass of its own."""

    pure = True

    def setup(self, in_shapes):
        self.add_param("shift", in_shapes)
        return in_shapes

    def forward(self, ctx, x):
        return ctx.ops.add(x, ctx.params["shift"])

    def backward(self, ctx, dy):
        return dy, {"shift": ctx.ops.sum(dy, axis=0)}

    def forward_relu(self, ctx, x):
        y = ctx.ops.xp.maximum(self.forward(ctx, x), 0)
        ctx.save(y=y)
        return y

    def backward_relu(self, ctx, dy):
        return self.backward(ctx, dy * (ctx.saved["y"] > 0))


class Further(Shifted):
    """It inherits the relu, and does something else before it."""

    def forward(self, ctx, x):
        return super().forward(ctx, x + 1)


def shifted(kind, relu):
    x = Input("x", (6,))
    y = relu("relu")(kind("shift")(Dense("fc", 5)(x)))
    return FeedForwardNet(
        SoftmaxCrossEntropy(), inputs=x, outputs=Dense("out", 3)(Dropout("drop", 0.3)(y)), seed=3
    )


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize(("kind", "steps"), [(Shifted, 5), (Further, 6)])
def test_a_users_layer_may_do_the_relu_after_it(rng, kind, steps, recorded):
    x, y = rng.standard_normal((4, 6), np.float32), np.array([0, 2, 1, 1])
    results = []
    for relu in (Activation, Separate):
        net, sgd = shifted(kind, relu), SGD(lr=0.5)
        net.programs.enabled = recorded
        losses = [net.step(x, y, sgd)[0] for _ in range(4)]
        results.append((losses, net.predict(x), net.predictor()(x)))
        assert len(fused(net._execution_plan()).steps) == (steps if relu is Activation else 6)
        assert not net.programs.notes or relu is Separate
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


def test_every_layer_is_yielded():
    names = []
    for net in both():
        dy = np.ones_like(net.forward(True, X))
        names.append([(item.layer, item.names) for item in net.backward(dy)])
    assert names[0] == names[1]
    assert ("relu1", []) in names[0]
    assert ("norm1", ["norm1/gamma", "norm1/beta"]) in names[0]


@pytest.mark.parametrize(("name", "method"), [("norm1", "forward"), ("relu1", "backward")])
def test_a_layer_whose_pass_was_replaced_runs_it(name, method):
    called, net, plain = [], built(), built()
    net.step(X, Y, SGD(lr=0.1))
    plain.step(X, Y, SGD(lr=0.1))
    assert not net.device.ops.relus
    layer = layer_of(net, name)
    before = getattr(layer, method)
    setattr(layer, method, lambda ctx, given: called.append(1) or before(ctx, given))
    assert net.step(X, Y, SGD(lr=0.1))[0] == pytest.approx(plain.step(X, Y, SGD(lr=0.1))[0])
    assert called
    assert net.device.ops.relus == 1


def test_a_class_whose_pass_was_replaced_runs_it(monkeypatch):
    called, before, net = [], BatchNormalization.forward, built()

    @functools.wraps(before)
    def timed(self, ctx, x):
        called.append(self.name)
        return before(self, ctx, x)

    wanted = net.forward(True, X)
    monkeypatch.setattr(BatchNormalization, "forward", timed)
    np.testing.assert_allclose(net.forward(True, X), wanted, rtol=1e-6)
    assert called == ["norm1", "norm2"]


@pytest.mark.parametrize("name", ["norm1", "relu1"])
def test_a_layer_that_says_whether_it_is_recomputed_stands_alone(name):
    net = built()
    fewer, before = len(fused(net._execution_plan()).steps), net.train(X, Y)
    layer_of(net, name).recompute = True
    assert len(fused(net._execution_plan()).steps) == fewer + 1
    for one, other in zip(before[0], net.train(X, Y)[0], strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_changes_is_seen_and_leaves_the_plan_as_it_was_elsewhere():
    net, plain = both()
    for one in (net, plain):
        one.forward(False, X)
        layer_of(one, "relu1").mode = "tanh"
    np.testing.assert_allclose(net.forward(False, X), plain.forward(False, X), rtol=1e-5)
    first = fused(net._execution_plan())
    net.layers[0].label = "looked at"
    assert fused(net._execution_plan()) is first
    assert fused(net._execution_plan(), ["norm1"]) is not first
