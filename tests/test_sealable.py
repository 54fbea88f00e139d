"""Sealed nets: parameters held constant, and what is refused meanwhile."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import singanet
from singanet import Input, models
from singanet.errors import CallOrderError
from singanet.layers import (
    LSTM,
    Activation,
    Add,
    BatchNormalization,
    Conv2D,
    Dense,
    DepthwiseConv2D,
    Embedding,
    Flatten,
    Layer,
    MaxPooling2D,
)
from singanet.loss import SigmoidCrossEntropy, SoftmaxCrossEntropy
from singanet.optimizer import SGD


def small_net():
    net = singanet.FeedForwardNet(SoftmaxCrossEntropy(), seed=1)
    net.add(Dense("one", 8, input_sample_shape=(5,)))
    net.add(Activation("relu"))
    net.add(Dense("two", 3))
    return net


def image_net(kind="float32"):
    """Every way in which a convolution goes on."""
    x = Input("x", (3, 12, 12))
    h = Activation("a1")(BatchNormalization("n1")(Conv2D("c1", 16, 3)(x)))
    left = BatchNormalization("n2")(Conv2D("c2", 16, 3, use_bias=False)(h))
    h = Activation("a2")(Add("s1")([left, h]))
    right = BatchNormalization("n3")(Conv2D("c3", 16, 1)(h))
    left = BatchNormalization("n4")(Conv2D("c4", 16, 3, groups=4)(h))
    h = Add("s2")([right, left])
    h = Activation("a3")(Conv2D("c5", 32, 3, stride=2)(h))
    h = Activation("a4", "tanh")(Conv2D("c6", 8, 3)(h))
    h = MaxPooling2D("p", 2, 2)(BatchNormalization("n5")(h))
    y = Dense("out", 4)(Flatten("f")(h))
    net = singanet.FeedForwardNet(SoftmaxCrossEntropy(), inputs=x, outputs=y, seed=2)
    net.as_type(kind)
    stir(net)
    return net


def stir(net):
    """Running statistics and scales as after a training."""
    rng = np.random.default_rng(5)
    for param in net.params():
        if param.name.endswith(("gamma", "var")):
            param.value[...] = rng.uniform(0.5, 2.0, param.shape)
        elif param.name.endswith(("beta", "mean", "bias")):
            param.value[...] = rng.normal(0.0, 0.3, param.shape)


def images(n=3, seed=0, kind=np.float32):
    return np.random.default_rng(seed).standard_normal((n, 3, 12, 12)).astype(kind)


def rows(n=4, seed=0):
    return np.random.default_rng(seed).standard_normal((n, 5)).astype(np.float32)


def by_layers(net, x):
    """The output as the layers give it with the parameters of now."""
    twin = copy.deepcopy(net)
    twin.unseal()
    twin.programs.enabled = False
    return twin.forward(False, x)


def close(got, wanted):
    assert got.dtype == wanted.dtype
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5 * abs(wanted).max())


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_predictions_are_those_of_the_layers(batch):
    net = image_net()
    wanted = by_layers(net, images(batch))
    net.seal()
    for _ in range(3):
        close(net.forward(False, images(batch)), wanted)


def test_in_double_precision_only_rounding_differs():
    net = image_net("float64")
    x = images(2, kind=np.float64)
    wanted = by_layers(net, x)
    net.seal()
    np.testing.assert_allclose(net.forward(False, x), wanted, rtol=1e-11, atol=1e-12)


def test_all_calls_give_the_same_bits():
    net = image_net()
    net.seal()
    first, other, again = (net.forward(False, images(2, seed)) for seed in (0, 1, 0))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    np.testing.assert_array_equal(net.record(images(2)).run(images(2)), first)


def test_one_kernel_does_several_layers():
    net = image_net()
    x = images(2)
    before = {kernel.layer for kernel in net.record(x).report().kernels}
    net.seal()
    after = {kernel.layer for kernel in net.record(x).report().kernels}
    assert {"n1", "n2", "s1", "n3", "n4", "n5"} <= before
    assert {"n1", "s1", "s2", "a3"} <= after  # where the convolution before it runs
    assert not {"c1", "c2", "n2", "a1", "a2", "c5"} & after


def test_the_arrays_are_read_only_until_unsealed():
    net = small_net()
    net.seal()
    assert net.sealed
    for value in net.param_values():
        with pytest.raises(ValueError, match="read-only"):
            value -= 0.1
    net.unseal()
    assert not net.sealed
    for value in net.param_values():
        value -= 0.1


@pytest.mark.parametrize("make", [small_net, image_net])
def test_after_unsealing_changes_are_seen(make):
    net = make()
    x = rows() if make is small_net else images()
    net.seal()
    before = net.forward(False, x)
    net.unseal()
    for value in net.param_values():
        value *= 0.5
    wanted = by_layers(net, x)
    assert abs(wanted - before).max() > 1e-3
    for _ in range(3):
        np.testing.assert_array_equal(net.forward(False, x), wanted)
    net.seal()
    close(net.forward(False, x), wanted)


def change_by_flag(net):
    value = net.param_values()[0]
    value.flags.writeable = True
    value *= 2.0


def assign(net):
    param = net.params()[0]
    param.value = param.value * 2.0


def unseal_and_seal(net):
    net.unseal()
    net.param_values()[0][...] *= 2.0
    net.seal()


@pytest.mark.parametrize("change", [change_by_flag, assign, unseal_and_seal])
def test_what_was_changed_on_purpose_is_seen_and_constant_again(change):
    net = image_net()
    net.seal()
    before = net.forward(False, images())
    change(net)
    wanted = by_layers(net, images())
    assert abs(wanted - before).max() > 1e-3
    close(net.forward(False, images()), wanted)
    assert not any(value.flags.writeable for value in net.param_values())
    net.unseal()
    assert all(value.flags.writeable for value in net.param_values())


@pytest.mark.parametrize(
    "act",
    [
        lambda net, path: net.step(rows(), np.zeros(4, np.int64), SGD(lr=0.1)),
        lambda net, path: net.fit(rows(), np.zeros(4, np.int64), verbose=False),
        lambda net, path: net.forward(True, rows()),
        lambda net, path: net.train(rows(), np.zeros(4, np.int64)),
        lambda net, path: net.record(rows(), np.zeros(4, np.int64), SGD(lr=0.1)),
        lambda net, path: net.load(path),
    ],
    ids=["step", "fit", "forward", "train", "record", "load"],
)
def test_training_and_loading_are_refused(act, tmp_path):
    net = small_net()
    net.compile(SGD(lr=0.1))
    net.save(tmp_path / "net.npz")
    before = [value.copy() for value in net.param_values()]
    wanted = net.predict(rows())
    net.seal()
    with pytest.raises(CallOrderError, match=r"sealed one.*net\.unseal\(\)"):
        act(net, tmp_path / "net.npz")
    for value, old in zip(net.param_values(), before, strict=True):
        np.testing.assert_array_equal(value, old)
    close(net.predict(rows()), wanted)
    net.unseal()
    act(net, tmp_path / "net.npz")


def test_recorded_steps_go_on_after_unsealing_as_if_nothing_was():
    nets, y = (small_net(), small_net()), np.arange(4) % 3
    sgds = [SGD(lr=0.1, momentum=0.9) for _ in nets]
    for k in range(6):
        if k == 3:
            nets[0].seal()
            nets[0].predict(rows())
            nets[0].unseal()
        for net, sgd in zip(nets, sgds, strict=True):
            net.step(rows(seed=k), y, sgd)
    for one, two in zip(*(net.param_values() for net in nets), strict=True):
        np.testing.assert_array_equal(one, two)


def test_a_recorded_step_of_a_net_inside_does_not_write_through():
    """Its program has views of the arrays from before the sealing, and must not use them."""
    inner = small_net()
    inner_sgd, y = SGD(lr=0.1), np.zeros(4, np.int64)
    for _ in range(3):
        inner.step(rows(), y, inner_sgd)
    outer = singanet.FeedForwardNet(seed=0)
    for layer in inner.layers:
        outer.add(layer)
    outer.seal()
    wanted = outer.forward(False, rows())
    with pytest.raises(ValueError, match="read-only"):
        inner.step(rows(), y, inner_sgd)
    np.testing.assert_array_equal(outer.forward(False, rows()), wanted)


def test_nan_in_a_sample_shows_in_that_sample_alone():
    net = image_net()
    net.seal()
    x = images(4)
    clean = net.predict(x)
    x[2, 1, 5, 5] = np.nan
    got = net.predict(x)
    assert np.isnan(got[2]).any()
    np.testing.assert_allclose(got[[0, 1, 3]], clean[[0, 1, 3]], atol=1e-6)


def test_nan_in_a_parameter_shows():
    net = image_net()
    dict(zip(net.param_names(), net.param_values(), strict=True))["c2/weight"][0, 0] = np.nan
    net.seal()
    # oneDNN's maximum of nothing but NaN is the least number; BLAS warns of NaN.
    with np.errstate(over="ignore", invalid="ignore"):
        assert np.isnan(net.predict(images())).any(axis=1).all()


class Doubled(Layer):
    """Not said to be pure: its Python runs at each call."""

    def setup(self, in_shapes):
        return in_shapes

    def forward(self, ctx, x):
        return x + x

    def backward(self, ctx, dy):
        return dy + dy, {}


def test_layers_of_a_user_run_as_they_are():
    net = singanet.FeedForwardNet(seed=1)
    net.add(Conv2D("c1", 4, 3, input_sample_shape=(3, 12, 12)))
    net.add(Doubled("twice"))
    net.add(Conv2D("c2", 4, 3))
    net.add(BatchNormalization("n"))
    wanted = by_layers(net, images())
    net.seal()
    close(net.forward(False, images()), wanted)
    assert any("twice" in note for note in net.programs.reports()[0].notes)


def test_words():
    net = singanet.FeedForwardNet(SoftmaxCrossEntropy(), seed=1)
    net.add(Embedding("words", 11, 4, input_sample_shape=(5,)))
    net.add(LSTM("lstm", 6, return_sequences=False))
    net.add(Dense("out", 3))
    x = np.random.default_rng(0).integers(0, 11, (4, 5))
    wanted = by_layers(net, x)
    net.seal()
    close(net.forward(False, x), wanted)


def test_two_inputs_of_different_batches_are_the_layers_error():
    a, b = Input("a", (3, 6, 6)), Input("b", (4, 6, 6))
    net = singanet.FeedForwardNet(inputs=[a, b], outputs=Add("sum")([Conv2D("c", 4, 3)(a), b]))
    net.seal()
    feed = {"a": np.ones((2, 3, 6, 6), np.float32), "b": np.ones((3, 4, 6, 6), np.float32)}
    with pytest.raises(singanet.errors.ShapeError, match="sum"):
        net.forward(False, feed)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_a_copy_is_sealed_too_with_arrays_of_its_own(copied):
    net = small_net()
    net.seal()
    wanted = net.forward(False, rows())
    other = copied(net)
    net.unseal()
    net.param_values()[0][...] = 0.0
    assert other.sealed
    np.testing.assert_array_equal(other.forward(False, rows()), wanted)
    assert not any(value.flags.writeable for value in other.param_values())
    other.unseal()
    assert all(value.flags.writeable for value in other.param_values())


def test_twice_sealed_and_twice_unsealed_is_once():
    net = small_net()
    net.seal()
    net.seal()
    net.unseal()
    assert not net.sealed
    net.unseal()
    assert all(value.flags.writeable for value in net.param_values())


def test_arrays_that_were_read_only_before_stay_so():
    net = small_net()
    kept = net.param_values()[0]
    kept.flags.writeable = False
    net.seal()
    net.unseal()
    assert not kept.flags.writeable


def test_without_programs_the_layers_run():
    net = small_net()
    net.programs.enabled = False
    wanted = net.forward(False, rows())
    net.seal()
    np.testing.assert_array_equal(net.forward(False, rows()), wanted)


def test_memory_is_told_of_a_sealed_net():
    net = small_net()
    wanted = net.memory(4)
    net.seal()
    assert str(net.memory(4)) == str(wanted)


def test_a_program_by_hand_is_of_one_sealing():
    net = image_net()
    program = net.record(images())
    net.seal()
    with pytest.raises(CallOrderError, match="sealed or unsealed"):
        program.run(images())
    program = net.record(images())
    program.run(images())
    net.unseal()
    with pytest.raises(CallOrderError, match="sealed or unsealed"):
        program.run(images())
    net.param_values()[0][...] *= 2.0
    net.seal()
    with pytest.raises(CallOrderError, match="sealed or unsealed"):
        program.run(images())


def test_unsealing_gives_the_memory_back():
    net = small_net()
    net.seal()
    net.predict(rows())
    assert len(net.programs.reports()) == 1
    net.unseal()
    assert net.programs.reports() == []


def test_predictions_go_through_the_link_of_the_loss_of_now():
    net = small_net()
    net.seal()
    out = net.forward(False, rows())
    wanted = np.exp(out) / np.exp(out).sum(-1, keepdims=True)
    for _ in range(3):
        np.testing.assert_allclose(net.predict(rows()), wanted, rtol=1e-5)
    net.loss = SigmoidCrossEntropy()
    for _ in range(3):
        np.testing.assert_allclose(net.predict(rows()), 1 / (1 + np.exp(-out)), rtol=1e-5)
    net.loss = None
    for _ in range(3):
        np.testing.assert_array_equal(net.predict(rows()), out)


def test_predictions_are_the_callers_own():
    net = small_net()
    net.seal()
    first = net.predict(rows())
    kept = first.copy()
    net.predict(rows(seed=1))
    np.testing.assert_array_equal(first, kept)
    first[...] = 7.0
    np.testing.assert_array_equal(net.predict(rows()), kept)


def test_predictions_of_many_batches():
    net = image_net()
    wanted = np.concatenate([net.predict(images(5)[part]) for part in np.s_[:2, 2:4, 4:]])
    net.programs.clear()
    net.seal()
    got = net.predict(images(5), batch_size=2)
    close(got, wanted)
    assert len(net.programs.reports()) == 2


class Halved(SoftmaxCrossEntropy):
    """A link in Python of its own."""

    def link(self, x):
        return x / 2 if float(abs(x).max()) > 0 else x


def test_a_link_of_a_user_runs_as_it_is():
    net = small_net()
    net.loss = Halved()
    net.seal()
    for _ in range(3):
        np.testing.assert_array_equal(net.predict(rows()), net.forward(False, rows()) / 2)


@pytest.mark.parametrize(
    "x", [rows().astype(np.float64), np.asfortranarray(rows()), rows(7), rows(4), rows(8)[::2]]
)
def test_every_kind_of_array_after_any_other(x):
    net = small_net()
    net.seal()
    net.predict(rows())
    usual = np.ascontiguousarray(x, np.float32)
    for _ in range(2):
        np.testing.assert_allclose(net.predict(x), net.predict(usual), rtol=1e-6)


def test_several_inputs_and_bad_ones():
    a, b = Input("a", (3,)), Input("b", (3,))
    net = singanet.FeedForwardNet(inputs=[a, b], outputs=Add("sum")([Dense("d", 3)(a), b]), seed=1)
    net.seal()
    feed = {name: np.full((2, 3), k, np.float32) for k, name in enumerate("ab")}
    wanted = net.predict(feed)
    turned = {name: feed[name] for name in "ba"}
    np.testing.assert_array_equal(net.predict(turned), wanted)
    for bad in ({"a": feed["a"]}, feed["a"], {**feed, "c": feed["a"]}):
        with pytest.raises(singanet.errors.SingaNetError):
            net.predict(bad)
    with pytest.raises(singanet.errors.ShapeError):
        net.predict({"a": feed["a"], "b": np.ones((2, 4), np.float32)})
    np.testing.assert_array_equal(net.predict(feed), wanted)


@pytest.mark.parametrize("name", ["resnet20", "preresnet20", "mobilenet", "googlenet"])
def test_ready_nets(name):
    net = models.build(name, seed=0)
    stir(net)
    shape = models.find(name).input_shape
    x = np.random.default_rng(0).standard_normal((2, *shape), np.float32)
    wanted = by_layers(net, x)
    net.seal()
    close(net.forward(False, x), wanted)


@pytest.mark.parametrize("channels", [3, 16])
@pytest.mark.parametrize("multiplier", [1, 2])
def test_depthwise_convolutions(channels, multiplier):
    x = images(2) if channels == 3 else np.random.default_rng(0).standard_normal((2, 16, 12, 12))
    net = singanet.FeedForwardNet(seed=1)
    net.add(
        DepthwiseConv2D("d1", 3, depth_multiplier=multiplier, input_sample_shape=(channels, 12, 12))
    )
    net.add(BatchNormalization("n1"))
    net.add(Activation("a1"))
    net.add(DepthwiseConv2D("d2", 3, 2, use_bias=False))
    net.add(BatchNormalization("n2"))
    stir(net)
    wanted = by_layers(net, x)
    net.seal()
    close(net.forward(False, x), wanted)


@pytest.mark.parametrize("W_transpose", [False, True])
def test_fully_connected_layers(W_transpose):
    net = singanet.FeedForwardNet(seed=1)
    net.add(Dense("one", 40, W_transpose=W_transpose, input_sample_shape=(5,)))
    net.add(Activation("a1"))
    net.add(Dense("two", 30, use_bias=False))
    net.add(Activation("a2", "sigmoid"))
    net.add(Dense("three", 3))
    net.add(Activation("a3"))
    wanted = by_layers(net, rows())
    net.seal()
    close(net.forward(False, rows()), wanted)
