"""A fit holds one batch: it lets go of what it was fed before it asks for more."""

import weakref

import numpy as np
import pytest

import singanet
from singanet.data import GeneratorLoader
from singanet.layers import Dense
from singanet.loss import SquaredError
from singanet.optimizer import SGD
from singanet.training.callbacks import Callback


class Counted(np.ndarray):
    """An array that can be asked whether it is still there."""


class Watch:
    """Batches of ``(x, y)``, and how many of their inputs were there as each next one was asked."""

    def __init__(self, count=4):
        self.count, self.alive, self.seen = count, [], []

    def __iter__(self):
        for _ in range(self.count):
            self.seen.append(sum(ref() is not None for ref in self.alive))
            x = np.ones((2, 3), np.float32).view(Counted)
            self.alive.append(weakref.ref(x))
            batch = x, np.ones((2, 1), np.float32)
            del x
            yield batch
            del batch
        self.seen.append(sum(ref() is not None for ref in self.alive))

    def __len__(self):
        return self.count


class Told(Callback):
    """A user's callback that holds nothing."""

    def on_batch_end(self, batch, logs):
        assert logs["loss"] >= 0


def compiled():
    net = singanet.FeedForwardNet(seed=0)
    net.add(Dense("fc", 1, input_sample_shape=(3,)))
    net.compile(SGD(lr=0.1), SquaredError())
    return net


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("given", [{}, {"steps_per_epoch": 3}, {"callbacks": (Told(),)}])
def test_a_fit_lets_go_of_a_batch_before_it_draws_the_next(wrapped, given):
    source = Watch()
    data = GeneratorLoader(lambda epoch: source) if wrapped else source
    compiled().fit(data, epochs=2, verbose=False, **given)
    assert len(source.seen) > 4
    assert max(source.seen) == 0


def test_an_evaluation_lets_go_of_a_batch_before_it_draws_the_next():
    source = Watch()
    compiled().evaluate(source)
    assert source.seen == [0] * 5
