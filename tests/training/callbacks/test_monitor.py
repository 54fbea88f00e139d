import math

import numpy as np
import pytest

import singanet
from singanet.errors import ArgumentError, UnknownNameError
from singanet.metric import F1, Accuracy, FBeta, Metric, Perplexity, RootMeanSquaredError
from singanet.training.callbacks import EarlyStopping, ModelCheckpoint, Monitor, ReduceOnPlateau


@pytest.mark.parametrize(
    ("name", "mode", "values", "better"),
    [
        ("loss", "auto", [3, 2, 2, 4, 1], [True, True, False, False, True]),
        ("val_accuracy", "auto", [0.1, 0.3, 0.2], [True, True, False]),
        ("loss", "max", [1, 2, 0], [True, True, False]),
        ("accuracy", "min", [1, 2, 0], [True, False, True]),
        ("loss", "auto", [math.nan, 2, math.nan, 1], [False, True, False, True]),
    ],
)
def test_what_is_better(name, mode, values, better):
    monitor = Monitor("here", name, mode)
    monitor.begin(["loss", "accuracy", "val_accuracy"], {"accuracy": Accuracy()})
    assert [monitor.better(value) for value in values] == better


def test_a_gain_must_exceed_the_least():
    monitor = Monitor("here", "loss", min_delta=0.5)
    monitor.begin(["loss"])
    assert [monitor.better(v) for v in (2.0, 1.6, 1.5, 1.4)] == [True, False, False, True]


def test_auto_prefers_the_validation():
    monitor = Monitor("here", "auto")
    monitor.begin(["loss", "val_loss"])
    assert monitor.name == "val_loss"
    monitor = Monitor("here", "auto")
    monitor.begin(["loss"])
    assert monitor.name == "loss"


def test_a_name_that_is_not_measured():
    with pytest.raises(UnknownNameError, match="validation_data"):
        Monitor("here", "val_loss").begin(["loss", "accuracy"])
    with pytest.raises(UnknownNameError, match="did you mean 'accuracy'"):
        Monitor("here", "acuracy").begin(["loss", "accuracy"])
    with pytest.raises(ArgumentError, match="mode"):
        Monitor("here", "loss", "up")


class Dice(Metric):
    """A user's own; what is better is said by subclasses."""

    gathered = ("samples", "sum")

    def reset(self):
        self.samples, self.sum = 0, 0.0

    def update(self, x, y):
        self.samples += len(x)
        self.sum += float((x.argmax(1) == y).sum())

    def compute(self):
        return self.sum / self.samples


class HighDice(Dice):
    better = "max"


class LowDice(Dice):
    better = "min"


@pytest.mark.parametrize(
    ("metric", "direction"),
    [
        (Accuracy(), "max"),
        (FBeta(2.0), "max"),
        (F1("weighted"), "max"),
        (Perplexity(), "min"),
        (RootMeanSquaredError(), "min"),
        (HighDice(), "max"),
        (LowDice(), "min"),
    ],
)
@pytest.mark.parametrize("name", ["acc", "top_loss_accuracy", "accuracy", "val_f1", "bleu_loss"])
def test_the_metric_is_asked_whatever_it_is_called(metric, direction, name):
    monitor = Monitor("here", name)
    monitor.begin(["loss", name], {name.removeprefix("val_"): metric})
    assert monitor.direction == direction


def fitted(callback, metrics, **more):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((24, 4)).astype(np.float32), rng.integers(0, 3, 24)
    net = singanet.FeedForwardNet(
        [singanet.layers.Dense("a", 3, input_sample_shape=(4,))],
        loss=singanet.loss.SoftmaxCrossEntropy(),
        seed=0,
    )
    net.compile(singanet.optimizer.SGD(lr=0.1), metrics=metrics)
    before = [value.copy() for value in net.param_values()]
    return net, before, lambda: net.fit(x, y, epochs=4, callbacks=[callback], verbose=False, **more)


@pytest.mark.parametrize(
    "make", [EarlyStopping, ReduceOnPlateau, lambda monitor: ModelCheckpoint("no_folder", monitor)]
)
def test_what_nobody_knows_is_refused_before_the_first_step(make, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    net, before, fit = fitted(make("dice"), {"dice": Dice()})
    with pytest.raises(singanet.errors.ArgumentError, match="better = 'max' in the class Dice"):
        fit()
    for was, value in zip(before, net.param_values(), strict=True):
        np.testing.assert_array_equal(was, value)


def test_the_best_weights_of_a_users_metric_come_back():
    """Its values are told beforehand: the second epoch is the best, by more being better."""

    class Told(HighDice):
        def compute(self):
            return [0.1, 0.9, 0.5, 0.2][self.epoch]

    metric, kept = Told(), []

    class Keep(singanet.training.callbacks.Callback):
        def on_epoch_begin(self, epoch):
            metric.epoch = epoch

        def on_epoch_end(self, epoch, logs):
            kept.append([value.copy() for value in self.session.net.param_values()])

    stopping = EarlyStopping("told", patience=9)
    net, _, _ = fitted(stopping, {"told": metric})
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((24, 4)).astype(np.float32), rng.integers(0, 3, 24)
    net.fit(x, y, epochs=4, callbacks=[Keep(), stopping], verbose=False)
    assert stopping.best_epoch == 1
    for value, best in zip(net.param_values(), kept[1], strict=True):
        np.testing.assert_array_equal(value, best)


def test_a_plateau_that_looks_the_other_way_is_refused():
    net, _, fit = fitted(ReduceOnPlateau("accuracy"), {"accuracy": Accuracy()})
    net.compiled.optimizer.lr = singanet.optimizer.schedules.Plateau(0.1)
    with pytest.raises(singanet.errors.ArgumentError, match="mode='max'"):
        fit()
