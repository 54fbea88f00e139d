import numpy as np
import pytest

from singanet.errors import DataError
from singanet.metric import F1, Accuracy
from singanet.optimizer import SGD


def test_train_on_batch_is_a_step(build, data, same):
    net, other = build(), build()
    optimizer = SGD(lr=0.1, momentum=0.9)
    for _ in range(3):
        loss, accuracy = other.step(*data, optimizer)
        assert net.train_on_batch(*data) == {
            "loss": pytest.approx(loss, rel=1e-12), "accuracy": accuracy
        }  # fmt: skip
    same(net, other)


def test_test_on_batch_is_an_evaluation_and_leaves_the_net(build, data, same):
    net, untouched = build(metrics=[Accuracy(), F1()]), build()
    found = net.test_on_batch(*data)
    loss, accuracy = net.evaluate(*data)
    assert found["loss"] == pytest.approx(loss, rel=1e-6)
    assert found["accuracy"] == accuracy
    assert found["f1"] == F1().evaluate(net.forward(False, data[0]), data[1])
    same(net, untouched)


def test_weights_of_a_batch(build, data):
    weight = np.arange(50.0)
    net = build()
    x, y = data
    losses = [net.test_on_batch(x[k : k + 1], y[k : k + 1])["loss"] for k in range(50)]
    wanted = np.mean(np.array(losses) * weight)
    assert net.test_on_batch(x, y, weight)["loss"] == pytest.approx(wanted, rel=1e-5)
    with pytest.raises(DataError, match="sample_weight: 49"):
        net.train_on_batch(x, y, weight[:49])
