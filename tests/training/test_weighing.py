"""What losses and metrics count over batches: weights, masks, ignored labels and padding."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import singanet
from singanet import Executor, FeedForwardNet, Input, metric
from singanet.errors import ArgumentError, DataError
from singanet.layers import Activation, Conv2D, Dense, Dummy, Permute, Softmax, TimeDistributed
from singanet.loss import CategoricalCrossEntropy, MultiLoss, SoftmaxCrossEntropy, SquaredError
from singanet.metric import Accuracy, ConfusionMatrix, Metric, Perplexity
from singanet.optimizer import SGD
from singanet.parallel import AllReduce
from singanet.report import ConfusionLog
from singanet.report.recording import write_confusion
from singanet.testing import communicators
from singanet.training.fit import fit
from singanet.training.options import FitOptions
from tests.kit.callbacks import at

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


def weighed_net(**given):
    net = FeedForwardNet([Dense("fc", 3, input_sample_shape=(6,))], seed=0)
    net.compile(SGD(0.1), SoftmaxCrossEntropy(), **given)
    return net


@pytest.mark.parametrize("recorded", [False, True])
def test_fit_and_evaluate_weigh_them_and_no_others(recorded):
    net = weighed_net(metrics=[Accuracy(), Share()], weighted_metrics=[Accuracy(), WeightedShare()])
    net.programs.enabled = recorded
    history = net.fit(
        X, Y, batch_size=7, epochs=3, sample_weight=W, validation_data=(X, Y, W), verbose=False
    )
    right = net.predict(X).argmax(axis=1) == Y
    wanted = {
        "accuracy": right.mean(), "weighted_accuracy": np.average(right, None, W),
        "share": (Y == 0).mean(), "weighted_share": np.average(Y == 0, None, W)
    }  # fmt: skip
    for found in (
        net.evaluate(X, Y, sample_weight=W).logs, net.evaluate(X, Y, 7, sample_weight=W).logs,
        net.evaluate([(X[:30], Y[:30], W[:30]), (X[30:], Y[30:], W[30:])]).logs,
        net.test_on_batch(X, Y, W), {name: history[f"val_{name}"][-1] for name in wanted}
    ):  # fmt: skip
        assert {name: found[name] for name in wanted} == pytest.approx(wanted)
    assert history["weighted_share"] == pytest.approx([wanted["weighted_share"]] * 3)
    plain = net.evaluate(X, Y).logs
    assert plain["accuracy"] == plain["weighted_accuracy"]


def test_class_weights_and_parts_of_batches_count_too():
    net = weighed_net(weighted_metrics=WeightedShare())
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
    for call in (net.fit, net.evaluate, lambda *xy, **more: net.step(*xy, SGD(0.1), **more)):
        with pytest.raises(DataError, match=r"a dict of 'a', 'b'; a sample weighs the same"):
            call(X, y, sample_weight={"a": W, "b": W})


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
    net = weighed_net(metrics=Accuracy())
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
    net = weighed_net(metrics="accuracy", weighted_metrics=["accuracy"])
    net.save_model(tmp_path / "net.singanet")
    again = singanet.load_model(tmp_path / "net.singanet")
    wanted, found = (each.evaluate(X, Y, sample_weight=W).logs for each in (net, again))
    assert found == pytest.approx(wanted)
    assert wanted["accuracy"] != wanted["weighted_accuracy"]


@pytest.fixture
def keras():
    return pytest.importorskip("keras", reason="compares with Keras: pip install '.[peers]'")


def beside_keras(keras, shape, outputs, theirs, loss, **more):
    """A Dense of ours and of Keras with the same values, compiled."""
    peer = keras.Sequential([keras.Input(shape), keras.layers.Dense(outputs)])
    peer.compile(keras.optimizers.SGD(0.1), theirs, **{name: ["accuracy"] for name in more})
    net = FeedForwardNet([Dense("fc", outputs, input_sample_shape=shape)])
    net.compile(SGD(0.1), loss, **more)
    for param, value in zip(net.params(), peer.get_weights(), strict=True):
        param.value[...] = value
    return net, peer


def expect_weights(net, peer):
    for param, value in zip(net.params(), peer.get_weights(), strict=True):
        np.testing.assert_allclose(param.value, value, atol=1e-6)


def test_equals_keras(keras):
    theirs = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    more = {"metrics": Accuracy(), "weighted_metrics": Accuracy()}
    net, peer = beside_keras(keras, (6,), 3, theirs, SoftmaxCrossEntropy(), **more)
    wanted = peer.evaluate(X, Y, sample_weight=W, verbose=0, return_dict=True)
    ours = net.evaluate(X, Y, sample_weight=W).logs
    for name in ("accuracy", "weighted_accuracy"):
        assert ours[name] == pytest.approx(wanted[name], rel=1e-5)


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("kind", ["MeanSquaredError", "BinaryCrossentropy", "Huber"])
@pytest.mark.parametrize("recorded", [False, True])
def test_weights_of_steps_are_as_in_keras(keras, kind, outputs, recorded):
    rng = np.random.default_rng(2)
    x = rng.standard_normal((8, 5, 4)).astype(np.float32)
    y = rng.integers(0, 2, (8, 5, outputs)).astype(np.float32)
    weight = rng.uniform(0, 2, (8, 5)).astype(np.float32)
    said = {"from_logits": True} if kind == "BinaryCrossentropy" else {}
    ours = {"BinaryCrossentropy": "SigmoidCrossEntropy"}.get(kind, kind)
    losses = getattr(keras.losses, kind)(**said), getattr(singanet.loss, ours)()
    net, peer = beside_keras(keras, (5, 4), outputs, *losses)
    net.programs.enabled = recorded
    given = {"batch_size": 4, "epochs": 2, "shuffle": False, "sample_weight": weight}
    told = peer.fit(x, y, verbose=0, **given).history["loss"]
    assert net.fit(x, y, verbose=False, **given)["loss"] == pytest.approx(told, rel=1e-5)
    expect_weights(net, peer)
    told = peer.evaluate(x, y, sample_weight=weight, verbose=0)
    for size in (None, 3):
        assert net.evaluate(x, y, size, sample_weight=weight)[0] == pytest.approx(told, rel=1e-5)
    with pytest.raises(DataError, match="or one for each position"):
        net.evaluate(x, y, sample_weight=weight[:, :4])


@pytest.mark.parametrize("kind", ["float32", "float64", "bool"])
def test_class_weights_of_yes_and_no_are_as_in_keras(keras, kind):
    y = (Y[:, None] > 0).astype(kind)
    theirs, loss = keras.losses.BinaryCrossentropy(from_logits=True), "sigmoid_cross_entropy"
    net, peer = beside_keras(keras, (6,), 1, theirs, loss)
    given = {"batch_size": 10, "epochs": 2, "shuffle": False, "class_weight": {0: 0.5, 1: 3.0}}
    peer.fit(X, y, verbose=0, **given)
    net.fit(X, y, verbose=False, **given)
    expect_weights(net, peer)
    with pytest.raises(DataError, match="0 and 1"):
        net.fit(X, y * 0.9, verbose=False, class_weight={1: 2.0})


RNG5 = np.random.default_rng(5)
XS = RNG5.normal(size=(8, 6, 3)).astype(np.float32)
LABELS = RNG5.integers(0, 4, (8, 6))
LABELS[[0, 2, 3, 6], 2:] = -1
"""Four long sequences and four short ones, unevenly over batches of three or four."""


def of_sequences():
    layers = [TimeDistributed("out", Dense("dense", 4), input_sample_shape=(6, 3))]
    net = singanet.FeedForwardNet(layers, seed=0)
    net.loss, net.metric = SoftmaxCrossEntropy(ignore_index=-1), Perplexity(ignore_index=-1)
    return net


def by_hand(net):
    """Mean of −log softmax at the label, over the positions that have one."""
    scores, there = net.forward(False, XS).astype(np.float64), LABELS >= 0
    log_p = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
    found = np.take_along_axis(log_p, np.where(there, LABELS, 0)[..., None], -1)
    return float(-found[there].mean())


def expect_losses(net, x, y, wanted):
    """A fit that changes nothing says the loss ``wanted``, and so does its validation."""
    net.compile(SGD(lr=0.0))
    history = net.fit(x, y, batch_size=3, epochs=3, validation_data=(x, y), verbose=False)
    for name in ("loss", "val_loss"):
        assert history[name] == pytest.approx([wanted] * 3, rel=1e-5)
    assert net.evaluate(x, y, batch_size=5)[0] == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("recorded", [False, True])
def test_padded_sequences_weigh_what_they_count(recorded):
    net = of_sequences()
    net.programs.enabled = recorded
    expected = by_hand(net)
    expect_losses(net, XS, LABELS, expected)
    for size in (1, 3, 4, 8):
        loss, perplexity = net.evaluate(XS, LABELS, batch_size=size)
        assert loss == pytest.approx(expected, rel=1e-5)
        assert perplexity == pytest.approx(np.exp(expected), rel=1e-5)
    for micro_batch in (1, 2, 3):
        history = fit(net, FitOptions(XS, LABELS, 5, verbose=False).in_parts(micro_batch))
        assert history["loss"] == pytest.approx([expected], rel=1e-5)
    # Stopped within an epoch it goes on with what it counted.
    states = []
    stop = at("on_batch_end", lambda session, *_: (states.append(session.state()),
                                                   session.stop("here")))  # fmt: skip
    net.fit(XS, LABELS, batch_size=3, callbacks=[stop], verbose=False)
    history = net.fit(XS, LABELS, batch_size=3, resume=states[0], verbose=False)
    assert history["loss"] == pytest.approx([expected], rel=1e-5)


def of_two_outputs():
    net = singanet.FeedForwardNet(seed=0)
    net.add(Activation("in", input_sample_shape=(6, 3)))
    for name, width in (("kind", 4), ("size", 2)):
        net.add(TimeDistributed(name, Dense(f"dense of {name}", width)), "in")
    parts = {"kind": SoftmaxCrossEntropy(ignore_index=-1), "size": SquaredError()}
    net.loss = MultiLoss(parts, {"kind": 0.5})
    return net


@pytest.mark.parametrize("ignored", [True, False])
@pytest.mark.parametrize("recorded", [False, True])
def test_each_output_of_several_by_itself(recorded, ignored):
    net = of_two_outputs()
    net.programs.enabled = recorded
    if not ignored:
        net.loss = MultiLoss({"kind": SoftmaxCrossEntropy(), "size": SquaredError()}, {"kind": 0.5})
    y = {"kind": LABELS if ignored else abs(LABELS), "size": RNG5.normal(size=(8, 6, 2))}
    out, losses = net.forward(False, XS), net.loss.losses
    expected = 0.5 * losses["kind"].evaluate(False, out["kind"], y["kind"])
    expected += losses["size"].evaluate(False, out["size"], y["size"].astype(np.float32))
    expect_losses(net, XS, y, expected)
    assert {name: part.shape for name, part in net.loss.parts.items()} == dict.fromkeys(
        losses, (3,)
    )


class Weighted(singanet.loss.Loss):
    """Squared error whose targets hold a weight beside each value; a mean by weight."""

    def count(self, x, y):
        return float(y[:, 1].sum())

    def forward(self, flag, x, y, sample_weight=None):
        self.difference, self.weight = x[:, 0] - y[:, 0], y[:, 1] / y[:, 1].sum()
        return self.difference**2 * self.weight * len(x)

    def backward(self):
        return (2 * self.difference * self.weight)[:, None]

    def compute(self, ops, x, y):
        raise AssertionError

    def gradient(self, ops, saved):
        raise AssertionError


class Uncounted:
    """No subclass of `Loss`: half the squared distance of a sample."""

    def forward(self, flag, x, y, *weight):
        self.difference = x - y[:, :1]
        return 0.5 * (self.difference**2).sum(1)

    def evaluate(self, flag, x, y, *weight):
        return float(self.forward(flag, x, y).mean())

    def backward(self):
        return self.difference / len(self.difference)

    def link(self, x):
        return x


@pytest.mark.parametrize("make", [Weighted, Uncounted])
def test_a_users_own_loss_says_what_it_counted_or_counts_samples(make):
    layers = [Dense("d", 1, input_sample_shape=(3,))]
    net, x = singanet.FeedForwardNet(layers, loss=make(), seed=0), XS[:, 0]
    y = np.stack([x.sum(1), [1, 9, 2, 1, 5, 1, 7, 3]], axis=1).astype(np.float32)
    error = net.forward(False, x)[:, 0] - y[:, 0]
    expected = (error**2 * y[:, 1]).sum() / y[:, 1].sum()
    expect_losses(net, x, y, (0.5 * error**2).mean() if make is Uncounted else expected)


def test_a_subclass_that_adds_a_term_keeps_it():
    class Penalised(MultiLoss):
        def forward(self, *args):
            return super().forward(*args) + 1.0

    net = of_two_outputs()
    net.loss = Penalised(net.loss.losses, net.loss.weights)
    y = {"kind": abs(LABELS), "size": RNG5.normal(size=(8, 6, 2)).astype(np.float32)}
    expected = net.loss.evaluate(False, net.forward(False, XS), y)
    assert net.evaluate(XS, y, batch_size=4)[0] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("records", [False, True])
def test_losses_of_several_outputs_are_those_of_the_whole_batch_where_it_comes_in_parts(records):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((40, 6), np.float32)
    y = {"a": rng.integers(0, 3, 40), "b": rng.standard_normal((40, 2), np.float32)}

    def trained(micro_batch):
        loss = MultiLoss({"a": SoftmaxCrossEntropy(), "b": SquaredError()}, {"b": 0.5})
        net = singanet.FeedForwardNet(loss=loss, seed=0)
        first = net.add(Dense("first", 8, input_sample_shape=(6,)))
        net.add(Dense("a", 3), src=first)
        net.add(Dense("b", 2), src=first)
        net.programs.enabled = records
        net.compile(SGD(lr=0.1))
        return fit(net, FitOptions(x, y, 16, 3, verbose=False).in_parts(micro_batch))

    whole = trained(None)
    for size in (5, 8):
        for name, values in trained(size).items():
            np.testing.assert_allclose(values, whole[name], rtol=1e-6, err_msg=name)


CLASSES = 4
LOSSES = [SoftmaxCrossEntropy, CategoricalCrossEntropy, singanet.loss.SoftmaxFocal]


def _probabilities(scores):
    p = np.exp(scores - scores.max(-1, keepdims=True)).reshape(-1, scores.shape[-1])
    return p / p.sum(1, keepdims=True)


def sk():
    return pytest.importorskip("sklearn.metrics", reason="compares: pip install '.[peers]'")


def _auc(p, labels):
    return np.mean([sk().roc_auc_score(labels == k, p[:, k]) for k in np.unique(labels)])


def _top(p, labels):
    return sk().top_k_accuracy_score(labels, p, k=2, labels=range(CLASSES))


def _of_classes(name, **named):
    return lambda p, y: getattr(sk(), f"{name}_score")(y, p.argmax(1), zero_division=0, **named)


METRICS = {
    "accuracy": (Accuracy, lambda p, labels: sk().accuracy_score(labels, p.argmax(1))),
    "top": (lambda: Accuracy(2), _top), "f1": (metric.F1, _of_classes("f1", average="macro")),
    "fbeta": (
        lambda: metric.FBeta(2.0, "weighted"), _of_classes("fbeta", beta=2, average="weighted")
    ),
    "precision": (metric.PrecisionScore, _of_classes("precision", average="macro")),
    "recall": (lambda: metric.RecallScore("micro"), _of_classes("recall", average="micro")),
    "iou": (metric.IOU, _of_classes("jaccard", average="macro")),
    "perplexity": (Perplexity, lambda p, y: np.exp(-np.log(p[np.arange(len(p)), y]).mean())),
    "auc": (lambda: metric.AUC(average="macro"), _auc),
    "share": (Share, lambda p, labels: float((labels == 0).mean()))
}  # fmt: skip


MADE = {name: make for name, (make, _) in METRICS.items()}


def expected(p, y, ignored=-1, loss=SoftmaxCrossEntropy):
    """sklearn's results for the positions that count, of probabilities ``p`` (..., C)."""
    p, y = p.reshape(-1, CLASSES).astype(np.float64), y.reshape(-1)
    p, y = p[y != ignored], y[y != ignored]
    found = {name: judge(p, y) for name, (_, judge) in METRICS.items()}
    if loss is CategoricalCrossEntropy:
        # Perplexity takes the softmax of its inputs, here of probabilities.
        found["perplexity"] = METRICS["perplexity"][1](_probabilities(p), y)
    return found


def net_of(kind, loss, ignored=-1):
    ends = [Softmax("softmax", axis=-1)] if loss is CategoricalCrossEntropy else []
    if kind == "pixels":
        conv = Conv2D("conv", CLASSES, 3, input_sample_shape=(2, 4, 5))
        body = [conv, Permute("last", (2, 3, 1))]
    else:
        body = [Dense("fc", CLASSES, input_sample_shape=SHAPES[kind][0])]
    return FeedForwardNet([*body, *ends], loss=loss(ignore_index=ignored), seed=1)


SHAPES = {"samples": ((3,), ()), "steps": ((5, 3), (5,)), "pixels": ((2, 4, 5), (4, 5))}


def data_of(kind, samples=24, ignored=-1, seed=0, column=False):
    rng = np.random.default_rng(seed)
    inner, outer = SHAPES[kind]
    x = rng.standard_normal((samples, *inner)).astype(np.float32)
    y = rng.integers(0, CLASSES, (samples, *outer))
    y[rng.random(y.shape) < 0.4] = ignored
    y[3:6] = ignored  # a batch of which nothing counts
    return x, y[..., None] if column else y


def expect_metrics(found, wanted, names=METRICS, **tolerance):
    for name in names:
        assert found[name] == pytest.approx(wanted[name], **{"abs": 1e-5, **tolerance}), name


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("ignored", [-1, 2])
def test_evaluate_and_fit_count_what_the_loss_counts(kind, loss, ignored):
    x, y = data_of(kind, ignored=ignored, column=kind == "steps")
    net = net_of(kind, loss, ignored)
    net.compile(SGD(0.0), net.loss, {name: make() for name, make in MADE.items()})
    wanted = expected(net.predict(x), y, ignored, loss)
    for size in (None, 3):
        expect_metrics(net.evaluate(x, y, batch_size=size).logs, wanted)
    for call in (net.test_on_batch, net.train_on_batch):
        expect_metrics(call(x, y), wanted)
    given = {"batch_size": 3, "epochs": 2, "validation_data": (x, y), "shuffle": False}
    for recorded in (False, True):
        net.programs.enabled = recorded
        history = net.fit(x, y, verbose=False, **given)
        for k, side in ((k, side) for k in range(2) for side in ("", "val_")):
            expect_metrics({name: history[f"{side}{name}"][k] for name in METRICS}, wanted)


@pytest.mark.parametrize("name", METRICS)
def test_the_metric_of_a_net(name):
    x, y = data_of("steps")
    net = net_of("steps", SoftmaxCrossEntropy)
    net.metric = MADE[name]()
    wanted = expected(net.predict(x), y)[name]
    found = [net.step(x, y, SGD(0.0))[1] for _ in range(3)]
    found += [net.train(x, y)[1][1], net.evaluate(x, y)[1], net.evaluate(x, y, batch_size=3)[1]]
    assert found == pytest.approx([wanted] * 6, abs=1e-5)


def test_matrices_of_several_outputs_with_a_mask_and_weights():
    x, y = data_of("steps")
    there = np.random.default_rng(4).random((24, 5)) < 0.7
    weight = np.random.default_rng(5).random((24, 5)).astype(np.float32)
    inp, mask = Input("x", (5, 3)), Input("mask", (5,))
    out = Dense("fc", CLASSES)(inp)
    net = FeedForwardNet(inputs=[inp, mask], outputs=[out, mask], seed=0)
    net.compile(
        SGD(0.0), MultiLoss({"fc": SoftmaxCrossEntropy(ignore_index=-1)}, masks={"fc": "mask"}),
        {"fc": [Accuracy(), ConfusionMatrix()]}, weighted_metrics={"fc": {"weighed": Accuracy()}}
    )  # fmt: skip
    fed, counts = {"x": x, "mask": there.astype(np.float32)}, there & (y >= 0)
    taken = net.predict(fed)["fc"].argmax(-1)
    for size in (None, 3):
        logs = net.evaluate(fed, {"fc": y}, size, sample_weight=weight).logs
        matrix = sk().confusion_matrix(y[counts], taken[counts], labels=range(CLASSES))
        assert np.array_equal(logs["fc_confusion_matrix"], matrix)
        assert logs["fc_accuracy"] == pytest.approx(sk().accuracy_score(y[counts], taken[counts]))
        weighed = sk().accuracy_score(y[counts], taken[counts], sample_weight=weight[counts])
        assert logs["fc_weighed"] == pytest.approx(weighed, rel=1e-6)


@pytest.mark.parametrize("name", METRICS)
def test_in_a_program_of_an_executor(name):
    x, y = data_of("steps")
    inp, labels = Input("x", (5, 3)), Input("labels", (5,), dtype="int64")
    scores = Dense("fc", CLASSES)(inp)
    loss = SoftmaxCrossEntropy(ignore_index=-1)(scores, labels)
    executor = Executor({"train": [scores, loss, MADE[name]()(scores, labels)]}, seed=0)
    for _ in range(3):
        made, _, found = executor.run("train", {"x": x, "labels": y})
        assert found == pytest.approx(expected(_probabilities(made), y)[name], abs=1e-5)


def test_a_head_in_blocks(monkeypatch):
    monkeypatch.setattr("singanet.loss.head_loss.BLOCK", 1)
    monkeypatch.setattr("singanet.loss.head_loss.FEWEST_ROWS", 4)
    x, y = data_of("steps")
    names = ["accuracy", "top", "perplexity"]
    net = net_of("steps", SoftmaxCrossEntropy)
    net.compile(SGD(0.0), net.loss, {name: MADE[name]() for name in names})
    wanted = expected(_probabilities(net.forward(False, x)), y)
    assert isinstance(net.layers[0], Dense)
    expect_metrics(net.evaluate(x, y).logs, wanted, names)
    expect_metrics(net.evaluate(x, y, batch_size=3).logs, wanted, names)
    for _ in range(3):
        expect_metrics(net.train_on_batch(x, y), wanted, names)
    net.metric = MADE["top"]()
    found = [net.step(x, y, SGD(0.0))[1] for _ in range(3)]
    assert found == pytest.approx([wanted["top"]] * 3)


def test_the_file_of_a_confusion_log(tmp_path):
    x, y = data_of("steps")
    net = net_of("steps", SoftmaxCrossEntropy)
    net.compile(SGD(0.0))
    log = ConfusionLog(tmp_path / "confusion.csv")
    net.fit(x, y, batch_size=3, validation_data=(x, y), callbacks=[log], verbose=False)
    counts, taken = y >= 0, net.predict(x).argmax(-1)
    matrix = sk().confusion_matrix(y[counts], taken[counts])
    write_confusion(tmp_path / "wanted.csv", matrix)
    assert (tmp_path / "confusion.csv").read_text() == (tmp_path / "wanted.csv").read_text()
    assert str(matrix[0, 1]) in (tmp_path / "wanted.csv").read_text()


def test_ranks_merge_what_their_losses_count():
    x, y = data_of("steps", samples=23)
    names = [name for name in METRICS if name != "share"]
    whole = net_of("steps", SoftmaxCrossEntropy)
    wanted = expected(whole.predict(x), y)

    def measure(comm):
        net = net_of("steps", SoftmaxCrossEntropy)
        rule = AllReduce(SGD(0.0), comm)
        net.compile(rule, net.loss, {name: MADE[name]() for name in names})
        logs = net.evaluate(x, y, batch_size=3).logs
        history = net.fit(x, y, batch_size=3, shuffle=False, verbose=False)
        return logs, {name: history[name][0] for name in names}

    with communicators(2) as comms, ThreadPoolExecutor(2) as pool:
        for found in pool.map(measure, comms):
            for logs in found:
                expect_metrics(logs, wanted, names)
