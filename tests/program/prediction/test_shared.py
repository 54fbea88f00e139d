"""Predictions whose kernels threads share, beside other programs."""

import numpy as np
import pytest

from singanet.ops import threads
from singanet.ops.threads import is_alone
from singanet.program.ir import NotRecordableError
from singanet.program.prediction.shared import SharedPrediction


class Program:
    """Twice the input, with a note of who computes; ``error`` is added to the results."""

    def __init__(self, ran, error=0.0, nbytes=8):
        self.ran, self.error, self.arena_bytes = ran, error, nbytes
        self.has_holes, self.notes, self.outside = False, [], []

    def memory(self, nbytes, holes=False):
        return np.zeros(nbytes, np.uint8)

    def forget(self):
        pass

    def run(self, arena, x, out=None):
        assert len(arena) >= self.arena_bytes
        self.ran.append(is_alone())
        return x["a"] * 2 + self.error if type(x) is dict else x * 2 + self.error


def shared(ran, busy, record):
    return SharedPrediction(Program(ran), record, ["a"], lambda: busy[0])


@pytest.mark.parametrize("error", [0.0, 1.0])
def test_one_thread_serves_beside_others_if_it_gives_the_same_bits(error):
    ran, busy, fed = [], [False], []

    def record(given):
        assert is_alone()
        fed.append(given)
        return Program(ran, error, nbytes=100)

    made = shared(ran, busy, record)
    x = np.arange(6.0).reshape(2, 3)
    for is_busy in (False, True, True):
        busy[0] = is_busy
        found = made.run(made.memory(made.arena_bytes), x)
        np.testing.assert_array_equal(found, 2 * x)
    (given,) = fed
    assert given["a"].shape == x.shape
    assert not np.array_equal(given["a"], x)
    assert made.arena_bytes == (8 if error else 100)
    assert len(made.outside) == 0
    ran.clear()
    for is_busy in (True, False):
        busy[0] = is_busy
        np.testing.assert_array_equal(made.run(made.memory(100), x), 2 * x)
    # One thread only beside others, and only if its bits are right.
    assert ran == [not error, False]


def test_what_cannot_be_recorded_again_stays_shared():
    def record(given):
        raise NotRecordableError("no")

    ran, x = [], np.ones((1, 2))
    made = shared(ran, [True], record)
    for _ in range(2):
        np.testing.assert_array_equal(made.run(made.memory(8), x), 2 * x)
    assert ran == [False, False]


@pytest.mark.skipif(threads.cores() < 2, reason="one core")
def test_bits_of_a_net_do_not_depend_on_who_computes(monkeypatch):
    import singanet
    from singanet.layers import Activation, Dense

    monkeypatch.setattr(threads, "_setting", threads._Setting())
    threads._changed(2)
    net = singanet.FeedForwardNet(None, seed=0)
    net.add(Dense("a", 700, input_sample_shape=(800,)))
    net.add(Activation("relu"))
    net.add(Dense("b", 5))
    predictor = net.predictor()
    x = np.random.default_rng(0).standard_normal((1, 800), np.float32)
    wanted = predictor(x)
    for program in predictor._programs:
        if isinstance(program, SharedPrediction):
            program._is_busy = lambda: True
    for _ in range(3):
        np.testing.assert_array_equal(predictor(x), wanted)
    assert predictor.nbytes > 0
    assert predictor.reports()
