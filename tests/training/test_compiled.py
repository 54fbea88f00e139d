import numpy as np
import pytest

import singanet
from singanet import loss as losses
from singanet import metric as metrics
from singanet.errors import ArgumentError, CallOrderError, UnknownNameError
from singanet.layers import Activation, Dense, Dummy, Input, Reshape, Softmax
from singanet.loss import MultiLoss, SigmoidCrossEntropy, SoftmaxCrossEntropy, SquaredError
from singanet.metric import F1, Accuracy, BinaryAccuracy
from singanet.optimizer import SGD, Adam


def net(loss=None, metric=None):
    made = singanet.FeedForwardNet(loss, metric, seed=0)
    made.add(Dense("fc", 3, input_sample_shape=(5,)))
    return made


def test_what_is_left_out_stays_the_nets_own():
    loss, metric, other = SoftmaxCrossEntropy(), Accuracy(), SquaredError()
    made = net(loss, metric)
    made.compile(SGD(lr=0.1))
    assert made.loss is loss
    assert made.compiled.metrics == {"accuracy": metric}
    made.compile(SGD(lr=0.1), other, [])
    assert made.loss is other
    assert made.metric is None


def test_names_of_metrics():
    made, first = net(SoftmaxCrossEntropy()), Accuracy()
    given = [first, metrics.MeanAbsoluteError(), F1(), Accuracy(2), Accuracy(3)]
    made.compile(SGD(lr=0.1), metrics=given)
    names = "accuracy mean_absolute_error f1 accuracy_2 accuracy_3"
    assert list(made.compiled.metrics) == names.split()
    assert made.metric is first
    for more, name in (({"top 2": Accuracy(2)}, "top 2"), (metrics.Recall(), "recall")):
        made.compile(SGD(lr=0.1), metrics=more)
        assert list(made.compiled.metrics) == [name]
    with pytest.raises(ArgumentError, match="more than once"):
        made.compile(SGD(lr=0.1), metrics=[first, first])


@pytest.mark.parametrize(("optimizer", "loss", "more", "words"), [
    (0.1, None, None, r"a float; pass optimizer=SGD\(learning_rate=0.1\)"),
    (SGD, None, None, r"the class SGD; write SGD\(learning_rate=0.1\), an object"),
    (SGD(lr=0.1), None, None, "the net has none; received None"),
    ("sgd", SquaredError, None, "the class SquaredError"),
    ("sgd", {"a": "mse"}, None, r"loss=MultiLoss\(\{'a': "),
    ("sgd", ("mse", "mse"), None, "a tuple of 2; name outputs: loss=MultiLoss"),
    ("sgd", metrics.MeanAbsoluteError(), None, "import it from singanet.loss"),
    ("sgd", "mse", [Accuracy], "the class Accuracy"),
    ("sgd", "mse", [losses.MeanAbsoluteError()], "import it from singanet.metric"),
    ("sgd", "mse", {"loss": F1()}, "'loss'"), ("sgd", "mse", {"val_a": F1()}, "val_a"),
    ("adamm", "mse", None, "did you mean 'adam'"),
    ("adam", "softmax_entropy", None, "did you mean 'softmax_cross_entropy'"),
    ("adam", "mse", ["acuracy"], "did you mean 'accuracy'"),
    ("clip_norm", "mse", None, "optimizer"), ("adam", "loss", None, "net.compile, loss"),
    ("adam", "mse", "metric", "net.compile, metrics")
])  # fmt: skip
def test_what_is_none_is_refused_and_nothing_changed(optimizer, loss, more, words):
    made = net()
    with pytest.raises((ArgumentError, UnknownNameError), match=words):
        made.compile(optimizer, loss, more)
    assert (made.loss, made.metric, made.compiled) == (None, None, None)
    with pytest.raises(CallOrderError, match="net.compile"):
        net(SquaredError()).train_on_batch([[1.0] * 5], [[0.0] * 3])


def test_names_stand_for_objects():
    def kinds():
        return {name: type(metric) for name, metric in made.compiled.metrics.items()}

    made = net()
    made.compile("adam", "sparse_categorical_crossentropy", ["accuracy", "AUC"])
    assert type(made.compiled.optimizer) is Adam
    assert made.compiled.optimizer.lr == 0.001
    assert type(made.loss) is losses.CategoricalCrossEntropy
    assert kinds() == {"accuracy": Accuracy, "auc": metrics.AUC}
    made.compile("RMSProp", "binary_crossentropy", ["accuracy", "precision", "f1"])
    assert [*kinds().values()] == [BinaryAccuracy, metrics.PrecisionScore, F1]
    assert made.compiled.metrics["precision"].threshold == 0.5
    made.compile("rms_prop", "mse", "precision")
    assert made.compiled.metrics["precision"].threshold is None


class OwnYesOrNo(SigmoidCrossEntropy):
    """A user's own."""


@pytest.mark.parametrize("loss",
    [losses.Dice, losses.SigmoidFocal, SigmoidCrossEntropy, OwnYesOrNo])  # fmt: skip
def test_metrics_by_name_under_a_loss_of_yes_or_no_outputs_have_a_threshold(loss):
    made, names = net(), ["accuracy", "f1", "iou", "precision", "recall"]
    made.compile("sgd", loss(), names)
    x, y = np.ones((4, 5), np.float32), np.array([[0, 0, 0], [1, 1, 0]] * 2, np.float32)
    kinds = F1, metrics.IOU, metrics.PrecisionScore, metrics.RecallScore
    scores, seen = 1 / (1 + np.exp(-made.forward(False, x))), made.evaluate(x, y).logs
    threshold = [BinaryAccuracy(), *(kind(threshold=0.5) for kind in kinds)]
    for name, metric in zip(names, threshold, strict=True):
        assert seen[name] == pytest.approx(metric.evaluate(scores, y))


def test_mse_is_that_of_other_libraries():
    made = net()
    made.compile("sgd", "mse")
    x, y = np.ones((4, 5), np.float32), np.zeros((4, 3), np.float32)
    assert made.evaluate(x, y).loss == pytest.approx(float((made.predict(x) ** 2).mean()))


@pytest.mark.parametrize(("last", "loss", "words"), [
    (Softmax("p"), SoftmaxCrossEntropy(), r"CategoricalCrossEntropy\(\)"),
    (Softmax("p"), losses.KLDivergence(), "the softmax layer 'p'"),
    (Softmax("p"), SigmoidCrossEntropy(), "applies the sigmoid itself"),
    (Activation("p", "sigmoid"), SigmoidCrossEntropy(), r"BinaryCrossEntropy\(\)"),
])  # fmt: skip
def test_a_softmax_of_a_softmax_is_refused(last, loss, words):
    parts = [Dense("fc", 3, input_sample_shape=(5,)), last, Reshape("r", (3,)), Dummy("end")]
    made = singanet.FeedForwardNet(parts)
    with pytest.raises(ArgumentError, match=words):
        made.compile(SGD(lr=0.1), loss)
    assert made.compiled is None
    made.loss = loss
    with pytest.raises(ArgumentError, match=words):
        made.train(np.ones((2, 5), np.float32), np.full((2, 3), 1 / 3, np.float32))


def test_a_softmax_of_a_softmax_in_one_of_several_outputs():
    x = Input("x", (5,))
    a, b = Dense("a", 3)(x), Softmax("b")(Dense("fc", 3)(x))
    made = singanet.FeedForwardNet(inputs=x, outputs=[a, b])
    with pytest.raises(ArgumentError, match="'b'"):
        made.compile("adam", MultiLoss({"a": SoftmaxCrossEntropy(), "b": SoftmaxCrossEntropy()}))
    made.compile(
        "adam", MultiLoss({"a": SoftmaxCrossEntropy(), "b": losses.CategoricalCrossEntropy()})
    )
    inside = [Dense("fc", 3, input_sample_shape=(5,)), Softmax("p"), Dense("end", 3)]
    singanet.FeedForwardNet(inside).compile("adam", SoftmaxCrossEntropy())


def test_one_loss_for_several_outputs_is_refused_before_anything_changes():
    x = Input("x", (4,))
    made = singanet.FeedForwardNet(inputs=x, outputs=[Dense("a", 3)(x), Dense("b", 3)(x)], seed=0)
    with pytest.raises(ArgumentError, match=r"'a', 'b'.*MultiLoss\(\{'a': SquaredError"):
        made.compile("sgd", SquaredError())
    assert (made.loss, made.compiled) == (None, None)

    class OfBoth(losses.SquaredError):
        """A user's own may take the dict of all outputs."""

    made.compile("sgd", OfBoth())
    for given in ("mse", [SquaredError()]):
        with pytest.raises(ArgumentError, match="output 'a'.*one loss object"):
            MultiLoss({"a": given})
