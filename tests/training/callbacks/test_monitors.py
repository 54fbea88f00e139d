"""Callbacks that watch a measure or set the rate: they stop, keep the best, and reduce."""

import math
from functools import partial

import numpy as np
import pytest

import singanet
from singanet.errors import ArgumentError, UnknownNameError
from singanet.metric import F1, Accuracy, FBeta, Metric, Perplexity, RootMeanSquaredError
from singanet.optimizer import SGD
from singanet.optimizer.schedules import Cosine
from singanet.training import Callback
from singanet.training import callbacks as cb
from singanet.training.callbacks import EarlyStopping, LearningRate, Monitor, ReduceOnPlateau
from tests.kit.files import bytes_of


class Keeps(Callback):
    """The parameters after every epoch."""

    def __init__(self):
        self.kept = []

    def on_epoch_end(self, epoch, logs):
        self.kept.append(bytes_of(self.session.net))


@pytest.mark.parametrize(("name", "mode", "values", "better"), [
    ("loss", "auto", [3, 2, 2, 4, 1], [True, True, False, False, True]),
    ("val_accuracy", "auto", [0.1, 0.3, 0.2], [True, True, False]),
    ("loss", "max", [1, 2, 0], [True, True, False]),
    ("accuracy", "min", [1, 2, 0], [True, False, True]),
    ("loss", "auto", [math.nan, 2, math.nan, 1], [False, True, False, True]),
    ("loss, by 0.5", "auto", [2.0, 1.6, 1.5, 1.4], [True, False, False, True]),
])  # fmt: skip
def test_what_is_better(name, mode, values, better):
    name, _, delta = name.partition(", by ")
    monitor = Monitor("here", name, mode, float(delta or 0))
    monitor.begin(["loss", "accuracy", "val_accuracy"], {"accuracy": Accuracy()})
    assert [monitor.better(value) for value in values] == better
    for measured in (["loss", "val_loss"], ["loss"]):
        monitor = Monitor("here", "auto")
        monitor.begin(measured)
        assert monitor.name == measured[-1]


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


@pytest.mark.parametrize(("metric", "direction"), [
    (Accuracy(), "max"), (FBeta(2.0), "max"), (F1("weighted"), "max"), (Perplexity(), "min"),
    (RootMeanSquaredError(), "min"), (HighDice(), "max"), (LowDice(), "min"),
])  # fmt: skip
@pytest.mark.parametrize("name", ["acc", "top_loss_accuracy", "accuracy", "val_f1", "bleu_loss"])
def test_the_metric_is_asked_whatever_it_is_called(metric, direction, name):
    monitor = Monitor("here", name)
    monitor.begin(["loss", name], {name.removeprefix("val_"): metric})
    assert monitor.direction == direction


def fitted(callback, metrics):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((24, 4)).astype(np.float32), rng.integers(0, 3, 24)
    net = singanet.FeedForwardNet([singanet.layers.Dense("a", 3, input_sample_shape=(4,))], seed=0)
    net.compile(SGD(lr=0.1), singanet.loss.SoftmaxCrossEntropy(), metrics=metrics)
    fit = partial(net.fit, x, y, epochs=4, verbose=False)
    return net, lambda *before: fit(callbacks=[*before, callback])


@pytest.mark.parametrize(
    "make",
    [EarlyStopping, ReduceOnPlateau, lambda monitor: cb.ModelCheckpoint("no_folder", monitor)],
)
def test_what_nobody_knows_is_refused_before_the_first_step(make, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    net, fit = fitted(make("dice"), {"dice": Dice()})
    before = bytes_of(net)
    with pytest.raises(ArgumentError, match="better = 'max' in the class Dice"):
        fit()
    assert bytes_of(net) == before


def test_the_best_weights_of_a_users_metric_come_back():

    class Told(HighDice):
        def compute(self):
            return [0.1, 0.9, 0.5, 0.2][self.epoch]

    class Tells(Keeps):
        def on_epoch_begin(self, epoch):
            metric.epoch = epoch

    metric, keeps, stopping = Told(), Tells(), EarlyStopping("told", patience=9)
    net, fit = fitted(stopping, {"told": metric})
    fit(keeps)
    assert stopping.best_epoch == 1
    assert bytes_of(net) == keeps.kept[1] != keeps.kept[3]


def test_a_plateau_that_looks_the_other_way_and_another_schedule_are_refused(build, data):
    net, fit = fitted(ReduceOnPlateau("accuracy"), {"accuracy": Accuracy()})
    net.compiled.optimizer.lr = singanet.optimizer.schedules.Plateau(0.1)
    with pytest.raises(ArgumentError, match="mode='max'"):
        fit()
    net.compiled.optimizer.lr = Cosine(0.1, 10)
    with pytest.raises(ArgumentError, match="Cosine"):
        fit()


LOSSES = [5.0, 3.0, 4.0, 3.5, 3.2, 1.0]


@pytest.mark.parametrize("restore", [True, False])
def test_stops_after_its_patience_with_the_best_weights(build, data, feign, restore):
    net, keeps = build(), Keeps()
    stopping = EarlyStopping("loss", patience=2, restore_best=restore)
    callbacks = [feign(loss=LOSSES), keeps, stopping]
    history = net.fit(*data, epochs=6, callbacks=callbacks, verbose=False)
    assert history.epochs == [0, 1, 2, 3]
    assert "not improved on 3" in history.stopped
    assert stopping.best_epoch == 1
    assert bytes_of(net) == keeps.kept[1 if restore else 3]
    assert keeps.kept[1] != keeps.kept[3]
    more = EarlyStopping("loss", patience=4)
    history = build().fit(*data, epochs=6, callbacks=[feign(loss=LOSSES), more], verbose=False)
    assert (history.stopped, more.best_epoch) == (None, 5)


@pytest.mark.parametrize("patience", [0, 1, 2, 3])
def test_waits_as_long_as_keras(build, data, feign, patience):
    keras = pytest.importorskip("keras")
    losses = [5.0, 3.0, 4.0, 2.9, 3.2, 3.1, 3.3, 1.0]
    theirs = keras.callbacks.EarlyStopping("loss", patience=patience)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.stop_training = False
    theirs.set_model(model)
    theirs.on_train_begin()
    epochs = 0
    while epochs < len(losses) and not model.stop_training:
        theirs.on_epoch_end(epochs, {"loss": losses[epochs]})
        epochs += 1
    stopping = EarlyStopping("loss", patience=patience)
    callbacks = [feign(loss=losses), stopping]
    history = build().fit(*data, epochs=len(losses), callbacks=callbacks, verbose=False)
    assert len(history.epochs) == epochs


def test_falls_after_epochs_without_gain(build, data, feign):
    net = build(optimizer=SGD(lr=0.8))
    watched = feign(loss=[5.0, 4.0, 4.0, 4.0, 4.0, 4.0])
    callback = ReduceOnPlateau("loss", factor=0.5, patience=2)
    history = net.fit(*data, epochs=6, callbacks=[watched, callback], verbose=False)
    assert history["lr"] == [0.8, 0.8, 0.8, 0.8, 0.4, 0.4]
    assert net.compiled.optimizer.lr.value == 0.2


@pytest.mark.parametrize(("schedule", "rates"), [
    (lambda epoch: 0.1 * 0.5**epoch, [0.1, 0.05, 0.025]),
    (lambda epoch, rate: rate if epoch < 1 else rate / 2, [0.2, 0.1, 0.05]),
])  # fmt: skip
def test_the_rate_of_every_epoch_is_the_schedules(build, data, schedule, rates):
    net, callbacks = build(optimizer=SGD(lr=0.2)), [LearningRate(schedule)]
    history = net.fit(*data, epochs=3, callbacks=callbacks, clip=1.0, verbose=False)
    assert history["lr"] == rates
    assert net.compiled.optimizer.lr == rates[-1]


@pytest.mark.parametrize("rate", [-1.0, float("nan"), "0.1"])
def test_rates_that_are_none(build, data, rate):
    with pytest.raises(ArgumentError, match="epoch 0"):
        build().fit(*data, callbacks=[LearningRate(lambda epoch: rate)], verbose=False)


class Adds(Callback):
    """Adds a measure to the logs of each epoch, as a callback of a user's own does."""

    def __init__(self, name):
        self.name = name

    def on_epoch_end(self, epoch, logs):
        logs[self.name] = float(-epoch)


@pytest.mark.parametrize("make", [EarlyStopping, ReduceOnPlateau, partial(cb.ModelCheckpoint, "f")])
def test_a_measure_that_a_callback_adds_can_be_watched(make, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    watch = make(monitor="kid", mode="min")
    _, fit = fitted(watch, ["accuracy"])
    assert fit(Adds("kid"))["kid"] == [0, -1, -2, -3]
    if make is not ReduceOnPlateau:  # whose schedule has the best value
        assert watch.monitor.best == -3
    with pytest.raises(UnknownNameError, match="put the callback that adds it"):
        fitted(make(monitor="kid", mode="min"), ["accuracy"])[1](Adds("other"))
    with pytest.raises(ArgumentError, match="pass mode='max'"):
        fitted(make(monitor="kid"), ["accuracy"])[1](Adds("kid"))
