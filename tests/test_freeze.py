"""Freezing: what runs as in evaluation, what is kept, what is trained."""

import re

import numpy as np
import pytest

from singanet import layers as nn
from singanet.errors import ArgumentError, CallOrderError, UnknownNameError
from singanet.layers import Activation, BatchNormalization, Dense, Flatten, Input
from singanet.layers.layer import Layer
from singanet.net import FeedForwardNet
from singanet.testing import check_net_gradients
from tests.kit.nets import values_of


def trunk_and_head(seed=0):
    """conv - bn - drop - flat - fc1 - relu - fc2"""
    conv = nn.Conv2D("conv", 2, 3, input_sample_shape=(1, 4, 4))
    trunk = [conv, BatchNormalization("bn"), nn.Dropout("drop", 0.5), Flatten("flat")]
    return FeedForwardNet([*trunk, Dense("fc1", 5), Activation("relu"), Dense("fc2", 3)], seed=seed)


def images(seed=0, n=6):
    return np.random.default_rng(seed).standard_normal((n, 1, 4, 4)).astype(np.float32)


class Watch(Layer):
    """Passes its input on and writes down what its context was told, and what it was given."""

    def __init__(self, name, log, **given):
        super().__init__(name, **given)
        self.log = log

    def setup(self, in_shapes):
        self.add_param("w", (1,))
        return in_shapes

    def forward(self, ctx, x):
        self.log.append((self.name, ctx.train, ctx.keep))
        ctx.save(x=x)
        return x

    def backward(self, ctx, dy):
        return dy, {"w": np.zeros(1, dy.dtype)}


def test_layers_before_it_run_as_in_evaluation_and_backward_stops_after_it():
    net = trunk_and_head()
    state, evaluated = values_of(net), net.forward(False, images(), output="flat")["flat"]
    net.freeze("fc1")
    assert net.frozen() == ["conv", "bn", "drop", "flat"]
    outputs = net.forward(True, images(), output="flat")
    # Neither dropped out nor normalised by the batch.
    np.testing.assert_array_equal(outputs["flat"], evaluated)
    items = [(item.layer, item.names) for item in net.backward(np.ones_like(outputs["fc2"]))]
    fc1, fc2 = ((fc, [f"{fc}/weight", f"{fc}/bias"]) for fc in ("fc1", "fc2"))
    assert items == [fc2, ("relu", []), fc1]
    for name, value in values_of(net).items():
        np.testing.assert_array_equal(value, state[name])
    net = trunk_and_head()
    net.freeze(net["fc1"])
    y = net.forward(True, images())
    assert [item.layer for item in net.backward(np.ones_like(y))] == ["fc2", "relu", "fc1"]


def test_the_gradients_of_what_is_left_are_right():
    net = trunk_and_head()
    net.freeze("fc1")
    grads = train(net)
    assert grads["conv/weight"] is grads["bn/gamma"] is None
    x = net.forward(False, images(), output="flat")["flat"]
    parts = []
    for name, units in (("fc1", 5), ("fc2", 3)):
        weight, bias = net[name].params["weight"], net[name].params["bias"]
        parts += [Dense(name, units, W_specs=weight, b_specs=bias), Activation(f"r{name}")]
    parts[0].input_sample_shape = (32,)
    head = FeedForwardNet(parts[:3], seed=0)
    for names, _, values in head.backward(np.ones_like(head.forward(True, x))):
        for name, value in zip(names, values, strict=True):
            np.testing.assert_array_equal(grads[name], value)


def train(net, x=None):
    """All gradients by name for a gradient of ones, None where none came."""
    y = net.forward(True, images() if x is None else x)
    grads = dict.fromkeys(net.param_names())
    for names, _, values in net.backward(np.ones_like(y)):
        grads.update(zip(names, values, strict=True))
    return grads


def watched(log):
    watches = [Watch("a", log, input_sample_shape=(2,)), Watch("b", log), Watch("c", log)]
    return FeedForwardNet(watches, seed=0)


def untrain(*names):
    return lambda net: [setattr(net[name], "trainable", False) for name in names]


@pytest.mark.parametrize(
    ("change", "train", "keep"),
    [
        (lambda net: net.freeze("c"), [False, False, True], [False, False, True]),
        # Untrained layers train on; those above trained ones keep what the gradient needs.
        (untrain("a", "b"), [True, True, True], [False, False, True]),
        (untrain("b", "c"), [True, True, True], [True, True, True]),
    ],
)
def test_frozen_and_untrained_layers_keep_what_is_needed_alone(change, train, keep):
    log = []
    net = watched(log)
    change(net)
    net.forward(True, np.ones((1, 2)))
    assert log == [*zip("abc", train, keep, strict=True)]


def test_asking_forward_for_a_layer_keeps_the_way_down_to_it():
    log = []
    net = watched(log)
    net.freeze("c")
    y = net.forward(True, np.ones((1, 2)), output="b")
    assert log == [("a", False, False), ("b", False, True), ("c", True, True)]
    items = list(net.backward(np.ones_like(y["c"]), output="b"))
    assert [(item.layer, item.names) for item in items] == [("c", ["c/w"]), ("b", [])]
    assert items[-1].output_grads["b"].tolist() == [[1, 1]]


def test_a_gradient_at_the_border_needs_nothing_that_was_not_kept():
    net = trunk_and_head()
    net.freeze("fc1")
    y = net.forward(True, images())
    *_, item = net.backward(np.ones_like(y), output="flat")
    assert item.output_grads["flat"].shape == (6, 32)
    # Nor announcement, where nothing has parameters.
    parts = [nn.Dummy("x", input_sample_shape=(2,)), Activation("tanh", "tanh"), Dense("fc", 1)]
    net = FeedForwardNet(parts, seed=0)
    y = net.forward(True, np.zeros((1, 2)))
    *_, item = net.backward(np.ones_like(y), output="x")
    np.testing.assert_array_equal(item.output_grads["x"], net["fc"].params["weight"].value.T)


@pytest.mark.parametrize("how", ["frozen", "untrained"])
def test_asking_only_backward_for_what_was_not_kept_is_an_error_that_spends_nothing(how):
    net = trunk_and_head()
    net.freeze("fc1") if how == "frozen" else untrain("conv", "bn")(net)
    y = net.forward(True, images())
    with pytest.raises(CallOrderError, match=r"layer 'bn': .*output of forward too"):
        net.backward(np.ones_like(y), output="conv")
    assert len(list(net.backward(np.ones_like(y)))) == 3
    net = trunk_and_head()
    untrain("conv", "bn")(net)
    y = net.forward(True, images())
    net["conv"].trainable = True  # since the forward
    with pytest.raises(CallOrderError, match="layer 'conv'|layer 'bn'"):
        net.backward(np.ones_like(y))


def test_unfreeze_undoes_one_or_all():
    net = trunk_and_head()
    everything = train(net)
    net.freeze("bn")
    net.freeze("fc1")
    net.unfreeze("fc1")
    assert net.frozen() == ["conv"]
    net.freeze("fc2")
    net.unfreeze()
    assert net.frozen() == []
    for grads in (train(net), everything):
        assert {n for n, g in grads.items() if g is None} == {"bn/mean", "bn/var"}
    # Between forward and backward it concerns the next forward.
    y = net.forward(True, images())
    net.freeze("fc2")
    assert len(list(net.backward(np.ones_like(y)))) == 7


def test_layers_added_later_before_it_are_frozen_too():
    net = FeedForwardNet(seed=0)
    net.add(Dense("out", 2), src="mid")
    net.freeze("out")
    net.add(Dense("mid", 2, input_sample_shape=(2,)), src=[])
    assert net.frozen() == ["mid"]


def test_only_layers_from_which_it_can_be_reached_are_frozen(rng):
    # SINGA goes by the order of the layers, which between branches is an accident.
    x = Input("x", (3,))
    low, right = Dense("low", 2)(Dense("left", 2)(x)), Dense("right", 2)(x)
    net = FeedForwardNet(inputs=x, outputs=nn.Merge("sum")(low, right), seed=0)
    net.freeze("low")
    assert net.frozen() == ["x", "left"]
    grads = train(net, rng.standard_normal((4, 3)))
    assert {name for name, grad in grads.items() if grad is None} == {"left/weight", "left/bias"}
    assert np.abs(grads["right/weight"]).max() > 0


def test_a_shared_parameter_is_trained_by_its_unfrozen_uses_alone():
    words = nn.Embedding("words", 6, 3, input_sample_shape=(2,))
    net = FeedForwardNet([words, Flatten("flat"), Dense("middle", 3)], seed=0)
    net.add(Dense("scores", 6, W_specs=words.params["weight"], W_transpose=True))
    x = np.array([[1, 5], [5, 0]])
    net.freeze("middle")
    middle = net.forward(False, x, output="middle")["middle"]
    y = net.forward(True, x)
    dy = np.arange(y.size, dtype=np.float32).reshape(y.shape)
    items = [item for item in net.backward(dy) if item.names]
    pairs = [["words/weight", "scores/bias"], ["middle/weight", "middle/bias"]]
    assert [item.names for item in items] == pairs
    np.testing.assert_allclose(items[0].grads[0], dy.T @ middle, rtol=1e-5)


def test_the_summary_counts_frozen_parameters_as_not_trained():
    net = trunk_and_head()
    net.freeze("fc2")
    # fc2 alone: 5·3 + 3.
    assert "18 trained, 189 frozen, 4 running statistics" in net.summary(width=0)
    assert re.search(r"^fc1 .* frozen ", net.summary(width=0), re.M)


def test_unknown_layers_are_refused():
    net = trunk_and_head()
    with pytest.raises(UnknownNameError, match="did you mean 'fc1'"):
        net.freeze("fc11")
    with pytest.raises(ArgumentError, match=r"net.unfreeze: expected a layer given to freeze"):
        net.unfreeze("fc1")
    assert net.frozen() == []


def test_trainable_assigned_before_setup_holds_for_the_parameters_to_come():
    layer = Dense("fc", 3, input_sample_shape=(2,))
    wrapper = nn.TimeDistributed("steps", Dense("inner", 3), input_sample_shape=(4, 2))
    layer.trainable = wrapper.trainable = False
    norm = BatchNormalization("bn")
    norm.trainable = True
    net = FeedForwardNet([layer, norm], seed=0)
    net.add(wrapper, src=[])
    assert not layer.trainable
    assert not wrapper.trainable
    assert [param.trainable for param in norm.params.values()] == [True, True, False, False]


def test_numerical_gradients_with_a_frozen_trunk(rng):
    fc1 = Dense("fc1", 4, input_sample_shape=(3,))
    net = FeedForwardNet([fc1, Activation("tanh", "tanh"), Dense("fc2", 2)], seed=0)
    net["fc1"].trainable = False
    check_net_gradients(net, rng.standard_normal((5, 3)))
