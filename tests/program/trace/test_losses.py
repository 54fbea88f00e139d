"""Every loss and metric in recorded steps: equal to the bit to steps by the layers."""

from __future__ import annotations

import numpy as np
import pytest

import singanet
from singanet import loss as losses
from singanet import metric as metrics
from singanet.errors import SingaNetError
from singanet.layers import Activation, Dense, Reshape, Softmax
from singanet.optimizer import SGD
from tests.program.twins import Twins


def labels(rng):
    return rng.integers(0, 3, 6)


def one_hot(rng):
    return np.eye(3, dtype=np.float32)[labels(rng)]


def shares(rng):
    return rng.dirichlet(np.ones(3), 6).astype(np.float32)


def ignored(rng):
    # Another number of labels counts in each batch.
    return np.where(rng.random(6) < rng.random(), -1, labels(rng))


def signs(rng):
    return np.sign(rng.standard_normal((6, 3)) + 0.1)


def bits(rng):
    return (rng.random((6, 3)) < 0.5).astype(np.float32)


def numbers(rng):
    return rng.standard_normal((6, 3)).astype(np.float32)


CASES = {
    "softmax": (losses.SoftmaxCrossEntropy, labels),
    "softmax, a column": (losses.SoftmaxCrossEntropy, lambda rng: labels(rng)[:, None]),
    "softmax, one-hot": (losses.SoftmaxCrossEntropy, one_hot),
    "softmax, shares": (losses.SoftmaxCrossEntropy, shares),
    "softmax, smoothed": (lambda: losses.SoftmaxCrossEntropy(label_smoothing=0.1), labels),
    "softmax, some ignored": (lambda: losses.SoftmaxCrossEntropy(ignore_index=-1), ignored),
    "softmax, summed": (lambda: losses.SoftmaxCrossEntropy(reduction="sum"), labels),
    "sigmoid": (losses.SigmoidCrossEntropy, bits),
    "sigmoid, weighted": (lambda: losses.SigmoidCrossEntropy(pos_weight=[1.0, 2.0, 3.0]), bits),
    "binary": (losses.BinaryCrossEntropy, bits),
    "categorical": (losses.CategoricalCrossEntropy, labels),
    "categorical, shares": (lambda: losses.CategoricalCrossEntropy(0.1), shares),
    "categorical, some ignored": (lambda: losses.CategoricalCrossEntropy(ignore_index=-1), ignored),
    "mean squared": (losses.MeanSquaredError, numbers),
    "hinge": (losses.Hinge, signs),
    "hinge, squared": (lambda: losses.Hinge(squared=True), bits),
    "huber": (lambda: losses.Huber(0.3), numbers),
    "divergence": (losses.KLDivergence, shares),
    "absolute": (losses.MeanAbsoluteError, numbers),
    "squared": (losses.SquaredError, numbers),
    "squared, doubles": (losses.SquaredError, lambda rng: rng.standard_normal((6, 3))),
    "squared, integers": (losses.SquaredError, lambda rng: rng.integers(-2, 3, (6, 3))),
    "softmax, weighted": (
        lambda: losses.SoftmaxCrossEntropy(0.1, ignore_index=-1, class_weight=[1, 2, 3]),
        ignored,
    ),
    "sigmoid, smoothed": (lambda: losses.SigmoidCrossEntropy(label_smoothing=0.1), bits),
    "focal": (lambda: losses.SoftmaxFocal(ignore_index=-1), ignored),
    "sigmoid, focal": (lambda: losses.SigmoidFocal(alpha=0.25), bits),
    "smooth": (lambda: losses.SmoothL1(0.3), numbers),
    "poisson": (losses.Poisson, lambda rng: rng.integers(0, 4, (6, 3))),
    "cosine": (losses.CosineSimilarity, numbers),
    "sigmoid, dice": (losses.Dice, bits),
}
METRICS = [metrics.Accuracy, metrics.Perplexity, None]


def last_of(name):
    """What the net ends in: probabilities where the loss wants them."""
    return {"categorical": "softmax", "sigmoid": "tanh"}.get(name.partition(",")[0], "sigmoid")


def net_with(loss, metric=None, last="sigmoid"):
    def make():
        made = singanet.FeedForwardNet(loss(), None if metric is None else metric(), seed=2)
        made.add(Dense("in", 5, input_sample_shape=(4,)))
        made.add(Activation("tanh", "tanh"))
        made.add(Dense("out", 3))
        if last is not None:
            made.add(Softmax("last") if last == "softmax" else Activation("last", last))
        return made

    return make


def data(rng):
    return rng.standard_normal((6, 4)).astype(np.float32)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_losses(name, weighted, rng):
    loss, draw = CASES[name]
    twins = Twins(net_with(loss, last=last_of(name)), lambda: SGD(lr=0.1))
    for _ in range(6):
        weight = rng.uniform(0.1, 2, 6).astype(np.float32) if weighted else None
        twins.step(data(rng), draw(rng), sample_weight=weight)
    twins.expect_recorded()


@pytest.mark.few(4)
@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_numbers_in_the_other_byte_order_are_the_same_numbers(name, recorded, rng):
    loss, draw = CASES[name]
    metric = metrics.Accuracy if draw is labels else None
    nets = [net_with(loss, metric, last_of(name))() for _ in range(2)]
    rules = [SGD(lr=0.1), SGD(lr=0.1)]
    for net in nets:
        net.programs.enabled = recorded
    for _ in range(4):
        given = data(rng), draw(rng), rng.uniform(0.1, 2, 6).astype(np.float32)
        other = [array.astype(array.dtype.newbyteorder("S")) for array in given]
        told = [
            (net.step(x, y, rule, sample_weight=weight), net.evaluate(x, y))
            for net, rule, (x, y, weight) in zip(nets, rules, (given, other), strict=True)
        ]
        assert told[0] == told[1]
    for one, another in zip(*(net.params() for net in nets), strict=True):
        np.testing.assert_array_equal(one.value, another.value)


def test_losses_of_several_parts_and_weights_of_positions(rng):
    def make(loss, shape):
        return singanet.FeedForwardNet(
            [Dense("fc", 12, input_sample_shape=(4,)), Reshape("parts", shape)], loss=loss, seed=1
        )

    def x():
        return data(rng)

    twins = Twins(lambda: make(losses.GaussianNLL(), (2, 6)), lambda: SGD(lr=0.1))
    for _ in range(4):
        weight = rng.random((6, 2)).astype(np.float32)
        twins.step(x(), rng.standard_normal((6, 2, 3)), sample_weight=weight)
    twins.expect_recorded()
    twins = Twins(lambda: make(losses.TripletMargin(), (3, 4)), lambda: SGD(lr=0.1))
    for _ in range(4):
        twins.step(x(), rng.integers(0, 2, 6))
    twins.expect_recorded()


@pytest.mark.parametrize("metric", METRICS)
def test_metrics(metric, rng):
    twins = Twins(net_with(losses.SoftmaxCrossEntropy, metric), lambda: SGD(lr=0.1))
    for _ in range(5):
        twins.step(data(rng), labels(rng))
    twins.expect_recorded()


@pytest.mark.parametrize("metric", [metrics.RootMeanSquaredError, metrics.R2])
def test_metrics_of_numbers(metric, rng):
    twins = Twins(net_with(losses.SquaredError, metric), lambda: SGD(lr=0.1))
    for _ in range(5):
        twins.step(data(rng), numbers(rng))
    twins.expect_recorded()


@pytest.mark.parametrize("metric", [metrics.BinaryAccuracy, lambda: metrics.F1("macro", 0.5)])
def test_metrics_of_what_outputs_mean(metric, rng):
    twins = Twins(net_with(losses.SigmoidCrossEntropy, metric, "tanh"), lambda: SGD(lr=0.1))
    for _ in range(5):
        twins.step(data(rng), bits(rng))
    twins.expect_recorded()


WRONG = {
    "softmax": lambda y: y + 3,
    "softmax, a column": lambda y: y - 3,
    "softmax, some ignored": lambda y: y + 7,
    "sigmoid": lambda y: y + 1,
    "binary": lambda y: y - 1,
    "categorical": lambda y: y + 3,
    "hinge": lambda y: y * 3,
    "divergence": lambda y: y * 2,
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_targets_of_a_replay_say_the_same_and_change_nothing(name, rng):
    loss, draw = CASES[name]
    twins = Twins(net_with(loss, last=last_of(name)), lambda: SGD(lr=0.1))
    for _ in range(3):
        twins.step(data(rng), draw(rng))
    x, y = data(rng), WRONG[name](draw(rng))
    told = []
    for net, optimizer in zip(twins.nets, twins.optimizers, strict=True):
        with pytest.raises(SingaNetError, match="'last'") as caught:
            net.step(x, y, optimizer)
        told.append(str(caught.value))
    assert told[0] == told[1]
    twins.expect_equal()
    twins.step(data(rng), draw(rng))
    twins.expect_recorded()


def test_wrong_outputs_are_seen_at_each_replay(rng):
    twins = Twins(net_with(losses.BinaryCrossEntropy, last=None), lambda: SGD(lr=0.1))
    for net in twins.nets:
        for param in net.params():
            param.value[...] = 0.5 if param.name == "out/bias" else 0.01 * param.value
    for _ in range(3):
        twins.step(data(rng), bits(rng))
    for net, optimizer in zip(twins.nets, twins.optimizers, strict=True):
        net.params()[-1].value[...] = 9.0
        with pytest.raises(SingaNetError, match="outputs from 0 to 1"):
            net.step(data(rng), bits(rng), optimizer)
    twins.expect_equal()


class Mine(losses.SquaredError):
    """A user's, whose weight falls with each call."""

    calls = 0

    def forward(self, flag, x, y, *weights):
        self.calls += 1
        return super().forward(flag, x, y, *weights) / self.calls


class Fourth(losses.SquaredError):
    """A user's with its own backward."""

    def forward(self, flag, x, y):
        self.slope = 4.0 * (x - y) ** 3 / len(x)
        return ((x - y) ** 4).sum(axis=1)

    def backward(self):
        return self.slope


def test_losses_of_users_are_python_steps(rng):
    twins = Twins(net_with(Fourth), lambda: SGD(lr=0.1))
    for _ in range(6):
        twins.step(data(rng), numbers(rng))
    assert any("loss" in note for note in twins.expect_recorded())


class Tagged(np.ndarray):
    """A class of arrays that no program knows."""


@pytest.mark.parametrize("odd", [lambda y: y.view(Tagged), lambda y: y.astype(np.complex64)])
def test_targets_of_no_plain_array_are_seen_by_python(odd, rng):
    twins = Twins(net_with(losses.SquaredError), lambda: SGD(lr=0.1))
    told = []
    for _ in range(4):
        x, y = data(rng), odd(numbers(rng))
        for net, optimizer in zip(twins.nets, twins.optimizers, strict=True):
            try:
                told.append(net.step(x, y, optimizer))
            except SingaNetError as error:
                told.append(str(error))
        assert told[-1] == told[-2]
        twins.expect_equal()


@pytest.mark.parametrize("given", ["targets", "weights"])
def test_lists_instead_of_arrays_are_taken_or_refused_alike(given, rng):
    twins = Twins(net_with(losses.SoftmaxCrossEntropy), lambda: SGD(lr=0.1))
    told = []
    for _ in range(4):
        x, y, weight = data(rng), labels(rng), np.ones(6, np.float32)
        y, weight = (y.tolist(), weight) if given == "targets" else (y, weight.tolist())
        for net, optimizer in zip(twins.nets, twins.optimizers, strict=True):
            try:
                told.append(net.step(x, y, optimizer, sample_weight=weight))
            except (SingaNetError, AttributeError) as error:
                told.append(str(error))
        assert told[-1] == told[-2]
        twins.expect_equal()


def test_what_a_users_loss_counts_is_not_counted_twice(rng):
    twins = Twins(net_with(Mine), lambda: SGD(lr=0.1))
    for _ in range(6):
        twins.step(data(rng), numbers(rng))
    assert any("loss" in note for note in twins.expect_recorded())
    assert [net.loss.calls for net in twins.nets] == [6, 6]


def test_a_users_loss_inside_one_of_singanets_is_seen(rng):
    def make():
        x = singanet.Input("x", (4,))
        outs = [Dense("a", 3)(x), Dense("b", 3)(x)]
        loss = losses.MultiLoss({"a": losses.SquaredError(), "b": Mine()})
        return singanet.FeedForwardNet(loss, inputs=x, outputs=outs, seed=2)

    twins = Twins(make, lambda: SGD(lr=0.1))
    for _ in range(6):
        twins.step(data(rng), {"a": numbers(rng), "b": numbers(rng)})
    assert any("loss" in note for note in twins.expect_recorded())
