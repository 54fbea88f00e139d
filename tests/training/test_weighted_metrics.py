"""weighted_metrics: in fit, evaluate, files, recorded or not."""

import os

import numpy as np
import pytest

import singanet
from singanet import FeedForwardNet, Input
from singanet.errors import ArgumentError, DataError
from singanet.layers import Dense, Dummy
from singanet.loss import MultiLoss, SigmoidCrossEntropy, SoftmaxCrossEntropy, SquaredError
from singanet.metric import Accuracy, Metric
from singanet.optimizer import SGD
from singanet.training.fit import fit
from singanet.training.options import FitOptions

os.environ.setdefault("KERAS_BACKEND", "torch")

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((50, 6)).astype(np.float32), RNG.integers(0, 3, 50)
W = RNG.random(50).astype(np.float32)


class Share(Metric):
    """A user's own, which takes no weights: the share of class 0."""

    gathered = ("samples", "zeros")

    def reset(self):
        self.samples = self.zeros = 0

    def update(self, x, y):
        self.samples += len(y)
        self.zeros += int((y == 0).sum())

    def compute(self):
        return self.zeros / self.samples


class WeightedShare(Share):
    def update(self, x, y, weight=None):
        weight = np.ones(len(y)) if weight is None else weight
        self.samples += float(weight.sum())
        self.zeros += float((weight * (y == 0)).sum())


def made(**given):
    net = FeedForwardNet([Dense("fc", 3, input_sample_shape=(6,))], seed=0)
    net.compile(SGD(0.1), SoftmaxCrossEntropy(), **given)
    return net


@pytest.mark.parametrize("recorded", [False, True])
def test_fit_and_evaluate_weigh_them_and_no_others(recorded):
    net = made(metrics=[Accuracy(), Share()], weighted_metrics=[Accuracy(), WeightedShare()])
    net.programs.enabled = recorded
    history = net.fit(
        X, Y, batch_size=7, epochs=3, sample_weight=W, validation_data=(X, Y, W), verbose=False
    )
    right = net.predict(X).argmax(axis=1) == Y
    wanted = {
        "accuracy": right.mean(),
        "weighted_accuracy": np.average(right, None, W),
        "share": (Y == 0).mean(),
        "weighted_share": np.average(Y == 0, None, W),
    }
    for found in (
        net.evaluate(X, Y, sample_weight=W).logs,
        net.evaluate(X, Y, 7, sample_weight=W).logs,
        net.evaluate([(X[:30], Y[:30], W[:30]), (X[30:], Y[30:], W[30:])]).logs,
        net.test_on_batch(X, Y, W),
        {name: history[f"val_{name}"][-1] for name in wanted},
    ):
        assert {name: found[name] for name in wanted} == pytest.approx(wanted)
    assert history["weighted_share"] == pytest.approx([wanted["weighted_share"]] * 3)
    plain = net.evaluate(X, Y).logs
    assert plain["accuracy"] == plain["weighted_accuracy"]


def test_class_weights_and_parts_of_batches_count_too():
    net = made(weighted_metrics=WeightedShare())
    given = {"class_weight": {0: 3.0}, "batch_size": 10, "verbose": False}
    wanted = np.average(Y == 0, None, np.where(Y == 0, 3.0, 1.0))
    in_parts = FitOptions(X, Y, **given).in_parts(4)
    for history in (net.fit(X, Y, **given), fit(net, in_parts)):
        assert history["weighted_share"] == pytest.approx([wanted])


def test_of_several_outputs_each_has_its_own():
    x = Input("x", (6,))
    net = FeedForwardNet(inputs=x, outputs=[Dense("a", 3)(x), Dense("b", 1)(x)], seed=0)
    loss = MultiLoss({"a": SoftmaxCrossEntropy(), "b": SquaredError()})
    net.compile("adam", loss, {"a": Accuracy()}, weighted_metrics={"a": "accuracy", "b": "mae"})
    y = {"a": Y, "b": X[:, :1]}
    logs = net.evaluate(X, y, sample_weight=W).logs
    out = net.predict(X)
    right, off = out["a"].argmax(axis=1) == Y, np.abs(out["b"] - y["b"])[:, 0]
    assert logs["a_accuracy"] == pytest.approx(right.mean())
    assert logs["a_weighted_accuracy"] == pytest.approx(np.average(right, None, W))
    assert logs["b_mae"] == pytest.approx(np.average(off, None, W))


def test_steps_that_are_masked_have_no_weight():
    x, there = Input("x", (5, 6)), Input("there", (5,))
    net = FeedForwardNet(inputs=[x, there], outputs=[Dense("a", 3)(x), Dummy("m")(there)], seed=0)
    loss = MultiLoss({"a": SoftmaxCrossEntropy()}, masks={"a": "m"})
    net.compile("sgd", loss, weighted_metrics={"a": Accuracy()})
    feed = {"x": RNG.standard_normal((10, 5, 6))}
    feed["there"] = RNG.integers(0, 2, (10, 5)).astype(np.float32)
    y = RNG.integers(0, 3, (10, 5))
    right = net.predict(feed)["a"].argmax(axis=2) == y
    for weight in (W[:10], W.reshape(10, 5)):
        each = weight.reshape(10, -1) * feed["there"]
        found = net.evaluate(feed, {"a": y}, sample_weight=weight).logs["a_accuracy"]
        assert found == pytest.approx(np.average(right, None, each))


def test_what_takes_no_weights_is_refused_before_anything_is_changed():
    net = made(metrics=Accuracy())
    before = net.compiled
    with pytest.raises(ArgumentError, match=r"weighted_metrics: .* Share, whose update takes"):
        net.compile("adam", weighted_metrics=[Share()])
    assert net.compiled is before
    net.compile("sgd", weighted_metrics=Accuracy())
    with pytest.raises(DataError, match="numbers from 0 on"):
        net.evaluate(X, Y, sample_weight=-W)
    with pytest.raises(ArgumentError, match=r"net.evaluate, sample_weight"):
        net.evaluate([(X, Y)], sample_weight=W)


def test_a_model_file_keeps_what_is_weighted(tmp_path):
    net = made(metrics="accuracy", weighted_metrics=["accuracy"])
    net.save_model(tmp_path / "net.singanet")
    again = singanet.load_model(tmp_path / "net.singanet")
    wanted = net.evaluate(X, Y, sample_weight=W).logs
    assert again.evaluate(X, Y, sample_weight=W).logs == pytest.approx(wanted)
    assert wanted["accuracy"] != wanted["weighted_accuracy"]


def test_equals_keras():
    keras = pytest.importorskip("keras")
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
    model.compile(
        keras.optimizers.SGD(0.1),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        weighted_metrics=["accuracy"],
    )
    net = made(metrics=Accuracy(), weighted_metrics=Accuracy())
    for param, value in zip(net.params(), model.get_weights(), strict=True):
        param.value[...] = value
    theirs = model.evaluate(X, Y, sample_weight=W, verbose=0, return_dict=True)
    ours = net.evaluate(X, Y, sample_weight=W).logs
    assert ours["accuracy"] == pytest.approx(theirs["accuracy"])
    assert ours["weighted_accuracy"] == pytest.approx(theirs["weighted_accuracy"], rel=1e-5)


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("kind", ["MeanSquaredError", "BinaryCrossentropy", "Huber"])
@pytest.mark.parametrize("recorded", [False, True])
def test_weights_of_steps_are_as_in_keras(kind, outputs, recorded):
    """Outputs (B, T, D) and weights (B, T): two steps, and what evaluate tells."""
    keras = pytest.importorskip("keras", reason="compares with Keras: pip install '.[peers]'")
    rng = np.random.default_rng(2)
    x = rng.standard_normal((8, 5, 4)).astype(np.float32)
    y = rng.integers(0, 2, (8, 5, outputs)).astype(np.float32)
    weight = rng.uniform(0, 2, (8, 5)).astype(np.float32)
    said = {"from_logits": True} if kind == "BinaryCrossentropy" else {}
    peer = keras.Sequential([keras.Input((5, 4)), keras.layers.Dense(outputs)])
    peer.compile(keras.optimizers.SGD(0.1), getattr(keras.losses, kind)(**said))
    loss = {"BinaryCrossentropy": "SigmoidCrossEntropy"}.get(kind, kind)
    net = FeedForwardNet([Dense("fc", outputs, input_sample_shape=(5, 4))])
    net.compile(SGD(0.1), getattr(singanet.loss, loss)())
    net.programs.enabled = recorded
    for param, value in zip(net.params(), peer.get_weights(), strict=True):
        param.value[...] = value
    given = {"batch_size": 4, "epochs": 2, "shuffle": False, "sample_weight": weight}
    told = peer.fit(x, y, verbose=0, **given).history["loss"]
    assert net.fit(x, y, verbose=False, **given)["loss"] == pytest.approx(told, rel=1e-5)
    for param, value in zip(net.params(), peer.get_weights(), strict=True):
        np.testing.assert_allclose(param.value, value, atol=1e-6)
    told = peer.evaluate(x, y, sample_weight=weight, verbose=0)
    for size in (None, 3):
        assert net.evaluate(x, y, size, sample_weight=weight)[0] == pytest.approx(told, rel=1e-5)
    with pytest.raises(DataError, match="or one for each position"):
        net.evaluate(x, y, sample_weight=weight[:, :4])


@pytest.mark.parametrize("kind", ["float32", "float64", "bool"])
def test_class_weights_of_yes_and_no_are_as_in_keras(kind):
    keras = pytest.importorskip("keras", reason="compares with Keras: pip install '.[peers]'")
    y = (Y[:, None] > 0).astype(kind)
    peer = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    peer.compile(keras.optimizers.SGD(0.1), keras.losses.BinaryCrossentropy(from_logits=True))
    net = FeedForwardNet([Dense("fc", 1, input_sample_shape=(6,))])
    net.compile(SGD(0.1), SigmoidCrossEntropy())
    for param, value in zip(net.params(), peer.get_weights(), strict=True):
        param.value[...] = value
    given = {"batch_size": 10, "epochs": 2, "shuffle": False, "class_weight": {0: 0.5, 1: 3.0}}
    peer.fit(X, y, verbose=0, **given)
    net.fit(X, y, verbose=False, **given)
    for param, value in zip(net.params(), peer.get_weights(), strict=True):
        np.testing.assert_allclose(param.value, value, atol=1e-6)
    with pytest.raises(DataError, match="0 and 1"):
        net.fit(X, y * 0.9, verbose=False, class_weight={1: 2.0})
