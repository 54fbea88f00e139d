"""Nets drawn with symbols."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.errors import ArgumentError, DataError, GraphError, ShapeError
from singanet.layers import (
    Add,
    Concat,
    Dense,
    Embedding,
    Flatten,
    Input,
    Layer,
    Merge,
    Slice,
    StopGradient,
    TimeDistributed,
    Traits,
)
from singanet.net import FeedForwardNet
from singanet.testing import check_net_gradients


def test_a_chain_of_calls_is_a_net():
    image = Input("image", (1, 4, 4))
    y = Dense("fc", 10)(Flatten("flat")(image))
    assert y.shape == (10,)
    net = FeedForwardNet(inputs=image, outputs=y, seed=0)
    assert [layer.name for layer in net.layers] == ["image", "flat", "fc"]
    x = np.random.default_rng(0).random((3, 1, 4, 4), np.float32)
    by_array = net.forward(False, x)
    np.testing.assert_array_equal(by_array, net.forward(False, {"image": x}))
    weight, bias = net.param_values()
    np.testing.assert_allclose(by_array, x.reshape(3, 16) @ weight + bias, rtol=1e-6)


def test_a_layer_with_several_outputs_returns_a_tuple():
    x = Input("x", (5,))
    head, tail = Slice("cut", 1, [2])(x)
    assert (head.shape, tail.shape) == ((2,), (3,))
    net = FeedForwardNet(inputs=x, outputs=Concat("swap", 1)(tail, head))
    y = net.forward(False, np.arange(5, dtype=np.float32)[None])
    assert y.tolist() == [[2, 3, 4, 0, 1]]


def test_inputs_may_stand_in_a_list_or_as_arguments():
    a, b = Input("a", (2,)), Input("b", (2,))
    assert Merge("m1")([a, b]).shape == Merge("m2")(a, b).shape == (2,)


def test_a_layer_called_twice_shares_its_parameters():
    left, right = Input("left", (3,)), Input("right", (3,))
    fc = Dense("fc", 2)
    net = FeedForwardNet(inputs=[left, right], outputs=Concat("both", 1)(fc(left), fc(right)))
    assert net.param_names() == ["fc/weight", "fc/bias"]
    rng = np.random.default_rng(1)
    x = {name: rng.standard_normal((4, 3)).astype(np.float32) for name in ("left", "right")}
    y = net.forward(True, x)
    dy = rng.standard_normal(y.shape).astype(np.float32)
    items = [item for item in net.backward(dy) if item.names]
    assert len(items) == 1
    by_hand = x["left"].T @ dy[:, :2] + x["right"].T @ dy[:, 2:]
    np.testing.assert_allclose(items[0].grads[0], by_hand, rtol=1e-5)
    check_net_gradients(net, x)


def test_a_shared_layer_refuses_another_shape():
    fc = Dense("fc", 2)
    fc(Input("a", (3,)))
    with pytest.raises(ShapeError, match=r"layer 'fc'.*\(3,\).*\(4,\)"):
        fc(Input("b", (4,)))


def test_several_outputs_come_as_a_dict():
    x = Input("x", (3,))
    net = FeedForwardNet(inputs=x, outputs=[Dense("a", 2)(x), Dense("b", 1)(x)])
    y = net.forward(True, np.ones((2, 3), np.float32))
    assert {name: part.shape for name, part in y.items()} == {"a": (2, 2), "b": (2, 1)}


def test_arrays_are_refused():
    with pytest.raises(ArgumentError, match="layer 'fc': expected symbols.*ndarray"):
        Dense("fc", 2)(np.zeros((2, 3)))
    with pytest.raises(ArgumentError, match="at least one symbol"):
        Dense("fc", 2)()


def test_inputs_must_be_exactly_those_needed():
    a, b = Input("a", (2,)), Input("b", (2,))
    y = Merge("m")(a, b)
    with pytest.raises(GraphError, match=r"inputs=\[a, b\].*inputs=\[a\]"):
        FeedForwardNet(inputs=a, outputs=y)
    with pytest.raises(GraphError, match=r"inputs=\[a\].*inputs=\[a, b\]"):
        FeedForwardNet(inputs=[a, b], outputs=Dense("fc", 1)(a))


def test_two_layers_of_one_name_are_refused():
    x = Input("x", (2,))
    y = Dense("fc", 2)(Dense("fc", 2)(x))
    with pytest.raises(GraphError, match="layer 'fc'"):
        FeedForwardNet(inputs=x, outputs=y)


class Chosen(Layer):
    """The rows of (T, F) that the first input says."""

    traits = Traits(input_kinds=("integers", "floats"))

    def setup(self, in_shapes):
        indices, rows = in_shapes
        return (*indices, rows[1])

    def forward(self, ctx, x):
        indices, rows = x
        ctx.save(indices=indices, shape=rows.shape)
        return np.take_along_axis(rows, indices[:, :, None], 1)

    def backward(self, ctx, dy):
        dx = np.zeros(ctx.saved["shape"], dy.dtype)
        np.add.at(dx, (np.arange(len(dy))[:, None], ctx.saved["indices"]), dy)
        return [None, dx], {}


@pytest.mark.parametrize("dtype", [None, "int32"])
def test_one_input_of_a_layer_is_of_integers(dtype):
    """Also where they come by layers that only move them, and from an input without a type."""
    where, rows = Input("where", (1, 2), dtype), Input("rows", (5, 3))
    indices = Flatten("flat")(where)
    y = Chosen("chosen")(indices, TimeDistributed("each", Dense("fc", 4))(rows))
    net = FeedForwardNet(inputs=[where, rows], outputs=y, seed=0)
    net.as_type("float64")
    rng = np.random.default_rng(0)
    feed = {"where": np.array([[[4, 0]], [[1, 1]]]).astype("int32")}
    feed["rows"] = rng.standard_normal((2, 5, 3))
    weight, bias = net.param_values()
    wanted = (feed["rows"] @ weight + bias)[[[0], [1]], feed["where"][:, 0]]
    np.testing.assert_allclose(net.forward(False, feed), wanted, rtol=1e-12)
    check_net_gradients(net, feed)
    dy = rng.standard_normal((2, 2, 4))
    found = net.gradients("chosen", ["rows"], feed, dys=dy)["rows"]
    assert found.shape == (2, 5, 3)
    assert found.any()
    for name in ("where", "flat"):
        with pytest.raises(DataError, match="indices, which are integers"):
            net.gradients("chosen", [name], feed, dys=dy)
    assert "chosen" in net.summary(batch_size=2)


def test_kinds_that_do_not_fit_are_refused_when_drawn():
    whole, plain = Input("whole", (2,), "int64"), Input("plain", (2, 3))
    computed = Dense("fc", 2)(Input("x", (3,)))
    for draw, words in (
        (lambda: Dense("it", 1)(whole), "floats to compute with; received outputs of 'whole'"),
        (lambda: Add("it")(computed, whole), "input 1: expected floats"),
        (lambda: Embedding("it", 3, 2)(computed), "whole numbers or booleans; received .* 'fc'"),
        (lambda: Chosen("it")(computed, plain), "input 0: expected whole numbers"),
        (lambda: Concat("it", 1)(whole, computed), "input 0: expected floats"),
        (lambda: Dense("it", 1)(Flatten("flat")(whole)), "floats to compute with"),
    ):
        with pytest.raises(ArgumentError, match=f"layer 'it'.*{words}"):
            draw()
    assert StopGradient("kept")(whole).kind == Flatten("flat")(whole).kind == "integers"
    assert Concat("both", 1)(Input("open", (2,)), whole).kind == "integers"
