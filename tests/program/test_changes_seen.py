"""What a recorded step takes for granted changes: it goes on as a step by the layers does.

The numbers are those of the findings that the tests come from.
"""

from __future__ import annotations

import numpy as np
import pytest

import singanet
from singanet import Input
from singanet.layers import (
    Activation,
    Add,
    BatchNormalization,
    Conv2D,
    Dense,
    Flatten,
    LayerNorm,
)
from singanet.loss import Huber, MultiLoss, SoftmaxCrossEntropy, SquaredError
from singanet.optimizer import SGD, Adam, L2Regularizer, MaxNorm
from singanet.training.callbacks import Callback

from .twins import Twins, expect_items_same
from .user_parts import Follows, Gain, Pulled, PureGain, Weighed


def sgd():
    return SGD(lr=0.1, momentum=0.9)


def dense_net(*parts):
    net = singanet.FeedForwardNet(SquaredError(), seed=2)
    net.add(Dense("one", 6, input_sample_shape=(5,)))
    net.add(LayerNorm("norm"))
    net.add(Activation("tanh", "tanh"))
    for part in parts:
        net.add(part())
    net.add(Dense("out", 3))
    return net


def image_net(depth=2):
    """Four deep there is something that "cheap" drops."""
    net = singanet.FeedForwardNet(SoftmaxCrossEntropy(), seed=3)
    for k in range(1, 1 + depth):
        net.add(Conv2D(f"conv{k}", 4, 3, input_sample_shape=(2, 6, 6) if k == 1 else None))
        net.add(BatchNormalization(f"norm{k}"))
        net.add(Activation(f"relu{k}"))
    net.add(Flatten("flat"))
    net.add(Dense("out", 3))
    return net


def two_headed_net():
    x = Input("x", (5,))
    h = Activation("tanh", "tanh")(Dense("body", 6)(x))
    loss = MultiLoss({"a": SquaredError(), "b": SoftmaxCrossEntropy()}, {"b": 0.5})
    return singanet.FeedForwardNet(
        loss, inputs=x, outputs=[Dense("a", 2)(h), Dense("b", 3)(h)], seed=4
    )


def two_headed_batch(rng):
    x = rng.standard_normal((4, 5)).astype(np.float32)
    return x, {"a": rng.standard_normal((4, 2)).astype(np.float32), "b": rng.integers(0, 3, 4)}


def vectors(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def param(net, name):
    return next(param for param in net.params() if param.name == name)


# -- losses (03) ----------------------------------------------------------------------------


def other_weights(net):
    net.loss.weights = {"a": 0.25, "b": 2.0}


def weights_in_place(net):
    net.loss.weights["b"] = 0.0


def other_losses(net):
    net.loss.losses = {**net.loss.losses, "a": Huber()}


def losses_in_place(net):
    net.loss.losses["a"] = Huber()


def smoothing_of_one(net):
    net.loss.losses["b"].label_smoothing = 0.3


CHANGES = [other_weights, weights_in_place, other_losses, losses_in_place, smoothing_of_one]


@pytest.mark.parametrize("change", CHANGES)
def test_changes_of_several_losses(change, placed, rng):
    twins = Twins(lambda: placed(two_headed_net()), sgd)
    for number in range(10):
        if number == 4:
            twins.both(lambda net, _: change(net))
        twins.step(*two_headed_batch(rng))


def test_weights_of_losses_annealed_in_fit(placed, rng):
    class Annealed(Callback):
        def on_epoch_end(self, epoch, logs):
            self.net.loss.weights = {"a": 1 / (2 + epoch), "b": 0.5 * epoch}

    x, y = two_headed_batch(rng)
    twins = Twins(lambda: placed(two_headed_net()), sgd)

    def fit(net, optimizer):
        annealed = Annealed()
        annealed.net = net
        net.compile(optimizer)
        return net.fit(x, y, 2, 5, callbacks=[annealed], shuffle=False, verbose=False)["loss"]

    one, two = twins.both(fit)
    assert one == two
    twins.expect_equal()


def test_an_attribute_of_the_users_loss(placed, rng):
    def make():
        net = dense_net()
        net.loss = Weighed()
        return placed(net)

    twins = Twins(make, sgd)
    for number in range(9):
        if number == 4:
            for net in twins.nets:
                net.loss.factor = 3.0
        twins.step(vectors(rng, 4, 5), vectors(rng, 4, 3))


# -- attributes of layers, inside of nested nets too ----------------------------------------


@pytest.mark.parametrize("kind", [Gain, PureGain])
@pytest.mark.parametrize("nested", [False, True])
def test_an_attribute_of_the_users_layer(kind, nested, placed, rng):
    def make():
        if not nested:
            return placed(dense_net(lambda: kind("gain")))
        inner = singanet.FeedForwardNet([Dense("d", 6), kind("gain")], name="inner")
        return placed(dense_net(lambda: inner))

    twins = Twins(make, sgd)
    for number in range(10):
        if number in (4, 7):
            for net in twins.nets:
                gain = next(layer for layer in net.layers if isinstance(layer, kind))
                gain.gain = 1 + number / 4
        twins.step(vectors(rng, 4, 5), vectors(rng, 4, 3))


# -- optimizers (09) ------------------------------------------------------------------------


def nesterov_off(optimizer):
    optimizer.nesterov = False


def other_momentum(optimizer):
    optimizer.momentum = 0.5


def other_rate(optimizer):
    optimizer.lr = lambda step: 0.3 / (1 + step)


def other_centre(optimizer):
    optimizer.regularizer.centre = 0.7


def other_coefficient(optimizer):
    optimizer.regularizer.coefficient = 0.4


def other_regularizer(optimizer):
    optimizer.regularizer = L2Regularizer(0.5)


def other_constraint(optimizer):
    optimizer.constraint.threshold = 0.2


def no_rule(optimizer):
    """A rule of an instance: the momentum is let alone."""
    optimizer._rule = lambda xp, w, g, arrays, s, *n: xp.subtract(w, g, out=w)


@pytest.mark.parametrize(
    "change",
    [nesterov_off, other_momentum, other_rate, other_centre, other_coefficient,
     other_regularizer, other_constraint, no_rule],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["step", "fit"])
def test_changes_of_the_optimizer(change, kind, placed, rng):
    def optimizer():
        more = {"constraint": MaxNorm(2.0)} if change is other_constraint else {}
        return SGD(lr=0.1, momentum=0.9, nesterov=True, regularizer=Pulled(0.1), **more)

    twins = Twins(lambda: placed(dense_net()), optimizer)
    x, y = vectors(rng, 16, 5), vectors(rng, 16, 3)
    for number in range(10 if kind == "step" else 3):
        if number == (4 if kind == "step" else 1):
            twins.both(lambda _, optimizer: change(optimizer))
        if kind == "step":
            twins.step(x[number : number + 4], y[number : number + 4])
        else:
            for net, used in zip(twins.nets, twins.optimizers, strict=True):
                net.compile(used)
                net.fit(x, y, 4, verbose=False)
            twins.expect_equal()


def test_a_regularizer_of_one_parameter(placed, rng):
    def make():
        net = singanet.FeedForwardNet(SquaredError(), seed=2)
        net.add(Dense("one", 6, input_sample_shape=(5,), W_specs={"regularizer": Pulled(0.2)}))
        net.add(Dense("out", 3))
        return placed(net)

    twins = Twins(make, lambda: Adam(lr=0.1))
    for number in range(9):
        if number == 4:
            for net in twins.nets:
                param(net, "one/weight").spec.regularizer.centre = -1.0
        twins.step(vectors(rng, 4, 5), vectors(rng, 4, 3))


def test_a_replaced_method_of_a_regularizer(placed, rng):
    def patch(_, optimizer):
        inner, calls = optimizer.regularizer.add, [0]

        def counted(xp, value, grad, coefficient, out):
            calls[0] += 1
            inner(xp, value, grad, coefficient * calls[0], out)

        optimizer.regularizer.add = counted

    twins = Twins(lambda: placed(dense_net()), lambda: SGD(lr=0.1, regularizer=L2Regularizer(0.1)))
    for number in range(9):
        if number == 4:
            twins.both(patch)
        twins.step(vectors(rng, 4, 5), vectors(rng, 4, 3))


def test_a_stateful_schedule_is_asked_as_by_the_layers(placed, rng):
    """19 f: it is asked once a parameter and step."""

    class Cooling:
        def __init__(self):
            self.calls = 0

        def __call__(self, step):
            self.calls += 1
            return 0.2 / (1 + self.calls)

    twins = Twins(lambda: placed(dense_net()), lambda: SGD(lr=Cooling(), momentum=0.9))
    for _ in range(6):
        twins.step(vectors(rng, 4, 5), vectors(rng, 4, 3))
        assert twins.optimizers[0].lr.calls == twins.optimizers[1].lr.calls


# -- parameters between forward and backward (08, 10) ---------------------------------------


def assigned(value):
    return value * np.float32(2)


def in_place(value):
    value *= np.float32(2)
    return value


@pytest.mark.parametrize("change", [assigned, in_place])
@pytest.mark.parametrize("name", ["one/weight", "norm/gamma", "out/weight"])
def test_a_parameter_that_changes_between_forward_and_backward(change, name, placed, rng):
    twins = Twins(lambda: placed(dense_net()), sgd)
    for number in range(8):
        twins.forward(True, vectors(rng, 4, 5))
        if number % 3 == 2:
            for net in twins.nets:
                param(net, name).value = change(param(net, name).value)
        twins.walk(vectors(rng, 4, 3))
        twins.expect_equal()


@pytest.mark.parametrize("asked", ["one", "follows", "tanh"])
def test_gradients_of_outputs_where_forward_reads_its_state(asked, placed, rng):
    twins = Twins(lambda: placed(dense_net(lambda: Follows("follows"))), sgd)
    for number in range(8):
        twins.forward(True, vectors(rng, 4, 5))
        twins.walk(vectors(rng, 4, 3), [asked] if number > 3 else ())
        twins.expect_equal()


def test_a_parameter_assigned_where_forward_reads_its_state(placed, rng):
    twins = Twins(lambda: placed(dense_net(lambda: Follows("follows"))), sgd)
    for number in range(8):
        twins.forward(True, vectors(rng, 4, 5))
        if number > 3:
            for net in twins.nets:
                param(net, "one/bias").value = param(net, "one/bias").value + np.float32(0.5)
        twins.walk(vectors(rng, 4, 3))
        twins.expect_equal()


@pytest.mark.parametrize("level", ["none", "cheap"])
@pytest.mark.parametrize("part", ["gamma", "beta", "weight", "bias"])
def test_noise_on_parameters_between_forward_and_backward(level, part, placed, rng):
    """10: sharpness-aware steps and weight noise, with what is recomputed too."""
    twins = Twins(lambda: placed(image_net(4)), sgd)
    twins.recorded.programs.recompute = level
    for _ in range(6):
        twins.forward(True, vectors(rng, 8, 2, 6, 6))
        noise = rng.uniform(0.5, 2)
        for net in twins.nets:
            for one in net.params():
                if one.name.endswith(part):
                    one.value *= np.float32(noise)
        twins.walk(vectors(rng, 8, 3))
        twins.expect_equal()


@pytest.mark.parametrize("level", ["none", "cheap"])
def test_a_walk_goes_on_after_another_pass_has_updated(level, placed, rng):
    """10: the rest of an older walk belongs to the parameters of its own forward."""
    twins = Twins(lambda: placed(image_net(4)), sgd)
    twins.recorded.programs.recompute = level

    def train(net, optimizer, x, dy):
        net.forward(True, x)
        for item in net.backward(dy):
            optimizer.update(*item)

    for _ in range(5):
        x, dy = vectors(rng, 2, 8, 2, 6, 6), vectors(rng, 2, 8, 3)
        twins.forward(True, x[0])
        walks = twins.both(lambda net, _, dy=dy: net.backward(dy[0]))
        for one, two in [[next(walk) for walk in walks]]:
            expect_items_same(one, two)
        twins.both(lambda net, optimizer, x=x, dy=dy: train(net, optimizer, x[1], dy[1]))
        for one, two in zip(*walks, strict=True):
            expect_items_same(one, two)
        twins.expect_equal()


# -- the order in which a gradient lies (18) ------------------------------------------------


def outer_image_net():
    """Its outputs are images, so that gradients of any order come in."""
    x = Input("x", (2, 6, 6))
    h = Activation("relu")(Conv2D("one", 4, 3)(x))
    out = Add("sum")(Conv2D("two", 4, 3)(h), h)
    return singanet.FeedForwardNet(inputs=x, outputs=Conv2D("three", 3, 3)(out), seed=3)


def ordered(dy, order):
    if order == "nhwc":
        return np.ascontiguousarray(dy.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    return np.asarray(dy, order=order)


@pytest.mark.parametrize("orders", ["CCCF", "FFFC", "CNCN", "CCNNCFN", "NNNNFF"])
def test_gradients_in_changing_orders(orders, placed, rng):
    twins = Twins(lambda: placed(outer_image_net()), sgd)
    for order in 2 * orders:
        out = twins.forward(True, vectors(rng, 4, 2, 6, 6))[0]
        twins.walk(ordered(vectors(rng, *out.shape), "nhwc" if order == "N" else order))


# -- predictors (12) ------------------------------------------------------------------------


def close(one, two):
    np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-5 * float(np.abs(two).max()))


def trained(placed, rng):
    net, optimizer = placed(image_net()), sgd()
    for _ in range(3):
        net.step(vectors(rng, 8, 2, 6, 6), rng.integers(0, 3, 8), optimizer)
    return net, optimizer


@pytest.mark.parametrize("batch", [1, 4])
def test_a_predictor_predicts_what_the_net_does(batch, placed, rng):
    net, _ = trained(placed, rng)
    predictor = net.predictor()
    for _ in range(4):
        x = vectors(rng, batch, 2, 6, 6)
        close(predictor(x), net.predict(x))


LARGER = np.float32(1.25)
"""So little that scores stay small: a softmax shows the rounding of large ones."""


def written(net):
    for one in net.params():
        one.value *= LARGER


def toggled(net):
    for one in net.params():
        one.value.flags.writeable = True
        one.value *= LARGER
        one.value.flags.writeable = False


def replaced(net):
    for one in net.params():
        one.value = one.value * LARGER


@pytest.mark.parametrize("change", [written, toggled, replaced])
def test_a_predictor_holds_constants_of_its_own(change, placed, rng):
    net, _ = trained(placed, rng)
    predictor, x = net.predictor(), vectors(rng, 4, 2, 6, 6)
    # Shapes that come after the change are predicted with the same constants.
    small, before = x[:2], net.predict(x)
    early = predictor(x)
    change(net)
    np.testing.assert_array_equal(predictor(x), early)
    close(predictor(small), before[:2])
    close(predictor(x), before)
    assert np.abs(net.predict(x) - before).max() > 1e-3
    close(net.predictor()(x), net.predict(x))


def test_a_net_with_a_predictor_stays_trainable_and_writeable(placed, rng):
    twins = Twins(lambda: placed(image_net()), sgd)
    predictor, x = twins.recorded.predictor(), vectors(rng, 4, 2, 6, 6)
    before = predictor(x)
    for _ in range(5):
        twins.step(vectors(rng, 8, 2, 6, 6), rng.integers(0, 3, 8))
        twins.forward(False, x)
        np.testing.assert_array_equal(predictor(x), before)
    assert all(one.value.flags.writeable for one in twins.recorded.params())
    twins.expect_recorded()


def test_predictions_kept_stay_as_they_were(placed, rng):
    net, _ = trained(placed, rng)
    predictor = net.predictor()
    made = [predictor(vectors(rng, 4, 2, 6, 6)) for _ in range(4)]
    copies = [out.copy() for out in made]
    predictor(vectors(rng, 4, 2, 6, 6))
    np.testing.assert_array_equal(made, copies)


def test_a_predictor_outlives_its_net(placed, rng):
    net, _ = trained(placed, rng)
    predictor, x = net.predictor(), vectors(rng, 4, 2, 6, 6)
    wanted = net.predict(x)
    del net
    for _ in range(3):
        close(predictor(x), wanted)
