import numpy as np
import pytest

import singanet
from singanet.errors import ArgumentError, CallOrderError, UnknownNameError
from singanet.layers import Activation, Dense, Dummy, Input, Reshape, Softmax
from singanet.loss import (
    CategoricalCrossEntropy,
    Dice,
    KLDivergence,
    MultiLoss,
    SigmoidCrossEntropy,
    SigmoidFocal,
    SoftmaxCrossEntropy,
    SquaredError,
)
from singanet.loss import MeanAbsoluteError as Absolute
from singanet.metric import (
    AUC,
    F1,
    IOU,
    Accuracy,
    BinaryAccuracy,
    MeanAbsoluteError,
    PrecisionScore,
    Recall,
    RecallScore,
)
from singanet.optimizer import SGD, Adam


def net(loss=None, metric=None):
    made = singanet.FeedForwardNet(loss, metric, seed=0)
    made.add(Dense("fc", 3, input_sample_shape=(5,)))
    return made


def test_what_is_left_out_stays_the_nets_own():
    loss, metric = SoftmaxCrossEntropy(), Accuracy()
    made = net(loss, metric)
    made.compile(SGD(lr=0.1))
    assert made.loss is loss
    assert made.compiled.metrics == {"accuracy": metric}
    other = SquaredError()
    made.compile(SGD(lr=0.1), other, [])
    assert made.loss is other
    assert made.metric is None


def test_names_of_metrics():
    made = net(SoftmaxCrossEntropy())
    first = Accuracy()
    made.compile(SGD(lr=0.1), metrics=[first, MeanAbsoluteError(), F1(), Accuracy(2), Accuracy(3)])
    assert list(made.compiled.metrics) == [
        "accuracy", "mean_absolute_error", "f1", "accuracy_2", "accuracy_3",
    ]  # fmt: skip
    assert made.metric is first
    made.compile(SGD(lr=0.1), metrics={"top 2": Accuracy(2)})
    assert list(made.compiled.metrics) == ["top 2"]
    made.compile(SGD(lr=0.1), metrics=Recall())
    assert list(made.compiled.metrics) == ["recall"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"optimizer": 0.1}, r"a float; pass optimizer=SGD\(learning_rate=0.1\)"),
        ({"optimizer": SGD}, r"the class SGD; write SGD\(learning_rate=0.1\), an object"),
        ({"optimizer": SGD(lr=0.1)}, "the net has none; received None"),
        ({"optimizer": SGD(lr=0.1), "loss": SquaredError}, "the class SquaredError"),
        ({"optimizer": SGD(lr=0.1), "loss": {"a": "mse"}}, r"loss=MultiLoss\(\{'a': "),
        (
            {"optimizer": SGD(lr=0.1), "loss": ("mse", "mse")},
            "a tuple of 2; name outputs: loss=MultiLoss",
        ),
        ({"optimizer": SGD(lr=0.1), "loss": MeanAbsoluteError()}, "import it from singanet.loss"),
        ({"optimizer": "sgd", "loss": "mse", "metrics": [Accuracy]}, "the class Accuracy"),
        (
            {"optimizer": "sgd", "loss": "mse", "metrics": [Absolute()]},
            "import it from singanet.metric",
        ),
        ({"optimizer": SGD(lr=0.1), "loss": SquaredError(), "metrics": {"loss": F1()}}, "'loss'"),
        ({"optimizer": SGD(lr=0.1), "loss": SquaredError(), "metrics": {"val_a": F1()}}, "val_a"),
    ],
)
def test_what_is_none_is_refused_and_nothing_changed(given, words):
    made = net()
    with pytest.raises(ArgumentError, match=words):
        made.compile(**given)
    assert (made.loss, made.metric, made.compiled) == (None, None, None)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("adamm", "mse"), "did you mean 'adam'"),
        (("adam", "softmax_entropy"), "did you mean 'softmax_cross_entropy'"),
        (("adam", "mse", ["acuracy"]), "did you mean 'accuracy'"),
        (("clip_norm", "mse"), "optimizer"),
        (("adam", "loss"), "net.compile, loss"),
        (("adam", "mse", "metric"), "net.compile, metrics"),
    ],
)
def test_unknown_names_are_refused(given, words):
    made = net()
    with pytest.raises(UnknownNameError, match=words):
        made.compile(*given)
    assert (made.loss, made.metric, made.compiled) == (None, None, None)


def test_names_stand_for_objects():
    made = net()
    made.compile("adam", "sparse_categorical_crossentropy", ["accuracy", "AUC"])
    assert type(made.compiled.optimizer) is Adam
    assert made.compiled.optimizer.lr == 0.001
    assert type(made.loss) is CategoricalCrossEntropy
    assert {k: type(v) for k, v in made.compiled.metrics.items()} == {
        "accuracy": Accuracy,
        "auc": AUC,
    }
    made.compile("RMSProp", "binary_crossentropy", ["accuracy", "precision", "f1"])
    kinds = [type(metric) for metric in made.compiled.metrics.values()]
    assert kinds == [BinaryAccuracy, PrecisionScore, F1]
    assert made.compiled.metrics["precision"].threshold == 0.5
    made.compile("rms_prop", "mse", "precision")
    assert made.compiled.metrics["precision"].threshold is None


class OwnYesOrNo(SigmoidCrossEntropy):
    """A user's own."""


@pytest.mark.parametrize("loss", [Dice, SigmoidFocal, SigmoidCrossEntropy, OwnYesOrNo])
def test_metrics_by_name_under_a_loss_of_yes_or_no_outputs_have_a_threshold(loss):
    made = net()
    names = ["accuracy", "f1", "iou", "precision", "recall"]
    made.compile("sgd", loss(), names)
    x, y = np.ones((4, 5), np.float32), np.array([[0, 0, 0], [1, 1, 0]] * 2, np.float32)
    threshold = [
        BinaryAccuracy(),
        *(kind(threshold=0.5) for kind in (F1, IOU, PrecisionScore, RecallScore)),
    ]
    scores = 1 / (1 + np.exp(-made.forward(False, x)))
    seen = made.evaluate(x, y).logs
    assert [seen[name] for name in names] == [
        pytest.approx(metric.evaluate(scores, y)) for metric in threshold
    ]


def test_mse_is_that_of_other_libraries():
    made = net()
    made.compile("sgd", "mse")
    x, y = np.ones((4, 5), np.float32), np.zeros((4, 3), np.float32)
    assert made.evaluate(x, y).loss == pytest.approx(float((made.predict(x) ** 2).mean()))


@pytest.mark.parametrize(
    ("last", "loss", "words"),
    [
        (Softmax("p"), SoftmaxCrossEntropy(), r"CategoricalCrossEntropy\(\)"),
        (Softmax("p"), KLDivergence(), "the softmax layer 'p'"),
        (Softmax("p"), SigmoidCrossEntropy(), "takes the sigmoid itself"),
        (Activation("p", "sigmoid"), SigmoidCrossEntropy(), r"BinaryCrossEntropy\(\)"),
    ],
)
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
    made.compile("adam", MultiLoss({"a": SoftmaxCrossEntropy(), "b": CategoricalCrossEntropy()}))


def test_layers_inside_the_net_may_be_softmaxes():
    parts = [Dense("fc", 3, input_sample_shape=(5,)), Softmax("p"), Dense("end", 3)]
    made = singanet.FeedForwardNet(parts)
    made.compile("adam", loss := SoftmaxCrossEntropy())
    assert made.loss is loss


def test_one_metric_object_under_two_names():
    metric = Accuracy()
    with pytest.raises(ArgumentError, match="more than once"):
        net(SquaredError()).compile(SGD(lr=0.1), metrics=[metric, metric])


def test_single_batches_need_it():
    with pytest.raises(CallOrderError, match="net.compile"):
        net(SquaredError()).train_on_batch([[1.0] * 5], [[0.0] * 3])


def test_one_loss_for_several_outputs_is_refused_before_anything_changes():
    x = singanet.Input("x", (4,))
    outputs = [singanet.layers.Dense("a", 3)(x), singanet.layers.Dense("b", 3)(x)]
    net = singanet.FeedForwardNet(inputs=x, outputs=outputs, seed=0)
    with pytest.raises(ArgumentError, match=r"'a', 'b'.*MultiLoss\(\{'a': SquaredError"):
        net.compile("sgd", singanet.loss.SquaredError())
    assert net.loss is None
    assert net.compiled is None

    class OfBoth(singanet.loss.SquaredError):
        """A user's own may take the dict of all outputs."""

    net.compile("sgd", OfBoth())


@pytest.mark.parametrize("given", ["mse", [singanet.loss.SquaredError()]])
def test_of_several_losses_each_is_an_object(given):
    with pytest.raises(ArgumentError, match="output 'a'.*one loss object"):
        singanet.loss.MultiLoss({"a": given})
