from __future__ import annotations

import numpy as np
import pytest

from singanet.errors import ArgumentError
from singanet.training import Callback
from singanet.training.callbacks import EMA


class Trail(Callback):
    """The first parameter after every step."""

    def __init__(self):
        self.values = []

    def on_train_begin(self):
        self.values.append(self.session.net.param_values()[0].copy())

    def on_batch_end(self, batch, logs):
        self.values.append(self.session.net.param_values()[0].copy())


@pytest.mark.parametrize("keep", [True, False])
def test_the_average_of_all_steps(build, data, keep):
    net, trail, ema = build(), Trail(), EMA(0.7, keep_at_end=keep)
    net.fit(*data, batch_size=10, epochs=2, callbacks=[trail, ema], verbose=False)
    steps = len(trail.values) - 1
    shares = [0.7**steps, *(0.3 * 0.7 ** (steps - k) for k in range(1, steps + 1))]
    assert sum(shares) == pytest.approx(1.0)
    wanted = sum(share * value for share, value in zip(shares, trail.values, strict=True))
    np.testing.assert_allclose(ema.averages["fc1/weight"], wanted, rtol=1e-4, atol=1e-6)
    got = net.param_values()[0]
    np.testing.assert_array_equal(got, ema.averages["fc1/weight"] if keep else trail.values[-1])


def test_lent_to_the_net_and_given_back(build, data):
    net, ema = build(), EMA(0.5, keep_at_end=False)
    net.fit(*data, callbacks=[ema], verbose=False)
    own = net.predict(data[0])
    lent = []

    def use():
        with ema.applied(net):
            lent.append(net.predict(data[0]))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        use()
    assert not np.array_equal(lent[0], own)
    np.testing.assert_array_equal(net.predict(data[0]), own)


def test_a_decay_below_one():
    with pytest.raises(ArgumentError, match="decay"):
        EMA(1.0)
