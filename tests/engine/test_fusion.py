"""Steps that one kernel does as one: same results, each by itself where somebody looks."""

import functools

import numpy as np
import pytest

from singanet import FeedForwardNet
from singanet.device import Device
from singanet.engine.fusion import fused
from singanet.layers import (
    Activation,
    Add,
    BatchNormalization,
    Conv2D,
    Dense,
    Dropout,
    Flatten,
    Input,
    Layer,
)
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
    return FeedForwardNet(SoftmaxCrossEntropy(), inputs=x, outputs=Dense("fc", 3)(Flatten("f")(y)))


def built(relu=Activation, norm=BatchNormalization, dtype=np.float32):
    net = residual(relu, norm)
    for param in net.params():
        rng = np.random.default_rng(len(param.name))
        param.value[...] = rng.uniform(0.2, 1, param.value.shape)
        param.value -= 0.5 * ("weight" in param.name)
    kernels = Counting()
    net.to_device(Device("cpu", kernels))
    return net, kernels


@pytest.fixture
def batch():
    rng = np.random.default_rng(0)
    return rng.standard_normal((5, 4, 6, 6)).astype(np.float32), np.array([0, 2, 1, 1, 0])


def state(net):
    return {param.name: param.value.copy() for param in net.params()}


@pytest.mark.parametrize("frozen", [False, True])
def test_training_is_the_same(batch, frozen):
    results = []
    for relu in (Activation, Separate):
        net, kernels = built(relu)
        if frozen:
            net.freeze("conv1")
            net.freeze("norm1")
        sgd = SGD(lr=0.1, momentum=0.9)
        losses = [net.step(*batch, sgd)[0] for _ in range(3)]
        results.append((losses, state(net), net.evaluate(*batch)[0], net.predict(batch[0])))
        assert (kernels.relus == 0) is (relu is Activation)
    (losses, params, scores, outputs), (wanted, exact, exact_scores, exact_outputs) = results
    np.testing.assert_allclose(losses, wanted, rtol=1e-6)
    np.testing.assert_allclose(scores, exact_scores, rtol=1e-6)
    np.testing.assert_allclose(outputs, exact_outputs, rtol=1e-5, atol=1e-6)
    assert losses[0] != losses[-1]
    for name, value in params.items():
        np.testing.assert_allclose(value, exact[name], rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("name", ["norm1", "add"])
def test_what_lies_between_can_be_asked_for(batch, name):
    nets = [built(relu)[0] for relu in (Activation, Separate)]
    got = [net.forward(True, batch[0], output=[name]) for net in nets]
    assert got[0][name].min() < 0
    np.testing.assert_allclose(got[0][name], got[1][name], rtol=1e-6)


@pytest.mark.parametrize("name", ["norm1", "add", "norm2", "relu2", "conv1"])
def test_gradients_between_are_right(batch, name):
    grads = []
    for relu in (Activation, Separate):
        net, _ = built(relu)
        y = net.forward(True, batch[0])
        dy = np.linspace(-1, 1, y.size, dtype=np.float32).reshape(y.shape)
        items = list(net.backward(dy, output=[name]))
        params = {n: g for item in items for n, g in zip(item.names, item.grads, strict=True)}
        grads.append((items[-1].output_grads[name], params))
    np.testing.assert_allclose(grads[0][0], grads[1][0], rtol=1e-5, atol=1e-6)
    assert (grads[1][0] == 0).any() or name in ("conv1", "norm2", "relu2")
    for key, value in grads[0][1].items():
        np.testing.assert_allclose(value, grads[1][1][key], rtol=1e-5, atol=1e-5, err_msg=key)


def test_users_layers_are_left_alone(batch):
    net, kernels = built(norm=Doubled)
    plain, _ = built(Separate, Doubled)
    np.testing.assert_allclose(
        net.forward(True, batch[0]), plain.forward(True, batch[0]), rtol=1e-5
    )
    assert kernels.relus == 1  # Add still does the one after it


def test_an_output_with_two_readers_is_left_alone(batch):
    x = Input("image", (4, 6, 6))
    normal = BatchNormalization("norm")(x)
    both = Add("sum")(Activation("relu", "relu")(normal), normal)
    net = FeedForwardNet(inputs=x, outputs=both)
    net.to_device(Device("cpu", Counting()))
    y = net.forward(True, batch[0])
    z = (batch[0] - batch[0].mean((0, 2, 3), keepdims=True)) / batch[0].std(
        (0, 2, 3), keepdims=True
    )
    np.testing.assert_allclose(y, z + np.maximum(z, 0), rtol=1e-3, atol=1e-4)
    assert net.device.ops.relus == 1


class Shifted(Layer):
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


@pytest.mark.parametrize("order", ["norm, relu", "add, relu"])
def test_every_layer_is_yielded(batch, order):
    names = []
    for relu in (Activation, Separate):
        net, _ = built(relu)
        y = net.forward(True, batch[0])
        names.append([(item.layer, item.names) for item in net.backward(np.ones_like(y))])
    assert names[0] == names[1]
    assert ("relu1", []) in names[0]
    assert ("norm1", ["norm1/gamma", "norm1/beta"]) in names[0]


def on_the_layer(net, called):
    layer = net.layers[[layer.name for layer in net.layers].index("norm1")]
    before = layer.forward
    layer.forward = lambda ctx, x: called.append(1) or before(ctx, x)


def on_the_relu(net, called):
    layer = net.layers[[layer.name for layer in net.layers].index("relu1")]
    before = layer.backward
    layer.backward = lambda ctx, dy: called.append(1) or before(ctx, dy)


@pytest.mark.parametrize("patch", [on_the_layer, on_the_relu])
def test_a_layer_whose_pass_was_replaced_runs_it(batch, patch):
    called = []
    net, kernels = built()
    plain, _ = built()
    net.step(*batch, SGD(lr=0.1))
    plain.step(*batch, SGD(lr=0.1))
    assert not kernels.relus
    patch(net, called)
    assert net.step(*batch, SGD(lr=0.1))[0] == pytest.approx(plain.step(*batch, SGD(lr=0.1))[0])
    assert called
    assert kernels.relus == 1


def test_a_class_whose_pass_was_replaced_runs_it(batch, monkeypatch):
    called, before = [], BatchNormalization.forward

    @functools.wraps(before)
    def timed(self, ctx, x):
        called.append(self.name)
        return before(self, ctx, x)

    net, _ = built()
    wanted = net.forward(True, batch[0])
    monkeypatch.setattr(BatchNormalization, "forward", timed)
    np.testing.assert_allclose(net.forward(True, batch[0]), wanted, rtol=1e-6)
    assert called == ["norm1", "norm2"]


@pytest.mark.parametrize("name", ["norm1", "relu1"])
def test_a_layer_that_says_whether_it_is_recomputed_stands_alone(batch, name):
    net, _ = built()
    fewer = len(fused(net._execution_plan()).steps)
    before = net.train(*batch)
    net.layers[[layer.name for layer in net.layers].index(name)].recompute = True
    assert len(fused(net._execution_plan()).steps) == fewer + 1
    for one, other in zip(before[0], net.train(*batch)[0], strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_relu_that_becomes_something_else_is_that(batch):
    net, _ = built()
    plain, _ = built(Separate)
    for one in (net, plain):
        one.forward(False, batch[0])
        one.layers[[layer.name for layer in one.layers].index("relu1")].mode = "tanh"
    np.testing.assert_allclose(
        net.forward(False, batch[0]), plain.forward(False, batch[0]), rtol=1e-5
    )


def test_what_changes_elsewhere_leaves_the_plan_as_it_was(batch):
    net, _ = built()
    first = fused(net._execution_plan())
    net.layers[0].label = "looked at"
    assert fused(net._execution_plan()) is first
    assert fused(net._execution_plan(), ["norm1"]) is not first
