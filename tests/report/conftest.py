import numpy as np
import pytest

from singanet import FeedForwardNet
from singanet.layers import Activation, Dense
from singanet.loss import SoftmaxCrossEntropy
from singanet.metric import Accuracy
from singanet.optimizer import SGD


@pytest.fixture
def net():
    made = FeedForwardNet(seed=0)
    made.add(Dense("fc1", 8, input_sample_shape=(4,)))
    made.add(Activation("relu"))
    made.add(Dense("fc2", 3))
    made.compile(SGD(lr=0.1), SoftmaxCrossEntropy(), metrics=[Accuracy()])
    return made


@pytest.fixture
def data(rng):
    x = rng.standard_normal((60, 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 0)
    return x, y


@pytest.fixture
def fit(net, data):
    """Train ``net`` and validate on the last third."""

    def run(callbacks, epochs=3, **arguments):
        return net.fit(
            *data,
            batch_size=10,
            epochs=epochs,
            validation_split=1 / 3,
            callbacks=callbacks,
            verbose=False,
            **arguments,
        )

    return run
