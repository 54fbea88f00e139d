"""Small parameters are updated together: fewer kernels, the same bits."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import singanet
from singanet.layers import Activation, Dense
from singanet.layers.layer import Layer
from singanet.optimizer import SGD, Adam
from tests.program.twins import Twins


def small():
    net = singanet.FeedForwardNet(singanet.loss.SoftmaxCrossEntropy(), seed=0)
    net.add(Dense("one", 16, input_sample_shape=(20,)))
    net.add(Activation("relu"))
    net.add(Dense("two", 12, W_specs={"lr_mult": 0.5}))
    net.add(Activation("tanh", "tanh"))
    net.add(Dense("three", 5, b_specs={"lr_mult": 0.5}))
    return net


def momentum():
    return SGD(lr=0.1, momentum=0.9)


def batch(rng, count=6):
    return rng.standard_normal((count, 20)).astype(np.float32), rng.integers(0, 5, count)


def updates(net):
    found = [[k for k in r.kernels if k.phase == "update"] for r in net.programs.reports()]
    return [(k.name, k.layer) for k in max(found, key=len)]


SWEEP = ["multiply", "multiply", "add", "subtract"]


def joint(net):
    return [name for name, layer in updates(net) if not layer]


def test_one_sweep_for_neighbours_that_have_the_same_numbers(rng):
    twins = Twins(small, momentum)
    for _ in range(5):
        twins.step(*batch(rng))
    # From the last layer to the first: three/weight alone, two at half the rate, the other three.
    assert joint(twins.recorded) == 2 * SWEEP
    assert [layer for _, layer in updates(twins.recorded) if layer] == 4 * ["three"]


def even():
    net = singanet.FeedForwardNet(singanet.loss.SoftmaxCrossEntropy(), seed=0)
    net.add(Dense("one", 16, input_sample_shape=(20,)))
    net.add(Activation("relu"))
    net.add(Dense("two", 12))
    net.add(Dense("three", 5))
    return net


@pytest.mark.parametrize("make", [lambda: SGD(lr=0.1), momentum, lambda: Adam(lr=0.01)])
def test_a_net_of_small_layers_is_updated_by_one_sweep(make, rng):
    twins = Twins(even, make)
    for _ in range(5):
        twins.step(*batch(rng))
    found = updates(twins.recorded)
    assert found
    assert all(layer == "" for _, layer in found)
    assert [name for name, _ in found].count("subtract") == 1


def freeze(net, optimizer):
    net.layers[2].trainable = False


def assign(net, optimizer):
    net.params()[2].value = net.params()[2].value.copy()


def regroup(net, optimizer):
    assign(net, optimizer)
    net._regroup()


def add(net, optimizer):
    net.add(Dense("four", 5))


def test_what_is_read_only_is_changed_by_no_sweep(rng):
    net, optimizer = even(), momentum()
    for _ in range(4):
        net.step(*batch(rng), optimizer)
    for param in net.params()[2:4]:
        param.value.flags.writeable = False
    before = [param.value.copy() for param in net.params()[2:4]]
    for _ in range(3):
        with pytest.raises(ValueError, match="read-only"):
            net.step(*batch(rng), optimizer)
    for param, value in zip(net.params()[2:4], before, strict=True):
        np.testing.assert_array_equal(param.value, value)


@pytest.mark.parametrize("action", [freeze, assign, regroup, add])
def test_what_is_done_to_the_net_between_steps(action, rng):
    twins = Twins(even, momentum)
    x, y = batch(rng)
    for _ in range(4):
        twins.step(x, y)
    held = twins.recorded.params()[0].value
    twins.both(action)
    for _ in range(5):
        twins.step(x, y)
    expected = {freeze: 2, assign: 2, regroup: 1, add: 2}[action]
    assert joint(twins.recorded) == expected * SWEEP
    assert (twins.recorded.params()[0].value is held) == (action is not regroup)


def test_large_parameters_are_updated_alone_and_few_wait(rng):
    def wide():
        net = small()
        for k in range(12):
            net.add(Dense(f"square{k}", 63))
        net.add(Dense("wide", 400))
        net.add(Dense("last", 5))
        return net

    twins = Twins(wide, momentum)
    for _ in range(4):
        twins.step(*batch(rng))
    # By NumPy two products, of which oneDNN makes one kernel with the rest.
    alone = [layer for name, layer in updates(twins.recorded) if name != "add" and layer]
    assert set(alone) == {"wide"}
    report = twins.recorded.programs.reports()[-1]
    sizes = [b.nbytes for b in report.buffers]
    joint = [k for k in report.kernels if k.phase == "update" and not k.layer]
    written = {buffer for kernel in joint for buffer in kernel.writes}
    assert max(sizes[b] for b in written) <= 1 << 17
    # Each sweep writes the momentum and one more: there are more than two sweeps.
    assert len(written) > 4


def test_other_batches_share_the_state_and_stay_recorded(rng):
    twins = Twins(small, lambda: Adam(lr=0.01))
    for _ in range(3):
        for count in (6, 6, 3):
            twins.step(*batch(rng, count))
    before = [array for s in twins.optimizers[0]._states.values() for array in s.arrays]
    for _ in range(3):
        for count in (6, 3):
            twins.step(*batch(rng, count))
    now = [array for s in twins.optimizers[0]._states.values() for array in s.arrays]
    assert all(one is other for one, other in zip(before, now, strict=True))
    assert len(twins.recorded.programs.reports()) == 2


def test_an_update_of_one_parameter_alone_parts_it_from_the_others(rng):
    twins = Twins(small, lambda: Adam(lr=0.01))
    x, y = batch(rng)
    for _ in range(4):
        twins.step(x, y)
    twins.both(
        lambda net, optimizer: optimizer.update(
            ["one/bias"], [net.params()[1].value], [np.ones(16, np.float32)]
        )
    )
    for _ in range(6):
        twins.step(x, y)
    # At its own count of steps it has numbers of its own.
    assert ("multiply", "one") in updates(twins.recorded)


def test_state_that_was_saved_loaded_or_copied_goes_on(rng):
    twins = Twins(small, momentum)
    x, y = batch(rng)
    for _ in range(4):
        twins.step(x, y)
    saved = twins.optimizers[0].state_dict()
    for _ in range(2):
        twins.step(x, y)
    twins.both(lambda net, optimizer: optimizer.load_state_dict(saved))
    for _ in range(4):
        twins.step(x, y)
    twins.optimizers = tuple(copy.deepcopy(optimizer) for optimizer in twins.optimizers)
    for _ in range(4):
        twins.step(x, y)


class Twice(Layer):
    """x a + x b, whose two parameters have one gradient in common."""

    pure = True

    def setup(self, in_shapes):
        self.add_param("a", in_shapes)
        self.add_param("b", in_shapes)
        return in_shapes

    def forward(self, ctx, x):
        ctx.save(x=x)
        return x * (ctx.params["a"] + ctx.params["b"])

    def backward(self, ctx, dy):
        grad = ctx.ops.sum(dy * ctx.saved["x"], axis=0)
        return dy * (ctx.params["a"] + ctx.params["b"]), {"a": grad, "b": grad}


@pytest.mark.parametrize("make", [momentum, lambda: SGD(lr=0.1, weight_decay=0.1)])
def test_a_gradient_of_two_parameters(make, rng):
    def shared():
        net = small()
        net.add(Twice("twice"))
        return net

    twins = Twins(shared, make)
    for _ in range(5):
        twins.step(*batch(rng))
    assert twins.recorded.programs.reports()


@pytest.mark.parametrize("kind", ["F", "gaps"])
def test_parameters_that_are_not_dense_are_updated_alone(kind, rng):
    def laid():
        net = small()
        param = net.params()[0]
        value = param.value
        param.value = np.asfortranarray(value) if kind == "F" else np.repeat(value, 2, 1)[:, ::2]
        return net

    twins = Twins(laid, momentum)
    for _ in range(5):
        twins.step(*batch(rng))
    assert ("multiply", "one") in updates(twins.recorded)
