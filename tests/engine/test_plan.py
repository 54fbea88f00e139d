"""Pairs of a layer and its relu that one kernel does: same results, each apart where asked."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from singanet import FeedForwardNet
from singanet.device import Device
from singanet.layers import Activation, Add, BatchNormalization, Conv2D, Dense, Flatten, Input
from singanet.loss import SoftmaxCrossEntropy, SquaredError
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


def test_a_walk_is_worked_out_once_for_what_is_trained(rng):
    net = FeedForwardNet(SquaredError(), seed=0)
    for name in ("a", "b"):
        net.add(Dense(name, 3, **({"input_sample_shape": (3,)} if name == "a" else {})))
    x = rng.standard_normal((2, 3)).astype("float32")
    net.train(x, x)
    plan = net.execution_plan()
    slots = plan.by_name["b"].out_slots
    first = plan.backward(slots, ())
    assert plan.backward(slots, ()) is first
    net.layers[0].trainable = False
    second = plan.backward(slots, ())
    assert first.visited == [True, True]
    assert second.visited == [False, True]
    net.layers[0].trainable = True
    assert plan.backward(slots, ()) is first
    assert plan.backward(slots, ("a",)) is not first


def test_a_copy_of_a_net_sums_the_uses_of_its_own_parameters(rng):
    shared = Dense("shared", 3)
    a = Input("a", (3,))
    net = FeedForwardNet(SquaredError(), inputs=a, outputs=shared(shared(a)), seed=0)
    x = rng.standard_normal((2, 3)).astype("float32")
    before, _ = net.train(x, x)
    twin = copy.deepcopy(net)
    for one, other in zip(before, twin.train(x, x)[0], strict=True):
        np.testing.assert_array_equal(one, other)
