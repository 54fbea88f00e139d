"""The numerical gradient checker: it passes what is right and names what is wrong."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest

from singanet.layers import (
    Activation,
    BatchNormalization,
    Dense,
    Dropout,
    Layer,
    Merge,
    Slice,
    Traits,
)
from singanet.loss import SoftmaxCrossEntropy
from singanet.net import FeedForwardNet
from singanet.testing import (
    GradientError,
    check_gradients,
    check_loss,
    check_net_gradients,
)


class Faulty(Dense):
    """Dense whose gradients are spoilt by ``spoil(dx, grads)``."""

    def __init__(self, name, num_output, spoil):
        super().__init__(name, num_output)
        self.spoil = spoil

    def backward(self, ctx, dy):
        return self.spoil(*super().backward(ctx, dy))


def scaled(suffix, factor):
    return lambda dx, grads: (dx, {**grads, suffix: grads[suffix] * factor})


def one_entry(dx, grads):
    weight = grads["weight"].copy()
    weight[2, 1] += 1e-4
    return dx, {**grads, "weight": weight}


SPOILT = {
    "input scaled": (lambda dx, g: (dx * 1.001, g), "input 0"),
    "input sign": (lambda dx, g: (-dx, g), "input 0"),
    "input zero": (lambda dx, g: (0.0 * dx, g), "input 0"),
    "input none": (lambda dx, g: (None, g), "input 0"),
    "input shape": (lambda dx, g: (dx[:, :-1], g), "input 0"),
    "input nan": (lambda dx, g: (dx * np.nan, g), "input 0"),
    "weight scaled": (scaled("weight", 0.999), "parameter 'weight'"),
    "weight mean for sum": (scaled("weight", 0.25), "parameter 'weight'"),
    "one weight": (one_entry, "parameter 'weight'"),
    "weight transposed": (lambda dx, g: (dx, {**g, "weight": g["weight"].T}), "parameter 'weight'"),
    "bias sign": (scaled("bias", -1.0), "parameter 'bias'"),
    "bias missing": (lambda dx, g: (dx, {"weight": g["weight"]}), "parameter 'bias'"),
    "bias summed once more": (lambda dx, g: (dx, {**g, "bias": g["bias"].sum()}),
                              "parameter 'bias'"),
}  # fmt: skip


@pytest.fixture
def x(rng):
    return rng.standard_normal((4, 5))


@pytest.mark.parametrize("fault", SPOILT)
def test_names_what_is_wrong(fault, x):
    spoil, what = SPOILT[fault]
    with pytest.raises(GradientError, match=f"layer 'fc', {what}: expected") as caught:
        check_gradients(Faulty("fc", 3, spoil), x)
    assert isinstance(caught.value, AssertionError)


def test_returns_every_comparison(x):
    rows = check_gradients(Dense("fc", 3), x, directions=2)
    assert [row.what for row in rows] == ["parameter 'weight'"] * 2 + ["parameter 'bias'"] * 2 + [
        "input 0"
    ] * 2
    assert max(row.error for row in rows) < 1e-7
    assert all(row.analytic == pytest.approx(row.numerical, rel=1e-5) for row in rows)
    assert len({row.analytic for row in rows}) == 6


def test_small_errors_pass_only_under_a_larger_tolerance(x):
    layer = Faulty("fc", 3, lambda dx, g: (dx * (1 + 1e-5), g))
    with pytest.raises(GradientError):
        check_gradients(layer, x)
    check_gradients(layer, x, tolerance=1e-4)
    assert layer.in_shapes == (5,)  # it was not set up before
    # Random draws are the same at every evaluation.
    assert max(row.error for row in check_gradients(Dropout("drop", 0.5), x)) < 1e-7


@pytest.mark.parametrize("spoil", [lambda dx, g: (dx, g), lambda dx, g: (2 * dx, g)])
def test_leaves_layer_and_input_as_they_were(spoil):
    layer = Faulty("fc", 3, spoil)
    layer.build((5,))
    before = {suffix: (p.value, p.value.copy()) for suffix, p in layer.params.items()}
    x = np.ones((2, 5), np.float32)
    with suppress(GradientError):
        check_gradients(layer, x)
    assert (x == 1).all()
    for suffix, (array, copy) in before.items():
        assert layer.params[suffix].value is array
        np.testing.assert_array_equal(array, copy)


def test_running_state_is_the_same_at_every_evaluation_and_after(x):
    layer = BatchNormalization("bn")
    layer.build((5,))
    for train in (True, False):
        rows = check_gradients(layer, x, train=train)
        assert {row.what for row in rows} == {"parameter 'gamma'", "parameter 'beta'", "input 0"}
    assert layer.params["mean"].value.tolist() == [0.0] * 5
    assert layer.params["var"].value.tolist() == [1.0] * 5


def test_frozen_parameters_are_not_asked_for(x):
    layer = Faulty("fc", 3, lambda dx, grads: (dx, {}))
    layer.build((5,))
    layer.trainable = False
    assert {row.what for row in check_gradients(layer, x)} == {"input 0"}


def test_each_of_several_inputs_and_outputs_counts(x):
    class OneSided(Merge):
        def backward(self, ctx, dy):
            return [dy, 0.5 * dy], {}

    class Forgetful(Slice):
        def backward(self, ctx, dy):
            return super().backward(ctx, [dy[0], 0.0 * dy[1]])

    assert {row.what for row in check_gradients(Merge("sum"), [x, x])} == {"input 0", "input 1"}
    check_gradients(Slice("cut", 1, [2]), x)
    for layer, given, words in (
        (OneSided("sum"), [x, x], "layer 'sum', input 1"),
        (Forgetful("cut", 1, [2]), x, "layer 'cut', input 0"),
    ):
        with pytest.raises(GradientError, match=words):
            check_gradients(layer, given)


def test_integer_inputs_have_no_gradient():
    class Pick(Layer):
        traits = Traits(input_kinds=("integers",))

        def setup(self, in_shapes):
            self.add_param("table", (4, 2), fans=(4, 2))
            return (*in_shapes, 2)

        def forward(self, ctx, x):
            ctx.save(x=x)
            return ctx.params["table"][x]

        def backward(self, ctx, dy):
            grad = np.zeros((4, 2), dy.dtype)
            np.add.at(grad, ctx.saved["x"], dy)
            return None, {"table": grad}

    rows = check_gradients(Pick("pick"), np.array([[0, 3, 3]]))
    assert {row.what for row in rows} == {"parameter 'table'"}


def make_net(spoil):
    net = FeedForwardNet(seed=3)
    net.add(Dense("a", 4, input_sample_shape=(5,)))
    net.add(Activation("act", "tanh"))
    net.add(Faulty("b", 2, spoil))
    return net


def test_a_net_passes_and_is_left_as_it_was(x):
    net = make_net(lambda dx, g: (dx, g))
    before = [value.copy() for value in net.param_values()]
    state = net.rng.bit_generator.state
    rows = check_net_gradients(net, x)
    assert {row.what for row in rows} == set(net.param_names())
    assert max(row.error for row in rows) < 1e-6
    assert net.dtype == np.float32
    assert net.rng.bit_generator.state == state
    for value, old in zip(net.param_values(), before, strict=True):
        assert value.dtype == np.float32
        np.testing.assert_array_equal(value, old)


def test_a_fault_inside_a_net_shows_in_the_parameters_below(x):
    net = make_net(lambda dx, g: (1.01 * dx, g))
    with pytest.raises(GradientError, match=r"net, a/(weight|bias): expected"):
        check_net_gradients(net, x)
    assert net.dtype == np.float32
    with pytest.raises(GradientError, match="net, b/bias"):
        check_net_gradients(make_net(scaled("bias", 1.5)), x)


def test_a_net_of_several_outputs(x):
    net = FeedForwardNet(seed=3)
    trunk = net.add(Dense("trunk", 4, input_sample_shape=(5,)))
    net.add(Dense("left", 2), src=trunk)
    net.add(Dense("right", 3), src=trunk)
    rows = check_net_gradients(net, x)
    assert {row.what for row in rows} == set(net.param_names())


class Spoilt(SoftmaxCrossEntropy):
    def gradient(self, ops, saved):
        return 1.001 * super().gradient(ops, saved)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_gradient_of_a_loss(reduction):
    """Whatever it is divided by, and with labels that do not count."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 3, 4)).astype("f4"), rng.integers(-1, 4, (40, 3))
    before, more = x.copy(), {"ignore_index": -1, "reduction": reduction}
    rows = check_loss(SoftmaxCrossEntropy(**more), x, y, directions=2)
    assert [row.what for row in rows] == ["outputs"] * 2
    assert max(row.error for row in rows) < 1e-6
    np.testing.assert_array_equal(x, before)
    with pytest.raises(GradientError, match="loss Spoilt, outputs: expected the numerical slope"):
        check_loss(Spoilt(**more), x, y)
