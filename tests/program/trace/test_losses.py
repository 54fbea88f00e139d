"""Every loss and metric in recorded steps: equal to the bit to steps by the layers."""

import inspect

import numpy as np
import pytest

from singanet import FeedForwardNet, Input
from singanet import loss as losses
from singanet import metric as metrics
from singanet.layers import Activation, Dense, Reshape, Softmax
from singanet.optimizer import SGD
from tests.program.program_case import vectors
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


def bits(rng):
    return (rng.random((6, 3)) < 0.5).astype(np.float32)


def numbers(rng):
    return vectors(rng, 6, 3)


def data(rng):
    return vectors(rng, 6, 4)


CASES = {
    "softmax": (losses.SoftmaxCrossEntropy, labels),
    "softmax, a column": (losses.SoftmaxCrossEntropy, lambda rng: labels(rng)[:, None]),
    "softmax, one-hot": (losses.SoftmaxCrossEntropy, one_hot),
    "softmax, shares": (losses.SoftmaxCrossEntropy, shares),
    "softmax, smoothed": (lambda: losses.SoftmaxCrossEntropy(label_smoothing=0.1), labels),
    "softmax, some ignored": (lambda: losses.SoftmaxCrossEntropy(ignore_index=-1), ignored),
    "softmax, summed": (lambda: losses.SoftmaxCrossEntropy(reduction="sum"), labels),
    "softmax, weighted": (
        lambda: losses.SoftmaxCrossEntropy(0.1, ignore_index=-1, class_weight=[1, 2, 3]), ignored),
    "sigmoid": (losses.SigmoidCrossEntropy, bits),
    "sigmoid, weighted": (lambda: losses.SigmoidCrossEntropy(pos_weight=[1.0, 2.0, 3.0]), bits),
    "sigmoid, smoothed": (lambda: losses.SigmoidCrossEntropy(label_smoothing=0.1), bits),
    "sigmoid, focal": (lambda: losses.SigmoidFocal(alpha=0.25), bits),
    "sigmoid, dice": (losses.Dice, bits),
    "sigmoid, tversky": (lambda: losses.Tversky(0.3, 0.7), bits),
    "binary": (losses.BinaryCrossEntropy, bits),
    "categorical": (losses.CategoricalCrossEntropy, labels),
    "categorical, shares": (lambda: losses.CategoricalCrossEntropy(0.1), shares),
    "categorical, some ignored": (lambda: losses.CategoricalCrossEntropy(ignore_index=-1), ignored),
    "mean squared": (losses.MeanSquaredError, numbers),
    "hinge": (losses.Hinge, lambda rng: np.sign(rng.standard_normal((6, 3)) + 0.1)),
    "hinge, squared": (lambda: losses.Hinge(squared=True), bits),
    "huber": (lambda: losses.Huber(0.3), numbers),
    "divergence": (losses.KLDivergence, shares),
    "absolute": (losses.MeanAbsoluteError, numbers),
    "squared": (losses.SquaredError, numbers),
    "squared, doubles": (losses.SquaredError, lambda rng: rng.standard_normal((6, 3))),
    "squared, integers": (losses.SquaredError, lambda rng: rng.integers(-2, 3, (6, 3))),
    "focal": (lambda: losses.SoftmaxFocal(ignore_index=-1), ignored),
    "smooth": (lambda: losses.SmoothL1(0.3), numbers),
    "poisson": (losses.Poisson, lambda rng: rng.integers(0, 4, (6, 3))),
    "cosine": (losses.CosineSimilarity, numbers),
    # Of parts and of positions.
    "gaussian": (losses.GaussianNLL, lambda rng: rng.standard_normal((6, 2, 3)), (2, 6)),
    "triplets": (losses.TripletMargin, lambda rng: rng.integers(0, 2, 6), (3, 4)),
    "pairs": (losses.InfoNCE, lambda rng: np.ones(6), (2, 4)),
    "negatives": (lambda: losses.MultipleNegativesRanking(3.0), lambda rng: rng.random(6), (3, 4)),
    "ranking": (lambda: losses.MarginRanking(0.1), lambda rng: 2 * rng.integers(0, 2, 6) - 1, (2,)),
    "dpo": (lambda: losses.DPO(0.3, 0.1), lambda rng: vectors(rng, 6, 2), (2,)),
    "orpo": (losses.ORPO, lambda rng: rng.integers(1, 9, (6, 3)), (3,)),
    "kto": (lambda: losses.KTO(0.3, 2.0),
            lambda rng: np.column_stack([vectors(rng, 6, 2), rng.integers(0, 2, 6)]), (2,)),
    "reward": (losses.RewardRanking, lambda rng: vectors(rng, 6), (2,)),
    "ctc": (lambda: losses.CTC(blank=0), lambda rng: rng.integers(1, 4, (6, 1)), (3, 4)),
}  # fmt: skip
OF_METRICS = {
    "softmax": (metrics.Accuracy, metrics.Perplexity),
    "squared": (metrics.RootMeanSquaredError, metrics.R2, metrics.MeanAbsoluteError),
    "sigmoid": (metrics.BinaryAccuracy, lambda: metrics.F1("macro", 0.5)),
}
BY_HAND = {"Loss", "HeadLoss", "MultiLoss", "TokenLogProbabilities", "from_function"}


def net_with(name, metric=None, loss=None, last=...):
    """A maker of nets for a case: they end in probabilities if the loss wants them."""
    made, _, *shape = CASES[name]
    if last is ...:
        last = {"categorical": "softmax", "sigmoid": "tanh"}.get(name.partition(",")[0], "sigmoid")

    def make():
        net = FeedForwardNet((loss or made)(), None if metric is None else metric(), seed=2)
        net.add(Dense("in", 5, input_sample_shape=(4,)))
        net.add(Activation("tanh", "tanh"))
        net.add(Dense("out", int(np.prod(shape[0])) if shape else 3))
        if shape:
            net.add(Reshape("last", shape[0]))
        elif last is not None:
            net.add(Softmax("last") if last == "softmax" else Activation("last", last))
        return net

    return make


def sgd():
    return SGD(lr=0.1)


def test_every_public_loss_is_in_the_table():
    public = {name: getattr(losses, name) for name in losses.__all__}
    classes = {k for name, k in public.items() if inspect.isclass(k) and name not in BY_HAND}
    assert {type(case[0]()) for case in CASES.values()} == classes


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_losses(name, weighted, rng):
    twins, draw = Twins(net_with(name), sgd), CASES[name][1]
    for _ in range(6):
        x, y = data(rng), draw(rng)
        weight = rng.uniform(0.1, 2, y.shape[:2] if name == "gaussian" else 6).astype(np.float32)
        twins.step(x, y, sample_weight=weight if weighted else None)
    assert twins.expect_recorded() == []


@pytest.mark.parametrize(
    ("name", "metric"), [(name, metric) for name in OF_METRICS for metric in OF_METRICS[name]]
)
def test_metrics(name, metric, rng):
    twins = Twins(net_with(name, metric), sgd)
    for _ in range(5):
        twins.step(data(rng), CASES[name][1](rng))
    twins.expect_recorded()


@pytest.mark.few(4)
@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("name", [name for name in CASES if len(CASES[name]) == 2])
def test_numbers_in_the_other_byte_order_are_the_same_numbers(name, recorded, rng):
    draw = CASES[name][1]
    twins = Twins(net_with(name, metrics.Accuracy if draw is labels else None), sgd)
    for net in twins.nets:
        net.programs.enabled = recorded
    for _ in range(4):
        given = data(rng), draw(rng), rng.uniform(0.1, 2, 6).astype(np.float32)
        other = [array.astype(array.dtype.newbyteorder("S")) for array in given]
        told = [
            (net.step(x, y, rule, sample_weight=weight), net.evaluate(x, y))
            for net, rule, (x, y, weight) in zip(
                twins.nets, twins.optimizers, (given, other), strict=True
            )
        ]
        assert told[0] == told[1]
    twins.expect_equal()


WRONG = {
    "softmax": lambda y: y + 3, "softmax, a column": lambda y: y - 3,
    "softmax, some ignored": lambda y: y + 7, "sigmoid": lambda y: y + 1,
    "binary": lambda y: y - 1, "categorical": lambda y: y + 3, "hinge": lambda y: y * 3,
    "divergence": lambda y: y * 2,
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_targets_of_a_replay_say_the_same_and_change_nothing(name, rng):
    twins, draw = Twins(net_with(name), sgd), CASES[name][1]
    twins.train([(data(rng), draw(rng)) for _ in range(3)])
    x, y = data(rng), WRONG[name](draw(rng))
    twins.refuse(lambda net, rule: net.step(x, y, rule), "'last'")
    twins.step(data(rng), draw(rng))
    twins.expect_recorded()


def test_wrong_outputs_are_seen_at_each_replay(rng):
    twins = Twins(net_with("binary", last=None), sgd)
    for net in twins.nets:
        for param in net.params():
            param.value[...] = 0.5 if param.name == "out/bias" else 0.01 * param.value
    twins.train([(data(rng), bits(rng)) for _ in range(3)])
    for net in twins.nets:
        net.params()[-1].value[...] = 9.0
    x, y = data(rng), bits(rng)
    twins.refuse(lambda net, rule: net.step(x, y, rule), "outputs from 0 to 1")


class Counting(losses.SquaredError):
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


@pytest.mark.parametrize("loss", [Counting, Fourth])
def test_losses_of_users_are_python_steps(loss, rng):
    twins = Twins(net_with("squared", loss=loss), sgd)
    twins.train([(data(rng), numbers(rng)) for _ in range(6)])
    assert any("loss" in note for note in twins.expect_recorded())
    if loss is Counting:
        assert [net.loss.calls for net in twins.nets] == [6, 6]


def test_a_users_loss_inside_one_of_singanets_is_seen(rng):
    def make():
        x = Input("x", (4,))
        loss = losses.MultiLoss({"a": losses.SquaredError(), "b": Counting()})
        return FeedForwardNet(loss, inputs=x, outputs=[Dense("a", 3)(x), Dense("b", 3)(x)], seed=2)

    twins = Twins(make, sgd)
    twins.train([(data(rng), {"a": numbers(rng), "b": numbers(rng)}) for _ in range(6)])
    assert any("loss" in note for note in twins.expect_recorded())
