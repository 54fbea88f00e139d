"""Freezing: what runs as in evaluation, what is kept, what is trained."""

import re

import numpy as np
import pytest

from singanet.errors import ArgumentError, CallOrderError, UnknownNameError
from singanet.layers import (
    Activation,
    BatchNormalization,
    Conv2D,
    Dense,
    Dropout,
    Dummy,
    Embedding,
    Flatten,
    Input,
    Merge,
    TimeDistributed,
)
from singanet.layers.layer import Layer
from singanet.net import FeedForwardNet
from singanet.testing import check_net_gradients


def trunk_and_head(seed=0):
    """conv - bn - drop - flat - fc1 - relu - fc2"""
    net = FeedForwardNet(seed=seed)
    net.add(Conv2D("conv", 2, 3, input_sample_shape=(1, 4, 4)))
    net.add(BatchNormalization("bn"))
    net.add(Dropout("drop", 0.5))
    net.add(Flatten("flat"))
    net.add(Dense("fc1", 5))
    net.add(Activation("relu"))
    net.add(Dense("fc2", 3))
    return net


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
    state = {
        name: value.copy()
        for name, value in zip(net.param_names(), net.param_values(), strict=True)
    }
    evaluated = net.forward(False, images(), output="flat")["flat"]
    net.freeze("fc1")
    assert net.frozen() == ["conv", "bn", "drop", "flat"]
    outputs = net.forward(True, images(), output="flat")
    # Neither dropped out nor normalised by the batch.
    np.testing.assert_array_equal(outputs["flat"], evaluated)
    items = [(item.layer, item.names) for item in net.backward(np.ones_like(outputs["fc2"]))]
    assert items == [
        ("fc2", ["fc2/weight", "fc2/bias"]), ("relu", []), ("fc1", ["fc1/weight", "fc1/bias"])
    ]  # fmt: skip
    for name, value in zip(net.param_names(), net.param_values(), strict=True):
        np.testing.assert_array_equal(value, state[name])


def test_the_walk_ends_after_the_layer_itself_when_nothing_else_is_asked():
    net = trunk_and_head()
    net.freeze(net["fc1"])
    y = net.forward(True, images())
    assert [item.layer for item in net.backward(np.ones_like(y))] == ["fc2", "relu", "fc1"]


def test_the_gradients_of_what_is_left_are_right():
    net = trunk_and_head()
    net.freeze("fc1")
    grads = train(net)
    assert grads["conv/weight"] is None
    assert grads["bn/gamma"] is None
    x = net.forward(False, images(), output="flat")["flat"]
    head = FeedForwardNet(seed=0)
    head.add(Dense("fc1", 5, W_specs=net["fc1"].params["weight"],
                   b_specs=net["fc1"].params["bias"], input_sample_shape=(32,)))  # fmt: skip
    head.add(Activation("relu"))
    head.add(Dense("fc2", 3, W_specs=net["fc2"].params["weight"],
                   b_specs=net["fc2"].params["bias"]))  # fmt: skip
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


def watched(log, **given):
    net = FeedForwardNet(seed=0)
    net.add(Watch("a", log, input_sample_shape=(2,)))
    net.add(Watch("b", log))
    net.add(Watch("c", log))
    return net


def test_frozen_layers_keep_nothing():
    log = []
    net = watched(log)
    net.freeze("c")
    net.forward(True, np.ones((1, 2)))
    assert log == [("a", False, False), ("b", False, False), ("c", True, True)]


def test_untrained_layers_below_the_trained_ones_train_on_but_keep_nothing():
    log = []
    net = watched(log)
    net["a"].trainable = net["b"].trainable = False
    net.forward(True, np.ones((1, 2)))
    assert log == [("a", True, False), ("b", True, False), ("c", True, True)]


def test_untrained_layers_above_trained_ones_keep_what_the_gradient_needs():
    log = []
    net = watched(log)
    net["b"].trainable = net["c"].trainable = False
    net.forward(True, np.ones((1, 2)))
    assert [keep for _, _, keep in log] == [True, True, True]


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
    items = list(net.backward(np.ones_like(y), output="flat"))
    assert items[-1].output_grads["flat"].shape == (6, 32)


@pytest.mark.parametrize("how", ["frozen", "untrained"])
def test_asking_only_backward_for_what_was_not_kept_is_an_error_that_spends_nothing(how):
    net = trunk_and_head()
    if how == "frozen":
        net.freeze("fc1")
    else:
        net["conv"].trainable = net["bn"].trainable = False
    y = net.forward(True, images())
    with pytest.raises(CallOrderError, match=r"layer 'bn': .*output of forward too"):
        net.backward(np.ones_like(y), output="conv")
    assert len(list(net.backward(np.ones_like(y)))) == 3


def test_an_input_gradient_needs_no_announcement_where_nothing_has_parameters():
    net = FeedForwardNet(seed=0)
    net.add(Dummy("x", input_sample_shape=(2,)))
    net.add(Activation("tanh", "tanh"))
    net.add(Dense("fc", 1))
    y = net.forward(True, np.zeros((1, 2)))
    *_, item = net.backward(np.ones_like(y), output="x")
    np.testing.assert_array_equal(item.output_grads["x"], net["fc"].params["weight"].value.T)


def test_a_layer_trained_only_since_the_forward_is_an_error():
    net = trunk_and_head()
    net["conv"].trainable = net["bn"].trainable = False
    y = net.forward(True, images())
    net["conv"].trainable = True
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
    assert (
        {n for n, g in train(net).items() if g is None}
        == {n for n, g in everything.items() if g is None}
        == {"bn/mean", "bn/var"}
    )


def test_freezing_between_forward_and_backward_concerns_the_next_forward():
    net = trunk_and_head()
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
    left = Dense("left", 2)(x)
    right = Dense("right", 2)(x)
    low = Dense("low", 2)(left)
    net = FeedForwardNet(inputs=x, outputs=Merge("sum")(low, right), seed=0)
    net.freeze("low")
    assert net.frozen() == ["x", "left"]
    grads = train(net, rng.standard_normal((4, 3)))
    assert {name for name, grad in grads.items() if grad is None} == {"left/weight", "left/bias"}
    assert np.abs(grads["right/weight"]).max() > 0


def test_a_shared_parameter_is_trained_by_its_unfrozen_uses_alone():
    net = FeedForwardNet(seed=0)
    words = Embedding("words", 6, 3, input_sample_shape=(2,))
    words.get_output_sample_shape()
    net.add(words)
    net.add(Flatten("flat"))
    net.add(Dense("middle", 3))
    scores = Dense("scores", 6, W_specs=words.params["weight"], W_transpose=True)
    net.add(scores)
    x = np.array([[1, 5], [5, 0]])
    net.freeze("middle")
    middle = net.forward(False, x, output="middle")["middle"]
    y = net.forward(True, x)
    dy = np.arange(y.size, dtype=np.float32).reshape(y.shape)
    items = [item for item in net.backward(dy) if item.names]
    assert [item.names for item in items] == [
        ["words/weight", "scores/bias"],
        ["middle/weight", "middle/bias"],
    ]
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
    net = FeedForwardNet(seed=0)
    layer = Dense("fc", 3, input_sample_shape=(2,))
    layer.trainable = False
    wrapper = TimeDistributed("steps", Dense("inner", 3), input_sample_shape=(4, 2))
    wrapper.trainable = False
    norm = BatchNormalization("bn")
    norm.trainable = True
    net.add(layer)
    net.add(norm)
    net.add(wrapper, src=[])
    assert not layer.trainable
    assert not wrapper.trainable
    assert [param.trainable for param in norm.params.values()] == [True, True, False, False]


def test_numerical_gradients_with_a_frozen_trunk(rng):
    net = FeedForwardNet(seed=0)
    net.add(Dense("fc1", 4, input_sample_shape=(3,)))
    net.add(Activation("tanh", "tanh"))
    net.add(Dense("fc2", 2))
    net["fc1"].trainable = False
    check_net_gradients(net, rng.standard_normal((5, 3)))
