"""Copies of losses between a forward and a backward that is not to come."""

import copy
import pickle

import numpy as np
import pytest

import singanet
from singanet.errors import CallOrderError
from singanet.layers import Dense
from singanet.loss import MultiLoss, SoftmaxCrossEntropy
from singanet.optimizer import SGD

X, Y = np.ones((4, 3), np.float32), np.zeros(4, int)


def raises(outputs, targets):
    raise RuntimeError("a metric of one's own")


@pytest.mark.parametrize("recorded", [True, False])
def test_a_net_whose_measure_raised_is_copied_and_predicts(recorded):
    net = singanet.FeedForwardNet(
        [Dense("a", 2, input_sample_shape=(3,))], loss=SoftmaxCrossEntropy(), seed=0
    )
    net.programs.enabled = recorded
    with pytest.raises(RuntimeError, match="of one's own"):
        net.step(X, Y, SGD(0.1), measure=raises)
    wanted = net.predict(X)
    np.testing.assert_allclose(net.predictor()(X), wanted, rtol=1e-6)
    for made in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        np.testing.assert_array_equal(made.predict(X), wanted)


@pytest.mark.parametrize("several", [False, True])
def test_a_copy_has_had_no_forward(several):
    loss = SoftmaxCrossEntropy()
    x, y = np.ones((4, 2), np.float32), Y
    if several:
        loss, x, y = MultiLoss({"a": loss}), {"a": x}, {"a": y}
    loss.forward(True, x, y)
    made = pickle.loads(pickle.dumps(loss))
    with pytest.raises(CallOrderError):
        made.backward()
    loss.backward()
