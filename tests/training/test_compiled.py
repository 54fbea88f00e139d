from __future__ import annotations

import pytest

import singanet
from singanet.errors import ArgumentError, CallOrderError
from singanet.layers import Dense
from singanet.loss import SoftmaxCrossEntropy, SquaredError
from singanet.metric import F1, Accuracy, MeanAbsoluteError, Recall
from singanet.optimizer import SGD


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
        ({"optimizer": "adam"}, r"a str; pass optimizer=SGD\(lr=0.1\)"),
        ({"optimizer": SGD}, "optimizer"),
        ({"optimizer": SGD(lr=0.1)}, "the net has none; received None"),
        ({"optimizer": SGD(lr=0.1), "loss": "mse"}, "a str; pass loss="),
        ({"optimizer": SGD(lr=0.1), "loss": SquaredError(), "metrics": ["acc"]}, "metrics"),
        ({"optimizer": SGD(lr=0.1), "loss": SquaredError(), "metrics": {"loss": F1()}}, "'loss'"),
        ({"optimizer": SGD(lr=0.1), "loss": SquaredError(), "metrics": {"val_a": F1()}}, "val_a"),
    ],
)
def test_what_is_none_is_refused_and_nothing_changed(given, words):
    made = net()
    with pytest.raises(ArgumentError, match=words):
        made.compile(**given)
    assert (made.loss, made.metric, made.compiled) == (None, None, None)


def test_one_metric_object_under_two_names():
    metric = Accuracy()
    with pytest.raises(ArgumentError, match="more than once"):
        net(SquaredError()).compile(SGD(lr=0.1), metrics=[metric, metric])


def test_single_batches_need_it():
    with pytest.raises(CallOrderError, match="net.compile"):
        net(SquaredError()).train_on_batch([[1.0] * 5], [[0.0] * 3])
