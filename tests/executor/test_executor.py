"""Programs by name: what they give, beside loops by hand over nets, to the bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import singanet
from singanet import Executor, FeedForwardNet, Input
from singanet.errors import ArgumentError, CallOrderError, DataError, ShapeError, UnknownNameError
from singanet.executor import from_loader, gradients
from singanet.layers import (
    Activation,
    Add,
    BatchNormalization,
    Dense,
    Dropout,
    Embedding,
    Layer,
    Pad,
    Reshape,
    StopGradient,
)
from singanet.loss import (
    Loss,
    MeanSquaredError,
    MultiLoss,
    SigmoidCrossEntropy,
    SoftmaxCrossEntropy,
    SquaredError,
)
from singanet.metric import Accuracy, BinaryAccuracy, MeanAbsoluteError, Metric
from singanet.optimizer import SGD, Accumulator, Adam, ClipByGlobalNorm, ClipByValue, Optimizer
from singanet.parallel import Pipeline
from singanet.testing import communicators

RNG = np.random.default_rng(3)


def batch(count=8, features=6, classes=3, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, features)).astype(np.float32)
    return x, rng.integers(0, classes, count)


def chain(classes=3):
    return [Dense("a", 5), Activation("r", "tanh"), Dense("b", classes)]


def through(symbol, layers):
    for layer in layers:
        symbol = layer(symbol)
    return symbol


def classifier(optimizer, seed=0, extra=(), **given):
    """An executor that trains, validates and infers, with its symbols."""
    x, y = Input("x", (6,)), Input("y", (), dtype="int64")
    scores = through(x, [*extra, *chain()])
    loss, accuracy = SoftmaxCrossEntropy()(scores, y), Accuracy()(scores, y)
    programs = {
        "train": [loss, optimizer.minimize(loss)],
        "watched": [accuracy, optimizer.minimize(loss), loss],
        "validate": [loss, accuracy],
        "infer": [scores],
    }
    return Executor(programs, seed=seed, **given), x, y, scores, loss


def by_hand(seed=0, extra=()):
    first, *rest = [*extra, *chain()]
    first.input_sample_shape = (6,)
    return FeedForwardNet([first, *rest], loss=SoftmaxCrossEntropy(), metric=Accuracy(), seed=seed)


def assert_same_bits(one, other):
    theirs = {param.name: param.value for param in other.params()}
    for param in one.params():
        assert np.array_equal(param.value, theirs[param.name]), param.name


@settings(max_examples=12, deadline=None)
@given(
    runs=st.lists(
        st.tuples(st.sampled_from(["train", "watched", "validate"]), st.integers(1, 9)),
        min_size=1,
        max_size=8,
    ),
    rate=st.sampled_from([0.05, 0.5]),
)
def test_any_sequence_of_runs_is_that_of_steps_of_a_net(runs, rate):
    executor, x, _, _, _ = classifier(SGD(rate, momentum=0.9))
    net, sgd = by_hand(), SGD(rate, momentum=0.9)
    for k, (name, count) in enumerate(runs):
        images, labels = batch(count, seed=k)
        values = executor.run(name, {x: images, "y": labels})
        wanted = net.evaluate(images, labels)
        if name != "validate":
            wanted = net.step(images, labels, sgd)
        found = {"train": values[:1], "watched": values[2::-2], "validate": values}[name]
        assert list(found) == list(wanted)[: len(found)]
        assert_same_bits(executor.net, net)


@pytest.mark.parametrize("asked", ["", "s", "ls", "sl", "ll"])
def test_what_is_asked_for_beside_an_update_is_from_before_it(asked):
    x, y = Input("x", (6,)), Input("y", (), dtype="int64")
    scores = through(x, chain())
    loss = SoftmaxCrossEntropy()(scores, y)
    items = [{"s": scores, "l": loss}[letter] for letter in asked]
    executor = Executor(
        {"train": [*items, SGD(0.5).minimize(loss)], "watch": [scores, loss]}, seed=0
    )
    feed = dict(zip("xy", batch(), strict=True))
    for _ in range(3):
        before = dict(zip("sl", executor.run("watch", feed), strict=True))
        *found, nothing = executor.run("train", feed)
        assert nothing is None
        for letter, value in zip(asked, found, strict=True):
            np.testing.assert_allclose(value, before[letter], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("asked", ["", "a", "b", "aa", "ab"])
def test_of_two_updates_each_loss_is_its_own(asked):
    x, y = Input("x", (6,)), Input("y", (), dtype="int64")
    losses = {
        name: SoftmaxCrossEntropy()(Dense(f"fc_{name}", 3)(x), y, name=f"loss_{name}")
        for name in "ab"
    }
    steps = [SGD(0.5).minimize(loss) for loss in losses.values()]
    programs = {"train": [*(losses[name] for name in asked), *steps], "watch": [*losses.values()]}
    executor = Executor(programs, seed=0)
    feed = dict(zip("xy", batch(), strict=True))
    for _ in range(3):
        before = dict(zip("ab", executor.run("watch", feed), strict=True))
        wanted = [before[name] for name in asked]
        *found, _, nothing = executor.run("train", feed)
        assert nothing is None
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_a_gan_trains_as_a_loop_by_hand():
    def parts():
        made = [Dense("g1", 4), Activation("gr", "relu"), Dense("g2", 2)]
        return made, [Dense("d1", 4), Activation("dr", "relu"), Dense("d2", 1)]

    maker, critic = parts()
    real, z = Input("real", (2,)), Input("z", (3,))
    ones, zeros = Input("ones", (1,)), Input("zeros", (1,))
    made = through(z, maker)
    on_real, on_made = through(real, critic), through(made, critic)
    d_loss = Add("both")(
        SigmoidCrossEntropy()(on_real, ones), SigmoidCrossEntropy()(on_made, zeros)
    )
    g_loss = SigmoidCrossEntropy()(on_made, ones)
    executor = Executor(
        {
            "critic": [d_loss, Adam(lr=0.01).minimize(d_loss, critic)],
            "maker": [g_loss, SGD(0.1).minimize(g_loss, maker)],
            "made": [made],
        },
        seed=4,
    )

    own_maker, own_critic = parts()
    own_maker[0].input_sample_shape, own_critic[0].input_sample_shape = (3,), (2,)
    g = FeedForwardNet(own_maker, seed=4)
    d = FeedForwardNet(own_critic, seed=4)
    adam, sgd = Adam(lr=0.01), SGD(0.1)
    yes, no = np.ones((8, 1), np.float32), np.zeros((8, 1), np.float32)
    rng = np.random.default_rng(1)
    for _ in range(5):
        points = rng.standard_normal((8, 2)).astype(np.float32)
        noise = rng.standard_normal((8, 3)).astype(np.float32)
        feed = {real: points, z: noise, ones: yes, zeros: no}
        told, _ = executor.run("critic", feed)
        losses, walks = [], []
        for given_, target in ((points, yes), (g.forward(False, noise), no)):
            loss = SigmoidCrossEntropy()
            losses.append(loss.forward(True, d.forward(True, given_), target))
            walks.append(list(d.backward(loss.backward())))
        for (names, values, one), (_, _, other) in zip(*walks, strict=True):
            adam.update(names, values, [a + b for a, b in zip(one, other, strict=True)])
        assert told == float((losses[0] + losses[1]).mean())

        told, _ = executor.run("maker", {z: noise, ones: yes})
        fake, loss = g.forward(True, noise), SigmoidCrossEntropy()
        assert told == float(loss.forward(True, d.forward(False, fake), yes).mean())
        down = d.gradients("d2", "input", fake, dys=loss.backward())["input"]
        for names, values, grads in g.backward(down):
            sgd.update(names, values, grads)
        theirs = {param.name: param.value for net in (g, d) for param in net.params()}
        for param in executor.net.params():
            assert np.array_equal(param.value, theirs[param.name]), param.name
    assert np.array_equal(executor.run("made", {z: noise})[0], g.forward(False, noise))


def test_two_losses_train_as_a_net_with_a_loss_of_two():
    def drawn():
        x = Input("x", (6,))
        trunk = Activation("t", "tanh")(Dense("trunk", 5)(x))
        return x, Dense("kind", 3)(trunk), Dense("size", 2)(trunk)

    _, kind, size = drawn()
    y, s = Input("y", (), dtype="int64"), Input("s", (2,))
    parts = [SoftmaxCrossEntropy()(kind, y), SquaredError()(size, s)]
    total = Add("total")(*parts)
    executor = Executor({"train": [total, *parts, SGD(0.1).minimize(total)]}, seed=2)
    own, *outputs = drawn()
    losses = MultiLoss({"kind": SoftmaxCrossEntropy(), "size": SquaredError()})
    net, sgd = FeedForwardNet(loss=losses, inputs=own, outputs=outputs, seed=2), SGD(0.1)
    for k in range(4):
        images, labels = batch(seed=k)
        sizes = images[:, :2].copy()
        values = executor.run("train", {"x": images, "y": labels, "s": sizes})
        wanted, _ = net.step(images, {"kind": labels, "size": sizes}, sgd)
        assert values[0] == wanted
        assert values[1:] == [*(float(part.mean()) for part in losses.parts.values()), None]
        assert_same_bits(executor.net, net)


def test_several_optimizers_of_one_loss_train_as_a_loop_that_tells_them_apart():
    x, y = Input("x", (6,)), Input("y", (), dtype="int64")
    low, middle, top = chain()
    scores = top(middle(low(x)))
    loss = SoftmaxCrossEntropy()(scores, y)
    updates = [Adam(lr=0.01).minimize(loss, low), SGD(0.1).minimize(loss, ["b/weight", "b/bias"])]
    executor = Executor({"train": [loss, *updates]}, seed=0)
    net, adam, sgd = by_hand(), Adam(lr=0.01), SGD(0.1)
    for k in range(4):
        images, labels = batch(seed=k)
        value, *rest = executor.run("train", {x: images, y: labels})
        wanted = net.loss.forward(True, net.forward(True, images), labels)
        assert (value, rest) == (float(wanted.mean()), [None, None])
        for names, values, grads in net.backward(net.loss.backward()):
            (adam if names and names[0].startswith("a/") else sgd).update(names, values, grads)
        assert_same_bits(executor.net, net)


def test_each_of_several_optimizers_follows_what_is_said_of_its_parameters():
    x, y = Input("x", (6,)), Input("y", (), dtype="int64")
    low, middle, top = chain()
    still = Dense("still", 5)  # of no optimizer
    loss = SoftmaxCrossEntropy()(top(still(middle(low(x)))), y)
    updates = [SGD(0.1).minimize(loss, low), SGD(0.2).minimize(loss, top)]
    executor = Executor({"train": updates}, seed=0)
    first, *rest = chain()
    first.input_sample_shape = (6,)
    layers = [first, rest[0], Dense("still", 5), rest[1]]
    net = FeedForwardNet(layers, loss=SoftmaxCrossEntropy(), seed=0)
    net["still"].trainable = False
    net["b"].params["weight"].spec = replace(net["b"].params["weight"].spec, lr_mult=2.0)
    net["b"].params["bias"].spec = replace(net["b"].params["bias"].spec, lr_mult=2.0)
    own = SGD(0.1)
    images, labels = batch()
    view = executor._programs["train"].view
    planned = view._execution_plan()
    for rate in (1.0, 0.5, 0.25):
        for one in (executor.net, net):
            weight = one["a"].params["weight"]
            weight.spec = replace(weight.spec, lr_mult=rate)
        for _ in range(2):
            executor.run("train", {x: images, y: labels})
            net.step(images, labels, own)
        assert_same_bits(executor.net, net)
    assert view._execution_plan() is planned  # as rates are nothing that steps are made of


def test_losses_apart_are_updated_in_one_run():
    x, y = Input("x", (6,)), Input("y", (), dtype="int64")
    one = SoftmaxCrossEntropy()(Dense("one", 3)(x), y)
    two = SoftmaxCrossEntropy()(Dense("two", 3)(x), y)
    executor = Executor(
        {"train": [two, SGD(0.1).minimize(one), one, Adam(lr=0.01).minimize(two)]}, seed=0
    )
    images, labels = batch()
    for _ in range(3):
        losses = executor.run("train", {x: images, y: labels})
    for k, (name, optimizer) in enumerate((("two", Adam(lr=0.01)), ("one", SGD(0.1)))):
        net = FeedForwardNet(
            [Dense(name, 3, input_sample_shape=(6,))], loss=SoftmaxCrossEntropy(), seed=0
        )
        for _ in range(3):
            wanted = net.step(images, labels, optimizer)[0]
        assert losses[2 * k] == wanted
        assert np.array_equal(net.params()[0].value, executor.net[name].params["weight"].value)


def test_an_update_reaches_its_parameters_alone():
    x, y = Input("x", (6,)), Input("y", (), dtype="int64")
    low, middle, top = chain()
    loss = SoftmaxCrossEntropy()(top(middle(low(x))), y)
    executor = Executor({"top": [SGD(0.1).minimize(loss, top)]}, seed=0)
    before = {param.name: param.value.copy() for param in executor.net.params()}
    images, labels = batch()
    for _ in range(3):
        assert executor.run("top", {x: images, y: labels}) == [None]
    changed = {p.name for p in executor.net.params() if not np.array_equal(p.value, before[p.name])}
    assert changed == {"b/weight", "b/bias"}


def test_what_is_trained_may_change_between_runs():
    sgd = SGD(0.1)
    executor, x, y, _, _ = classifier(sgd)
    net, own = by_hand(), SGD(0.1)
    images, labels = batch()
    for flag in (True, False, True):
        executor.net["a"].trainable = net["a"].trainable = flag
        for _ in range(3):
            executor.run("train", {x: images, y: labels})
            net.step(images, labels, own)
        assert_same_bits(executor.net, net)


def test_running_state_and_draws_are_those_of_training_or_evaluation():
    extra = [BatchNormalization("bn", momentum=0.1), Dropout("drop", 0.5)]
    executor, x, y, _, _ = classifier(SGD(0.1), extra=extra)
    images, labels = batch(64)
    images = images * 3 + 2
    losses = {executor.run("train", {x: images, y: labels})[0] for _ in range(4)}
    assert len(losses) == 4, "each run draws masks of its own"
    state = executor.net["bn"].params
    mean, var = (state[name].value.copy() for name in ("mean", "var"))
    # The momentum is that of the new values: of starts 0 and 1, after four batches alike.
    kept = 0.9**4
    assert np.allclose(mean, (1 - kept) * images.mean(axis=0), rtol=1e-4)
    assert np.allclose(var, kept + (1 - kept) * images.var(axis=0), rtol=0.03)
    first, second = (executor.run("infer", {x: images})[0] for _ in range(2))
    assert np.array_equal(first, second)
    assert np.array_equal(mean, state["mean"].value)


class Halved(Layer):
    """A layer of a user's own."""

    def setup(self, in_shape):
        return in_shape

    def forward(self, ctx, x):
        return x * 0.5

    def backward(self, ctx, dy):
        return dy * 0.5, {}


class Cubic(Loss):
    """|x − y|³, a loss of a user's own."""

    def compute(self, ops, x, y):
        off = np.asarray(x) - np.asarray(y)
        return abs(off) ** 3, off

    def gradient(self, ops, off):
        return 3 * off * abs(off)


class Largest(Metric):
    """The largest error so far, a metric of a user's own."""

    def reset(self):
        self.samples, self.most = 0, 0.0

    def update(self, x, y):
        self.samples += len(x)
        self.most = max(self.most, float(abs(x - y).max()))

    def compute(self):
        return self.most


class Signs(Optimizer):
    """An optimizer of a user's own, which is asked for updates alone."""

    def update(self, names, values, grads, scale=1.0):
        for value, grad in zip(values, grads, strict=True):
            value -= 0.01 * np.sign(grad)

    def _scalars(self, state, rate):
        return ()

    def _sweep(self, *given):
        raise AssertionError

    _sweep_rows = _sweep


def test_parts_of_the_users_own():
    x, y = Input("x", (6,)), Input("y", (2,))
    layer = Dense("fc", 2)
    out = layer(Halved("half")(x))
    loss = Cubic()(out, y)
    executor = Executor(
        {"train": [loss, Largest()(out, y), Signs(lr=1.0).minimize(loss)], "both": [loss]}, seed=0
    )
    images, _ = batch()
    targets = images[:, :2].copy()
    for _ in range(4):
        weight, bias = (param.value.copy() for param in layer.params.values())
        off = images @ weight / 2 + bias - targets
        value, most, _ = executor.run("train", {x: images, y: targets})
        # Two positions a sample: its number is their sum, the mean goes over samples.
        assert value == pytest.approx((abs(off) ** 3).sum() / 8, rel=1e-5)
        assert most == pytest.approx(abs(off).max(), rel=1e-6)
        slope = 3 * off * abs(off)
        assert np.allclose(
            layer.params["weight"].value, weight - 0.01 * np.sign(images.T @ slope), atol=1e-6
        )


def test_values_come_in_the_order_asked_and_are_the_callers():
    executor, x, y, scores, loss = classifier(SGD(0.1))
    images, labels = batch()
    for _ in range(3):
        one, two, three, again = executor.run(
            "validate", {x: images, y: labels}, [scores, loss, y, scores]
        )
        assert one.shape == (8, 3)
        assert two == executor.run("validate", {x: images, y: labels})[0]
        three[:] = one[:] = 0
        assert labels.any()
        assert again.any()


def test_other_outputs_at_run_time_are_kept_up_to_a_bound():
    executor, x, y, scores, loss = classifier(SGD(0.1))
    images, labels = batch()
    wanted = by_hand().forward(False, images)
    asked = [[scores] * k for k in range(1, 12)]
    for outputs in asked * 2:
        found = executor.run("validate", {x: images}, outputs)
        assert len(found) == len(outputs)
        assert np.array_equal(found[-1], wanted)
    assert len(executor._asked) == singanet.executor.executor.ASKED
    executor.run("train", {x: images, y: labels}, [loss])
    assert np.array_equal(executor.run("infer", {x: images})[0], wanted), "no update was asked for"


def test_a_batch_without_samples_has_no_loss():
    executor, x, y, _, _ = classifier(SGD(0.1))
    images, labels = batch()
    assert executor.run("validate", {x: images[:0], y: labels[:0]}) == [0.0, 0.0]


def test_gradients_are_those_of_the_mean():
    x, y = Input("x", (6,)), Input("y", (), dtype="int64")
    low, middle, top = chain()
    inner = low(x)
    loss = SoftmaxCrossEntropy()(top(middle(inner)), y)
    asked = gradients(loss, [x, "a/weight", inner, top.params["bias"]])
    executor = Executor({"look": [asked[1], loss, *asked, *gradients(inner, [x])]}, seed=0)
    images, labels = batch()
    net = by_hand()
    wanted = net.gradients(
        "loss", ["input", "a/weight", "a", "b/bias"], {"input": images, "targets": labels}
    )
    first, value, *found, of_sum = executor.run("look", {x: images, y: labels})
    for one, other in zip(found, wanted.values(), strict=True):
        assert np.allclose(one, other, rtol=1e-5, atol=1e-7)
    assert np.array_equal(first, found[1])
    assert value == net.evaluate(images, labels).loss
    assert np.allclose(of_sum, net["a"].params["weight"].value.sum(axis=1))


def test_positions_that_do_not_count_and_weights_go_as_in_a_net():
    x, y, w = Input("x", (4, 6)), Input("y", (4,), dtype="int64"), Input("w", ())
    scores = singanet.layers.TimeDistributed("td", Dense("fc", 3))(x)
    loss = SoftmaxCrossEntropy(ignore_index=-1)(scores, y, sample_weight=w)
    executor = Executor({"train": [loss, SGD(0.1).minimize(loss)]}, seed=0)
    td = singanet.layers.TimeDistributed("td", Dense("fc", 3), input_sample_shape=(4, 6))
    net = FeedForwardNet([td], loss=SoftmaxCrossEntropy(ignore_index=-1), seed=0)
    sgd, rng = SGD(0.1), np.random.default_rng(0)
    for _ in range(4):
        steps = rng.standard_normal((5, 4, 6)).astype(np.float32)
        labels, weights = rng.integers(-1, 3, (5, 4)), rng.random(5).astype(np.float32)
        value, _ = executor.run("train", {x: steps, y: labels, w: weights})
        wanted, _ = net.step(steps, labels, sgd, sample_weight=weights)
        assert value == wanted
        # Not to the bit: batch / positions is a factor of its own here.
        for param, other in zip(executor.net.params(), net.params(), strict=True):
            assert np.allclose(param.value, other.value, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("wrap", [lambda o: Accumulator(o, 2), lambda o: ClipByGlobalNorm(o, 0.1)])
def test_stages_of_an_optimizer_do_as_in_a_net(wrap):
    executor, x, y, _, _ = classifier(wrap(SGD(0.5)))
    net, own = by_hand(), wrap(SGD(0.5))
    for k in range(6):
        images, labels = batch(4 + k % 2, seed=k)
        assert executor.run("train", {x: images, y: labels})[0] == net.step(images, labels, own)[0]
        assert_same_bits(executor.net, net)


def test_accumulated_batches_weigh_by_the_positions_that_count():
    x, y = Input("x", (4, 6)), Input("y", (4,), dtype="int64")
    scores = singanet.layers.TimeDistributed("td", Dense("fc", 3))(x)
    loss = SoftmaxCrossEntropy(ignore_index=-1)(scores, y)
    executor = Executor({"train": [loss, Accumulator(SGD(0.5), 2).minimize(loss)]}, seed=0)
    td = singanet.layers.TimeDistributed("td", Dense("fc", 3), input_sample_shape=(4, 6))
    net = FeedForwardNet([td], loss=SoftmaxCrossEntropy(ignore_index=-1), seed=0)
    sgd, rng = SGD(0.5), np.random.default_rng(0)
    for _ in range(3):
        steps = rng.standard_normal((8, 4, 6)).astype(np.float32)
        labels = np.where(rng.random((8, 4)) < 0.2, rng.integers(0, 3, (8, 4)), -1)
        labels[0], labels[4, 0] = 1, 1
        for cut in (slice(0, 4), slice(4, 8)):
            executor.run("train", {x: steps[cut], y: labels[cut]})
        net.step(steps, labels, sgd)
        for param, other in zip(executor.net.params(), net.params(), strict=True):
            assert np.allclose(param.value, other.value, rtol=1e-4, atol=1e-6)


def test_what_was_not_trained_when_it_was_made_is_no_programs_to_train_later():
    x, y = Input("x", (6,)), Input("y", (), dtype="int64")
    low, middle, top = chain()
    low.trainable = False
    loss = SoftmaxCrossEntropy()(top(middle(low(x))), y)
    executor = Executor({"train": [SGD(0.1).minimize(loss)]}, seed=0)
    low.trainable = True
    images, labels = batch()
    before = low.params["weight"].value.copy()
    executor.run("train", {x: images, y: labels})
    assert np.array_equal(before, low.params["weight"].value)


def test_metrics_with_a_threshold_see_probabilities():
    x, y = Input("x", (6,)), Input("y", (1,))
    scores = Dense("fc", 1)(x)
    loss = SigmoidCrossEntropy()(scores, y)
    programs = {"look": [BinaryAccuracy()(scores, y), MeanAbsoluteError()(scores, y), loss]}
    executor = Executor(programs, seed=0)
    images, _ = batch(50)
    out = images @ executor.net["fc"].params["weight"].value
    labels = out[:, 0] > 0  # of some of them the score is below the threshold, 0.5
    assert (out[labels, 0] < 0.5).any()
    found = executor.run("look", {x: images, y: labels[:, None]})
    assert found[0] == 1.0
    assert found[1] == pytest.approx(abs(out[:, 0] - labels).mean(), rel=1e-5)


def test_parallel_reduces_over_the_ranks():
    net, own = by_hand(), SGD(0.5)
    batches = [batch(seed=k) for k in range(4)]
    wanted = [net.step(*each, own)[0] for each in batches for _ in range(2)]

    def trained(communicator):
        executor, x, y, _, _ = classifier(SGD(0.5), parallel=communicator)
        rank = communicator.rank
        seen = []
        for images, labels in batches:
            feed = {x: images[rank::2], y: labels[rank::2]}
            seen += [executor.run("train", feed)[0], executor.run("watched", feed)[2]]
        return executor, seen

    with communicators(2) as ranks:
        found = ranks.run(trained)
    assert np.allclose(np.mean([seen for _, seen in found], axis=0), wanted, rtol=1e-5)
    for executor, _ in found:
        for param, other in zip(executor.net.params(), net.params(), strict=True):
            assert np.allclose(param.value, other.value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("apart", [False, True])
def test_parallel_reduces_for_several_optimizers_of_one_program(apart):
    """It was refused, and the refusal told of an AllReduce that nobody had written."""

    def drawn(parallel=None):
        x, y = Input("x", (6,)), Input("y", (), dtype="int64")
        low, middle, top = chain()
        loss = SoftmaxCrossEntropy()(top(middle(low(x))), y)
        other = SoftmaxCrossEntropy()(Dense("apart", 3)(x), y) if apart else loss
        momentum = SGD(0.1, momentum=0.9)
        updates = [Adam(lr=0.01).minimize(loss, low if not apart else None)]
        updates += [momentum.minimize(other, None if apart else ["b/weight", "b/bias"])]
        return Executor({"train": [loss, other, *updates]}, seed=0, parallel=parallel), x, y

    alone, x, y = drawn()
    batches = [batch(k + 5, seed=k) for k in range(5)]
    wanted = [alone.run("train", {x: images, y: labels})[:2] for images, labels in batches]

    def trained(communicator):
        executor, x, y = drawn(communicator)
        mine = slice(communicator.rank, None, communicator.size)
        feeds = [{x: images[mine], y: labels[mine]} for images, labels in batches]
        sizes = [len(images[mine]) / len(images) for images, _ in batches]
        return executor, [
            np.multiply(executor.run("train", feed)[:2], size)
            for feed, size in zip(feeds, sizes, strict=True)
        ]

    with communicators(2) as ranks:
        (first, one), (second, two) = ranks.run(trained)
    np.testing.assert_allclose(np.add(one, two), wanted, rtol=1e-5)
    assert_same_bits(first.net, second.net)
    for param, other in zip(first.net.params(), alone.net.params(), strict=True):
        np.testing.assert_allclose(param.value, other.value, rtol=1e-4, atol=1e-5)


def test_clipping_around_one_of_several_optimizers_is_refused_by_its_own_name():
    x, y = Input("x", (6,)), Input("y", (), dtype="int64")
    low, middle, top = chain()
    loss = SoftmaxCrossEntropy()(top(middle(low(x))), y)
    clipped = ClipByValue(SGD(0.1), 1.0).minimize(loss, low)
    program = [loss, clipped, Adam(lr=0.01).minimize(loss, top)]

    def work(communicator):
        with pytest.raises(ArgumentError, match="received ClipByValue, a wrapper"):
            Executor({"train": program}, seed=0, parallel=communicator)

    with communicators(2) as ranks:
        ranks.run(work)


# -- what other systems got wrong ---------------------------------------------------------------


def test_seed_zero_is_a_seed():
    one, two, other = (classifier(SGD(0.1), seed=seed)[0].net for seed in (0, 0, 1))
    assert_same_bits(one, two)
    assert not np.array_equal(one.params()[0].value, other.params()[0].value)


def test_a_deep_graph_needs_no_deep_recursion():
    x = Input("x", (2,))
    out = through(x, [Activation(f"r{k}", "relu") for k in range(1200)])
    assert Executor({"infer": [out]}).run("infer", {x: np.ones((1, 2), np.float32)})[0].all()


def test_indices_above_those_that_floats_tell_apart():
    ids = Input("ids", (), dtype="int64")
    rows = np.array([2**24, 2**24 + 1, -(2**53) - 1])
    assert np.array_equal(Executor({"look": [ids]}).run("look", {ids: rows})[0], rows)
    words = Embedding("words", 4, 2)(Input("few", (3,), dtype="int32"))
    few = np.array([[1, 3, 0]], np.int32)
    assert Executor({"look": [words]}).run("look", {"few": few})[0].shape == (1, 3, 2)


def test_pads_are_of_the_constant():
    x = Input("x", (2,))
    (padded,) = Executor({"infer": [Pad("pad", ((1, 1),), 7.0)(x)]}).run(
        "infer", {x: np.zeros((1, 2), np.float32)}
    )
    assert padded.tolist() == [[7, 0, 0, 7]]


def test_arrays_of_any_layout_and_float_type_are_fed():
    executor, x, y, _, _ = classifier(SGD(0.1))
    images, labels = batch()
    wanted = executor.run("validate", {x: images, y: labels})
    for other in (np.asfortranarray(images), images.astype(np.float64), images[::-1][::-1]):
        assert executor.run("validate", {x: other, y: labels.astype(np.int8)}) == wanted


def test_new_shapes_are_planned_anew_and_a_failed_run_changes_nothing():
    executor, x, y, _, _ = classifier(SGD(0.1))
    for count in (4, 4, 4, 7, 7, 7, 4):
        executor.run("train", dict(zip((x, y), batch(count), strict=True)))
    assert len(executor._programs["train"].view.executor.reports()) == 2
    before = [param.value.copy() for param in executor.net.params()]
    images, labels = batch()
    with pytest.raises(DataError, match="labels from 0 to 2"):
        executor.run("train", {x: images, y: labels + 3})
    with pytest.raises(ShapeError, match="'x'"):
        executor.run("train", {x: images[:, :5], y: labels})
    for param, value in zip(executor.net.params(), before, strict=True):
        assert np.array_equal(param.value, value)


@pytest.mark.parametrize("activations", [False, True])
def test_programs_of_an_offloaded_graph_run_from_its_folder(tmp_path, activations):
    """Two programs take turns, each with an optimizer for layers of its own."""
    drawn = {}
    for offloaded in (False, True):
        x, y = Input("x", (130,)), Input("y", (), dtype="int64")
        low, top = Dense("low", 130), Dense("top", 130)
        scores = top(Dropout("drop", 0.3)(low(x)))
        loss = SoftmaxCrossEntropy()(scores, y)
        programs = {
            "low": [loss, Adam(lr=0.01).minimize(loss, low)],
            "top": [loss, ClipByValue(SGD(0.1, momentum=0.9), 0.01).minimize(loss, top)],
            "infer": [scores, *gradients(loss, ["low/weight"])],
        }
        executor = Executor(programs, seed=0)
        if offloaded:
            executor.net.offload(tmp_path / "net", "800kB", activations=activations)
        told = []
        for k in range(6):
            images, labels = batch(features=130, seed=k)
            told.append(executor.run(("low", "top")[k % 2], {x: images, y: labels})[0])
            inferred = executor.run("infer", {x: images, y: labels})
        if offloaded:
            assert any(not param.storage.in_memory for param in executor.net.params())
            with pytest.raises(CallOrderError, match="onload"):
                executor.memory("infer", {x: (8, 130), y: (8,)})
            executor.net.onload()
        # Recorded, once it is back.
        told += [executor.run("low", {x: images, y: labels})[0] for _ in range(3)]
        drawn[offloaded] = executor, told, inferred
    (plain, wanted, outputs), (executor, told, inferred) = drawn.values()
    assert told == wanted
    for one, other in zip(inferred, outputs, strict=True):
        assert np.array_equal(one, other)
    assert_same_bits(executor.net, plain.net)


def test_a_graph_on_several_ranks_runs_no_programs():
    def work(comm):
        executor, x, y, _, _ = classifier(SGD(0.1))
        pipeline = Pipeline(executor.net, stages=["b"], comm=comm)
        with pytest.raises(CallOrderError, match="one that is on several ranks"):
            executor.run("train", dict(zip((x, y), batch(), strict=True)))
        pipeline.gather()
        return executor.run("train", dict(zip((x, y), batch(), strict=True)))[0]

    with communicators(2) as comms:
        assert len({*comms.run(work)}) == 1


@pytest.mark.parametrize(
    ("enabled", "recompute"), [(False, "none"), (True, "cheap"), (True, "sqrt")]
)
def test_how_the_net_is_carried_out_is_how_programs_are(enabled, recompute):
    executor, x, y, _, _ = classifier(SGD(0.1))
    executor.net.programs.enabled, executor.net.programs.recompute = enabled, recompute
    net, sgd = by_hand(), SGD(0.1)
    for k in range(4):
        images, labels = batch(seed=k)
        found = executor.run("watched", {x: images, y: labels})
        assert found[2::-2] == [*net.step(images, labels, sgd)]
        assert_same_bits(executor.net, net)
    assert bool(executor._programs["watched"].view.executor.reports()) is enabled


def test_frozen_layers_stay_and_the_rest_is_trained():
    executor, x, y, _, _ = classifier(SGD(0.1))
    net, sgd = by_hand(), SGD(0.1)
    images, labels = batch()
    for freeze in (True, False):
        for one in (executor.net, net):
            one.freeze("b") if freeze else one.unfreeze()
        for _ in range(3):
            executor.run("train", {x: images, y: labels})
            net.step(images, labels, sgd)
        assert_same_bits(executor.net, net)


def test_a_frozen_use_of_a_shared_weight_gives_no_gradient():
    def shared(x):
        a = Dense("a", 6)
        h = Activation("r", "tanh")(a(x))
        return Dense("b", 6, W_specs=a.params["weight"])(h)

    x, y = Input("x", (6,)), Input("y", (), dtype="int64")
    loss = SoftmaxCrossEntropy()(shared(x), y)
    executor = Executor({"train": [loss, SGD(0.1).minimize(loss)]}, seed=0)
    x = Input("x", (6,))
    net = FeedForwardNet(inputs=x, outputs=shared(x), loss=SoftmaxCrossEntropy(), seed=0)
    images, labels = batch()
    own, before = SGD(0.1), net.params()[0].value.copy()
    for one in (executor.net, net):
        one.freeze("b")
    h = np.tanh(images @ before)
    p = np.exp(h @ before)
    p /= p.sum(axis=1, keepdims=True)
    dy = (p - np.eye(6, dtype=np.float32)[labels]) / len(labels)
    for k in range(3):
        executor.run("train", {"x": images, "y": labels})
        net.step(images, labels, own)
        assert_same_bits(executor.net, net)
        if not k:
            moved = before - executor.net.params()[0].value
            # Of "b" alone: what comes through "a", which is frozen, would be added to it.
            np.testing.assert_allclose(moved, 0.1 * h.T @ dy, rtol=1e-4, atol=1e-6)


# -- looking ------------------------------------------------------------------------------------


def test_report_memory_plot_and_net_of_a_program():
    executor, x, y, _, _ = classifier(SGD(0.1, momentum=0.9))
    with pytest.raises(CallOrderError, match="run it twice"):
        executor.report("train")
    images, labels = batch()
    planned = executor.memory("train", {x: (8, 6), "y": (8,)})
    assert executor.memory("infer", {x: (8, 6)}).total < planned.total
    for _ in range(2):
        executor.run("train", {x: images, y: labels})
    assert executor.report("train").as_dict()["bytes"]["arena"] == planned.parts["arena"]
    assert "softmax_cross_entropy" in executor.plot("train")
    assert "softmax_cross_entropy" not in executor.plot("infer")
    net = executor.as_net("infer")
    assert np.array_equal(net.forward(False, images), executor.run("infer", {x: images})[0])
    net.params()[0].value[...] = 0
    assert not executor.net["a"].params["weight"].value.any()
    assert executor.programs == ["train", "watched", "validate", "infer"]
    assert "train" in repr(executor)
    with pytest.raises(UnknownNameError, match="'z'"):
        executor.memory("train", {"z": (8, 6)})


def test_the_mean_weighs_samples_by_a_number_and_not_by_an_array_of_it():
    x, y = batch()
    executor = classifier(SGD(0.1))[0]
    for _ in range(3):
        executor.run("train", {"x": x, "y": y})
    kernels = executor.report("train").kernels
    (scaled,) = [
        kernel
        for kernel in kernels
        if (kernel.layer, kernel.phase, kernel.name)
        == ("softmax_cross_entropy", "backward", "multiply")
    ]
    assert len(scaled.reads) == 1


def test_a_net_is_a_symbol():
    body = FeedForwardNet([Dense("a", 5, input_sample_shape=(6,)), Dense("b", 3)], name="body")
    x, y = Input("x", (6,)), Input("y", (), dtype="int64")
    loss = SoftmaxCrossEntropy()(body(x), y)
    executor = Executor({"train": [SGD(0.1).minimize(loss, body)]}, seed=0)
    images, labels = batch()
    before = body.forward(False, images)
    for _ in range(2):
        executor.run("train", {x: images, y: labels})
    after = body.forward(False, images)
    assert not np.array_equal(before, after)
    assert np.array_equal(after, executor.run("train", {x: images}, [loss.call.inputs[0]])[0])


# -- what is refused ----------------------------------------------------------------------------


def test_feeds_are_refused_by_name():
    executor, x, y, scores, _ = classifier(SGD(0.1))
    images, labels = batch()
    cases = [
        ("tran", {x: images, y: labels}, UnknownNameError, "'train'"),
        ("train", {x: images}, UnknownNameError, "add an array for 'y'"),
        ("train", None, UnknownNameError, "add an array for 'x'"),
        ("infer", {x: images, y: labels}, UnknownNameError, "which it does not read"),
        ("train", {x: images, "z": labels}, UnknownNameError, "'z'"),
        ("train", {x: images, y: labels, "x": images}, UnknownNameError, "by symbol and by name"),
        ("train", {x: images, y: labels, scores: images}, UnknownNameError, "feed inputs alone"),
        ("train", {x: images, y: labels, "a/weight": images}, UnknownNameError, "the parameter"),
        ("train", {x: images, y: labels.astype(float)}, DataError, "float64"),
        ("train", {x: images, y: ["a"] * len(labels)}, DataError, r"\['y'\]: expected .* numbers"),
        ("train", [images], ArgumentError, "list"),
        ("train", {x: images, y: labels[None]}, ShapeError, "'y'"),
    ]
    for name, feed, kind, words in cases:
        with pytest.raises(kind, match=words):
            executor.run(name, feed)
    with pytest.raises(UnknownNameError, match="another graph|some program"):
        executor.run("infer", {x: images}, [Dense("other", 2)(x)])
    with pytest.raises(ArgumentError, match="list of its results"):
        executor.run("infer", {x: images}, [])
    with pytest.raises(CallOrderError, match="from_loader"):
        executor.batches("train")


def test_programs_are_refused_before_anything_runs():
    def refused(kind, words, make):
        with pytest.raises(kind, match=words):
            make()

    x, y = Input("x", (6,)), Input("y", (), dtype="int64")
    low, middle, top = chain()
    inner = middle(low(x))
    scores = top(inner)
    loss = SoftmaxCrossEntropy()(scores, y)
    step = SGD(0.1).minimize(loss)
    refused(ArgumentError, "dict of programs by name; received an empty one", lambda: Executor({}))
    refused(ArgumentError, "dict of programs by name; received list", lambda: Executor([loss]))
    for none, told in (loss, "Symbol"), ([], "an empty list"), ((), "an empty tuple"):
        words = f"a list of its results; received {told};"
        refused(ArgumentError, words, lambda none=none: Executor({"a": none}))
    refused(ArgumentError, "apply it to symbols", lambda: Executor({"a": [SGD(0.1)]}))
    refused(
        ArgumentError,
        "one optimizer that updates it",
        lambda: Executor({"a": [step], "b": [SGD(0.1).minimize(loss)]}),
    )
    refused(
        ArgumentError,
        "one update that changes it",
        lambda: Executor({"a": [step, Adam(lr=0.1).minimize(loss, top)]}),
    )
    other = SoftmaxCrossEntropy()(Dense("other", 3)(inner), y)
    refused(
        ArgumentError,
        "program of its own",
        lambda: Executor(
            {
                "a": [
                    SGD(1).minimize(other, "other/bias"),
                    SGD(1).minimize(Add("sum")(loss, other), [low, top]),
                ]
            }
        ),
    )
    refused(
        ArgumentError,
        "plain optimizers",
        lambda: Executor(
            {"a": [SGD(1).minimize(loss, low), ClipByGlobalNorm(SGD(1), 1.0).minimize(loss, top)]}
        ),
    )
    refused(ArgumentError, "both", lambda: Executor({"a": [step, *gradients(loss, x)]}))
    refused(
        UnknownNameError, "a/weight", lambda: Executor({"a": [SGD(1).minimize(loss, "a/weigth")]})
    )
    refused(
        ArgumentError,
        "parameters of the graph",
        lambda: Executor({"a": [SGD(1).minimize(loss, Dense("c", 2, input_sample_shape=(3,)))]}),
    )
    refused(
        ArgumentError,
        "depends on parameters",
        lambda: Executor({"a": [SGD(1).minimize(loss, middle)]}),
    )
    refused(
        ArgumentError,
        "one without a gradient",
        lambda: Executor({"a": [other], "b": [SGD(1).minimize(loss, [low, "other/bias"])]}),
    )
    refused(ArgumentError, "an input", lambda: SGD(1).minimize(y))
    refused(ArgumentError, "number a sample", lambda: SGD(1).minimize(scores))
    refused(ArgumentError, "at least one", lambda: SGD(1).minimize(loss, []))
    refused(ArgumentError, "communicator", lambda: Executor({"a": [loss]}, parallel=2))
    fixed = SoftmaxCrossEntropy()(StopGradient("stop")(scores), y)
    refused(
        ArgumentError, "depends on parameters", lambda: Executor({"a": [SGD(1).minimize(fixed)]})
    )
    refused(
        singanet.errors.GraphError,
        "a name of its own",
        lambda: Executor({"a": [loss, Dense("c", 1)(Input("x", (2,)))]}),
    )


def test_a_critic_without_labels_and_a_loss_of_scores_alone():
    x = Input("x", (6,))
    critic = Dense("critic", 1, use_bias=False)
    score = Reshape("score", ())(critic(x))
    executor = Executor({"up": [score, SGD(0.1).minimize(score)]}, seed=0)
    images, _ = batch()
    for _ in range(3):
        before = critic.params["weight"].value.copy()
        (value, _) = executor.run("up", {x: images})
        assert value == pytest.approx(float((images @ before).mean()), rel=1e-4, abs=1e-6)
        assert np.allclose(
            critic.params["weight"].value, before - 0.1 * images.mean(axis=0)[:, None], atol=1e-6
        )


def test_autoencoder_of_one_input():
    x = Input("x", (6,))
    loss = MeanSquaredError()(Dense("up", 6)(Dense("down", 2)(x)), x)
    executor = Executor({"train": [loss, SGD(0.1).minimize(loss)]}, seed=0)
    net = FeedForwardNet(
        [Dense("down", 2, input_sample_shape=(6,)), Dense("up", 6)],
        loss=MeanSquaredError(),
        seed=0,
    )
    sgd = SGD(0.1)
    images, _ = batch()
    for _ in range(4):
        value = executor.run("train", {x: images})[0]
        assert value == pytest.approx(net.step(images, images, sgd)[0], rel=1e-6)


def test_loaders_fill_inputs():
    images, labels = batch(20)
    loader = singanet.data.ArrayLoader(images, labels, 8, seed=1)
    x, y = from_loader(loader)
    loss = SoftmaxCrossEntropy()(through(x, chain()), y)
    executor = Executor({"train": [loss, SGD(0.1).minimize(loss)], "look": [x]}, seed=0)
    own = singanet.data.ArrayLoader(images, labels, 8, seed=1)
    net, sgd = by_hand(), SGD(0.1)
    assert executor.batches("train") == 3
    for _ in range(2):
        for a, b in own:
            assert executor.run("train")[0] == net.step(a, b, sgd)[0]
    (fed,) = executor.run("look", {x: images[:2]})
    assert np.array_equal(fed, images[:2])
    assert np.array_equal(executor.run("look")[0], next(iter(own))[0])
    with pytest.raises(UnknownNameError, match="add an array for 'y'"):
        executor.run("train", {x: images})


def test_two_optimizers_of_one_loss_train_as_in_pytorch():
    """The wide part by SGD with momentum, the deep one by Adam, as a train_step of one's own."""
    torch = pytest.importorskip("torch")
    x, y = Input("x", (6,)), Input("y", (), dtype="int64")
    linear, deep = Dense("linear", 3), [Dense("low", 5), Activation("r", "tanh"), Dense("top", 3)]
    loss = SoftmaxCrossEntropy()(Add("scores")(linear(x), through(x, deep)), y)
    rules = SGD(0.1, momentum=0.9), Adam(lr=0.01)
    step = [rules[0].minimize(loss, linear), rules[1].minimize(loss, deep)]
    executor = Executor({"train": [loss, *step]}, seed=0)
    theirs = {name: torch.nn.Linear(*shape) for name, shape in
              {"linear": (6, 3), "low": (6, 5), "top": (5, 3)}.items()}  # fmt: skip
    with torch.no_grad():
        for name, layer in theirs.items():
            params = executor.net[name].params
            layer.weight.copy_(torch.from_numpy(params["weight"].value.T.copy()))
            layer.bias.copy_(torch.from_numpy(params["bias"].value))
    optimizers = [
        torch.optim.SGD(theirs["linear"].parameters(), lr=0.1, momentum=0.9),
        torch.optim.Adam([*theirs["low"].parameters(), *theirs["top"].parameters()], lr=0.01),
    ]
    for k in range(12):
        images, labels = batch(seed=k)
        given = torch.from_numpy(images)
        scores = theirs["linear"](given) + theirs["top"](torch.tanh(theirs["low"](given)))
        wanted = torch.nn.functional.cross_entropy(scores, torch.from_numpy(labels))
        for optimizer in optimizers:
            optimizer.zero_grad()
        wanted.backward()
        for optimizer in optimizers:
            optimizer.step()
        found = executor.run("train", {x: images, y: labels})[0]
        assert found == pytest.approx(wanted.item(), rel=1e-4)
    for name, layer in theirs.items():
        params = executor.net[name].params
        np.testing.assert_allclose(
            params["weight"].value.T, layer.weight.detach().numpy(), atol=1e-4
        )
