"""TimeDistributed."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.errors import ArgumentError, ShapeError
from singanet.layers import (
    BatchNormalization,
    Conv1D,
    Conv2D,
    Dense,
    Dropout,
    Dummy,
    Embedding,
    Flatten,
    Merge,
    Slice,
    TimeDistributed,
)
from singanet.net import FeedForwardNet
from singanet.testing import LayerCase, check_net_gradients
from singanet.types import RowSparse
from tests.kit.layers import case, cases


def each(make, shape, expected):
    return case(lambda: TimeDistributed("steps", make()), shape, expected)


def normed(p, x):
    return p["gamma"] * (x - p["mean"]) / np.sqrt(p["var"] + 1e-5) + p["beta"]


CASES = {
    "Dense": each(lambda: Dense("fc", 3), (4, 5), lambda p, x:
                  np.einsum("ntd,do->nto", x, p["weight"]) + p["bias"]),
    "images": each(lambda: Conv2D("conv", 2, 3, border_mode="valid", use_bias=False), (2, 1, 3, 3),
                   lambda p, x: np.einsum("ntcp,fp->ntf", x.reshape(len(x), 2, 1, 9), p["weight"])
                   [..., None, None]),
    # Running statistics of the wrapped layer are the wrapper's.
    "state": each(lambda: BatchNormalization("bn"), (4, 5), normed),
    # Steps without axes of their own.
    "numbers": each(lambda: Dummy("same"), (4,), lambda p, x: x),
}  # fmt: skip


@cases(CASES)
def test_layer(case, xp):
    case.test_layer(xp)


def test_parameters_are_the_layers_own():
    layer = Dense("fc", 3)
    wrapper = TimeDistributed("steps", layer, input_sample_shape=(4, 5))
    assert wrapper.get_output_sample_shape() == (4, 3)
    assert wrapper.param_names() == ["fc/weight", "fc/bias"]
    assert wrapper.params["weight"] is layer.params["weight"]


def test_a_layer_shared_with_the_net_is_trained_once(rng):
    net = FeedForwardNet(seed=0)
    layer = Dense("fc", 4)
    net.add(TimeDistributed("steps", layer, input_sample_shape=(3, 4)))
    net.add(Slice("cut", 1, [1]))
    net.add(Flatten("first"), src="cut")
    net.add(Flatten("rest"), src="cut")
    net.add(layer, src="first")
    net.add(Dense("fold", 4), src="rest")
    net.add(Merge("sum"), src=["fc", "fold"])
    x = rng.standard_normal((2, 3, 4))
    check_net_gradients(net, x)
    y = net.forward(True, x)
    names = [name for item in net.backward(np.ones_like(y)) for name in item.names]
    assert sorted(names) == ["fc/bias", "fc/weight", "fold/bias", "fold/weight"]


def test_indices_reach_a_wrapped_embedding():
    net = FeedForwardNet(seed=0)
    net.add(Dummy("words", input_sample_shape=(3, 2)))
    net.add(TimeDistributed("steps", Embedding("table", 2**24 + 2, 1)))
    net.forward(True, np.full((1, 3, 2), 2**24 + 1))
    (item, _) = list(net.backward(np.ones((1, 3, 2, 1), np.float32), output="words"))
    assert isinstance(item.grads[0], RowSparse)
    assert item.grads[0].indices.tolist() == [2**24 + 1]
    assert item.grads[0].rows.tolist() == [[6.0]]


def test_random_draws_differ_from_step_to_step():
    layer = TimeDistributed("steps", Dropout("drop"), input_sample_shape=(2, 50))
    layer.get_output_sample_shape()
    _, y = LayerCase().run(layer, np.ones((1, 2, 50), np.float32), train=True)
    assert (y[0, 0] != y[0, 1]).any()


def test_refuses_what_it_cannot_wrap():
    with pytest.raises(ArgumentError, match=r"'steps', argument layer: expected a Layer"):
        TimeDistributed("steps", "fc")
    with pytest.raises(ShapeError, match=r"'steps': expected samples of shape \(steps"):
        TimeDistributed("steps", Dense("fc", 3)).build(())
    with pytest.raises(ShapeError, match=r"'conv': expected .*\(channels, length\)"):
        TimeDistributed("steps", Conv1D("conv", 3)).build((4, 5, 6, 7))
    cut = Slice("cut", 1, [1])
    with pytest.raises(ShapeError, match=r"'steps': expected a layer of one output"):
        TimeDistributed("steps", cut).build((4, 5))
    assert cut.out_shapes is None


@pytest.mark.parametrize("built_before", [False, True])
def test_an_add_that_fails_leaves_the_wrapped_layer_as_it_was(built_before):
    net = FeedForwardNet(seed=0)
    layer = Dense("fc", 3, input_sample_shape=(4,) if built_before else None)
    net.add(TimeDistributed("steps", layer), src="x")
    net.add(Conv2D("late", 2), src="x")
    with pytest.raises(ShapeError, match="'late'"):
        net.add(Dummy("x", input_sample_shape=(2, 4)), src=[])
    assert layer.out_shapes == ((3,) if built_before else None)
    assert list(layer.params) == (["weight", "bias"] if built_before else [])
